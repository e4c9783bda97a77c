"""PFLlib's partition files: a folder with `train/K.npz` and `test/K.npz` of each client, its samples pickled in them.

Nothing in a pickle is called (`pickles.py`). `x` are samples as PFLlib has prepared them, and `y` their labels; of text
`x` are pairs of token ids, of which 0 pads, and how many are real.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protofed.data.samples import Samples
from protofed.data.sources.files import MOST
from protofed.data.sources.npz import read_header
from protofed.data.sources.pickles import objects_in
from protofed.errors import UserError
from protofed.internal.inflating import unzipped

PARTS = ("train", "test")
ARRAY = "data"
"""The array that holds everything."""


class Partition(NamedTuple):
    """What a folder holds."""

    train: list[Samples]  # of each client
    test: list[Samples]  # likewise
    classes: tuple[str, ...]


def partition(folder: Path) -> Partition:
    """The clients of a folder that PFLlib has written; config.json beside them is not read.

    Raises:
        UserError: a client's file is missing, damaged or not of this kind, or the clients' samples differ in shape.
    """
    files = {part: _numbered(folder / part) for part in PARTS}
    for part, other in (PARTS, PARTS[::-1]):
        numbers = sorted(files[part].keys() | files[other].keys())
        lack = next((number for number in range(len(numbers)) if number not in files[part]), None)
        if lack is not None or not numbers:
            raise UserError("PATH", str(folder), f"there is no {part}/{lack or 0}.npz")
    train, test = ([_samples(files[part][number]) for number in range(len(files[part]))] for part in PARTS)
    kinds = {(tuple(one.x.shape[1:]), one.x.dtype) for one in (*train, *test)}
    if len(kinds) > 1:
        shapes = ", ".join(str(list(shape)) for shape, _ in sorted(kinds, key=str))
        raise UserError("PATH", str(folder), f"its clients' samples differ in shape: {shapes}")
    largest = max(int(one.labels.max()) for one in (*train, *test))
    return Partition(train, test, tuple(str(label) for label in range(largest + 1)))


def _numbered(folder: Path) -> dict[int, Path]:
    """The files of clients by number."""
    return {int(path.stem): path for path in folder.glob("*.npz") if path.stem.isdecimal()}


def _samples(path: Path) -> Samples:
    """The samples of a file."""
    try:
        with zipfile.ZipFile(path) as archive:
            content = unzipped(archive, f"{ARRAY}.npy", MOST)
        file = BytesIO(content)
        shape, _, kind = read_header(file)
        if shape != () or not kind.hasobject:
            raise ValueError(f"its array `{ARRAY}` is {kind} {list(shape)}, and must be a dict")
        (held,) = objects_in(content[file.tell() :])
        x, y = held["x"], held["y"]
    except KeyError as error:
        raise UserError("PATH", str(path), f"it has no {error}") from None
    except Exception as error:  # what zipfile and pickle raise on a broken file is whatever they stumble over
        raise UserError("PATH", str(path), f"it is no file of PFLlib's, damaged or cut short: {error}") from None
    return _checked(path, x, y)


def _checked(path: Path, x: Any, y: Any) -> Samples:
    """Samples of arrays, or of a list of PFLlib's pairs."""
    if isinstance(x, list):
        x = _ids(path, x)
    if not isinstance(x, np.ndarray) or x.ndim < 2 or x.dtype.kind not in "fiu" or not len(x):
        got = f"{x.dtype} {list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
        raise UserError("PATH", str(path), f"its `x` is {got}, and must be numbers [n, ...]")
    if not isinstance(y, np.ndarray) or y.shape != x.shape[:1] or y.dtype.kind not in "fiu" or (y % 1).any():
        got = f"{y.dtype} {list(y.shape)}" if isinstance(y, np.ndarray) else type(y).__name__
        raise UserError("PATH", str(path), f"its `y` is {got}, and must be {len(x)} whole numbers")
    if not 0 <= y.min() <= y.max() <= 100_000:
        raise UserError("PATH", str(path), f"its labels go from {y.min()} to {y.max()}, and must start at 0")
    ids = x.dtype.kind == "i" and x.ndim == 2
    samples = torch.from_numpy(x.astype(np.int64 if ids else np.float32))
    return Samples.of(samples, torch.from_numpy(y.astype(np.int64)))


def _ids(path: Path, pairs: Sequence[Any]) -> Any:
    """The token ids of a flat list of ids, number, ids, number, ..."""
    rows = pairs[::2]
    found: Any = np.empty(0)
    with suppress(TypeError, ValueError, OverflowError):
        found = np.array(rows, np.int64)
    if found.ndim != 2 or found.min() < 0:
        raise UserError("PATH", str(path), "its `x` is neither an array of numbers nor pairs of token ids and a number")
    return found


def pooled(parts: Sequence[Samples]) -> tuple[Samples, list[Tensor]]:
    """All samples of some parts, and the rows of each part among them."""
    every = Samples(*(torch.cat([getattr(part, name) for part in parts]) for name in ("x", "labels", "domains")))
    return every, list(torch.split(torch.arange(len(every)), [len(part) for part in parts]))
