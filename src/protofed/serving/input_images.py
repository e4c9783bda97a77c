"""Images that a user gives, as uint8 [n, c, h, w] of the shape that a model sees."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.images import fit_bytes
from protofed.data.sources.archives import LARGEST, SUFFIXES, Tree, decode
from protofed.data.sources.npz import npz_images
from protofed.errors import UserError

Shape = tuple[int, int, int]


def read(paths: Sequence[Path], shape: Shape) -> tuple[list[str], Tensor]:
    """Names and images: pictures, the pictures of folders, and the arrays `images` of .npz files."""
    names, images = [], []
    for path in paths:
        for name, image in _read(path, shape):
            names.append(name)
            images.append(image)
    return names, torch.stack(images)


def _read(path: Path, shape: Shape) -> list[tuple[str, Tensor]]:
    side = max(shape[1:])
    if path.is_dir():
        tree = Tree(path)
        found = [(f"{path}/{name}", tree.picture(name, side)) for name in tree.pictures()]
        if not found:
            raise UserError("IMAGE", str(path), "there are no pictures in this folder")
    elif not path.is_file():
        raise UserError("IMAGE", str(path), "there is no such file or folder")
    elif path.suffix == ".npz":
        array = fit_bytes(npz_images(path), shape)
        if not len(array):
            raise UserError("IMAGE", str(path), "its array `images` is empty")
        return [(f"{path}[{row}]", image) for row, image in enumerate(array)]
    elif path.suffix.lower() in SUFFIXES:
        if path.stat().st_size > LARGEST:
            raise UserError("IMAGE", str(path), f"it has more than {LARGEST} bytes")
        found = [(str(path), decode(path.read_bytes(), side, str(path)))]
    else:
        raise UserError(
            "IMAGE", str(path), "it is no folder, .npz or picture", hint=f"pictures are {', '.join(sorted(SUFFIXES))}"
        )
    return [(name, fit_bytes(image.unsqueeze(0), shape)[0]) for name, image in found]


def of_array(x: Any, shape: Shape) -> Tensor:
    """Images from an array or a tensor, uint8 [n, c, h, w] or, if grey, [n, h, w]."""
    images = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
    if images.dtype != torch.uint8 or images.dim() not in (3, 4):
        got = f"{images.dtype} {list(images.shape)}"
        raise UserError("images", got, "they must be uint8 [n, channels, height, width], pixels from 0 to 255")
    return fit_bytes(images.unsqueeze(1) if images.dim() == 3 else images, shape)
