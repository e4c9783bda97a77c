"""`--profile`: every second of a round belongs to one section, and the trace shows them."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from protofed.internal import profiling
from protofed.internal.digests import parse_json
from protofed.internal.profiling import Profile, profiled_round, section
from tests.support.command_line import TINY, invoke, result_of, rounds_of, succeed

SECTIONS = ["data", "forward/backward", "prototypes", "aggregation", "evaluation", "checkpoint", "other"]


def total(summary: dict[str, Any]) -> float:
    return sum(float(found["seconds"]) for found in summary["sections"].values())


def test_time_belongs_to_the_innermost_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(profiling, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def pass_time(seconds: float) -> None:
        now[0] += seconds

    with Profile(tmp_path, torch.device("cpu"), rounds=1) as profile:
        pass_time(100)  # in no round
        with section("before"):
            pass_time(100)
        with profiled_round():
            pass_time(1)
            with section("outer"):
                pass_time(2)
                with section("inner"):
                    pass_time(4)
                with section("inner"):
                    pass_time(8)
                pass_time(16)
            with section("inner"):
                pass_time(32)
            pass_time(64)
    assert profile.rounds == [{"other": 65.0, "outer": 18.0, "inner": 44.0}]
    report = parse_json((tmp_path / "profile.json").read_text())
    assert report == profile.report()
    assert report["seconds"] == total(report) == 127
    assert report["sections"]["inner"] == {"seconds": 44, "per_round": 44, "share": 44 / 127}


def test_warm_up_and_traced_rounds_are_told_apart(tmp_path: Path) -> None:
    with Profile(tmp_path, torch.device("cpu"), rounds=7) as profile:
        for _ in range(7):
            with profiled_round(), section("data"):
                pass
    report = profile.report()
    assert (report["warm_up"]["rounds"], report["traced"], report["rounds"]) == ([1, 2], [3, 4, 5], [6, 7])


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_profiled_run(engine: str, tmp_path: Path) -> None:
    given = ("run", *TINY, "--rounds", "4", "--engine", engine, "--precision", "float64", "--quiet")
    said = succeed(tmp_path, *given, "--profile", "--out", "run")
    report = parse_json((tmp_path / "run/profile.json").read_text())
    assert [*report["sections"]] == SECTIONS
    assert all(found["seconds"] > 0 for found in report["sections"].values())
    assert (report["device"], report["rounds"], report["traced"]) == ("cpu", [3, 4], [3, 4])
    for summary in (report, report["warm_up"]):
        lines = [rounds_of(tmp_path / "run")[number - 1] for number in summary["rounds"]]
        assert total(summary) == pytest.approx(summary["seconds"]) != 0
        assert summary["seconds"] >= sum(line["seconds"] for line in lines)  # those leave the checkpoint out
        for found in summary["sections"].values():
            assert found["per_round"] == pytest.approx(found["seconds"] / len(lines))
            assert found["share"] == pytest.approx(found["seconds"] / summary["seconds"])
    events = [event["name"] for event in json.loads((tmp_path / "run/trace.json").read_text())["traceEvents"]]
    assert [events.count(name) for name in ("other", "aggregation", "evaluation")] == [2, 2, 4]  # tests, then motion
    assert set(SECTIONS) <= set(events)
    assert all(name in said.out for name in SECTIONS)

    succeed(tmp_path, *given, "--out", "plain")
    assert not any((tmp_path / "plain" / name).exists() for name in ("profile.json", "trace.json"))
    assert isinstance(section("data"), nullcontext)
    assert result_of(tmp_path / "run") == result_of(tmp_path / "plain")


def test_with_json_nothing_else_is_printed(tmp_path: Path) -> None:
    said = succeed(tmp_path, "run", *TINY, "--rounds", "1", "--quiet", "--profile", "--json", "--out", "run")
    assert json.loads(said.out)["rounds"] == 1
    assert parse_json((tmp_path / "run/profile.json").read_text())["traced"] == [1]


def test_a_run_that_fails_is_no_longer_profiled(tmp_path: Path) -> None:
    diverging = ("--lr", "1e30", "--rounds", "4", "--quiet")
    assert invoke(tmp_path, "run", *TINY, *diverging, "--profile", "--out", "run").code == 1
    assert isinstance(profiled_round(), nullcontext)


def test_the_flag_is_of_run_alone(tmp_path: Path) -> None:
    assert "trace.json" in succeed(tmp_path, "run", "--help").out
    assert "--profile" not in succeed(tmp_path, "compare", "--help").out
    assert "--profile" not in succeed(tmp_path, "resume", "--help").out
