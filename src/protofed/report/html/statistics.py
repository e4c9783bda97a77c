"""A summary over seeds, and in words what may be concluded from it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

SURE = 0.05
"""Below this a difference is called clear."""


def compared(lines: Mapping[str, Sequence[Mapping[str, Any]]], scores: Sequence[str]) -> list[dict[str, Any]]:
    """A row a line: each accuracy over its seeds, traffic and time; ranked among the lines of the same setting."""
    rows = []
    for label, runs in lines.items():
        cells = {}
        for score in scores:
            found = {run["experiment"].seed: run["last"][score] for run in runs if score in run["last"]}
            if found:
                values = [one.last for one in found.values()]
                worst = [min(one.per_client) for one in found.values()]
                fair = [statistics.pstdev(one.per_client) for one in found.values()]
                cells[score] = {
                    "mean": statistics.fmean(values),
                    "std": statistics.stdev(values) if len(values) > 1 else None,
                    "values": dict(zip(found, values, strict=True)),
                    "worst": statistics.fmean(worst),
                    "spread": statistics.fmean(fair),
                    "diagnostic": next(iter(found.values())).diagnostic,
                }
        rows.append(
            {
                "label": label,
                "setting": runs[0]["setting"],
                "seeds": len(runs),
                "score": runs[0]["score"],
                "cells": cells,
                "megabytes": statistics.fmean((run["up"] + run["down"]) / 1e6 for run in runs),
                "seconds": statistics.fmean(run["seconds"][-1] for run in runs),
            }
        )
    for setting in {row["setting"] for row in rows}:
        for score in scores:
            _judge([row["cells"][score] for row in rows if row["setting"] == setting and score in row["cells"]])
    return rows


def _judge(cells: Sequence[dict[str, Any]]) -> None:
    """Mark the best, and say of the others whether they are clearly below it, paired over the seeds they share.

    A diagnostic is by a rule that the method does not have: it is never the best, and nothing is said of it. Nor
    is there a best of one.
    """
    for cell in cells:
        cell |= {"best": False, "says": ""}
    ranked = [cell for cell in cells if not cell["diagnostic"]]
    if len(ranked) < 2:
        return
    best = max(ranked, key=lambda cell: float(cell["mean"]))
    best["best"] = True
    for cell in ranked:
        cell["says"] = "" if cell is best else verdict(best["values"], cell["values"])


def verdict(best: Mapping[int, float], other: Mapping[int, float]) -> str:
    """In words, whether `other` is below `best`: a paired t-test over common seeds."""
    seeds = sorted(best.keys() & other.keys())
    if len(seeds) < 2:
        return "one common seed: nothing can be said"
    differences = [best[seed] - other[seed] for seed in seeds]
    mean = statistics.fmean(differences)
    if len(set(differences)) == 1:
        return "equal in every seed" if mean == 0 else f"{mean:.1f} below the best in every seed"
    from scipy.stats import ttest_rel

    p = float(ttest_rel([best[seed] for seed in seeds], [other[seed] for seed in seeds]).pvalue)
    sure = "clearly" if p < SURE else "not clearly"
    return f"{sure} below the best ({mean:.1f} points, p = {p:.2g}, {len(seeds)} seeds)"
