"""The one way to write a file or a folder: others see it whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from protofed.errors import DiskFullError, UserError

SQLITE = "database or disk is full"
"""What SQLite says of a full disk."""


def cache_folder(*parts: str) -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("protofed", *parts)


@contextmanager
def full_disk_is_said() -> Iterator[None]:
    """Let an error that means a full disk be one that says so, whoever raises it: the system, safetensors or SQLite."""
    try:
        yield
    except Exception as error:
        numbers = (errno.ENOSPC, errno.EDQUOT)
        words = [*map(os.strerror, numbers), SQLITE]
        if getattr(error, "errno", None) in numbers or any(said in str(error) for said in words):
            raise DiskFullError("the disk is full; what was written before is whole") from None
        raise


def write_file(path: Path, write: Callable[[Path], object], *, alone: bool = False, mode: int | None = None) -> None:
    """Write a file beside its name and rename it, so that a reader or a crash sees the old content or the new.

    Args:
        path: of the file.
        write: writes the content to the path that it is given.
        alone: only this process writes the file; what a killed one has left is then written over.
        mode: the file's permissions, before anything is in it.

    Raises:
        DiskFullError: there is no room for it.
    """
    draft = path.with_name(f".{path.name}.draft" + ("" if alone else f"-{os.getpid()}"))
    try:
        with full_disk_is_said():
            if mode is not None:
                draft.touch(mode=mode)
            write(draft)
            draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file that only this process writes."""
    write_file(path, lambda draft: draft.write_text(text, encoding="utf-8"), alone=True)


def write_folder(path: Path, fill: Callable[[Path], object]) -> Path:
    """Make a new folder, which `fill` fills.

    Raises:
        UserError: the folder exists already or cannot be made.
    """
    if path.exists():
        raise UserError("--out", str(path), "it exists already", hint="name a new folder")
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        draft.mkdir(parents=True, exist_ok=True)
        fill(draft)
        draft.rename(path)
    except OSError as error:
        raise UserError("--out", str(path), f"it cannot be made: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return path
