"""Which engine `auto` takes: the one that was measured to be fastest, once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from protofed.engines import autotune as choice
from protofed.engines.base import Engine
from protofed.engines.client_group import Group
from protofed.engines.sequential import Sequential
from protofed.engines.stacked import Stacked
from tests.support.nets import play


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "protofed" / "engines.json"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Engines whose speed is asked for; sequential is given a second a step, stacked half of that."""
    found: list[str] = []

    def trial(self: Engine, group: Group, rows: list[int], steps: int) -> float:  # noqa: ARG001
        found.append(self.name)
        return 1.0 if isinstance(self, Sequential) else 0.5

    monkeypatch.setattr(Engine, "trial", trial)
    return found


@pytest.mark.usefixtures("cache")
def test_the_faster_one_is_taken(asked: list[str]) -> None:
    run = play("fedavg", engine="auto", rounds=1)
    assert run.engine.name == "stacked"
    assert set(asked) == {"sequential", "stacked"}
    assert "all at once 500 ms" in run.setup.engine_reason
    assert "one after the other 1e+03 ms" in run.setup.engine_reason
    assert (run.experiment.engine, run.experiment.width) == ("stacked", None)  # so it runs again the same way


def test_it_is_measured_once(cache: Path, asked: list[str]) -> None:
    play("fedavg", engine="auto", rounds=0)
    number = len(asked)
    play("fedavg", engine="auto", rounds=0, seed=5)
    assert len(asked) == number
    (key,) = json.loads(cache.read_text())
    assert "fedavg" in key
    assert f"torch {torch.__version__}" in key
    play("fedavg", engine="auto", rounds=0, batch_size=5)
    assert len(asked) == 2 * number


def test_what_was_measured_decides(cache: Path, asked: list[str]) -> None:
    play("fedavg", engine="auto", rounds=0)
    known = json.loads(cache.read_text())
    for seconds in known.values():
        seconds["one after the other"] = 0.1
    cache.write_text(json.dumps(known))
    asked.clear()
    assert play("fedavg", engine="auto", rounds=0).engine.name == "sequential"
    assert not asked


@pytest.mark.parametrize("content", ["", "{", "[]", None])
def test_a_cache_that_cannot_be_used_is_no_obstacle(cache: Path, content: str | None, asked: list[str]) -> None:
    cache.parent.mkdir()
    if content is None:
        cache.mkdir()  # not a file
    else:
        cache.write_text(content)
    assert play("fedavg", engine="auto", rounds=0).engine.name == "stacked"
    assert asked


def test_a_trial_leaves_nothing_behind(cache: Path) -> None:
    run = play("fedsc", engine="stacked", rounds=1)
    before = run.state()
    seconds = run.engine.trial(run.engine.groups[0], [0, 1], 2)
    assert seconds > 0
    after = run.state()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_measured_for_real(capsys: pytest.CaptureFixture[str]) -> None:
    run = play("fedavg", engine="auto", rounds=1)
    assert isinstance(run.engine, Sequential | Stacked)
    assert re.fullmatch(r"measured for a client and step: (.+ [\d.e+]+ ms(, )?){2,4}", run.setup.engine_reason)
    assert not capsys.readouterr().out


@pytest.mark.usefixtures("cache")
def test_on_a_gpu_the_first_trial_does_not_count_and_what_does_not_fit_is_not_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int | None] = []

    def trial(self: Engine, group: Group, rows: list[int], steps: int) -> float:  # noqa: ARG001
        made.append(self.width)
        if self.width is None:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return 9.0 if made.count(1) == 1 else 0.25

    run = play("fedavg", engine="stacked", rounds=0)
    monkeypatch.setattr(Stacked, "trial", trial)
    options = choice._options(torch.device("cuda"))

    def make(kind: type[Engine], width: int | None) -> Engine:
        engine = kind.__new__(kind)
        engine.width = width
        return engine

    found = choice._measure_gpu(options, run.engine.groups[0], 2, make)
    assert found == {"all at once": float("inf"), "each on a stream": 0.25}
    assert json.loads(json.dumps(found)) == found  # as it is remembered
