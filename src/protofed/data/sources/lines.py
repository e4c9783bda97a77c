"""Text of files: bounded, UTF-8, and a line at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from protofed.errors import UserError

LARGEST = 2**30
"""Bytes of a text file."""


def text_lines(path: Path, comments: tuple[str, ...] = ()) -> Iterator[tuple[int, str]]:
    """The lines of a file with their numbers, from 1, without empty ones and those that begin like a comment."""
    if path.is_dir():
        raise UserError("PATH", str(path), "it is a folder, and must be a file")
    size = path.stat().st_size
    if size > LARGEST:
        raise UserError("PATH", str(path), f"it has {size} bytes, and at most {LARGEST} are read")
    with path.open("rb") as file:
        for number, content in enumerate(file, 1):
            if number == 1 and content.startswith(b"\x1f\x8b"):
                raise UserError("PATH", str(path), "it is packed", hint="unpack it first, such as with: gunzip")
            line = text_of(content, f"{path}, line {number}").strip("\r\n")
            if line.strip() and not (comments and line.startswith(comments)):
                yield number, line


def text_of(content: bytes, place: str) -> str:
    """Bytes as text."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        why = f"it is not UTF-8 text: byte {error.start} is {content[error.start]:#04x}"
        raise UserError("PATH", place, why, hint="save it as UTF-8") from None


def beside(path: Path) -> list[Path]:
    """The test part that lies beside a training part: NAME_TEST.ts beside NAME_TRAIN.ts."""
    other = path.with_name(f"{path.stem.removesuffix('_TRAIN')}_TEST{path.suffix}")
    return [other] if path.stem.endswith("_TRAIN") and other.is_file() else []
