"""How pictures of some data lie in their frames, so that what is drawn by hand can be laid likewise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FAINT = 0.25
"""Less ink than that is none, where the box around a drawing is looked for."""
LENGTH = 2.4
"""Of the line of a digit, in the longer side of the box around it: from 1 for a one to 3.4 for an eight."""
PENS = (0.06, 0.25)
"""The thinnest and the thickest pen, in the same measure."""


@dataclass(frozen=True)
class Placement:
    """Where a drawing goes."""

    fill: float = 20 / 28  # the longer side of the box around it, as a part of the picture's shorter side
    middle: tuple[float, float] = (0.5, 0.5)  # across and down, as parts of width and height
    by_mass: bool = True  # whether the middle of the ink goes there, or that of the box
    pen: float = 0.1  # as a part of the box's longer side
    dark: bool = False  # ink is darker than paper


def placement(pictures: Tensor | None, ink: float | None = None) -> Placement:
    """Where pictures, uint8 [n, c, h, w], have their ink; as MNIST has it (by default) where there are none.

    Args:
        pictures: some of the data.
        ink: how much of a picture is covered, if there are none to measure it with.
    """
    if pictures is None or not len(pictures):
        usual = Placement()
        return usual if ink is None else Placement(pen=_pen(ink, usual.fill, 1.0))
    grey = pictures.float().mean(1) / 255
    edge = torch.cat([grey[:, 0], grey[:, -1], grey[:, :, 0], grey[:, :, -1]], 1)
    dark = bool(edge.median() > 0.5)
    grey = 1 - grey if dark else grey
    grey = grey[(grey > FAINT).any(2).any(1)]
    if not len(grey):
        return placement(None, ink)
    height, width = grey.shape[1:]
    spans = [_span((grey > FAINT).any(axis)) for axis in (1, 2)]  # across, down
    boxes = torch.stack([(first + last) / 2 for first, last in spans], 1)
    sides = torch.stack([last - first for first, last in spans], 1) * torch.tensor([width, height])
    masses = torch.stack([_centre(grey.sum(axis)) for axis in (1, 2)], 1)
    by_mass = bool(masses.var(0, correction=0).sum() < boxes.var(0, correction=0).sum())
    fill = float(sides.amax(1).median()) / min(width, height)
    across, down = (masses if by_mass else boxes).mean(0).tolist()
    pen = _pen(float(grey.mean()), fill, max(width, height) / min(width, height))
    return Placement(fill, (across, down), by_mass, pen, dark)


def _span(covered: Tensor) -> tuple[Tensor, Tensor]:
    """From where to where each row [n, length] is covered, as parts of the length."""
    length = covered.shape[1]
    first = covered.int().argmax(1)
    last = length - covered.flip(1).int().argmax(1)
    return first / length, last / length


def _centre(ink: Tensor) -> Tensor:
    """The middle of the ink of each row [n, length], as a part of the length."""
    length = ink.shape[1]
    return (ink * (torch.arange(length) + 0.5)).sum(1) / ink.sum(1) / length


def _pen(ink: float, fill: float, longer: float) -> float:
    """The width that covers so much of a picture, whose longer side is so many shorter ones, with a usual line."""
    least, most = PENS
    return min(most, max(least, ink * longer / (LENGTH * fill**2)))
