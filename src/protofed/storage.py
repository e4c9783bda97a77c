"""Files that several processes may write and read at once."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


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
