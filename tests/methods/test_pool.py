"""MP-, SP- and DP-FedCL with a bounded pool."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock
from protofed.prototypes import bound_pool, pad_with_class_mean
from protofed.randomness import key
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run
from tests.support.nets import Plain, assert_same_run, federation, gap, play
from tests.support.prototype_cases import random_prototypes

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
        assert other["bytes_down"] < one["bytes_down"]
        assert other["accuracy"].keys() == one["accuracy"].keys()
        assert "own/all/nearest" in other["accuracy"]
    assert gap(free.state(), bounded.state()) > 1e-5


@every_variant
def test_a_wide_bound_is_none(variant: str) -> None:
    free, bounded = played(variant, None), played(variant, 500)
    assert gap(free.state(), bounded.state()) == 0
    assert [line["per_client"] for line in free.history] == [line["per_client"] for line in bounded.history]


def test_a_bounded_pool_still_predicts() -> None:
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = play(
        "mp-fedcl", {"pool_size": 2}, "stacked", 12, Plain, clients, participation=1.0, lr=0.1, precision="float32"
    )
    assert run.history[-1]["accuracy"]["own/all/nearest"] > 75


def test_draws_are_keyed_by_seed_and_round() -> None:
    local = random_prototypes(6, 4, 2, 3, seed=2, empty=0)
    upload = Upload({"w": torch.ones(6, 2)}, {"local": local}, {"samples": torch.ones(6)})
    method = build_method("mp-fedcl", {"pool_size": 3})
    for clock in (Clock(1, 9, seed=5), Clock(2, 9, seed=5), Clock(1, 9, seed=6)):
        sent = method.aggregate(upload, Broadcast(), clock)
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
    folder = RunFolder.create(tmp_path / "run", cut.experiment)
    for line in cut.history:
        folder.append_round(line)
    folder.checkpoint.save(cut.broadcast, cut.engine.groups, 2)
    resumed.restore(folder)
    resumed.play_round()
    assert gap(resumed.state(), whole.state()) == 0
    assert resumed.history[-1]["per_client"] == whole.history[-1]["per_client"]


@pytest.mark.parametrize("name", ["mp-fedcl", "sp-fedcl", "dp-fedcl"])
@pytest.mark.parametrize(
    ("value", "message"), [(0, "0.*1 or more"), (-3, "-3.*1 or more"), (2.5, "2.5.*int"), ("2", "'2'.*int")]
)
def test_a_bound_is_a_positive_whole_number(name: str, value: object, message: str) -> None:
    with pytest.raises(UserError, match=f"^pool_size: {message}"):
        build_method(name, {"pool_size": value})
    assert build_method(name, {"pool_size": 1}).pool_size == 1  # type: ignore[attr-defined]
