"""FEMNIST in LEAF's JSON: writers, and of each the images and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from protofed.data.holdout import fifth_out
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.files import damaged
from protofed.data.sources.idx import CHARACTERS

PIXELS = 784
WRITERS = 100
"""Up to so many writers are a domain each; the full set has 3,597, too many to report on one by one."""


def femnist(paths: Sequence[Path], _: int | None) -> Dataset:
    """From the folder of `all_data_*.json`; every fifth image of a writer's class is a test image."""
    return _dataset(_writers(paths[0]), None)


def femnist_split(paths: Sequence[Path], _: int | None) -> Dataset:
    """From LEAF's folders `train` and `test`."""
    return _dataset(_writers(paths[0]), _writers(paths[1]))


Writers = dict[str, tuple[Tensor, Tensor]]


def _writers(folder: Path) -> Writers:
    """Images and labels of each writer, from all files of a folder."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for path in sorted(folder.glob("*.json")):
        for name, images, labels in _read(path):
            found[name] = (images, labels)
    if not found:
        raise damaged(folder, "it holds no .json file with writers")
    return found


def _read(path: Path) -> Iterator[tuple[str, Tensor, Tensor]]:
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        for name in content["users"]:
            data = content["user_data"][name]
            pixels, labels = torch.tensor(data["x"], dtype=torch.float32), torch.tensor(data["y"], dtype=torch.int64)
            if pixels.shape != (len(labels), PIXELS) or not (pixels.min() >= 0 and pixels.max() <= 1):
                raise ValueError(f"the images of {name} are not rows of 784 pixels from 0 to 1")
            if labels.min() < 0 or labels.max() >= len(CHARACTERS):
                raise ValueError(f"the labels of {name} are not from 0 to 61")
            yield str(name), (pixels * 255).round().to(torch.uint8).view(-1, 1, 28, 28), labels
    except (ValueError, KeyError, TypeError, OverflowError, RuntimeError) as error:
        raise damaged(path, error) from None


def _dataset(train: Writers, test: Writers | None) -> Dataset:
    names = sorted({*train, *(test or ())})
    number = {name: i if len(names) <= WRITERS else 0 for i, name in enumerate(names)}

    def every(writers: Writers) -> Samples:
        parts = [Samples.of(images, labels, number[name]) for name, (images, labels) in writers.items()]
        return Samples(*(torch.cat([getattr(part, what) for part in parts]) for what in ("x", "labels", "domains")))

    first, second = fifth_out(every(train)) if test is None else (every(train), every(test))
    return Dataset.of("femnist", first, second, CHARACTERS, names if len(names) <= WRITERS else ())
