"""A sample of an array as a line."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protofed.data.series_encoding import shown


@pytest.mark.parametrize(
    ("x", "line"),
    [
        (torch.tensor([0.5, -2.0, 1.23456]), "0.5 -2 1.235"),
        (torch.arange(12), "0 1 2 3 4 5 6 7 … (12 in all)"),
        (torch.tensor([[0.0, 1.0], [9.0, 9.0]]), "▁█ (2 steps, first of 2 channels)"),
        (torch.zeros(1, 3, 3), "0 0 0 0 0 0 0 0 … (9 in all)"),
        (torch.zeros(1, 3, 3, dtype=torch.uint8), None),
    ],
)
def test_it_is_told_by_its_values(x: Tensor, line: str | None) -> None:
    assert shown(x) == line
