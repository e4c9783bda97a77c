"""What a user gives to an exported model, as samples that its card describes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.images import fit_bytes
from protofed.data.records import read_records
from protofed.data.sources.archives import LARGEST, SUFFIXES, Tree, decode
from protofed.data.sources.npz import npz_samples
from protofed.data.tables import TableEncoding
from protofed.errors import UserError
from protofed.serving.card import ModelCard


def read(paths: Sequence[Path], card: ModelCard) -> tuple[list[str], Tensor]:
    """Names and samples [n, ...] of files: pictures and folders of them, tables, series, text, or .npz files."""
    names: list[str] = []
    samples: list[Tensor] = []
    for path in paths:
        found, x = _read(path, card)
        names += found
        samples.append(x)
    return names, torch.cat(samples)


def _read(path: Path, card: ModelCard) -> tuple[list[str], Tensor]:
    if path.suffix == ".npz" and path.is_file():
        if isinstance(card.encoding, TableEncoding):
            why = "the model takes rows of a table, and an array does not say which column is which"
            raise UserError("PATH", str(path), why, hint="give a CSV or Parquet file with a header")
        x = of_array(npz_samples(path), card)
        if not len(x):
            raise UserError("PATH", str(path), "its array is empty")
        return [f"{path}[{row}]" for row in range(len(x))], x
    if card.encoding is not None:
        names, records = read_records(path, card.encoding)
        return names, card.encoding.encode(records)
    if not card.is_picture:
        raise UserError("PATH", str(path), "the model sees arrays", hint="put them into an .npz file, under the key x")
    pictures = pictures_at(path, max(card.shape[1:]))
    return [name for name, _ in pictures], torch.cat([fit_bytes(one.unsqueeze(0), card.shape) for _, one in pictures])


def pictures_at(path: Path, side: int) -> list[tuple[str, Tensor]]:
    """Names and pictures, uint8 [c, h, w], of a file or a folder."""
    if path.is_dir():
        tree = Tree(path)
        if not (names := tree.pictures()):
            raise UserError("PATH", str(path), "there are no pictures in this folder")
        return [(f"{path}/{name}", tree.picture(name, side)) for name in names]
    if not path.is_file():
        raise UserError("PATH", str(path), "there is no such file or folder")
    if path.suffix.lower() not in SUFFIXES:
        hint = f"pictures are {', '.join(sorted(SUFFIXES))}"
        raise UserError("PATH", str(path), "it is no folder, .npz or picture", hint=hint)
    if path.stat().st_size > LARGEST:
        raise UserError("PATH", str(path), f"it has more than {LARGEST} bytes")
    return [(str(path), decode(path.read_bytes(), side, str(path)))]


def of_array(x: Any, card: ModelCard) -> Tensor:
    """Samples [n, ...] from an array or a tensor, or from a list of records where there is an encoding."""
    if card.encoding is not None and isinstance(x, list | tuple):
        return card.encoding.encode(x)
    samples = x if isinstance(x, Tensor) else torch.from_numpy(np.ascontiguousarray(x))
    got = f"{samples.dtype} {list(samples.shape)}"
    if card.is_picture:
        if samples.dtype != torch.uint8 or samples.dim() not in (3, 4):
            raise UserError("images", got, "they must be uint8 [n, channels, height, width], pixels from 0 to 255")
        return fit_bytes(samples.unsqueeze(1) if samples.dim() == 3 else samples, card.shape)
    dtype = getattr(torch, card.dtype)
    if samples.shape[1:] != card.shape or samples.is_floating_point() > dtype.is_floating_point:
        sizes = ", ".join(map(str, ("n", *card.shape)))
        raise UserError("samples", got, f"they must be {card.dtype} [{sizes}]")
    samples = samples.to(dtype)
    if dtype.is_floating_point and not bool(samples.isfinite().all()):
        raise UserError("samples", got, "they hold a number that is not finite")
    tokens = card.preparation.tokens
    if tokens and bool(((samples < 0) | (samples >= tokens)).any()):
        raise UserError("samples", int(samples.max()), f"token ids are from 0 to {tokens - 1}")
    return samples
