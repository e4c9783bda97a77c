"""Datasets, the ways to divide them among clients, and the federation that comes out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import interpolate

from protofed.data.digit_domains import digit_domains
from protofed.data.digits import digits
from protofed.data.federation import Client, Federation, federate, join
from protofed.data.files import find_files
from protofed.data.idx import mnist
from protofed.data.picture import heat_map
from protofed.data.samples import Dataset, Samples
from protofed.data.splits import SPLITS, Split
from protofed.errors import UserError, unknown

__all__ = [
    "DATASETS",
    "SPLITS",
    "Client",
    "Dataset",
    "Federation",
    "Samples",
    "Split",
    "federate",
    "find_files",
    "heat_map",
    "join",
    "load",
]

# name -> (loader, what it is); a loader takes the folder with the data files
DATASETS: dict[str, tuple[Callable[[Path | None], Dataset], str]] = {
    "digits": (lambda _: digits(), "scikit-learn's 1,797 handwritten digits, 8x8 grey; needs no files"),
    "digit-domains": (lambda _: digit_domains(), "digits in four domains, 32x32 RGB, made on the spot; needs no files"),
    "mnist": (mnist, "MNIST, 28x28 grey; reads the four official .gz files from --data-dir"),
}


def load(
    name: str, data_dir: Path | None = None, train_size: int | None = None, image_size: int | None = None
) -> Dataset:
    """A dataset by name, with all or the first `train_size` of its training images, of their size or of another."""
    if name not in DATASETS:
        raise unknown("--dataset", name, DATASETS)
    dataset = DATASETS[name][0](data_dir)
    if image_size is not None:
        dataset = resized(dataset, image_size)
    if train_size is None:
        return dataset
    if not 1 <= train_size <= len(dataset.train):
        raise UserError("--train-size", train_size, f"{name} has 1 to {len(dataset.train)} training images")
    return replace(dataset, train=dataset.train.take(torch.arange(train_size)))


def resized(dataset: Dataset, side: int) -> Dataset:
    """The dataset with square images of another size."""
    return replace(dataset, train=_resized(dataset.train, side), test=_resized(dataset.test, side))


def _resized(samples: Samples, side: int) -> Samples:
    if samples.images.shape[-2:] == (side, side):
        return samples
    chunks = [
        interpolate(part.float(), (side, side), mode="bilinear", antialias=True).round().clamp(0, 255).byte()
        for part in torch.split(samples.images, 1000)
    ]
    return replace(samples, images=torch.cat(chunks))


def describe(data_dir: Path | None) -> list[dict[str, Any]]:
    """What `protofed datasets` says of each dataset."""
    rows = []
    for name, (loader, text) in DATASETS.items():
        try:
            dataset = loader(data_dir)
        except UserError as missing:
            rows.append({"name": name, "description": text, "present": False, "reason": str(missing)})
            continue
        about = {"train": len(dataset.train), "test": len(dataset.test), "classes": len(dataset.classes)}
        shape = "×".join(str(side) for side in dataset.train.images.shape[1:])
        rows.append(
            {"name": name, "description": text, "present": True, **about, "shape": shape, "domains": dataset.domains}
        )
    return rows
