"""The one way to write a file or a folder: others see it whole or not at all, also after a loss of power."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from protofed.errors import NotWrittenError, UserError

SQLITE = "database or disk is full"
"""What SQLite says of a full disk."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""The system's numbers for a full disk."""
WHOLE = "what was written before is whole"


def cache_folder(*parts: str) -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("protofed", *parts)


@contextmanager
def full_disk_is_said() -> Iterator[None]:
    """Let an error that means a full disk be one that says so, whoever raises it: the system, safetensors or SQLite."""
    try:
        yield
    except Exception as error:
        words = [*map(os.strerror, FULL), SQLITE]
        if getattr(error, "errno", None) in FULL or any(said in str(error) for said in words):
            raise NotWrittenError(f"the disk is full; {WHOLE}") from None
        raise


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Let whatever keeps a file or a folder from being written be an error that says so."""
    with full_disk_is_said():
        try:
            yield
        except OSError as error:
            if error.errno in FULL or error.errno is None:
                raise
            raise NotWrittenError(f"{path} cannot be written: {error.strerror}; {WHOLE}") from None


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk: what a loss of power leaves."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a file system that cannot say
            raise
    finally:
        os.close(descriptor)


def write_file(path: Path, write: Callable[[Path], object], *, alone: bool = False, mode: int | None = None) -> None:
    """Write a file beside its name and rename it, so that a reader or a crash sees the old content or the new.

    Args:
        path: of the file.
        write: writes the content to the path that it is given.
        alone: only this process writes the file; what a killed one has left is then written over.
        mode: the file's permissions, before anything is in it.

    Raises:
        NotWrittenError: there is no room for it, or it may not be written there.
    """
    draft = path.with_name(f".{path.name}.draft" + ("" if alone else f"-{os.getpid()}"))
    try:
        with writing(path):
            if mode is not None:
                draft.touch(mode=mode)
            write(draft)
            sync(draft)
            draft.replace(path)
            sync(path.parent)
    finally:
        with suppress(OSError):  # of which the error that is raised tells
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file that only this process writes."""
    write_file(path, lambda draft: draft.write_text(text, encoding="utf-8"), alone=True)


def write_folder(path: Path, fill: Callable[[Path], object]) -> Path:
    """Make a new folder, which `fill` fills.

    Raises:
        UserError: the folder exists already or cannot be made.
    """
    if os.path.exists(path):  # noqa: PTH110 - Path.exists raises where a name is too long
        raise UserError("--out", str(path), "it exists already", hint="name a new folder")
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        above = [folder for folder in path.absolute().parents if not folder.exists()]
        draft.mkdir(parents=True, exist_ok=True)
        fill(draft)
        for one in (*draft.rglob("*"), draft):
            sync(one)
        draft.rename(path)
        for folder in (path.absolute(), *above):
            sync(folder.parent)
    except OSError as error:
        raise UserError("--out", str(path), f"it cannot be made: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path
