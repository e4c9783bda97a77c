"""MNIST's IDX format, gzipped: big-endian header (zero, zero, type, number of dimensions, sizes), then the bytes."""

from __future__ import annotations

import gzip
import math
import string
import struct
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import torch
from torch import Tensor

from protofed.data.holdout import fifth_out
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.archives import Tree
from protofed.data.sources.files import MOST, damaged
from protofed.errors import UserError
from protofed.internal.inflating import read_upto

CHARACTERS = string.digits + string.ascii_uppercase + string.ascii_lowercase  # EMNIST's labels in their order
CLOTHES = ("t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")


def read_idx(path: Path | str, packed: bytes, ndim: int) -> Tensor:
    """The uint8 tensor in a gzipped IDX file, checked for its dimensions and its length."""
    header = 4 + 4 * ndim
    try:
        with gzip.GzipFile(fileobj=BytesIO(packed)) as file:
            start = file.read(header)
            magic = bytes((0, 0, 8, ndim))  # 8: unsigned bytes
            if start[:4] != magic or len(start) < header:
                wanted, got = magic.hex(), start[:4].hex() or "nothing"
                why = f"an IDX file of {ndim} dimensions starts with {wanted}, this one with {got}"
                raise UserError("FILE", str(path), why)
            shape = struct.unpack(f">{ndim}I", start[4:])
            size = math.prod(shape)
            content = read_upto(file, size + 1) if size <= MOST else bytearray()  # one more, to see its end
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(path, error) from None
    if not size or len(content) != size:
        more = "more than " if len(content) > size else ""
        raise damaged(path, f"it holds {more}{min(len(content), size)} bytes, and its header says {shape}")
    return torch.frombuffer(content, dtype=torch.uint8).view(shape)


def mnist(paths: Sequence[Path], _: int | None) -> Dataset:
    """MNIST from its four official files; mean and std are the published ones."""
    train, test = _pairs(paths)
    return Dataset("mnist", train, test, tuple(string.digits), ("mnist",), Preparation("pixels", (0.1307,), (0.3081,)))


def fashion_mnist(paths: Sequence[Path], _: int | None) -> Dataset:
    """Fashion-MNIST from its four official files."""
    return Dataset.of("fashion-mnist", *_pairs(paths), CLOTHES)


def emnist_byclass(paths: Sequence[Path], _: int | None) -> Dataset:
    """EMNIST's 62 characters from NIST's four files, in which images are transposed."""
    train, test = (_upright(part) for part in _pairs(paths))
    return Dataset.of("emnist-byclass", train, test, CHARACTERS)


def emnist_letters(paths: Sequence[Path], _: int | None) -> Dataset:
    """EMNIST's 26 letters from NIST's four files; their labels start at 1."""
    train, test = (_upright(part) for part in _pairs(paths, first=1))
    return Dataset.of("emnist-letters", train, test, string.ascii_uppercase)


def emnist_byclass_zip(paths: Sequence[Path], _: int | None) -> Dataset:
    """The 62 characters from `gzip.zip`, NIST's archive of all of EMNIST."""
    train, test = (_upright(part) for part in _packed(paths[0], "byclass"))
    return Dataset.of("emnist-byclass", train, test, CHARACTERS)


def emnist_letters_zip(paths: Sequence[Path], _: int | None) -> Dataset:
    """The 26 letters from `gzip.zip`."""
    train, test = (_upright(part) for part in _packed(paths[0], "letters", first=1))
    return Dataset.of("emnist-letters", train, test, string.ascii_uppercase)


def emnist_byclass_beginning(paths: Sequence[Path], _: int | None) -> Dataset:
    """The first images of the test part, upright; every fifth of each class is a test image."""
    images, labels = (path.read_bytes() for path in paths)
    return Dataset.of("emnist-byclass", *fifth_out(_samples(paths, (images, labels))), CHARACTERS)


def emnist_letters_subset(paths: Sequence[Path], _: int | None) -> Dataset:
    """Some images of each letter, upright."""
    return Dataset.of("emnist-letters", *_pairs(paths, first=1), string.ascii_uppercase)


def _pairs(paths: Sequence[Path], first: int = 0) -> tuple[Samples, Samples]:
    """Training and test samples of four files: images, labels, images, labels."""
    content = [path.read_bytes() for path in paths]
    return _samples(paths[:2], content[:2], first), _samples(paths[2:], content[2:], first)


def _packed(path: Path, kind: str, first: int = 0) -> tuple[Samples, Samples]:
    """The same out of a zip."""
    tree = Tree(path)
    names = [
        f"gzip/emnist-{kind}-{part}-{what}-ubyte.gz"
        for part in ("train", "test")
        for what in ("images-idx3", "labels-idx1")
    ]
    where = [f"{path}/{name}" for name in names]
    content = [tree.read(name, MOST) for name in names]
    return _samples(where[:2], content[:2], first), _samples(where[2:], content[2:], first)


def _samples(paths: Sequence[Path | str], content: Sequence[bytes], first: int = 0) -> Samples:
    """Samples of a file of images and a file of labels."""
    images, labels = read_idx(paths[0], content[0], 3), read_idx(paths[1], content[1], 1).long() - first
    if len(images) != len(labels):
        raise damaged(paths[1], f"{len(labels)} labels for {len(images)} images")
    if labels.min() < 0:
        raise damaged(paths[1], f"its labels start below {first}")
    return Samples.of(images.unsqueeze(1), labels)


def _upright(samples: Samples) -> Samples:
    return Samples.of(samples.x.transpose(2, 3).contiguous(), samples.labels)
