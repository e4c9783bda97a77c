"""Processes that are not what is installed: with a change that they make first, or of a newer version."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import protofed
from protofed.deploy.wire import OLDEST, PROTOCOL
from protofed.internal.version import VERSION
from tests.support.federation_processes import until

NEWER = "99.0.0"
"""What the newer version is called."""
OPTION = "proximal"
"""What the newer version has besides: an option that changes nothing at its default, 0."""
AFTER = '    lr_decay: float = _option(1.0, "Factor on the learning rate after each round.", "training", above=0)\n'
CHANGES = {
    "internal/version.py": (f'"{VERSION}"', f'"{NEWER}"'),
    "deploy/wire.py": (f"PROTOCOL = {OLDEST}, {PROTOCOL}\n", f"PROTOCOL = {OLDEST}, {PROTOCOL + 1}\n"),
    "experiment.py": (AFTER, f'{AFTER}    {OPTION}: float = _option(0.0, "Of a newer version.", "training")\n'),
}
"""In which files of a newer version what stands for what."""


@contextmanager
def found_first(place: Path) -> Iterator[None]:
    """Processes that are started meanwhile find this folder's modules before others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(place), prepend=os.pathsep)
        yield


@contextmanager
def doing_first(place: Path, code: str) -> Iterator[None]:
    """Processes that are started meanwhile do this before anything else; `place` is a new folder."""
    place.mkdir()
    (place / "sitecustomize.py").write_text(code)
    with found_first(place):
        yield


def newer_version(place: Path) -> Path:
    """A folder with a newer protofed, which speaks a protocol more and has an option more."""
    shutil.copytree(Path(protofed.__file__).parent, place / "protofed", ignore=shutil.ignore_patterns("__pycache__"))
    for name, (before, after) in CHANGES.items():
        path = place / "protofed" / name
        text = path.read_text()
        assert text.count(before) == 1, name
        path.write_text(text.replace(before, after))
    return place


HELD = """
import sys
if "protofed.deploy.warm_worker" in sys.orig_argv:
    import time
    from pathlib import Path
    from protofed.deploy import client
    train, place = client.HANDLERS["train"], Path({place!r})
    def held(self, asked):
        number = asked.clock.round + 1
        (place / f"begun-{{number}}").touch()
        while (place / f"hold-{{number}}").exists():
            time.sleep(0.05)
        return train(self, asked)
    client.HANDLERS["train"] = held
"""


class HeldTurns:
    """Turns of some rounds, in which a client waits: meanwhile the run is in that round, whatever a test does.

    Args:
        place: a new folder.
        rounds: the numbers of the rounds, from 1.
    """

    def __init__(self, place: Path, rounds: range) -> None:
        self.place = place
        place.mkdir()
        for number in rounds:
            self._hold(number).touch()

    @contextmanager
    def of_who_starts(self) -> Iterator[None]:
        """It is the turns of clients that are started meanwhile."""
        with doing_first(self.place / "first", HELD.format(place=str(self.place))):
            yield

    @contextmanager
    def of_round(self, number: int) -> Iterator[None]:
        """From when that round's has begun until it may go on."""
        until((self.place / f"begun-{number}").exists, 120)
        yield
        self._hold(number).unlink()

    def _hold(self, number: int) -> Path:
        return self.place / f"hold-{number}"
