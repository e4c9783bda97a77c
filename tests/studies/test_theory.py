"""The estimators where the constants are known, and the papers' bounds computed by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.methods import build_method
from protofed.methods.convergence import Bound, Estimates, Used
from protofed.methods.fedproto import FedProto
from protofed.methods.mp_fedcl import MPFedCL
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import new_run
from protofed.studies.theory import Trend, bounds_of, examine, lipschitz, smoothness, spread, trends
from tests.support.killed import KillAfter, Killed
from tests.support.made_rounds import a_round

FOUND = Estimates(
    L1=2.0,
    L2=0.5,
    variance=3.0,
    G=1.0,
    steps=4,
    least_gradient=4.0,
    mean_gradient=5.0,
    global_gradient=2.5,
)
USED = Used(rate=0.1, rounds=10, first_loss=2.3, classes=3)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_smoothness_of_a_quadratic_is_its_largest_curvature() -> None:
    turn, _ = torch.linalg.qr(random(5, 5))
    curvature = turn @ torch.diag(torch.tensor([1.0, -7.0, 0.5, 2.0, 3.0], dtype=torch.float64)) @ turn.T
    found = smoothness(lambda weights: curvature @ weights - 1, random(5), torch.ones(5, dtype=torch.float64))
    assert found == pytest.approx(7, rel=1e-5)


def test_the_lipschitz_constant_of_a_linear_encoder_is_its_longest_input() -> None:
    x = random(6, 3)
    x[2] *= 10
    found = lipschitz(lambda weights: x @ weights.view(3, 4), random(12), torch.ones(12, dtype=torch.float64))
    assert found == pytest.approx(float(x[2].norm()), rel=1e-6)


def test_features_that_do_not_change_have_the_constant_zero() -> None:
    assert lipschitz(lambda weights: 0 * weights.view(1, -1), random(4), random(4)) == 0


def test_the_spread_of_gradients() -> None:
    mean, variance, norm = spread(iter(torch.tensor([[3.0, 4.0], [-3.0, 4.0]])))
    assert mean.tolist() == [0, 4]
    assert (variance, norm) == (9, 5)


def bounds(method: str, found: Estimates = FOUND, used: Used = USED, **params: Any) -> dict[tuple[str, str], Bound]:
    return {(bound.quantity, bound.equation): bound for bound in bounds_of(build_method(method, params), found, used)}


def test_the_bounds_of_fedproto() -> None:
    by_name = bounds("fedproto", lam=0.5)
    assert {name: bound.bound for name, bound in by_name.items()} == pytest.approx(
        {
            ("learning rate", "Eq. 16"): 2 * (4 - 0.5 * 0.5 * 4 * 1) / (2 * (4 + 4 * 3)),
            ("lambda", "Eq. 17"): 4 / (0.5 * 4 * 1),
            ("rounds", "Eq. 18"): 4.6 / (4 * 5 * (0.2 - 0.02) - 4 * 0.1 * (2 * 0.1 * 3 + 2 * 0.5 * 0.5)),
            ("learning rate", "Theorem 2"): 2 * (5 - 0.25) / (2 * (5 + 3)),
            ("lambda", "Theorem 2"): 5 / 0.5,
        }
    )
    assert all(bound.holds for bound in by_name.values())  # 4.6 / 3.16 rounds are enough
    assert not bounds("fedproto", used=replace(USED, rounds=1))["rounds", "Eq. 18"].holds


def test_a_large_lambda_leaves_no_learning_rate_and_no_number_of_rounds() -> None:
    by_name = bounds("fedproto", lam=100.0)
    assert by_name["learning rate", "Eq. 16"].bound < 0
    assert by_name["rounds", "Eq. 18"].bound == float("inf")
    assert not any(bound.holds for bound in by_name.values())


@pytest.mark.parametrize("method", ["mp-fedcl", "sp-fedcl"])
def test_the_bounds_of_mp_fedcl(method: str) -> None:
    by_name = bounds(method, temperature=0.5)
    pull = 2 * 0.5 * 1 / 0.5  # (classes − 1) L2 G / τ
    assert {name: bound.bound for name, bound in by_name.items()} == pytest.approx(
        {
            ("learning rate", "Eq. 21"): 1 - 2 * pull / (2 * 2 * 2.5),  # δ² = 2, ‖∇L‖² = 2.5
            ("learning rate", "Eq. 22"): 1 - 2 * pull / (2 * 2 * 2.5),
            ("rounds", "Eq. A17"): 2.3 / ((0.1 - 0.01) * 2 * 2.5 - 0.1 * pull),
        }
    )


def test_the_bounds_of_fedsc() -> None:
    by_name = bounds("fedsc", replace(FOUND, L2=0.1), neighbours=2, rpcl_weight=1.0, cpdr_weight=1.0)
    assert {name: bound.bound for name, bound in by_name.items()} == pytest.approx(
        {
            ("learning rate", "Eq. 18"): (2 * 3 * 1 - 2 * 4 * 0.1 * 3 * 1) / (2 * 3 * (3 + 1)),
            ("rounds", "Eq. 19"): 2 * 3 * 2.3 / (5 * 4 * 0.1 * 3 * (2 - 0.2) - (3 * 2 * 4 * 0.01 * 3 + 8 * 0.1 * 1.2)),
            ("learning rate", "Eq. 20"): (2 * 5 * 3 - 2.4) / (2 * 3 * (5 + 3)),
        }
    )


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fedavg", {}),
        ("dp-fedcl", {}),
        ("fedproto", {"share_weights": True}),
        ("mp-fedcl", {"contrast": "none"}),
        ("fedsc", {"rpcl_weight": 1.0, "cpdr_weight": 0.0}),
        ("fedsc", {}),
    ],
)
def test_other_objectives_have_no_bound(method: str, params: dict[str, Any]) -> None:
    assert bounds(method, **params) == {}


@dataclass(frozen=True)
class Heir(FedProto):
    """Says nothing of bounds."""


@dataclass(frozen=True)
class Stater(FedProto):
    """Says that FedProto's bounds are its own."""

    def bounds(self, found: Estimates, used: Used) -> Sequence[Bound]:
        return super().bounds(found, used)


