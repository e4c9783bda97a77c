"""The stacked engine gives the sequential engine's numbers, whatever the method and however unequal the clients."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from protofed.data.build import federation_of
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.methods import METHODS
from protofed.methods.base import Clock
from protofed.runs.run import Run, new_run
from tests.support.nets import CLASSES, Norm, assert_same_run, federation, gap, own, play

# What differs from the method's defaults, for every method and for the options that change a loss or a message.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in METHODS},
    "fedavg uniform": ("fedavg", {"averaging": "uniform"}),
    "fedavg total": ("fedavg", {"norm": "total"}),
    "fedavg prototypes": ("fedavg", {"averaging": "prototypes"}),
    "fedprox strong": ("fedprox", {"mu": 1.0}),
    "fedproto per prototype": ("fedproto", {"per": "prototype"}),
    "fedproto l1": ("fedproto", {"metric": "l1", "lam": 0.1}),
    "fedproto l2": ("fedproto", {"metric": "l2", "lam": 0.3}),
    "fedproto emd": ("fedproto", {"metric": "emd"}),
    "fedproto eval-pass": ("fedproto", {"collect": "eval-pass"}),
    "fedproto all-epochs": ("fedproto", {"collect": "all-epochs"}),
    "fedproto samples": ("fedproto", {"weighting": "samples"}),
    "fedproto literal": ("fedproto", {"weighting": "literal"}),
    "fedproto keep": ("fedproto", {"absent": "keep"}),
    "fedproto weights": ("fedproto", {"share_weights": True}),
    "fedproto own start": ("fedproto", {"initial": "own"}),
    "mp-fedcl pooled": ("mp-fedcl", {"contrast": "pooled"}),
    "mp-fedcl none": ("mp-fedcl", {"contrast": "none"}),
    "mp-fedcl normalised": ("mp-fedcl", {"space": "normalised"}),
    "mp-fedcl k-means++": ("mp-fedcl", {"start": "k-means++", "k": 3}),
    "mp-fedcl three": ("mp-fedcl", {"k": 3}),
    "dp-fedcl near": ("dp-fedcl", {"eps": 0.05, "min_samples": 2}),
    "dp-fedcl quantile": ("dp-fedcl", {"neighbourhood": "quantile"}),
}
FEW = (
    "fedavg total",
    "fedavg prototypes",
    "fedproto per prototype",
    "fedproto weights",
    "mp-fedcl three",
    "dp-fedcl near",
)
"""Of the methods' other parameters `make test` tries these."""
every_variant = pytest.mark.parametrize(
    "variant",
    [name if name in (*METHODS, *FEW) else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)


@cache
def played(variant: str, engine: str) -> Run:
    """Three rounds of two epochs with three of five unequal clients, BatchNorm and dropout."""
    method, params = VARIANTS[variant]
    return play(method, params, engine)


@every_variant
def test_engines_agree_to_rounding(variant: str) -> None:
    sequential, stacked = played(variant, "sequential"), played(variant, "stacked")
    assert (sequential.engine.name, stacked.engine.name) == ("sequential", "stacked")
    assert len({tuple(line.participants) for line in stacked.history}) > 1  # some sit out
    assert_same_run(sequential, stacked)


@every_variant
def test_every_option_changes_the_run(variant: str) -> None:
    """A variant that changes nothing would make the parity above say nothing about it."""
    method, params = VARIANTS[variant]
    if not params:
        plain = "local" if method == "fedproto" else "fedavg"
        if method in ("local", "fedavg"):
            assert gap(own(played(variant, "stacked")), own(play(method, engine="stacked", rounds=0))) > 1e-3
        else:  # the term beyond cross-entropy
            assert gap(own(played(variant, "stacked")), own(played(plain, "stacked"))) > 1e-5
    elif variant == "mp-fedcl k-means++":
        assert gap(played(variant, "stacked").state(), played("mp-fedcl three", "stacked").state()) > 1e-5
    else:
        assert gap(played(variant, "stacked").state(), played(method, "stacked").state()) > 1e-5


@pytest.mark.parametrize("how", ["crop", "rethinkfl"])
def test_engines_see_the_same_augmented_images(how: str) -> None:
    runs = [play("mp-fedcl", engine=engine, augment=how) for engine in ("sequential", "stacked")]
    assert_same_run(runs[0], runs[1])
    assert gap(own(runs[1]), own(played("mp-fedcl", "stacked"))) > 1e-5


SINGLE_NUMBER = """
from dataclasses import dataclass
from typing import ClassVar
from protofed.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Total(FedAvg):
    name: ClassVar[str] = "total"

    def loss(self, model, batch, turn):
        return (super().loss(model, batch, turn) * batch.mask).sum() / batch.mask.sum()
"""


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_loss_averaged_by_the_method_is_refused_because_it_would_count_padding(tmp_path: Path, engine: str) -> None:
    (tmp_path / "total.py").write_text(SINGLE_NUMBER)
    with pytest.raises(UserError, match="one value per sample"):
        play(f"{tmp_path}/total.py:Total", engine=engine)


def test_some_class_has_several_regions_and_some_has_one() -> None:
    numbers = played("dp-fedcl near", "sequential").broadcast.prototypes["pool"].filled.sum(-1).flatten().tolist()
    assert 1 in numbers
    assert max(numbers) > 1


def test_dropout_and_batch_statistics_take_part() -> None:
    noisy, calm, before = played("fedavg", "stacked"), play(engine="stacked", model=Norm), play(rounds=0)
    assert gap(own(noisy), own(calm)) > 1e-3
    moved = [name for name in own(noisy) if "running" in name]
    assert len(moved) == 4
    assert all(gap({name: own(noisy)[name]}, {name: own(before)[name]}) > 1e-3 for name in moved)


def test_clients_are_as_unequal_as_the_tests_claim() -> None:
    counts = federation().counts
    assert counts.sum(1).tolist() == [41, 17, 19, 24, 9]
    assert counts.shape[1] == CLASSES
    assert counts.sum(0)[5] == 0
    assert bool((counts == 0).any(1).all())


def test_engines_agree_on_mixed_architectures_and_inputs() -> None:
    """Six clients, three of 8x8 grey and three of 32x32 colour, with three networks."""
    experiment = Experiment(
        method="fedproto",
        dataset="digits+digit-domains",
        model="cnn-18,cnn,cnn-22",
        clients=6,
        split="iid",
        train_size=60,
        batch_size=16,
        precision="float64",
        device="cpu",
        rounds=2,
    )
    data = federation_of(experiment)
    settings: tuple[dict[str, Any], ...] = (
        {"engine": "sequential"},
        {"engine": "stacked"},
        {"engine": "stacked", "params": {"lam": 0.0}},
    )
    runs = [new_run(replace(experiment, **setting), federation=data) for setting in settings]
    for run in runs:
        assert len(run.engine.groups) == 4  # 8x8: cnn-18 and cnn; 32x32: cnn and cnn-22
        assert run.engine.groups[0].test.x.shape[1:] != run.engine.groups[-1].test.x.shape[1:]
        run.play_round()
        run.play_round()
    assert_same_run(runs[0], runs[1])
    assert gap(own(runs[1]), own(runs[2])) > 1e-5  # with prototypes from other networks and inputs


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "mp-fedcl"])
def test_one_step_in_float32_agrees_to_rounding(method: str) -> None:
    clients = federation([{0: 5, 1: 6}, {1: 8, 2: 4}], test=20)
    one, other = (
        play(
            method, engine=e, clients=clients, rounds=1, epochs=1, batch_size=16, participation=1.0, precision="float32"
        )
        for e in ("sequential", "stacked")
    )
    assert next(iter(own(one).values())).dtype == torch.float32
    for name, tensor in one.state().items():
        if tensor.numel():
            scale = float(tensor.abs().max().clamp(min=1e-3))
            assert float((tensor - other.state()[name]).abs().max()) <= 1e-5 * scale, name


