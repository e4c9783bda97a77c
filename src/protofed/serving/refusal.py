"""When an image is refused: it is farther from what is known than nearly all held-out images of known classes are.

How far an image is, by `nearest`, is its distance to the nearest prototype, and by `head` 1 − the probability of the
best class. For each percentage p from 0 to 100, `threshold` is exceeded by at most p % of the held-out images of known
classes. `known` is the part of them that is refused when one half sets the threshold for the other; `unknown` is the
refused part of images of unknown classes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.internal.schema import check_type

PERCENTAGES = 101


def calibrate(known: Tensor, unknown: Tensor) -> dict[str, list[float]]:
    """The table of one rule, from how far held-out images of known and unknown classes are; none without the former."""
    if len(known) < 2:
        return {}
    known, unknown = known.double(), unknown.double()
    threshold = _thresholds(known)
    one, other = known[::2], known[1::2]
    crossed = (_refused(one, _thresholds(other)) + _refused(other, _thresholds(one))) / 2
    table = {"threshold": threshold, "known": crossed}
    if len(unknown):
        table["unknown"] = _refused(unknown, threshold)
    return {name: column.tolist() for name, column in table.items()}


def _thresholds(distances: Tensor) -> Tensor:
    """For each percentage. One image more is counted than there are: then, on average, it holds for further ones."""
    number = len(distances)
    part = torch.arange(PERCENTAGES).double() / (PERCENTAGES - 1)
    kept = ((number + 1) * (1 - part) - 1e-9).ceil().long().clamp(max=number)
    return torch.cat([distances.new_tensor([-1.0]), distances.sort().values])[kept]


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
        raise UserError("--reject", part, "it must be a part of the known data, from 0 to 1")
    place = math.floor(part * (PERCENTAGES - 1) + 1e-9)
    if not table:
        raise UserError("--reject", part, "this model was exported without held-out images of its classes")
    return {name: column[place] for name, column in table.items()}