def test_a_subclass_has_bounds_only_if_it_says_so() -> None:
    assert bounds_of(Heir(), FOUND, USED) == []
    assert bounds_of(Stater(), FOUND, USED) == bounds_of(FedProto(), FOUND, USED) != []


def growth(before: Sequence[float], after: Sequence[float]) -> float:
    """How much −log softmax of class 0 grows when prototypes move, one number each, v = τ = 1: log(Z / Z') in A9."""
    z, later = (torch.tensor(u, dtype=torch.float64).log_softmax(-1)[0] for u in (before, after))
    return float(z - later)


def test_the_proof_of_mp_fedcls_lemma_2_is_wrong() -> None:
    """C = 2, u_p from 1 to 0, u_a = 0. The proof's bound, before Lipschitz constants: Σ_{a ≠ p} ‖u_a' − u_a‖."""
    left, right = growth([1, 0], [0, 0]), 0
    assert left == pytest.approx(0.38, abs=0.005)
    assert left > right
    # Eq. A9: exp(u_p − u_p') Σ_a exp(u_a' − u_a) is said to be Z / Z'; it is 3.72, and Z / Z' is 1.46.
    a9 = math.exp(1) * (math.exp(-1) + math.exp(0))
    assert (math.exp(left), a9) == pytest.approx((1.46, 3.72), abs=0.005)
    # Step (a) of A10: the logarithm of a sum of exponentials is said to be at most the sum of the exponents.
    assert math.log(math.exp(-1) + math.exp(0)) > -1 + 0


def test_with_two_classes_lemma_2_is_false_and_with_more_its_bound_remains() -> None:
    """The lemma's bound is A_p times how far a prototype moves; the loss can grow by twice that, and no more."""
    assert growth([0, 0], [-1, 1]) == pytest.approx(1.43, abs=0.005)
    assert growth([-20, 0], [-21, 1]) == pytest.approx(2)
    draws = torch.Generator().manual_seed(0)
    for _ in range(200):
        before = 3 * torch.randn(5, generator=draws, dtype=torch.float64)
        step = torch.rand(5, generator=draws, dtype=torch.float64) * 2 - 1
        assert growth(before.tolist(), (before + step).tolist()) <= 2 * float(step.abs().max())


@pytest.mark.parametrize(
    ("method", "params"),
    [("fedproto", {}), ("mp-fedcl", {}), ("sp-fedcl", {}), ("fedsc", {"rpcl_weight": 1.0, "cpdr_weight": 1.0})],
)
def test_what_is_known_against_a_theory_stands_beside_its_bounds(method: str, params: dict[str, Any]) -> None:
    notes = {bound.note for bound in bounds(method, **params).values()}
    assert len(notes) == 1
    assert all(("Lemma 2" in note) == (method in ("mp-fedcl", "sp-fedcl")) for note in notes)