@pytest.mark.parametrize("method", ["fedproto", "mp-fedcl"])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_engines_agree_on_a_dirichlet_split(method: str, precision: str) -> None:
    """FedProto's CNN. In float32 rounding grows with every step, so only accuracies are compared."""
    settings: dict[str, Any] = {"precision": precision, "rounds": 4, "participation": 0.6, "batch_size": 16}
    data = federation_of(Experiment(train_size=250, alpha=0.3))
    one, other = (play(method, engine=e, clients=data, model="cnn", **settings) for e in ("sequential", "stacked"))
    if precision == "float64":
        assert_same_run(one, other)
    accuracies = one.history[-1].accuracy, other.history[-1].accuracy
    assert accuracies[0].keys() == accuracies[1].keys()
    for name, value in accuracies[0].items():
        assert abs(value - accuracies[1][name]) <= 1, name


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", ["fedproto", "mp-fedcl"])
def test_a_client_does_not_depend_on_who_else_trains(engine: str, method: str) -> None:
    """Training some clients, in any order, gives each what training all of them gives it."""
    everyone, some = (play(method, engine=engine, rounds=1, participation=1.0) for _ in range(2))
    turn = everyone.broadcast, Clock(1, 3)
    together = everyone.engine.round([0, 1, 2, 3, 4], *turn).uploads
    group = some.engine.groups[0]
    for who in ([3, 1], [4]):
        apart = some.engine.round(who, *turn).uploads
        for row, client in enumerate(sorted(who)):
            expected, result = together.client(client), apart.client(row)
            assert_close(dict(result.weights), dict(expected.weights), atol=1e-12, rtol=0)
            assert_close(dict(result.prototypes), dict(expected.prototypes), atol=1e-12, rtol=0)
            mine, theirs = group.own.take([client]), everyone.engine.groups[0].own.take([client])
            assert_close(mine, theirs, atol=1e-12, rtol=0)
