"""What a disk holds after a loss of power: recorded while a folder is written, by what was synced until then.

Only what a process asked to be synced is sure to be there. Between two calls of fsync, rename, mkdir or unlink the
power may fail at any moment, and what was not synced may or may not have reached the disk.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from typing import Any

import pytest

Image = dict[str, bytes | None]
"""The content of a file by its path below the folder; None for a folder."""


@dataclass
class Disk:
    """What is in a folder, and what of it would survive."""

    root: Path
    images: list[tuple[int, Image]] = field(default_factory=list)
    """What a loss of power may leave, each with the rounds that were finished by then."""
    finished: int = 0
    alone: RLock = field(default_factory=RLock)
    _content: dict[int, bytes] = field(default_factory=dict)  # of each file, by its inode: what was synced last
    _names: dict[int, dict[str, Path | int]] = field(default_factory=dict)  # of each folder, likewise
    _open: dict[int, int] = field(default_factory=dict)  # so that no inode is used again

    def note(self) -> None:
        """Remember every state that a loss of power could leave at this moment."""
        for names_synced in (True, False):
            for content_synced in (True, False):
                image: Image = {}
                self._collect(self.root, "", names_synced, content_synced, image)
                if (self.finished, image) not in self.images[-8:]:
                    self.images.append((self.finished, image))

    def _collect(self, place: Path, name: str, names_synced: bool, content_synced: bool, image: Image) -> None:
        inode = self._hold(place)
        names = self._names.get(inode, {}) if names_synced else self._listed(place)
        for each, child in names.items():
            number, path = (child, self._path(child)) if isinstance(child, int) else (self._hold(child), child)
            where = f"{name}{each}"
            if path is not None and path.is_dir():
                image[where] = None
                self._collect(path, f"{where}/", names_synced, content_synced, image)
            else:
                image[where] = self._content.get(number, b"") if content_synced else self._now(number)

    def synced(self, descriptor: int) -> None:
        """A file or a folder has reached the disk."""
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        if not path.is_relative_to(self.root.parent):
            return
        inode = self._hold(path)
        if path.is_dir():
            self._names[inode] = {name: self._hold(child) for name, child in self._listed(path).items()}
        else:
            self._content[inode] = self._now(inode)

    def write(self, image: Image, place: Path) -> None:
        """Make a folder of what a loss of power left."""
        place.mkdir()
        for name, content in image.items():
            if content is None:
                (place / name).mkdir()
            else:
                (place / name).write_bytes(content)

    def _hold(self, path: Path) -> int:
        inode = path.stat().st_ino
        if inode not in self._open:
            self._open[inode] = os.open(path, os.O_RDONLY)
        return inode

    def _path(self, inode: int) -> Path | None:
        path = Path(f"/proc/self/fd/{self._open[inode]}").readlink()
        return path if path.exists() else None

    def _now(self, inode: int) -> bytes:
        descriptor = self._open[inode]
        return os.pread(descriptor, os.fstat(descriptor).st_size, 0)

    @staticmethod
    def _listed(folder: Path) -> dict[str, Path]:
        return {child.name: child for child in sorted(folder.iterdir())}

    def close(self) -> None:
        """Let go of the files."""
        for descriptor in self._open.values():
            os.close(descriptor)


@contextmanager
def recorded(root: Path) -> Iterator[Disk]:
    """Note what a loss of power would leave of a folder before and after each call that changes it within."""
    disk = Disk(root)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("fsync", "replace", "rename", "mkdir", "unlink"):
            patch.setattr(os, name, _noting(disk, name, getattr(os, name)))
        try:
            yield disk
        finally:
            disk.note()
            disk.close()


def _noting(disk: Disk, name: str, call: Any) -> Any:
    def noted(*given: Any, **more: Any) -> Any:
        with disk.alone:  # a checkpoint is written in the background
            disk.note()
            done = call(*given, **more)
            if name == "fsync":
                disk.synced(given[0])
            disk.note()
        return done

    return noted
