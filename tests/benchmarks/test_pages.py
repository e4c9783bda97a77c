"""A large report: how big it is, and that docs/report.md says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import pages
from benchmarks.marked import RESULTS
from protofed.experiment import Experiment
from protofed.report.html import gather
from protofed.report.index import Index

LARGEST = 8 * 10**6
"""Bytes of the report of six methods, three seeds, a hundred clients and two hundred rounds."""


def test_the_page_says_what_was_measured() -> None:
    found = json.loads((RESULTS / "pages.json").read_text(encoding="utf-8"))
    assert f"{pages.BEGIN}\n\n{pages.page(found)}\n\n{pages.END}" in pages.PAGE.read_text(encoding="utf-8")
    assert found["report"]["bytes"] < LARGEST


def test_made_up_runs_are_read_as_runs_are(tmp_path: Path) -> None:
    pages.make_run(tmp_path / "one", Experiment(method="fedproto", clients=3, rounds=4))
    (row,) = Index(tmp_path).rows()
    assert (row.state, row.done, row.reason) == ("ended", 4, "")
    data = gather([tmp_path])
    assert data["motion"]["runs"]["fedproto"]["rounds"] == [1, 2, 3, 4]
    assert len(data["looks"]["fedproto"]["points"]) == pages.POINTS


@pytest.mark.slow
def test_a_large_report_stays_small(tmp_path: Path) -> None:
    pages.make_comparison(tmp_path / "large")
    _, size = pages.report_of(tmp_path / "large", tmp_path / "report.html")
    data = gather([tmp_path / "large"])
    assert [len(runs) for runs in data["lines"].values()] == [pages.SEEDS] * len(pages.METHODS)
    assert len(data["motion"]["runs"]) == len(data["looks"]) == len(pages.METHODS)
    assert size < LARGEST