def test_l2_is_of_the_features_that_the_theory_is_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MP-FedCL contrasts cosines, so its features have length 1; all other constants are the same."""
    run = new_run(
        Experiment.from_mapping({"model": "cnn", "device": "cpu", "train_size": 150, "clients": 3, "rounds": 1})
    )
    folder = RunFolder.create(tmp_path / "run", run.experiment)
    run.play(folder, Progress())
    (of_directions,) = examine(folder, points=1).points
    monkeypatch.setattr(MPFedCL, "unit_features", False)
    (of_features,) = examine(folder, points=1).points
    assert of_directions.estimates.L2 != of_features.estimates.L2
    assert replace(of_directions.estimates, L2=0.0) == replace(of_features.estimates, L2=0.0)


def test_the_gradient_is_what_the_next_step_goes_along(tmp_path: Path) -> None:
    """One step on all data, without momentum: weights change by η ∇L."""
    options = {"method": "fedproto", "model": "cnn", "device": "cpu", "train_size": 150, "clients": 3, "rounds": 3}
    plain = {"batch_size": 200, "momentum": 0.0, "precision": "float64", "lr": 0.1, "engine": "stacked"}
    run = new_run(Experiment.from_mapping(options | plain))
    folder = RunFolder.create(tmp_path / "run", run.experiment)
    with pytest.raises(Killed):
        run.play(folder, KillAfter(2))
    report = examine(RunFolder.open(folder.path), points=1)
    (point,) = report.points
    (before,) = (group.own.take(range(3)) for group in run.engine.groups)
    before = {name: value.clone() for name, value in before.items()}
    run.play_round()
    (after,) = (group.own.take(range(3)) for group in run.engine.groups)
    steps = torch.cat([(after[name] - before[name]).flatten(1) for name in before], 1) / 0.1
    assert [found.gradient for found in point.clients] == pytest.approx(steps.square().sum(1).tolist())
    assert [found.variance for found in point.clients] == pytest.approx([0, 0, 0], abs=1e-12)  # a single batch
    assert [found.steps for found in point.clients] == [1, 1, 1]
    assert point.round == 2


def test_a_point_on_the_way_is_what_the_run_had_there(tmp_path: Path) -> None:
    options = {"method": "mp-fedcl", "model": "cnn", "device": "cpu", "train_size": 150, "clients": 3, "rounds": 4}
    run = new_run(Experiment.from_mapping(options | {"engine": "sequential"}))
    half = RunFolder.create(tmp_path / "half", run.experiment)
    with pytest.raises(Killed):
        run.play(half, KillAfter(2))
    run = new_run(run.experiment)
    whole = RunFolder.create(tmp_path / "whole", run.experiment)
    run.play(whole, Progress())
    report = examine(whole, points=3)
    assert [point.round for point in report.points] == [0, 2, 4]
    (there,) = examine(half, points=1).points
    assert report.points[1].clients == there.clients
    assert [bound for bound in there.bounds if bound.quantity != "rounds"] == report.points[1].bounds
    assert any(bound.quantity == "rounds" for bound in report.points[2].bounds)
    (alone,) = examine(whole, points=1).points
    assert alone == report.points[2]


def test_a_short_run_has_fewer_points_than_asked_for(tmp_path: Path) -> None:
    run = new_run(
        Experiment.from_mapping({"model": "cnn", "device": "cpu", "train_size": 150, "clients": 3, "rounds": 1})
    )
    folder = RunFolder.create(tmp_path / "run", run.experiment)
    run.play(folder, Progress())
    assert [point.round for point in examine(folder, points=5).points] == [0, 1]
    with pytest.raises(UserError, match="1 or more"):
        examine(folder, points=0)


def test_losses_are_compared_client_by_client() -> None:
    lines = [
        a_round(1, participants=[0, 1], losses=[3.0, 2.0]),
        a_round(2, participants=[1, 2], losses=[2.5, 1.0]),
        a_round(3, participants=[0, 1], losses=[2.0, 2.5]),
    ]
    assert trends(lines) == [Trend(0, 1, []), Trend(1, 2, [2, 3])]
    assert [trend.fell for trend in trends(lines)] == [1, 0]


def test_losses_that_are_missing_are_said(tmp_path: Path) -> None:
    """Also where a checkpoint says that there were more rounds, which would all be played."""
    run = new_run(
        Experiment(method="fedproto", train_size=60, clients=2, rounds=1, split="iid", model="cnn", device="cpu")
    )
    folder = RunFolder.create(tmp_path / "run", run.experiment)
    run.play(folder, Progress())
    folder.rounds.write_text("")
    with pytest.raises(UserError, match="losses of 1 rounds"):
        examine(folder, points=1)


def test_a_run_over_a_network_keeps_its_models_elsewhere(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    (folder.path / "flower.json").write_text("{}")
    with pytest.raises(UserError, match="elsewhere"):
        examine(folder, points=1)
