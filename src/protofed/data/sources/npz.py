"""A user's own arrays: an .npz with samples and labels, maybe domains, maybe a test part."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from numpy.lib import format as npy
from torch import Tensor

from protofed.data.holdout import fifth_out
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, Samples, is_picture
from protofed.data.sources.files import MOST
from protofed.errors import UserError
from protofed.internal.inflating import unzipped

KEYS = ("x", "labels", "domains")
GIVEN = ("mean", "std", "tokens")
"""What a file may say of its samples: statistics to standardise with, or how many token ids there may be."""
IMAGES = "images"
"""Another name of `x`."""
HEADER = 2**16
"""Bytes in which the header of an array ends: numpy takes none that is longer than 10,000 characters."""


def npz(paths: Sequence[Path], _: int | None) -> Dataset:
    """Arrays `x` or `images`, `labels`, maybe `domains`, and with `test_` before; else every fifth is a test.

    `mean` and `std`, of each channel, or `tokens`, say what happens to samples before a model sees them.
    """
    path = paths[0]
    arrays = _arrays(path)
    halves = ["", "test_"] if any(name.startswith("test_") for name in arrays) else [""]
    whats = KEYS if any(name.endswith("domains") for name in arrays) else KEYS[:2]
    for name, what in ((half + what, what) for half in halves for what in whats):
        if name not in arrays:
            raise UserError("PATH", str(path), f"it has no array `{name}`{_or_images(name)}")
        samples = name.removesuffix(what) + "x"
        if arrays[name].shape[:1] != arrays[samples].shape[:1]:
            why = f"its `{name}` are {list(arrays[name].shape)} and its `{samples}` {list(arrays[samples].shape)}"
            raise UserError("PATH", str(path), f"{why}, and must be as many")
    labels, classes = _numbers(path, "labels", [arrays[f"{half}labels"] for half in halves])
    given = [arrays.get(f"{half}domains", np.zeros(len(arrays[f"{half}labels"]), np.int64)) for half in halves]
    domains, names = _numbers(path, "domains", given)
    parts = [
        Samples(_samples(path, arrays[f"{half}x"]), *pair) for half, *pair in zip(halves, labels, domains, strict=True)
    ]
    train, test = parts if len(parts) == 2 else fifth_out(parts[0])
    if not len(test):
        raise UserError("PATH", str(path), "every fifth of a class is for testing, and no class has five")
    domains_named = names if "domains" in arrays else ()
    return Dataset.of(path.stem, train, test, classes, domains_named, _preparation(path, train.x, arrays))


def _preparation(path: Path, x: Tensor, arrays: dict[str, Any]) -> Preparation | None:
    """What the file says of it; None where it says nothing."""
    said = {name: arrays[name] for name in GIVEN if name in arrays}
    if not said:
        return None
    try:
        made = _made_of(said, x)
        made.check(x)
    except UserError as error:
        names = " and ".join(f"`{name}`" for name in said)
        raise UserError("PATH", str(path), f"its {names}: {error.reason}") from None
    return made


def _made_of(said: dict[str, Any], x: Tensor) -> Preparation:
    """The preparation that arrays say."""
    ids = x.dtype == torch.int64
    if said.keys() != ({"tokens"} if ids else {"mean", "std"}):
        raise UserError("arrays", list(said), "token ids have `tokens`, and numbers have `mean` and `std`")
    if ids:
        if said["tokens"].dtype.kind not in "iu" or said["tokens"].ndim:
            raise UserError("tokens", said["tokens"].dtype, "it must be a whole number")
        return Preparation(tokens=int(said["tokens"]))
    if any(array.dtype.kind not in "fiu" or array.ndim != 1 for array in said.values()):
        raise UserError("mean and std", "arrays", "they must be numbers, one for each channel")
    mean, std = (tuple(said[name].astype(float).tolist()) for name in ("mean", "std"))
    return Preparation("pixels" if is_picture(x) else "standardise", mean, std)


def npz_samples(path: Path) -> Tensor:
    """The array `x` or `images` of a file; see `_samples`."""
    arrays = _arrays(path)
    if "x" not in arrays:
        raise UserError("PATH", str(path), "it has no array `x` or `images`")
    return _samples(path, arrays["x"])


def _arrays(path: Path) -> dict[str, Any]:
    """The arrays that have a meaning here; `images` is `x`."""
    if not zipfile.is_zipfile(path):
        raise UserError("PATH", str(path), "it is not an npz file, or cut short")
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(entry.file_size for entry in archive.infolist())
            if total <= MOST:
                known = {*GIVEN, *(f"{half}{what}" for half in ("", "test_") for what in (*KEYS, IMAGES))}
                names = [name.removesuffix(".npy") for name in archive.namelist()]
                for half in ("", "test_"):
                    if {f"{half}x", f"{half}{IMAGES}"} <= {*names}:
                        raise UserError("PATH", str(path), f"it has both `{half}x` and `{half}{IMAGES}`")
                return {
                    name.replace(IMAGES, "x"): _array(path, name, unzipped(archive, f"{name}.npy", MOST))
                    for name in names
                    if name in known
                }
    except UserError:
        raise
    except Exception as error:  # what zipfile and numpy raise on a broken file is whatever they stumble over
        raise UserError("PATH", str(path), f"it is damaged or cut short: {error}") from None
    raise UserError("PATH", str(path), f"it unpacks to {total} bytes, and at most {MOST} are read")


def _array(path: Path, name: str, content: bytearray) -> Any:
    """The array in a .npy file, of numbers or text; numpy's reader makes room for what a header says it holds."""
    file = BytesIO(memoryview(content)[:HEADER])
    shape, fortran, kind = read_header(file)
    rest = memoryview(content)[file.tell() :]
    if kind.hasobject:
        why = f"its array `{name}` holds Python objects, which are pickled, and no pickle is read"
        raise UserError("PATH", str(path), why, hint="numbers: astype(np.float32); names: astype(str)")
    if math.prod(shape) * kind.itemsize != len(rest):
        raise ValueError(f"its header says {shape} of {kind}, and {len(rest)} bytes follow")
    return np.frombuffer(rest, kind).reshape(shape, order="F" if fortran else "C")


