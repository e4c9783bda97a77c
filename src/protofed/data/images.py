"""The one way to resize images; Pillow resizes only while it decodes a picture (sources/archives.py)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from protofed.data.samples import Dataset, Samples, is_picture
from protofed.errors import UserError

AT_ONCE = 1000
"""Images that are resized in one pass: as floats they take four times their memory."""


def fit(images: Tensor, shape: Sequence[int]) -> Tensor:
    """Images [n, c, h, w] in a model's input shape (c, h, w), as float32 with pixels from 0 to 255.

    Where the number of channels differs, each channel is the mean of those there are.
    """
    fitted = images.to(torch.float32)
    if fitted.shape[1] != shape[0]:
        fitted = fitted.mean(1, keepdim=True).expand(-1, shape[0], -1, -1)
    if fitted.shape[2:] == tuple(shape[1:]):
        return fitted
    return interpolate(fitted, size=tuple(shape[1:]), mode="bilinear", antialias=True)


def fit_bytes(images: Tensor, shape: Sequence[int]) -> Tensor:
    """The same for uint8 images, which stay uint8."""
    if images.shape[1:] == torch.Size(shape):
        return images
    return torch.cat([fit(part, shape).round().clamp(0, 255).byte() for part in torch.split(images, AT_ONCE)])


def resized(dataset: Dataset, side: int | None) -> Dataset:
    """The dataset with square images of another size, if one is given."""
    if side is None:
        return dataset
    if not is_picture(dataset.train.x):
        raise UserError("--image-size", side, f"{dataset.name} holds no pictures")

    def squared(samples: Samples) -> Samples:
        return replace(samples, x=fit_bytes(samples.x, (samples.x.shape[1], side, side)))

    return replace(dataset, train=squared(dataset.train), test=squared(dataset.test))
