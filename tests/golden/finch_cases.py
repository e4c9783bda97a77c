"""The inputs of finch.json, and how its numbers were made; the package's code is not here.

In an environment with finch-clust 0.2.3 (and nothing of this project): python tests/golden/finch_cases.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

OUTPUTS = Path(__file__).with_name("finch.json")
VERSION = "finch-clust 0.2.3, FINCH(data, distance='cosine', ensure_early_exit=False)"


class Case(NamedTuple):
    """An input, as its recipe."""

    kind: str
    rows: int
    dim: int
    seed: int


CASES = [
    Case("gaussian", 7, 3, 0),
    Case("gaussian", 60, 8, 1),
    Case("gaussian", 300, 6, 2),
    Case("blobs", 12, 4, 3),
    Case("blobs", 120, 64, 4),
    Case("features", 90, 256, 5),
    Case("features", 250, 16, 6),
]
"""Without structure, in groups, and in groups without negative values, as features behind a ReLU are."""


def points(case: Case) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """Rows, [rows, dim], of float32; numpy promises that RandomState's numbers never change."""
    kind, rows, dim, seed = case
    draw = np.random.RandomState(seed)
    noise = draw.standard_normal((rows, dim))
    if kind == "gaussian":
        return noise.astype(np.float32)
    centres = draw.standard_normal((max(2, rows // 15), dim))
    found = centres[draw.randint(len(centres), size=rows)] + 0.2 * noise
    return (np.maximum(found, 0) if kind == "features" else found).astype(np.float32)


def main() -> None:
    """Write what the package makes of every input: the levels, finest first, each row's cluster."""
    from finch import FINCH

    outputs = []
    for case in CASES:
        columns, _, _ = FINCH(points(case), distance="cosine", ensure_early_exit=False, verbose=False)
        outputs.append([[int(cluster) for cluster in column] for column in np.asarray(columns).T])
    OUTPUTS.write_text(json.dumps({"by": VERSION, "levels": outputs}, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