def read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    """Shape, order and dtype of the array in a .npy file."""
    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
    shape, fortran, kind = read(file)
    return shape, fortran, kind


def _numbers(path: Path, what: str, arrays: Sequence[Any]) -> tuple[list[Tensor], list[str]]:
    """Numbers from 0 for whole numbers, which stay, or for names, in their order; and what each number stands for."""
    for array in arrays:
        if array.ndim != 1 or not len(array) or array.dtype.kind not in "iuU":
            got = f"{array.dtype} {list(array.shape)}"
            raise UserError(
                "PATH", str(path), f"its {what} are {got}, and must be whole numbers or text, one per image"
            )
    if arrays[0].dtype.kind == "U":
        names, places = np.unique(np.concatenate(arrays), return_inverse=True)
        edges = np.cumsum([len(array) for array in arrays])[:-1]
        return [torch.from_numpy(part.astype(np.int64)) for part in np.split(places, edges)], names.tolist()
    numbers = [torch.from_numpy(array.astype(np.int64)) for array in arrays]
    least, most = min(int(part.min()) for part in numbers), max(int(part.max()) for part in numbers)
    if most > 100_000 or least < 0:
        why = f"its {what} go from {least} to {most}, and must start at 0 and have no large gaps"
        raise UserError("PATH", str(path), why)
    return numbers, [str(number) for number in range(most + 1)]


def _or_images(name: str) -> str:
    return f" or `{name[:-1]}{IMAGES}`" if name.endswith("x") else ""


def _samples(path: Path, array: Any) -> Tensor:
    """Pictures of bytes [n, h, w(, c)]; other numbers as float32, whole ones as token ids, of any shape."""
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return _images(path, array)
    if array.dtype.kind not in "fiu" or array.ndim < 2 or 0 in array.shape:
        got = f"{array.dtype} {list(array.shape)}"
        raise UserError("PATH", str(path), f"its samples are {got}, and must be numbers [n, ...], one or more each")
    if array.dtype.kind == "f":
        with np.errstate(over="ignore"):
            numbers = torch.from_numpy(array.astype(np.float32))
        if not bool(numbers.isfinite().all()):
            row = int((~numbers.flatten(1).isfinite().all(1)).nonzero()[0])
            raise UserError("PATH", str(path), f"sample {row} holds a number that is not finite, or too large")
        return numbers
    if int(array.min()) < 0 or int(array.max()) >= 2**31:
        why = f"its whole numbers are token ids, from 0, and go from {array.min()} to {array.max()}"
        raise UserError("PATH", str(path), why, hint="numbers that are measured belong in an array of floats")
    return torch.from_numpy(array.astype(np.int64))


def _images(path: Path, array: Any) -> Tensor:
    """uint8 [n, c, h, w] from [n, h, w], [n, h, w, c] or [n, c, h, w]."""
    if array.dtype != np.uint8 or array.ndim not in (3, 4):
        got, want = f"{array.dtype} {list(array.shape)}", "uint8 [n, h, w], [n, h, w, colours] or [n, colours, h, w]"
        raise UserError("PATH", str(path), f"its images are {got}, and must be {want}")
    images = torch.from_numpy(array)
    if images.ndim == 3:
        return images.unsqueeze(1)
    return images if images.shape[1] in (1, 3) else images.permute(0, 3, 1, 2).contiguous()
