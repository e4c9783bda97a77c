"""Lanes: clients in chunks, and what only a GPU does, played through on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
import torch

from protofed.engines import lane as lanes
from protofed.engines import stacked
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.experiment import Experiment
from tests.support.nets import assert_same_run, one_of_each_kind, play, trains


class Replay:
    """Stands in for a CUDA graph: it does the work again."""

    made: ClassVar[dict[str, int]] = {"recordings": 0, "replays": 0}

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def replay(self) -> None:
        Replay.made["replays"] += 1
        self.work()


def pretend(patch: pytest.MonkeyPatch) -> None:
    """Lanes that record, on a CPU: everything a GPU run does but the graphs themselves."""

    def record(work: Callable[[], Any], *rest: Any) -> tuple[Replay, Any]:  # noqa: ARG001
        Replay.made["recordings"] += 1
        for _ in range(2):
            work()
        return Replay(work), work()

    begin = Stacked.__init__

    def captures(self: Stacked, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self.captures = True

    patch.setattr(Stacked, "__init__", captures)
    patch.setattr(lanes, "record", record)
    patch.setattr(lanes, "stream", lambda _: None)
    patch.setattr(lanes, "pool", lambda: None)
    patch.setattr(lanes, "BUCKETS", 2)  # few: clients that are done go on beside others
    patch.setattr(Stacked, "_replayed", lambda self, name, group, work, *inputs: work(*inputs))  # noqa: ARG005


@one_of_each_kind
def test_what_is_recorded_gives_the_sequential_engines_numbers(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = play(method, engine="sequential", lr_decay=0.9)
    pretend(monkeypatch)
    Replay.made.update(recordings=0, replays=0)
    fast = play(method, engine="stacked", lr_decay=0.9)
    assert_same_run(slow, fast)
    if trains(method):
        assert 0 < Replay.made["recordings"] < Replay.made["replays"]


def test_rounds_share_recordings_unless_a_rate_is_in_them(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)
    made = []
    for decay, precision in ((1.0, "float64"), (0.9, "float64"), (0.9, "float32")):
        Replay.made.update(recordings=0)
        play("local", engine="stacked", lr_decay=decay, precision=precision, participation=1.0)
        made.append(Replay.made["recordings"])
    assert made[0] == made[2] < made[1]


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "mp-fedcl", "fedrep"])  # every other shares their paths
def test_lanes_on_threads_give_the_numbers_of_all_at_once(method: str) -> None:
    """In chunks of two clients, two chunks at a time."""
    run = play(method, engine="stacked", width=2)
    assert isinstance(run.engine, Stacked)
    assert max(len(lanes) for lanes in run.engine._kept.values()) == 2
    assert_same_run(play(method, engine="stacked"), run)


def test_an_error_on_a_thread_is_an_error(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    def fail(*_: Any) -> None:
        raise UserError("loss", 1, "not that one")

    monkeypatch.setattr(lanes.Lane, "play", fail)
    with pytest.raises(UserError, match="not that one"):
        play("fedavg", engine="stacked", width=1)
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("width", [1, 3, 100])
def test_any_width_will_do(width: int) -> None:
    assert_same_run(play("fedproto", engine="sequential"), play("fedproto", engine="stacked", width=width))


def test_a_lane_serves_later_rounds_and_old_forms_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacked, "FORMS", 1)
    run = play("fedproto", engine="stacked", rounds=1)
    engine = run.engine
    assert isinstance(engine, Stacked)
    first = next(iter(engine._kept.values()))
    run.play_round()
    second = next(iter(engine._kept.values()))
    assert second is not first  # prototypes have come
    run.play_round()
    assert list(engine._kept.values()) == [second]


def test_what_cannot_be_captured_is_said_and_runs_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = play("fedavg", engine="sequential")
    pretend(monkeypatch)

    def refuse(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(lanes, "record", refuse)
    with pytest.warns(UserWarning, match="cannot be captured .operation not permitted when stream is capturing.;"):
        fast = play("fedavg", engine="stacked")
    assert_same_run(slow, fast)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_bf16_keeps_weights_and_learns(engine: str) -> None:
    exact, rough = (play("fedproto", engine=engine, precision=precision, rounds=2) for precision in ("float32", "bf16"))
    states = exact.state(), rough.state()
    assert all(value.dtype == states[0][name].dtype for name, value in states[1].items())
    name = next(name for name in states[0] if name.startswith("own/") and name.endswith("head.weight"))
    difference = (states[0][name] - states[1][name]).abs().max()
    assert 0 < float(difference) < 0.05


def test_a_width_is_for_the_stacked_engine() -> None:
    with pytest.raises(UserError, match="--width"):
        play("fedavg", engine="sequential", width=2)
    assert play("fedavg", engine="auto", width=2, rounds=1).engine.name == "stacked"
    assert Experiment().width is None
