"""How runs ended, for a page: who holds what, which classes are mistaken, and features in the plane."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from protofed.evaluation.snapshot import Snapshot
from protofed.report.html.run_data import REMEMBERED, Lines, short
from protofed.report.index import version_of
from protofed.runs.folder import RunFolder

SAME = 1e-9
"""Features that differ by less than this part of their length lie in one point."""


def looks_of(lines: Lines) -> dict[str, dict[str, Any]]:
    """How the first complete run of each line ended, of those lines that have one.

    Args:
        lines: the runs that are drawn.

    Raises:
        UserError: the file of a snapshot is damaged.
    """
    every = {label: [run["path"] for run in runs] for label, runs in lines.items()}
    found = {label: [path for path in paths if RunFolder(path).snapshot.is_file()] for label, paths in every.items()}
    return {label: _look(paths[0], version_of(paths[0])) for label, paths in found.items() if paths}


def colours_needed(looks: Mapping[str, Mapping[str, Any]]) -> int:
    """How many colours the planes need: by class, by client or by domain."""
    return max((len(look[what]) for look in looks.values() for what in ("classes", "homes", "domains")), default=0)


@lru_cache(maxsize=REMEMBERED)
def _look(path: Path, version: str) -> dict[str, Any]:  # noqa: ARG001 - what is remembered is of one version
    """Places in the plane instead of features."""
    seen = Snapshot.read(RunFolder(path).snapshot)
    places = [[short(x), short(y)] for x, y in plane(seen)]
    points, marks = places[: len(seen.points)], places[len(seen.points) :]
    return {
        "model": seen.model,
        "rule": seen.rule,
        "classes": seen.classes,
        "domains": seen.domains,
        "names": seen.names,
        "kinds": seen.kinds,
        "holds": seen.holds.tolist(),
        "homes": seen.homes.tolist(),
        "confusion": seen.confusion.tolist(),
        "points": [[*place, *what] for place, what in zip(points, seen.points.tolist(), strict=True)],
        "marks": [[*place, *what] for place, what in zip(marks, seen.marks.tolist(), strict=True)],
    }


def plane(seen: Snapshot) -> list[list[float]]:
    """Features and prototypes together in the plane, by t-SNE."""
    import numpy as np
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    every = np.concatenate([seen.features.double().numpy(), seen.prototypes.double().numpy()])
    if len(every) < 5:
        return [[float(place), 0.0] for place in range(len(every))]
    # A model that has nearly diverged has features that are all the same, or too large to be squared: t-SNE, which does
    # not depend on the scale, crashes on both.
    every = np.nan_to_num(every)
    every /= max(np.abs(every).max(), np.finfo(np.float64).tiny)
    every -= every.mean(0)
    if np.abs(every).max() < SAME:
        return [[0.0, 0.0]] * len(every)
    perplexity = min(30.0, (len(every) - 1) / 3)
    start = "pca" if min(every.shape) > 1 else "random"
    with threadpool_limits(1):  # two threads that wait for each other take longer than one
        placed = TSNE(perplexity=perplexity, init=start, max_iter=300, random_state=0).fit_transform(every)
    return [[float(x), float(y)] for x, y in placed]
