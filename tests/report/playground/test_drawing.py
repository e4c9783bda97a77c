"""Where pictures of some data have their ink."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from protofed.data import load
from protofed.report.playground.drawing import Placement, placement


def strokes(places: list[tuple[int, int]], height: int = 20, width: int = 4, side: int = 28) -> Tensor:
    """Pictures with a bar whose upper left corner is there."""
    pictures = torch.zeros(len(places), 1, side, side, dtype=torch.uint8)
    for picture, (row, column) in zip(pictures, places, strict=True):
        picture[0, row : row + height, column : column + width] = 255
    return pictures


def test_digits_fill_their_frames_and_lie_in_the_middle_of_the_box() -> None:
    found = placement(load("digits").train.x)
    assert (found.fill, found.by_mass, found.dark) == (1.0, False, False)
    assert found.middle == pytest.approx((0.5, 0.5), abs=0.03)
    assert 0.1 < found.pen < 0.2


def test_the_box_is_measured() -> None:
    found = placement(strokes([(4, 10), (4, 14)]))
    assert found.fill == pytest.approx(20 / 28)
    assert found.middle == pytest.approx((14 / 28, 14 / 28))
    assert found.pen == pytest.approx(80 / 784 / (2.4 * (20 / 28) ** 2))


def test_the_middle_of_the_ink_is_taken_where_it_varies_less() -> None:
    pictures = strokes([(4, 12), (4, 12)])
    pictures[0, 0, 4:8, 12:24] = 255  # a flag, whose ink is then moved to the middle
    pictures[0] = pictures[0].roll((2, -2), (1, 2))
    assert placement(pictures).by_mass


def test_dark_ink_on_light_paper_is_seen() -> None:
    light = strokes([(4, 12), (4, 13)])
    dark = placement(255 - light)
    assert dark.dark
    assert dark == Placement(**{**vars(placement(light)), "dark": True})


def test_colours_are_averaged() -> None:
    grey = strokes([(4, 12)])
    assert placement(grey.expand(-1, 3, -1, -1)) == placement(grey)


@pytest.mark.parametrize("nothing", [None, torch.zeros(0, 1, 8, 8), torch.zeros(3, 1, 8, 8, dtype=torch.uint8)])
def test_without_ink_it_is_as_mnist_has_it(nothing: Tensor | None) -> None:
    assert placement(nothing) == Placement()
    assert placement(nothing, ink=0.1307).pen == pytest.approx(0.1307 * 784 / (2.4 * 20**2))
