"""USPS: the two LIBSVM files of its page, bzip2, or one HDF5 file that holds both parts."""

from __future__ import annotations

import bz2
import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from protofed.data.samples import Dataset, Samples
from protofed.data.sources.files import damaged
from protofed.errors import UserError

PIXELS = 256  # 16x16
MANY = 100_000  # images; there are 9,298
LONGEST = 2**16  # bytes of an image's line, which has 256 values
LARGEST = 2**28  # bytes of a chunk of an HDF5 file, which is inflated at once


def usps_libsvm(paths: Sequence[Path], _: int | None) -> Dataset:
    """From `usps.bz2` and `usps.t.bz2`."""
    train, test = (_libsvm(path) for path in paths)
    return Dataset.of("usps", train, test, "0123456789")


def _libsvm(path: Path) -> Samples:
    """Lines `label 1:value 2:value ...`: label 1 is the digit 0, values go from -1 to 1, one left out is 0."""
    rows, labels = [], []
    for number, line in _lines(path):
        try:
            label, *pairs = line.split()
            labels.append(int(float(label)) - 1)
            indices, values = zip(*(pair.split(":") for pair in pairs), strict=True)
            places = torch.tensor([int(index) for index in indices])
            if places.min() < 1:
                raise IndexError("an index below 1")
            pixels = torch.zeros(PIXELS)
            pixels[places - 1] = torch.tensor([float(value) for value in values])
            rows.append(pixels)
        except (ValueError, IndexError, OverflowError) as error:
            raise damaged(path, f"line {number}: {error}") from None
    if not rows:
        raise damaged(path, "it has no lines")
    return _samples(path, (torch.stack(rows) + 1) / 2, torch.tensor(labels, dtype=torch.int64))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """The lines of a packed file with their numbers, from 1, as many and as long as they may be."""
    try:
        with bz2.open(path) as file:
            for number in range(1, MANY + 2):
                line = file.readline(LONGEST + 1)
                if not line:
                    return
                if len(line) > LONGEST:
                    raise damaged(path, f"line {number} has more than {LONGEST} bytes")
                yield number, line.decode("ascii", "replace")
    except (OSError, EOFError) as error:
        raise damaged(path, error) from None
    raise damaged(path, f"it has more than {MANY} lines")


def usps_h5(paths: Sequence[Path], _: int | None) -> Dataset:
    """From `usps.h5`: groups `train` and `test` with `data` from 0 to 1 and `target`."""
    try:
        import h5py
    except ImportError:
        raise UserError(
            "FILE", str(paths[0]), "it is HDF5, which is read with h5py", hint="pip install 'protofed[h5]'"
        ) from None
    parts = []
    try:
        with h5py.File(paths[0]) as file:
            for name in ("train", "test"):
                data, target = file[name]["data"], file[name]["target"]
                if data.shape != (*target.shape, PIXELS) or len(target) > MANY:
                    raise damaged(paths[0], f"{name}/data is {data.shape}, not ({len(target)}, {PIXELS})")
                if not {data.dtype.kind, target.dtype.kind} <= set("fiu"):  # a text may be a gigabyte long
                    raise damaged(paths[0], f"{name} holds {data.dtype} and {target.dtype}, not numbers")
                if any(math.prod(one.chunks or ()) * one.dtype.itemsize > LARGEST for one in (data, target)):
                    raise damaged(paths[0], f"{name} is packed in parts of more than {LARGEST} bytes")
                if any(one.is_virtual or one.external for one in (data, target)):
                    raise damaged(paths[0], f"the numbers of {name} lie in other files")
                parts.append((torch.from_numpy(data[()]), torch.from_numpy(target[()]).long()))
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise error if isinstance(error, UserError) else damaged(paths[0], error) from None
    train, test = (_samples(paths[0], *part) for part in parts)
    return Dataset.of("usps", train, test, "0123456789")


def _samples(path: Path, pixels: Tensor, labels: Tensor) -> Samples:
    """Images of pixels from 0 to 1."""
    if not len(labels) or labels.min() < 0 or labels.max() > 9 or not (pixels.min() >= 0 and pixels.max() <= 1):
        raise damaged(path, "labels or pixels out of range")
    return Samples.of((pixels * 255).round().to(torch.uint8).view(-1, 1, 16, 16), labels)
