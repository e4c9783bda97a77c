"""The files of a folder or of a zip, and the pictures among them."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path, PurePosixPath
from typing import IO, NamedTuple, cast

import torch
from torch import Tensor

from protofed.data.sources.files import MOST, damaged
from protofed.errors import UserError
from protofed.internal.inflating import Bounded, read_upto, unzipped

LARGEST = 2**26  # bytes of a file in a folder or a zip, and pixels of a picture; more is taken for a bomb
HEADER = 2**20
"""Bytes of what a .tar.gz says of a file, and of a part of it that is read at once."""
SUFFIXES = {".png", ".jpg", ".jpeg", ".bmp", ".gif", ".ppm", ".pgm", ".tif", ".tiff", ".webp"}

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
"""The same in Pillow's words. It knows many more by their first bytes, and hands one of them, EPS, to Ghostscript."""


class Placed(NamedTuple):
    """Where a file of a user's lies: its class, its domain ("" without any) and its half, train or test."""

    name: str
    label: str
    domain: str
    half: str


class Tree:
    """The files of a folder or of a zip by their paths, in the order of their names; a zip is never unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.zip: zipfile.ZipFile | None = None
        if path.is_dir():
            names = [file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()]
        else:
            try:
                self.zip = zipfile.ZipFile(path)
            except Exception as error:  # what zipfile raises on a broken file is whatever it stumbles over
                raise damaged(path, error) from None
            names = [name for name in self.zip.namelist() if not name.endswith("/")]
        for name in names:
            if ".." in name.split("/") or name.startswith("/"):
                raise UserError("FILE", str(path), f"a path in it leads out of it: {name}")
        self.names = sorted(name for name in names if not any(part.startswith((".", "__")) for part in name.split("/")))
        self._known = frozenset(self.names)

    def pictures(self) -> list[str]:
        """The names that are pictures."""
        return [name for name in self.names if PurePosixPath(name).suffix.lower() in SUFFIXES]

    def size(self, name: str) -> int:
        """The bytes of one file; of one in a zip those that it declares."""
        return (self.path / name).stat().st_size if self.zip is None else self.zip.getinfo(name).file_size

    def read(self, name: str, most: int = LARGEST) -> bytes:
        """The bytes of one file, at most so many."""
        if name not in self._known:
            raise damaged(self.path, f"there is no {name} in it")
        if (size := self.size(name)) > most:
            raise UserError("FILE", f"{self.path}/{name}", f"it has {size} bytes, and at most {most} are read")
        try:
            return (self.path / name).read_bytes() if self.zip is None else bytes(unzipped(self.zip, name, most))
        except Exception as error:  # as above
            raise damaged(f"{self.path}/{name}", error) from None

    def lines(self, name: str) -> list[str]:
        """The lines of a text file that are not empty."""
        return [line for line in self.read(name).decode("utf-8", "replace").splitlines() if line.strip()]

    def picture(self, name: str, side: int) -> Tensor:
        """A picture as uint8 [3, side, side]; one of another shape is squeezed into the square."""
        return decode(self.read(name), side, f"{self.path}/{name}")


def unpacked(path: Path, members: Sequence[str], most: int) -> dict[str, bytes]:
    """The files of these names, at most so many bytes each, in a .tar.gz, which is never unpacked to disk."""
    found: dict[str, bytes] = {}
    try:
        with (
            gzip.open(path) as packed,
            tarfile.open(fileobj=cast(IO[bytes], Bounded(packed, MOST, HEADER)), mode="r:") as archive,
        ):
            for entry in archive:
                name = Path(entry.name).name
                if entry.isfile() and name in members and entry.size <= most:
                    file = archive.extractfile(entry)
                    found[name] = bytes(read_upto(file, entry.size)) if file else b""
    except (OSError, EOFError, ValueError, tarfile.TarError, zlib.error) as error:
        raise damaged(path, error) from None
    for member in members:
        if member not in found:
            raise damaged(path, f"it does not hold {member}")
    return found


def arranged(tree: Tree, names: Sequence[str], what: str) -> list[Placed]:
    """Files in `class/` or `domain/class/`, below `train` and `test` if there are just these; otherwise all `train`."""
    parts = [name.split("/") for name in names]
    halves = {part[0] for part in parts} == {"train", "test"}
    depths = {len(part) - halves for part in parts}
    if depths not in ({2}, {3}):
        raise UserError("PATH", str(tree.path), f"its {what} must all lie in class/ or all in domain/class/")
    return [
        Placed("/".join(part), part[-2], part[-3] if depths == {3} else "", part[0] if halves else "train")
        for part in parts
    ]


def decode(content: bytes, side: int, name: str) -> Tensor:
    """The picture in a file of this name as uint8 [3, side, side]."""
    import numpy as np
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(BytesIO(content), formats=FORMATS) as image:
            if image.width * image.height > LARGEST:
                raise ValueError(f"{image.width} x {image.height} pixels are too many")
            colours = image.convert("RGB")
            if colours.size != (side, side):
                colours = colours.resize((side, side), Image.Resampling.BILINEAR)
            return torch.from_numpy(np.array(colours)).permute(2, 0, 1)
    except UnidentifiedImageError:
        raise UserError("FILE", name, "it is no picture, or damaged") from None
    except Exception as error:  # what Pillow raises on a broken file is whatever its decoder stumbles over
        raise damaged(name, error) from None
