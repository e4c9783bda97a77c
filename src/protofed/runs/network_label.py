"""flower.json: what holds for a run over a network from its beginning, whoever comes or leaves."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TypedDict

from protofed.errors import UserError
from protofed.internal.schema import read_json, require

LARGEST_IMAGES = 2**28
"""Bytes of one image of each client together: the server makes some of the size that clients name."""
MOST_CLASSES = 10_000
"""That clients may name together."""


class NetworkLabel(TypedDict):
    """The run's name at the clients, and what they said of their images."""

    run: str
    brings: bool  # whether clients have data of their own, or parts of the experiment's dataset
    classes: list[str]
    domains: list[str]
    shapes: list[list[int]]


def read_network_label(path: Path, clients: int) -> NetworkLabel:
    """The label in a file, if it is that of a run with so many clients."""
    values = read_json(path)
    require(str(path), values, NetworkLabel)
    label: NetworkLabel = values
    usable = all(len(shape) == 3 and min(shape) >= 1 for shape in label["shapes"]) and label["classes"]
    if not usable or len(label["shapes"]) != clients or too_large(label):
        raise UserError("FILE", str(path), f"it must give the shape of the images of {clients} clients")
    return label


def too_large(label: NetworkLabel) -> bool:
    """Whether what stands in for the clients would take too much memory."""
    return sum(map(math.prod, label["shapes"])) > LARGEST_IMAGES or len(label["classes"]) > MOST_CLASSES
