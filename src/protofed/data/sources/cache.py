"""Datasets that were decoded once, as safetensors; a file is named by the checksum of what it was made from."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

from protofed.data.encodings import decoded, encoded
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, Samples
from protofed.internal.atomic_files import cache_folder, write_file

VERSION = 5
"""To be raised when a reader makes something else of the same files."""

LARGE = 2**26
"""Bytes from which on taking a checksum takes long."""

PARTS = ("x", "labels", "domains")


def checksum(name: str, paths: Sequence[Path], how: object) -> str:
    """A name for what a dataset's files, read in this way, give; of a folder it is its listing that counts."""
    total = hashlib.blake2b(f"{VERSION}/{name}/{how}".encode(), digest_size=16)
    for path in paths:
        if path.is_dir():
            total.update(path.name.encode())
            for file in sorted(path.rglob("*")):
                about = file.stat() if file.exists() else file.lstat()  # a link may lead nowhere
                total.update(f"{file.relative_to(path)}/{about.st_size}/{about.st_mtime_ns}\n".encode())
        else:
            total.update(_digest(path))
    if not paths:  # it is drawn with these
        total.update(_versions().encode())
    return f"{name.partition(':')[0]}-{total.hexdigest()}"


@cache
def _versions() -> str:
    """Of the packages; every look reads and parses their metadata."""
    return " ".join(map(version, ("pillow", "matplotlib", "scikit-learn", "torch")))


def _digest(path: Path) -> bytes:
    """A file's checksum; that of a large one is remembered for as long as its size and time stay."""
    about = path.stat()
    address = f"{path.resolve()}/{about.st_size}/{about.st_mtime_ns}"
    note = cache_folder("data") / f"{hashlib.blake2b(address.encode(), digest_size=16).hexdigest()}.checksum"
    if about.st_size >= LARGE and note.is_file():
        return note.read_bytes()
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "blake2b").digest()
    if about.st_size >= LARGE:
        with contextlib.suppress(OSError):
            note.parent.mkdir(parents=True, exist_ok=True)
            write_file(note, lambda draft: draft.write_bytes(digest))
    return digest


keep = True
"""Whether what was made is kept: a client of a federation must not fill its disk with what a server asks for."""


def cached(key: str, make: Callable[[], Dataset]) -> Dataset:
    """The dataset of this key, from the cache or made now; a cache that cannot be used is done without."""
    path = cache_folder("data") / f"{key}.safetensors"
    if path.is_file():
        with contextlib.suppress(Exception):  # damaged, or of a torch that is not here: it is made again
            return _read(path)
    dataset = make()
    if keep:
        with contextlib.suppress(OSError):
            _write(path, dataset)
    return dataset


def _read(path: Path) -> Dataset:
    from protofed.internal.tensor_files import read_tensors  # and safetensors' part for torch

    tensors, said = read_tensors(path, always=True)
    about: dict[str, Any] = json.loads(said["dataset"])
    parts = [*PARTS, *(["holders"] if about["holders"] is not None else [])]
    train, test = (Samples(*(tensors[f"{part}.{name}"] for name in parts)) for part in ("train", "test"))
    names = tuple(about["classes"]), tuple(about["domains"])
    preparation, encoding = Preparation.from_json(about["preparation"]), decoded(about["encoding"])
    holders = tuple(about["holders"] or ())
    return Dataset(about["name"], train, test, *names, preparation, encoding=encoding, holders=holders)


def _write(path: Path, dataset: Dataset) -> None:
    from protofed.internal.tensor_files import write_tensors

    tensors: dict[str, Tensor] = {
        f"{part}.{name}": getattr(getattr(dataset, part), name)
        for part in ("train", "test")
        for name in (*PARTS, "holders")
        if getattr(getattr(dataset, part), name) is not None
    }
    about: dict[str, Any] = {name: getattr(dataset, name) for name in ("name", "classes", "domains")}
    about |= {"preparation": asdict(dataset.preparation), "encoding": encoded(dataset.encoding)}
    about |= {"holders": None if dataset.train.holders is None else dataset.holders}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tensors(path, tensors, {"dataset": json.dumps(about)})
