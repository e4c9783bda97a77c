"""Pickles of arrays (CIFAR, FC100), read so that nothing in them is ever called.

A pickle names functions that make its objects. Here a name stands for one of three small classes below, or is refused;
so a file can hold arrays of numbers, lists, dicts, text and numbers, and do nothing.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch

from protofed.data.holdout import fifth_out
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.archives import unpacked
from protofed.data.sources.files import MOST, damaged
from protofed.errors import UserError
from protofed.internal.schema import fits

SIDE = 32
OBJECTS = "O8"
"""What numpy writes for an array of objects."""
PLACES = 2**24
"""In which a pickle may keep things: 256 MB."""


class _Name:
    """Stands for numpy.ndarray where it is only named."""


class _Dtype:
    """numpy.dtype of a number."""

    def __init__(self, code: object, *_: object) -> None:
        self.code, self.order = _text(code), "|"

    def __setstate__(self, state: Sequence[Any]) -> None:
        self.order = _text(state[1])

    def numpy(self) -> np.dtype[Any]:
        """The type itself, if it is one of numbers of a fixed size."""
        if (
            self.order not in ("<", ">", "|", "=")
            or self.code[:1] not in tuple("biuf")
            or not self.code[1:].isdecimal()
        ):
            raise pickle.UnpicklingError(f"an array of {self.code!r} is not one of numbers")
        return np.dtype(self.order.replace("|", "") + self.code)


class _Array:
    """What numpy's _reconstruct makes: an array that is filled by its state; one of objects is a list of them."""

    def __init__(self, *_: object) -> None:
        self.array: np.ndarray[Any, Any] | None = np.empty(0)
        self.objects: list[Any] | None = None

    def __setstate__(self, state: Sequence[Any]) -> None:
        _, shape, dtype, fortran, content = state
        if dtype.code == OBJECTS:
            if not isinstance(content, list) or math.prod(shape) != len(content):
                raise pickle.UnpicklingError(f"an array of objects is not of {shape}")
            self.objects, self.array = content, None
            return
        raw = content.encode("latin1") if isinstance(content, str) else content
        kind = dtype.numpy()
        if not isinstance(raw, bytes) or math.prod(shape) * kind.itemsize != len(raw):
            raise pickle.UnpicklingError(f"the bytes of an array are not {shape} of {kind}")
        self.array = np.frombuffer(raw, kind).reshape(shape, order="F" if fortran else "C")


def _scalar(dtype: Any, content: Any) -> int | float:
    """A number of numpy."""
    raw = content.encode("latin1") if isinstance(content, str) else content
    value: int | float = np.frombuffer(raw, dtype.numpy(), 1)[0].item()
    return value


