"""flower.json: what holds for a run over a network from its beginning, whoever comes or leaves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypedDict

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.schema import read_json, require

LARGEST_SAMPLES = 2**28
"""Numbers of one sample of each client together: the server makes some of the size that clients name."""
MOST_AXES = 4
"""Of a sample."""
MOST_TOKENS = 2**18
"""Of a vocabulary: the server makes an embedding of each."""
MOST_CLASSES = 10_000
"""That clients may name together."""


OWN = "own"
"""The split of a run whose clients brought data of their own: nobody has divided it."""


class NetworkLabel(TypedDict):
    """The run's name at the clients, and what they said of their samples."""

    run: str
    protocol: int | None  # of its messages; None in folders of versions that spoke one only
    layout: str  # a digest of their columns, channels or words, where they must be the same; else nothing
    brings: bool  # whether clients have data of their own, or parts of the experiment's dataset
    classes: list[str]
    domains: list[str]
    shapes: list[list[int]]
    tokens: list[int]  # of each client, how many token ids there may be; 0 for numbers
    masked: list[bool]  # whether the last channel of a client's series is a mask


def read_network_label(path: Path, clients: int) -> NetworkLabel:
    """The label in a file, if it is that of a run with so many clients."""
    values = read_json(path)
    if isinstance(values, dict):  # a label of version 0.1 is of pictures
        values = {"protocol": None, "layout": "", "tokens": [0] * clients, "masked": [False] * clients} | values
    require(str(path), values, NetworkLabel)
    label: NetworkLabel = values
    usable = all(is_usable(*one) for one in zip(label["shapes"], label["tokens"], strict=False)) and label["classes"]
    each = {len(label[name]) for name in ("shapes", "tokens", "masked")}
    if not usable or each != {clients} or too_large(label):
        raise UserError("FILE", str(path), f"it must give the shape of the samples of {clients} clients")
    return label


def with_own_data(experiment: Experiment) -> Experiment:
    """The experiment as its folder says it where clients brought data of their own: what it names was not used."""
    return replace(experiment, dataset=f"{experiment.number_of_clients} clients' own data", split=OWN)


def is_usable(shape: Sequence[int], tokens: int) -> bool:
    """Whether a client's samples can be of a shape, and of so many tokens."""
    return 1 <= len(shape) <= MOST_AXES and min(shape) >= 1 and 0 <= tokens <= MOST_TOKENS


def too_large(label: NetworkLabel) -> bool:
    """Whether what stands in for the clients would take too much memory."""
    return sum(map(math.prod, label["shapes"])) > LARGEST_SAMPLES or len(label["classes"]) > MOST_CLASSES
