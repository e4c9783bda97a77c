"""A summary over seeds, and in words what may be concluded from it."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from protofed.evaluation.names import lower_is_better, worst_of
from protofed.experiment import options
from protofed.report.terminal import TITLES
from protofed.studies.significance import against_best


def compared(lines: Mapping[str, Sequence[Mapping[str, Any]]], scores: Sequence[str]) -> list[dict[str, Any]]:
    """A row per line: each accuracy over its seeds, traffic and time; only of runs that came to their end."""
    rows: list[dict[str, Any]] = []
    for label, every in lines.items():
        runs = [run for run in every if run["complete"]]
        cells = {score: cell for score in scores if (cell := _cell(runs, score)) is not None}
        failed = [run["failed"] or "cut off" for run in every if not run["complete"]]
        row: dict[str, Any] = {"label": label, "seeds": len(runs), "runs": len(every), "failed": failed, "cells": cells}
        row |= {
            "score": every[0]["score"],
            "further": _further(runs),
            "megabytes": None,
            "seconds": None,
            "setting": every[0]["setting"],
            "data": _data(every[0]),
        }
        if runs:
            row["megabytes"] = statistics.fmean((run["up"] + run["down"]) / 1e6 for run in runs)
            row["seconds"] = statistics.fmean(run["seconds"][-1] for run in runs)
        rows.append(row)
    for score in scores:
        for same in dict.fromkeys((row["setting"], row["data"]) for row in rows):
            some = [row for row in rows if (row["setting"], row["data"]) == same and score in row["cells"]]
            _judge({row["label"]: row["cells"][score] for row in some}, lower_is_better(score))
    return rows


def _further(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means over seeds of numbers that only some runs have, by the titles of their columns."""
    told = {title: [run["further"][name] for run in runs] for name, title in TITLES.items()}
    return {
        title: statistics.fmean(value or 0.0 for value in values)
        for title, values in told.items()
        if any(value is not None for value in values)
    }


def _cell(runs: Sequence[Mapping[str, Any]], score: str) -> dict[str, Any] | None:
    found = {run["experiment"].seed: run["last"][score] for run in runs if score in run["last"]}
    if not found:
        return None
    values = [one.last for one in found.values()]
    return {
        "mean": statistics.fmean(values),
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "values": dict(zip(found, values, strict=True)),
        "worst": statistics.fmean(worst_of(score)(one.per_client) for one in found.values()),
        "spread": statistics.fmean(statistics.pstdev(one.per_client) for one in found.values()),
        "diagnostic": next(iter(found.values())).diagnostic,
        "best": False,
        "says": "",
        "test": None,
    }


def _data(run: Mapping[str, Any]) -> str:
    """What a run is trained and tested on: only lines of the same are compared."""
    return str({name: getattr(run["experiment"], name) for name in options("data")})


def _judge(cells: Mapping[str, dict[str, Any]], lower: bool) -> None:
    """Mark the best, and say of the others whether they are clearly worse.

    A diagnostic is by a rule that the method does not have: it is never the best, and nothing is said of it. Nor is
    there a best of one.
    """
    real = {label: cell["values"] for label, cell in cells.items() if not cell["diagnostic"]}
    if len(real) < 2:
        return
    best, tests = against_best(real, lower)
    cells[best]["best"] = True
    for label, test in tests.items():
        cells[label] |= {"says": test.words(lower), "test": dataclasses.asdict(test)}
