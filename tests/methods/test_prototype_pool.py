"""MP-, SP- and DP-FedCL: the contrast with their pool is a plain loop, and the pool may be bounded."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock, Server
from protofed.prototypes import bound_pool, pad_with_class_mean
from protofed.randomness import key
from protofed.runs.run import Run
from tests.reference import methods as slow
from tests.reference import prototypes as reference
from tests.support.loss_cases import CLASSES, DIM, Case
from tests.support.nets import Plain, assert_same_run, federation, gap, play
from tests.support.prototype_cases import random_prototypes
from tests.support.resumed_runs import saved
from tests.support.trained_clients import client, states
from tests.support.whole_runs import assert_exactly_the_same

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
CLOCK = Clock(1, 3)


@quick
@given(seed=seeds, clients=st.integers(1, 3), slots=st.integers(1, 3), tau=st.sampled_from([0.07, 0.5]))
def test_pools_add_a_contrast_with_the_padded_or_whole_pool(seed: int, clients: int, slots: int, tau: float) -> None:
    case, pool = Case(seed), random_prototypes(clients, CLASSES, slots, DIM, seed=seed)
    received = Broadcast({}, {"pool": pool})
    z, y = case.features.numpy(), case.batch.y.numpy()
    each = [reference.as_sets(pool.take(i)) for i in range(clients)]
    padded = reference.pad_with_class_mean(each, slots)
    slot_sets = [{c: [torch.tensor(u) for u in us] for c, us in client.items()} for client in padded]
    whole = reference.as_sets(pool.pooled())

    params: dict[str, Any] = {"temperature": tau, "ce_weight": 0.5, "contrast_weight": 3.0}
    result = case.loss(build_method("mp-fedcl", params), received)
    if slot_sets[0]:
        term = slow.slot_contrast(slot_sets, slots, tau)(case.module, case.features, case.batch.y)
        assert_close(result.mean(), 0.5 * case.ce.mean() + 3 * term)
    else:
        assert_close(result, 0.5 * case.ce)

    contrast = torch.tensor(reference.pooled_contrast(z, y, whole, tau), dtype=torch.float64)
    expected = 0.5 * case.ce + 3 * contrast
    assert_close(case.loss(build_method("dp-fedcl", params), received), expected)
    assert_close(case.loss(build_method("mp-fedcl", {**params, "contrast": "pooled"}), received), expected)
    assert_close(case.loss(build_method("sp-fedcl", {**params, "contrast": "none"}), received), 0.5 * case.ce)


@pytest.mark.parametrize("name", ["mp-fedcl", "sp-fedcl", "dp-fedcl"])
def test_a_pool_is_every_upload_side_by_side_and_is_asked_unpadded(name: str) -> None:
    stacked, samples = states(3, 0), torch.tensor([5, 1, 2])
    local = random_prototypes(3, 4, 1 if name == "sp-fedcl" else 2, 3, seed=2)
    method = build_method(name, {})
    sent = method.aggregate(Upload(stacked, {"local": local}, {"samples": samples}), Server(Broadcast(), CLOCK))
    assert_close(dict(sent.weights), slow.weighted_mean([client(stacked, k) for k in range(3)], [5, 1, 2]))
    assert_close(sent.prototypes["pool"], local)
    asked = method.references(sent)
    assert asked is not None
    each = [reference.as_sets(local.take(k)) for k in range(3)]
    for c, vectors in reference.as_sets(asked).items():
        expected = [u for client_sets in each for u in client_sets.get(c, [])]
        assert [u.tolist() for u in vectors] == [u.tolist() for u in expected]
    assert set(reference.as_sets(asked)) == {c for client_sets in each for c in client_sets}
    assert method.references(Broadcast(dict(sent.weights))) is None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("mp-fedcl", {"contrast": "none"}),
        ("mp-fedcl", {"contrast_weight": 0}),
        ("sp-fedcl", {"contrast": "none"}),
        ("dp-fedcl", {"contrast_weight": 0}),
    ],
)
def test_without_its_contrast_a_method_trains_exactly_as_fedavg(method: str, params: dict[str, Any]) -> None:
    assert_exactly_the_same(play(method, params), play("fedavg"))


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "mp-fedcl": ("mp-fedcl", {}),
    "mp-fedcl pooled": ("mp-fedcl", {"contrast": "pooled"}),
    "sp-fedcl": ("sp-fedcl", {}),
    "dp-fedcl": ("dp-fedcl", {"eps": 0.05, "min_samples": 2}),
}


every_variant = pytest.mark.parametrize("variant", VARIANTS)


@cache
def played(variant: str, pool_size: int | None, engine: str = "stacked") -> Run:
    """Three rounds of all five clients, who hold up to four of five classes each."""
    method, params = VARIANTS[variant]
    return play(method, {**params, "pool_size": pool_size}, engine, model=Plain, participation=1.0, epochs=1)


@every_variant
def test_engines_agree_with_a_bounded_pool(variant: str) -> None:
    assert_same_run(played(variant, 2, "sequential"), played(variant, 2))


@every_variant
def test_a_bound_holds_and_shortens_messages(variant: str) -> None:
    free, bounded = played(variant, None), played(variant, 2)
    numbers = free.broadcast.prototypes["pool"].filled.sum((0, 2))
    assert int(numbers.max()) > 2
    kept = bounded.broadcast.prototypes["pool"].filled.sum((0, 2))
    assert bool((kept <= 2).all())
    assert bool(((kept > 0) == (numbers > 0)).all())
    for one, other in zip(free.history[1:], bounded.history[1:], strict=True):
        assert other.bytes_down < one.bytes_down
        assert other.accuracy.keys() == one.accuracy.keys()
        assert "own/all/nearest" in other.accuracy
    assert gap(free.state(), bounded.state()) > 1e-5


@every_variant
def test_a_wide_bound_is_none(variant: str) -> None:
    free, bounded = played(variant, None), played(variant, 500)
    assert gap(free.state(), bounded.state()) == 0
    assert [line.per_client for line in free.history] == [line.per_client for line in bounded.history]


def test_a_bounded_pool_still_predicts() -> None:
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = play(
        "mp-fedcl", {"pool_size": 2}, "stacked", 12, Plain, clients, participation=1.0, lr=0.1, precision="float32"
    )
    assert run.history[-1].accuracy["own/all/nearest"] > 75


def test_draws_are_keyed_by_seed_and_round() -> None:
    local = random_prototypes(6, 4, 2, 3, seed=2, empty=0)
    upload = Upload({"w": torch.ones(6, 2)}, {"local": local}, {"samples": torch.ones(6)})
    method = build_method("mp-fedcl", {"pool_size": 3})
    for clock in (Clock(1, 9, seed=5), Clock(2, 9, seed=5), Clock(1, 9, seed=6)):
        sent = method.aggregate(upload, Server(Broadcast(), clock))
        expected = bound_pool(local, 3, key(clock.seed, "pool", clock.round))
        assert_close(sent.prototypes["pool"], expected, atol=0, rtol=0)
        assert sent.prototypes["pool"].counts.shape == (3, 4, 1)
        assert_close(method.receive(sent).prototypes["pool"], pad_with_class_mean(expected))


@pytest.mark.parametrize("variant", ["mp-fedcl", "dp-fedcl"])
def test_a_resumed_run_equals_an_uninterrupted_one(variant: str, tmp_path: Path) -> None:
    whole = played(variant, 2)
    cut, resumed = (
        play(whole.method.name, whole.experiment.params, "stacked", 0, Plain, participation=1.0, epochs=1)
        for _ in range(2)
    )
    for run in (cut, resumed):
        run.experiment = replace(run.experiment, rounds=3)
    cut.play_round()
    cut.play_round()
    resumed.restore(saved(cut, tmp_path / "run"))
    resumed.play_round()
    assert gap(resumed.state(), whole.state()) == 0
    assert resumed.history[-1].per_client == whole.history[-1].per_client


@pytest.mark.parametrize("name", ["mp-fedcl", "sp-fedcl", "dp-fedcl"])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "'0' for --set pool_size: .*1 or more"),
        (-3, "'-3' for --set pool_size: .*1 or more"),
        (2.5, "'2.5' for --set pool_size: .*int"),
        ("2", "'2' for --set pool_size: .*int"),
    ],
)
def test_a_bound_is_a_positive_whole_number(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=f"^invalid value {message}"):
        build_method(name, {"pool_size": value})
    assert build_method(name, {"pool_size": 1}).pool_size == 1  # type: ignore[attr-defined]
