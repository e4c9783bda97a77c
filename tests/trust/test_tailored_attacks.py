"""Attacks by those who know the defence: what each promises, and that the search finds holes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, weighted_mean
from protofed.prototypes import Prototypes
from protofed.runs.progress import Progress
from protofed.runs.run import new_run
from protofed.trust import tailored_attacks as tailored
from protofed.trust.attacker import Scene, Try, put, undefended
from protofed.trust.tailored_attacks import CLAIM, TAILORED, Adaptive, Bent, Declared, SplitPrototypes, harm, turned
from tests.reference import attacks as reference


@st.composite
def honest(draw: st.DrawFn) -> Tensor:
    """Clients × coordinates."""
    shape = draw(st.integers(3, 8)), draw(st.integers(2, 6))
    made = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    return torch.randn(*shape, generator=made, dtype=torch.float64) + draw(st.sampled_from([0.0, 3.0]))


@given(honest(), st.integers(1, 2))
def test_alie_stays_within_what_a_majority_does(rows: Tensor, attackers: int) -> None:
    assert tailored.alie(rows, attackers).tolist() == pytest.approx(reference.alie(rows.tolist(), attackers))


@given(honest())
def test_min_max_and_min_sum_go_as_far_as_they_may_and_no_further(rows: Tensor) -> None:
    mean, std = rows.mean(0), rows.std(0, correction=0)
    for rule, total in ((tailored.min_max, max), (tailored.min_sum, sum)):
        bound = reference.spread(rows.tolist(), total)
        found = rule(rows)
        steps = (mean - found) / std
        assert steps.tolist() == pytest.approx([float(steps[0])] * len(steps), abs=1e-6)  # along the deviation
        assert reference.distance(found.tolist(), rows.tolist(), total) <= bound * (1 + 1e-6)
        further = found - 1e-3 * std
        assert reference.distance(further.tolist(), rows.tolist(), total) > bound


@given(honest(), st.floats(1, 179), st.floats(0.1, 10))
def test_a_cone_has_the_angle_and_the_length_that_were_asked_for(rows: Tensor, degrees: float, length: float) -> None:
    found = turned(rows[0], rows[1], degrees, length)
    cosine = float(found @ rows[0]) / (math.hypot(*found.tolist()) * math.hypot(*rows[0].tolist()))
    assert math.degrees(math.acos(max(-1.0, min(1.0, cosine)))) == pytest.approx(degrees, abs=1e-3)
    assert float(found.norm()) == pytest.approx(length)


SENT = Broadcast({"layer.weight": torch.zeros(6, dtype=torch.float64), "norm.running_var": torch.ones(2)})


def scene(attempt: Try = undefended, slots: int = 1, memory: dict[str, Tensor] | None = None) -> Scene:
    """Ten clients, of which the last two attack."""
    made = torch.Generator().manual_seed(3)
    weights = {
        "layer.weight": 1 + 0.3 * torch.randn(10, 6, generator=made, dtype=torch.float64),
        "norm.running_var": 1 + torch.rand(10, 2, generator=made),
    }
    vectors = torch.eye(3).unsqueeze(1) + 0.1 * torch.randn(10, 3, slots, 3, generator=made)
    sets = {"means": Prototypes(vectors, torch.full((10, 3, slots), 4.0))}
    uploads = Upload(weights, sets, {"samples": torch.full((10,), 12)})
    return Scene(
        uploads, torch.tensor([8, 9]), SENT, Clock(0, 5, (8, 9), 10, 0), {} if memory is None else memory, attempt
    )


def cosine_to_honest(answer: Upload, some: Scene) -> float:
    mean = some.others.weights["layer.weight"].mean(0)
    return float(torch.nn.functional.cosine_similarity(answer.weights["layer.weight"][0], mean, dim=0))


def only_within(cosine: float, longest: float) -> Try:
    """A defence that replaces by the mean of the first eight whoever is beyond a cosine with it, or too long."""

    def attempt(uploads: Upload) -> Upload:
        found = dict(uploads.weights)
        rows, mean = found["layer.weight"], found["layer.weight"][:8].mean(0)
        out = torch.nn.functional.cosine_similarity(rows, mean[None]) < cosine
        out |= rows.norm(dim=1) > longest
        found["layer.weight"] = torch.where(out.unsqueeze(1), mean, rows)
        return Upload(found, {}, uploads.numbers)

    return attempt


@pytest.mark.parametrize(("cosine", "longest"), [(0.5, 8.0), (0.9, 4.0), (-2.0, 1e9)])
def test_a_search_comes_near_to_what_the_defence_lets_through(cosine: float, longest: float) -> None:
    some = scene(only_within(cosine, longest))
    found = tailored.Cones((8, 9), 0).chosen(some)
    assert cosine_to_honest(found, some) >= cosine
    assert float(found.weights["layer.weight"][0].norm()) <= longest
    assert harm(some, some.tried(found)) > 2 * harm(some, some.tried(some.own))
    if cosine < -1:
        assert cosine_to_honest(found, some) == pytest.approx(-1, abs=0.01)


def test_the_search_goes_on_from_the_round_before() -> None:
    tried: list[Upload] = []
    within = only_within(0.5, 8.0)

    def attempt(uploads: Upload) -> Upload:
        tried.append(uploads)
        return within(uploads)

    memory: dict[str, Tensor] = {}
    first = tailored.Cones((8, 9), 0).chosen(scene(attempt, memory=memory))
    whole, some = len(tried), scene(attempt, memory=memory)
    second = tailored.Cones((8, 9), 0).chosen(some._replace(clock=some.clock._replace(round=1)))
    assert len(tried) - whole < whole / 2
    assert harm(some, within(first)) <= harm(some, within(second)) * 1.01


def test_a_loss_of_their_own_gives_attackers_a_direction_and_a_measure() -> None:
    target = torch.tensor([1.0, 2, 0, 0, 0, 0], dtype=torch.float64)

    def loss(weights: Mapping[str, Tensor]) -> Tensor:
        return (weights["layer.weight"] - target).square().sum()

    some, plain = scene()._replace(loss=loss), scene()
    torch.testing.assert_close(tailored.ascent(some)["layer.weight"], -2 * target)
    found = tailored.LossGradient((8, 9), 0).chosen(some)
    honest = loss({"layer.weight": some.others.weights["layer.weight"].mean(0)})
    assert loss({"layer.weight": some.tried(found).weights["layer.weight"].mean(0)}) > 2 * honest
    assert harm(some, some.tried(found)) > harm(plain, plain.tried(found))
    assert tailored.ascent(plain) == {}


def test_attackers_compute_the_loss_of_a_model_on_their_own_samples() -> None:
    options: dict[str, Any] = {
        **{"model": "cnn", "image_size": 16, "device": "cpu", "train_size": 240, "clients": 6, "alpha": 100.0},
        **{"rounds": 1, "min_size": 5, "attack": "loss-gradient", "attackers": 0.3, "engine": "sequential"},
    }
    run = new_run(Experiment.from_mapping(options))
    assert run.attack is not None
    assert run.pipeline.attacking is not None
    loss = run.pipeline.attacking.loss
    assert loss is not None
    group, total, size = run.engine.groups[0], 0.0, 0
    states = {name: value.unsqueeze(0) for name, value in run.broadcast.weights.items()}
    for member in run.attack.who:
        train = run.engine.federation.members[member].train
        logits = run.engine.forward(group, states, group.inputs(train.x))[1][0]
        total += float(torch.nn.functional.cross_entropy(logits, train.labels, reduction="sum"))
        size += len(train)
    assert float(loss(run.broadcast.weights)) == pytest.approx(total / size, rel=1e-5)


def test_split_prototypes_have_an_honest_mean_and_are_far_from_it() -> None:
    some = scene(slots=2)
    found = SplitPrototypes((8, 9), 0).chosen(some).prototypes["means"]
    mean = some.others.prototypes["means"].class_mean().mean(0)
    torch.testing.assert_close(found.class_mean()[0], mean)
    assert bool(((found.vectors[0] - mean.unsqueeze(1)).norm(dim=-1) > 2 * mean.norm(dim=-1, keepdim=True)).all())
    assert torch.equal(found.counts.sum(-1), some.own.prototypes["means"].counts.sum(-1))
    single = scene()
    assert torch.equal(
        SplitPrototypes((8, 9), 0).chosen(single).prototypes["means"].vectors, single.own.prototypes["means"].vectors
    )


def test_who_declares_a_million_sends_as_many() -> None:
    attack = Declared((8, 9), 0)
    assert attack.declares(12) == CLAIM
    assert attack.chosen(scene()).numbers["samples"].tolist() == [CLAIM, CLAIM]


def test_one_variance_below_zero_makes_the_mean_negative_and_hardly_lengthens_the_update() -> None:
    some = scene()
    found = tailored.ImpossibleState((8, 9), 0).chosen(some)
    mean = torch.cat([some.others.weights["norm.running_var"], found.weights["norm.running_var"]]).mean(0)
    assert mean.lt(0).tolist().count(True) == 1
    assert harm(some, some.tried(found)) == math.inf


@pytest.mark.parametrize("attack", [one for one in TAILORED if one is not tailored.ImpossibleState])
def test_what_a_state_cannot_hold_is_not_sent_by_the_others(attack: Any) -> None:
    if attack is not Adaptive:
        found = attack((8, 9), 0).chosen(scene(only_within(-2, 1e9)))
        assert bool((found.weights["norm.running_var"] >= 0).all())


def test_who_is_absent_leaves_the_honest_mean() -> None:
    some = scene()
    some = some._replace(uploads=replace(some.uploads, numbers={"samples": torch.arange(1, 11)}))
    with_them = put(some.uploads, some.rows, tailored.Absent((8, 9), 0).chosen(some))
    left, honest = (
        weighted_mean({"layer.weight": uploads.weights["layer.weight"]}, uploads.numbers["samples"])["layer.weight"]
        for uploads in (with_them, some.others)
    )
    assert torch.allclose(left, honest)
    assert not torch.allclose(left, some.uploads.weights["layer.weight"].mean(0))


def test_the_adaptive_one_is_the_worst_of_the_family() -> None:
    some = scene(only_within(0.7, 8.0))
    most = harm(some, some.tried(Adaptive((8, 9), 0).chosen(some)))
    for attack in (tailored.Cones, tailored.Alie, tailored.MinMax, tailored.MinSum, tailored.InnerProduct):
        assert most >= harm(some, some.tried(attack((8, 9), 0).chosen(some)))


def test_a_drift_goes_the_same_way_in_every_round() -> None:
    memory: dict[str, Tensor] = {"first/layer.weight": torch.full((6,), -2.0, dtype=torch.float64)}
    some = scene(memory=memory)
    found = tailored.SlowDrift((8, 9), 0).chosen(some)
    assert cosine_to_honest(found, some) == pytest.approx(math.cos(math.radians(tailored.DRIFT)))
    assert torch.equal(
        tailored.bent(some, Bent(tailored.DRIFT, 1.0)).weights["layer.weight"], found.weights["layer.weight"]
    )


def test_attackers_see_what_the_defence_of_their_run_leaves() -> None:
    """Without a defence they turn round; the one of the run makes them keep to what passes."""
    options: dict[str, Any] = {
        **{"model": "cnn", "image_size": 16, "device": "cpu", "train_size": 240, "clients": 6, "alpha": 100.0},
        **{"rounds": 2, "min_size": 5, "attack": "cones", "attackers": 0.2, "engine": "sequential"},
    }
    cones: list[Sequence[float]] = []
    for defence in ("none", "outliers"):
        run = new_run(Experiment.from_mapping({**options, "defence": defence}))
        run.play(None, Progress())
        assert run.pipeline.attacking is not None
        cones.append(run.pipeline.attacking.memory["cone"].tolist())
    assert cones[0][0] > cones[1][0]
