"""Training images, cropped and mirrored: a batch at a time, on the device, drawn from a hash like dropout."""

from __future__ import annotations

import torch
from torch import Tensor

from protofed.randomness import bits

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and std of pixels scaled to 0..1."""

PADDING = 4
"""A crop is of the image's own size, out of the image with so many black pixels on each side."""

_SITE = 0  # dropout counts its sites from 1


def augmented(images: Tensor, keys: Tensor, how: str) -> Tensor:
    """Images [..., B, c, h, w] of clients with keys [...]: each has its own crop and, unless `how` is crop, side.

    RethinkFL does the same to digits and photographs alike, and takes ImageNet's mean and std.
    """
    if how == "none":
        return images
    *_, batch, channels, height, width = images.shape
    down, right, mirror = bits(keys, _SITE, (batch, 3)).flatten(0, -2).unbind(-1)
    rows = _moved(down, height)
    columns = _moved(right, width)
    if how != "crop":
        columns = torch.where((mirror % 2 == 1).unsqueeze(-1), columns.flip(-1), columns)
    inside = _inside(rows, height).unsqueeze(-1) & _inside(columns, width).unsqueeze(-2)
    flat = images.flatten(0, -4)
    number = torch.arange(len(flat), device=images.device)
    channel = torch.arange(channels, device=images.device)
    found = flat[
        number.view(-1, 1, 1, 1),
        channel.view(1, -1, 1, 1),
        rows.clamp(0, height - 1).view(-1, 1, height, 1),
        columns.clamp(0, width - 1).view(-1, 1, 1, width),
    ]
    return (found * inside.unsqueeze(1)).view_as(images)


def _moved(draws: Tensor, side: int) -> Tensor:
    """[n, side]: which row or column of the image each one of the crop is."""
    return (draws % (2 * PADDING + 1) - PADDING).unsqueeze(-1) + torch.arange(side, device=draws.device)


def _inside(places: Tensor, side: int) -> Tensor:
    return (places >= 0) & (places < side)
