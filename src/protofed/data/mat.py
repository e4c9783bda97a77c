"""MATLAB files of SVHN's shape: X (32, 32, 3, n) uint8 and y (n, 1), where 10 stands for the digit 0."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from protofed.data.files import MOST, damaged
from protofed.data.samples import Dataset, Samples

SIDE = 32
FIRST = 300  # training images where there are only some


def svhn(paths: Sequence[Path], _: int | None) -> Dataset:
    """SVHN's cropped digits from `train_32x32.mat` and `test_32x32.mat`."""
    train, test = (read_mat(path) for path in paths)
    return Dataset.of("svhn", train, test, "0123456789")


def svhn_beginning(paths: Sequence[Path], _: int | None) -> Dataset:
    """The beginning of SVHN's training file: the first 300 images are for training, the others for testing."""
    everything = read_mat(paths[0])
    if len(everything) <= FIRST:
        raise damaged(paths[0], f"{len(everything)} images")
    first, others = torch.arange(FIRST), torch.arange(FIRST, len(everything))
    return Dataset.of("svhn", everything.take(first), everything.take(others), "0123456789")


def synth_digits(paths: Sequence[Path], _: int | None) -> Dataset:
    """Synthetic Digits from `synth_train_32x32.mat` and `synth_test_32x32.mat`."""
    train, test = (read_mat(path) for path in paths)
    return Dataset.of("synth-digits", train, test, "0123456789")


def read_mat(path: Path) -> Samples:
    """The images and labels of one file."""
    from scipy.io import loadmat, whosmat

    try:
        shapes = {name: shape for name, shape, _ in whosmat(path)}
        size = shapes["X"]
        if size[:3] != (SIDE, SIDE, 3) or len(size) != 4 or not 0 < size[3] < MOST // (3 * SIDE**2):
            raise ValueError(f"X is {size}, not (32, 32, 3, n)")
        content = loadmat(path, variable_names=("X", "y"))
        images = torch.from_numpy(content["X"]).permute(3, 2, 0, 1).contiguous()
        labels = torch.from_numpy(content["y"].astype("int64")).flatten()
        if not (labels.min() >= 0 and labels.max() <= 10):
            raise ValueError("labels are not from 0 to 10")
        return Samples.of(images, labels % 10)
    except Exception as error:  # what scipy's parser raises on a broken file is whatever it stumbles over
        raise damaged(path, error) from None
