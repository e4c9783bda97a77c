"""Reading what is packed: never more of it than it declares, and never more than may be."""

from __future__ import annotations

import io
import zipfile
from typing import IO

PART = 2**20
"""Bytes that are read at once."""


def read_upto(file: IO[bytes] | io.BufferedIOBase, most: int) -> bytearray:
    """At most so many bytes, a part at a time: to ask for all at once makes room for them, whether or not they come."""
    content = bytearray()
    while len(content) < most and (part := file.read(min(most - len(content), PART))):
        content += part
    return content


def unzipped(archive: zipfile.ZipFile, name: str, most: int) -> bytearray:
    """One file of a zip.

    Args:
        archive: that is open.
        name: of the file.
        most: how many bytes it may have.

    Raises:
        ValueError: it declares more, or has more or less than it declares.
        KeyError: there is no such file.
    """
    entry = archive.getinfo(name)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):  # zipfile inflates these without a bound
        raise ValueError(f"{name} is packed by another method than deflate")
    if entry.file_size > most:
        raise ValueError(f"{name} unpacks to {entry.file_size} bytes, and at most {most} are read")
    with archive.open(entry) as file:
        try:
            content = read_upto(file, entry.file_size)
        except zipfile.BadZipFile:  # the checksum is of another content than so many bytes
            raise ValueError(
                f"{name} is damaged, or unpacks to more than the {entry.file_size} bytes that it declares"
            ) from None
    if len(content) != entry.file_size:
        raise ValueError(f"{name} unpacks to {len(content)} bytes, and declares {entry.file_size}")
    return content


class Bounded(io.RawIOBase):
    """A file that is inflated while it is read, and refuses to give too much: in all, or at once."""

    def __init__(self, file: IO[bytes] | io.BufferedIOBase, most: int, at_once: int) -> None:
        self.file, self.most, self.at_once = file, most, at_once

    def readable(self) -> bool:
        """Whether it can be read: yes."""
        return True

    def seekable(self) -> bool:
        """Whether it can go to another place: yes."""
        return True

    def tell(self) -> int:
        """How many bytes lie before the next one."""
        return self.file.tell()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Go to another place, if that is not too far."""
        if whence != io.SEEK_SET or offset > self.most:
            raise ValueError(f"it unpacks to more than {self.most} bytes")
        return self.file.seek(offset)

    def read(self, size: int = -1) -> bytes:
        """The next bytes, if they are not too many."""
        if not 0 <= size <= self.at_once or self.file.tell() + size > self.most:
            raise ValueError(f"it declares a part of {size} bytes")
        return self.file.read(size)
