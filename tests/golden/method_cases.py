"""The inputs of methods.json, and what they are for; no public code is here.

Its numbers were made outside this project, in float64, from the functions that each entry names. `how` says whether
they were called, without the rest of their repository and with `Tensor.float` as `double`, or whether their arithmetic
was typed in again by hand, without branches that these inputs do not reach and without devices, files, processes and
data loaders. No repository was run as a whole.
numpy promises that RandomState's numbers never change.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

OUTPUTS = Path(__file__).with_name("methods.json")

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
State = dict[str, Floats]

INPUT, FEATURES, CLASSES, BATCH = 4, 3, 3, 5
RATE = 0.1
"""The learning rate of clients."""
COUNTS = (7, 2, 0)
"""How many samples of each class a client has whose loss knows it."""
TURNS = ((0, 1, 2), (0, 2))
"""Who of four clients takes part in each of two rounds."""
HOLDERS = ((0, 1), (1, 2), (0, 1, 2))
"""The classes of which each client has a mean; a fourth class is nobody's."""
NORMED = {
    "conv1.weight": (2, 1),
    "bn1.weight": (2,),
    "bn1.bias": (2,),
    "bn1.running_mean": (2,),
    "bn1.running_var": (2,),
    "fc.weight": (3, 2),
    "fc.bias": (3,),
}
"""A network with BatchNorm."""


def normal(seed: int, *shape: int) -> Floats:
    """Standard normal numbers."""
    return np.asarray(np.random.RandomState(seed).standard_normal(shape), dtype=np.float64)


def labels(seed: int, *shape: int, classes: int = CLASSES) -> Integers:
    """Classes, drawn uniformly."""
    return np.asarray(np.random.RandomState(seed).randint(classes, size=shape), dtype=np.int64)


def held(y: Integers) -> Integers:
    """The same classes, but 0 for the one that the client of `COUNTS` lacks."""
    return np.where(y == COUNTS.index(0), 0, y)


def network(seed: int) -> State:
    """Weights of head(tanh(body(x))), two dense layers."""
    shapes = {"body.weight": (FEATURES, INPUT), "body.bias": (FEATURES,)}
    shapes |= {"head.weight": (CLASSES, FEATURES), "head.bias": (CLASSES,)}
    return {name: 0.5 * normal(seed + place, *shape) for place, (name, shape) in enumerate(shapes.items())}


def batch(client: int, turn: int, step: int) -> tuple[Floats, Integers]:
    """What a client sees in one step: x [BATCH, INPUT] and y [BATCH]."""
    seed = 1000 + 100 * client + 10 * turn + step
    return normal(seed, BATCH, INPUT), labels(seed, BATCH)


def class_mean(client: int, c: int) -> Floats:
    """A client's mean of a class [FEATURES]; see `HOLDERS`."""
    return normal(20 + 10 * client + c, FEATURES)


def samples() -> list[tuple[Floats, Integers]]:
    """Features [n, FEATURES] and classes [n] of three clients; of four classes the last is nobody's."""
    return [(0.5 + normal(50 + 2 * k, n, FEATURES), labels(51 + 2 * k, n)) for k, n in enumerate((7, 9, 6))]