def _encode(text: str, encoding: str = "latin1") -> bytes:
    """How Python 3 writes bytes into an old pickle."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"text in {encoding!r}")
    return text.encode("latin1")


ALLOWED = {
    ("numpy", "ndarray"): _Name,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _scalar,
    ("numpy._core.multiarray", "scalar"): _scalar,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        """One of the stand-ins, and nothing else."""
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which arrays do not need")
        return ALLOWED[module, name]

    def persistent_load(self, pid: object) -> Any:
        raise pickle.UnpicklingError(f"it refers to something outside of it, {pid!r}")


def look_through(content: bytes | IO[bytes]) -> None:
    """Raise where a few bytes of a pickle would ask for much memory or time; a file is left at its end.

    The places in which a pickle keeps things are numbered, and there is room made for all up to the highest. A tuple
    that holds one tuple twice, which does the same, takes forever as the key of a dict; pickles of arrays repeat none.
    """
    tuples, places, before = set[Any](), 0, ""
    for code, number, _ in pickletools.genops(content):
        if "PUT" in code.name or code.name == "MEMOIZE":
            place: Any = places if code.name == "MEMOIZE" else number
            places += 1
            if place > PLACES:
                raise pickle.UnpicklingError(f"it keeps something in place {place}")
            if before.startswith("TUPLE"):
                tuples.add(place)
        if code.name == "DUP" or (code.name in ("GET", "BINGET", "LONG_BINGET") and number in tuples):
            raise pickle.UnpicklingError("it repeats a tuple")
        before = code.name


def read_pickle(path: Path | str, content: bytes, by_number: bool = False) -> dict[Any, Any]:
    """The dict in a pickle, by names, or by whole numbers: arrays, lists, text and numbers."""
    try:
        look_through(content)
        loaded = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a broken pickle raises whatever its instructions run into
        raise damaged(path, error or type(error).__name__) from None
    if not isinstance(loaded, dict):
        raise damaged(path, f"it holds a {type(loaded).__name__}, not a dict")
    if by_number:
        named: dict[Any, Any] = {name: value for name, value in loaded.items() if type(name) is int}
    else:
        named = {_text(name): value for name, value in loaded.items() if isinstance(name, bytes | str)}
    if any(isinstance(value, _Array) and value.array is None for value in named.values()):
        raise damaged(path, "it holds an array of objects, and must hold numbers")
    return {name: _plain(value) for name, value in named.items()}


def objects_in(content: bytes | bytearray) -> list[dict[str, Any]]:
    """The dicts in a pickled array of objects, with arrays of numbers, lists of objects, text and numbers in them.

    Raises:
        UnpicklingError: it asks for anything else, or is no such array.
    """
    look_through(bytes(content))
    found = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    held = found.objects if isinstance(found, _Array) else None
    if held is None or not all(isinstance(one, dict) for one in held):
        raise pickle.UnpicklingError("it is no array of dicts")
    return [{_text(name): _plain(value) for name, value in one.items()} for one in held]


def _plain(value: Any) -> Any:
    """An array of numbers, the objects of one of objects, or what it is."""
    if not isinstance(value, _Array):
        return value
    return value.objects if value.array is None else value.array


def _text(value: object) -> str:
    return value.decode("latin1") if isinstance(value, bytes) else str(value)


def cifar10(paths: Sequence[Path], _: int | None) -> Dataset:
    """CIFAR-10 from its five training batches, its test batch and `batches.meta`, or from the archive of these."""
    batches = [f"data_batch_{number}" for number in range(1, 6)]
    return _cifar("cifar10", paths, [*batches, "test_batch", "batches.meta"], "labels", "label_names")


def cifar100(paths: Sequence[Path], _: int | None) -> Dataset:
    """CIFAR-100, with its hundred fine classes, from `train`, `test` and `meta`, or from the archive of these."""
    return _cifar("cifar100", paths, ["train", "test", "meta"], "fine_labels", "fine_label_names")


def _cifar(name: str, paths: Sequence[Path], members: Sequence[str], labels: str, names: str) -> Dataset:
    content = unpacked(paths[0], members, MOST) if len(paths) == 1 else {path.name: path.read_bytes() for path in paths}
    *train, test, meta = (read_pickle(paths[0].parent / member, content.pop(member)) for member in members)
    where = paths[0].parent / members[0]
    parts = [_samples(where, part.get("data"), part.get(labels)) for part in (*train, test)]
    words: Any = meta.get(names)
    if not fits(words, list[bytes | str]):
        raise damaged(where.with_name(members[-1]), f"its `{names}` are not names")
    classes = [_text(word) for word in words]
    every = Samples.of(torch.cat([part.x for part in parts[:-1]]), torch.cat([part.labels for part in parts[:-1]]))
    return Dataset.of(name, every, parts[-1], classes)


def _samples(path: Path, data: Any, labels: Any) -> Samples:
    """Samples of rows of 3,072 bytes, all red ones first, then green, then blue."""
    if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (3 * SIDE**2,):
        raise damaged(path, "its `data` is not rows of 3,072 bytes")
    return Samples.of(torch.from_numpy(data.copy()).view(-1, 3, SIDE, SIDE), _labels(path, labels, len(data)))


def _labels(path: Path, labels: Any, number: int) -> torch.Tensor:
    flat = isinstance(labels, np.ndarray) or (
        isinstance(labels, list | tuple) and all(isinstance(one, int | np.integer) for one in labels)
    )
    try:
        made = torch.tensor(np.asarray(labels if flat else [], dtype=np.int64))
    except (TypeError, ValueError, OverflowError):
        made = torch.empty(0)
    if made.shape != (number,):
        raise damaged(path, f"its labels are not {number} numbers")
    return made


def fc100(paths: Sequence[Path], _: int | None) -> Dataset:
    """FC100 from `FC100_train.pickle`, `FC100_val.pickle` and `FC100_test.pickle`.

    Its parts share no class; their classes follow one another, so that the last twenty are those it tests on, and every
    fifth image of each class is a test image.
    """
    images, labels, classes = [], [], list[str]()
    for path in paths:
        part = read_pickle(path, path.read_bytes())
        data = part.get("data")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.shape[1:] != (SIDE, SIDE, 3):
            raise damaged(path, "its `data` is not images of 32x32 in three colours")
        images.append(torch.from_numpy(data.copy()).permute(0, 3, 1, 2))
        known, place = np.unique(_labels(path, part.get("labels"), len(data)).numpy(), return_inverse=True)
        labels.append(torch.from_numpy(place) + len(classes))
        classes += [str(number) for number in known.tolist()]
    if len(set(classes)) != len(classes):
        raise UserError("FILE", str(paths[0]), "a class is in two parts of it, and FC100's have none in common")
    train, test = fifth_out(Samples.of(torch.cat(images).contiguous(), torch.cat(labels)))
    return Dataset.of("fc100", train, test, classes)
