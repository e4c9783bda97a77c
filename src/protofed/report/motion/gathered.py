"""What the motion of runs is drawn from: plain data, small enough to be put into a page."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from protofed.evaluation.motion import Motion
from protofed.report.motion.projection import Cloud, clouds, project
from protofed.runs.folder import RunFolder

LINES = 12
"""Lines that are shown, at most: each is about 150 kB of a page."""
GRID = 1000
"""Steps of a place, from 0 at the left and at the top."""
EDGE = 0.08
"""Room around the places of nearly all, as a part of their width; who is farther away stands at the edge."""


class MovingLine(NamedTuple):
    """One line of a report: the folder of the run that is shown, and the curve of one accuracy of it."""

    label: str
    folder: Path
    score: str
    rounds: Sequence[int]
    values: Sequence[float | None]


class _Found(NamedTuple):
    line: MovingLine
    motion: Motion


def gather_motion(lines: Sequence[MovingLine]) -> dict[str, Any] | None:
    """Place the rounds that runs have kept in one plane.

    Args:
        lines: those of a report whose runs have kept some.

    Returns:
        Plain data for the page's component `motion` and for `write_animation`: `samples`, test samples that several
        runs share, and `runs` by label; None where no run has kept anything.
    """
    found = [_Found(line, Motion.read(RunFolder(line.folder).motion)) for line in lines[:LINES]]
    left_out = len(lines[LINES:])
    sets: dict[Any, list[_Found]] = {}
    for one in found:
        seen = one.motion
        key = (*seen.classes, *seen.domains, *seen.rows, seen.points.numpy().tobytes(), seen.pictures.numpy().tobytes())
        sets.setdefault(key, []).append(one)
    samples: list[dict[str, Any]] = []
    runs: dict[str, dict[str, Any]] = {}
    for together in sets.values():
        placed = _placed([one.motion for one in together])
        runs |= {one.line.label: _run(one, at, len(samples)) for one, at in zip(together, placed, strict=True)}
        samples.append(_samples(together[0].motion))
    labels = [one.line.label for one in found]
    return {"samples": samples, "runs": {name: runs[name] for name in labels}, "left_out": left_out} if found else None


def _placed(motions: Sequence[Motion]) -> list[list[Cloud]]:
    """Of each run its rounds on the grid."""
    runs = []
    for one in motions:
        features, vectors = (part.double().numpy() for part in (one.features, one.vectors))
        runs.append(clouds(len(one.rounds), features, vectors, one.marks[:, 0].numpy()))
    first = motions[0]
    placed = project(runs, first.points[:, 0].long().numpy(), len(first.classes))
    every = np.concatenate([part for run in placed for cloud in run for part in cloud])
    low, high = np.percentile(every, (0.5, 99.5), axis=0)
    wide = np.maximum(high - low, 1e-9)
    low, wide = low - EDGE * wide, (1 + 2 * EDGE) * wide

    def on_grid(part: Any) -> Any:
        return np.clip(np.rint(GRID * (part - low) / wide), 0, GRID).astype(int)

    return [[Cloud(*map(on_grid, cloud)) for cloud in run] for run in placed]


def _run(found: _Found, placed: Sequence[Cloud], samples: int) -> dict[str, Any]:
    """One run: of each round the places and answers of samples, and marks of kind, class, client, slot and place."""
    line, seen = found
    marks = seen.marks.numpy()
    return {
        "samples": samples,
        "model": seen.model,
        "rule": seen.rule,
        "kinds": seen.kinds,
        "rounds": seen.rounds,
        "places": [cloud.features.flatten().tolist() for cloud in placed],
        "answers": seen.answers.tolist(),
        "marks": [
            np.concatenate([marks[marks[:, 0] == at][:, 1:], cloud.prototypes], 1).tolist()
            for at, cloud in enumerate(placed)
        ],
        "score": line.score,
        "curve": [[at, value] for at, value in zip(line.rounds, line.values, strict=False) if value is not None],
    }


def _samples(seen: Motion) -> dict[str, Any]:
    """What is the same in all rounds: classes, clients and domains, and all pictures in one, row by row."""
    return {
        "classes": seen.classes,
        "domains": seen.domains,
        "points": seen.points.tolist(),
        "rows": seen.rows,
        "pictures": _sprite(seen) if seen.pictures.dim() == 4 else None,
    }


def _sprite(seen: Motion) -> Mapping[str, Any]:
    """The pictures side by side in one PNG."""
    from PIL import Image

    number, channels, height, width = seen.pictures.shape
    across = max(1, math.isqrt(number))
    down = -(-number // across)
    grid = np.zeros((down * height, across * width, channels), dtype=np.uint8)
    for at, picture in enumerate(seen.pictures.permute(0, 2, 3, 1).numpy()):
        y, x = at // across * height, at % across * width
        grid[y : y + height, x : x + width] = picture
    file = BytesIO()
    Image.fromarray(grid[:, :, 0] if channels == 1 else grid).save(file, format="png", optimize=True)
    return {"png": b64encode(file.getvalue()).decode(), "across": across, "width": width, "height": height}
