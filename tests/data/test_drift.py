"""Clients whose data changes while they train."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch

from protofed.data.build import drift_of
from protofed.data.drift import gradual, sudden
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.runs.progress import Progress
from protofed.runs.run import new_run

TINY: dict[str, Any] = {"dataset": "digits", "clients": 4, "alpha": 0.1, "rounds": 4, "model": "mlp", "train_size": 200}


def test_shares() -> None:
    assert sudden(5, 3) == [0, 0, 1, 1, 1]
    assert gradual(5) == [0, 0.25, 0.5, 0.75, 1]
    assert gradual(1) == [0]


def test_clients_end_with_what_another_seed_gives() -> None:
    drift = drift_of(Experiment(drift="sudden", **TINY))
    assert drift is not None
    assert drift.landmarks == {"before": 1, "at": 2, "after": 3}
    assert drift.at(0) is drift.at(1) is drift.before
    assert drift.at(2) is drift.at(3) is drift.after
    assert not torch.equal(drift.before.counts, drift.after.counts)
    assert torch.equal(drift.before.counts.sum(0), drift.after.counts.sum(0))  # the same images, dealt anew


def test_a_gradual_drift_takes_more_and_more_of_the_later_data() -> None:
    drift = drift_of(Experiment(drift="gradual", **{**TINY, "rounds": 5}))
    assert drift is not None
    half = drift.at(2)
    for k, client in enumerate(half.clients):
        old, new = drift.before.clients[k].train, drift.after.clients[k].train
        assert len(client.train) == max(1, round(len(old) / 2)) + max(1, round(len(new) / 2))
        known = {image.numpy().tobytes() for part in (old, new) for image in part.x}
        assert {image.numpy().tobytes() for image in client.train.x} <= known
        rows = set(drift.before.clients[k].own.tolist()) | set(drift.after.clients[k].own.tolist())
        assert set(client.own.tolist()) <= rows
    later = drift.at(3)
    assert drift.at(2).counts.tolist() == half.counts.tolist()  # the same each time
    assert later.counts.tolist() != half.counts.tolist()


@pytest.mark.parametrize("kind", ["sudden", "gradual"])
def test_engines_agree_and_the_result_tells(kind: Literal["sudden", "gradual"]) -> None:
    runs = []
    engines: tuple[Literal["sequential", "stacked"], ...] = ("sequential", "stacked")
    for engine in engines:
        run = new_run(
            Experiment(method="mp-fedcl", engine=engine, drift=kind, precision="float64", eval_every=9, **TINY)
        )
        runs.append((run, run.play(None, Progress())))
    for name, tensor in runs[0][0].state().items():
        torch.testing.assert_close(runs[1][0].state()[name], tensor, atol=1e-9, rtol=1e-9)
    result = runs[0][1]
    assert result.drift is not None
    assert list(result.drift) == ["before", "at", "after"]
    assert result.drift["after"]["own/all/head"] == result.accuracy["own/all/head"].last
    assert result.drift == runs[1][1].drift


def test_without_drift_nothing_is_said() -> None:
    run = new_run(Experiment(method="fedavg", **{**TINY, "rounds": 1}))
    assert run.play(None, Progress()).drift is None


@pytest.mark.parametrize("wrong", [{"drift_round": 1}, {"drift_round": 5}, {"drift_round": 2, "drift": "gradual"}])
def test_wrong_rounds(wrong: dict[str, object]) -> None:
    with pytest.raises(UserError, match="drift-round"):
        Experiment.from_mapping({"drift": "sudden", **TINY, **wrong})
