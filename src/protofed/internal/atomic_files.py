"""Files that several processes may write and read at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from protofed.errors import UserError


def cache_folder(*parts: str) -> Path:
    """Where what can be made again is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").joinpath("protofed", *parts)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file so that others see it whole or not at all."""
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        write(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_folder(path: Path, fill: Callable[[Path], object]) -> None:
    """Make a new folder that, like a file, is there whole or not at all."""
    if path.exists():
        raise UserError("--out", str(path), "it exists already; name a new folder")
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        draft.mkdir(parents=True)
        fill(draft)
        draft.rename(path)
    except OSError as error:
        raise UserError("--out", str(path), f"it cannot be made: {error.strerror or error}") from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
