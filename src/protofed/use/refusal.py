"""When an image is refused: it is farther from what is known than nearly all held-out images of known classes are.

How far an image is, by `nearest`, is its distance to the nearest prototype, and by `head` 1 − the probability of the
best class. For each percentage p from 0 to 100, `threshold` is exceeded by at most p % of one half of the held-out
images of known classes; `known` and `unknown` are the parts of the other half, and of images of unknown classes, that
are refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.experiment import check_type

PERCENTAGES = 101


def calibrate(known: Tensor, unknown: Tensor) -> dict[str, list[float]]:
    """The table of one rule, from how far held-out images of known and unknown classes are; none without the former."""
    halves = known[::2].double().sort().values, known[1::2].double()
    if not len(halves[1]):
        return {}
    part = torch.arange(PERCENTAGES).double() / (PERCENTAGES - 1)
    place = len(halves[0]) - 1 - (part * len(halves[0]) + 1e-9).floor().long()
    threshold = torch.where(place >= 0, halves[0][place.clamp(min=0)], halves[0].new_tensor(-1.0))
    table = {"threshold": threshold, "known": _refused(halves[1], threshold)}
    if len(unknown):
        table["unknown"] = _refused(unknown.double(), threshold)
    return {name: column.tolist() for name, column in table.items()}


def _refused(distances: Tensor, threshold: Tensor) -> Tensor:
    return (distances > threshold.unsqueeze(-1)).double().mean(-1)


def check(rule: str, table: Any) -> None:
    """Raise unless this is such a table, as in a card."""
    check_type(rule, table, dict)
    for name, column in table.items():
        if not isinstance(column, list) or len(column) != PERCENTAGES:
            raise UserError(f"refusal {rule}", name, f"it must hold {PERCENTAGES} numbers")
        for number in column:
            check_type(name, number, float)


def at(table: Mapping[str, list[float]], part: float) -> dict[str, float]:
    """The row for a part of known data that may be refused; parts count in whole percent."""
    if not 0 <= part <= 1:
        raise UserError("--reject", part, "it is a part of the known data, from 0 to 1")
    place = math.floor(part * (PERCENTAGES - 1) + 1e-9)
    if not table:
        raise UserError("--reject", part, "this model was exported without held-out images of its classes")
    return {name: column[place] for name, column in table.items()}
