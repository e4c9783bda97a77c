"""MATLAB files of SVHN's shape: X (32, 32, 3, n) uint8 and y (n, 1), where 10 stands for the digit 0."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from protofed.data.samples import Dataset, Samples
from protofed.data.sources.files import MOST, damaged

SIDE = 32
MATRIX, DEFLATED = 14, 15  # kinds of elements; the others that matter here hold numbers
NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
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
    try:
        found = _arrays(path.read_bytes())
        pixels, numbers = found["X"], found["y"].ravel()
        if pixels.shape[:3] != (SIDE, SIDE, 3) or pixels.ndim != 4 or pixels.dtype != np.uint8:
            raise ValueError(f"X is {pixels.dtype} {pixels.shape}, not uint8 (32, 32, 3, n)")
        if numbers.shape != pixels.shape[3:] or not ((numbers >= 0) & (numbers <= 10)).all():
            raise ValueError("y is not a number from 0 to 10 for each image")
        images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 2, 0, 1)))
        return Samples.of(images, torch.from_numpy(numbers.astype(np.int64)) % 10)
    except (ValueError, KeyError, IndexError, struct.error, zlib.error) as error:
        raise damaged(path, error) from None


def _arrays(content: bytes) -> dict[str, Any]:
    """The arrays X and y of a MATLAB 5 file: a header of 128 bytes, then elements, each a matrix, perhaps deflated.

    SciPy's reader is not for files one does not trust: a wrong byte can crash it.
    """
    order = {b"\x00\x01IM": "<", b"\x01\x00MI": ">"}.get(content[124:128])
    if order is None:
        raise ValueError("it is not a MATLAB 5 file")
    found = {}
    for kind, element in _elements(memoryview(content)[128:], order):
        whole = _inflated(element, order) if kind == DEFLATED else element
        if kind in (MATRIX, DEFLATED):
            (_, _), (_, shape), (_, name), (number, values) = islice(_elements(whole, order), 4)
            label = bytes(name).decode("latin1")
            if label in ("X", "y"):
                sizes = np.frombuffer(shape, f"{order}i4").tolist()
                array = np.frombuffer(values, order + NUMBERS[number])
                found[label] = array.reshape([max(0, size) for size in sizes], order="F")
    return found


def _elements(content: memoryview, order: str) -> Iterator[tuple[int, memoryview]]:
    """The kind and the content of each element."""
    at = 0
    while at + 8 <= len(content):
        kind, size = struct.unpack_from(f"{order}II", content, at)
        start = at + 8
        if kind >> 16:  # a small one: kind and size share four bytes, and the content is in the next four
            kind, size, start = kind & 0xFFFF, kind >> 16, at + 4
        if start + size > len(content):
            raise ValueError("an element is longer than what holds it")
        yield kind, content[start : start + size]
        at = start + size if kind == DEFLATED else at + max(8, start + size - at + -(start + size) % 8)


def _inflated(element: memoryview, order: str) -> memoryview:
    """The content of the matrix that is deflated in an element."""
    stream = zlib.decompressobj()
    kind, size = struct.unpack(f"{order}II", stream.decompress(element, 8))
    if kind != MATRIX or size > MOST:
        raise ValueError(f"an element of kind {kind} and {size} bytes is packed in it")
    matrix = stream.decompress(stream.unconsumed_tail, max(1, size))
    if len(matrix) != size or stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:
        raise ValueError("a packed matrix is cut short")
    return memoryview(matrix)
