"""What a client has done so far, in its own count: nothing here is taken from what a server says."""

from __future__ import annotations

import datetime
import hashlib
import json
import shutil
import time
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from protofed.deploy.client_memory import ClientMemory
from protofed.deploy.owner import Owner, refuse
from protofed.deploy.spoken import spoken
from protofed.errors import RefusedError
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.internal.schema import made

LEDGER, TODAY = "ledger.json", "today.json"
MOST_RUNS = 10_000
"""Of which a client keeps something: a server could invent names of runs until the disk is full."""
SUMS = "sums.json"
MOST_SUMS = 100_000
"""That a client remembers; it gives no more of them than that."""


@dataclass
class RunLedger:
    """Of one run: what its first messages said, which holds to the end, and the turns so far."""

    experiment: str  # a digest
    classes: str = ""  # likewise; known from the first turn on
    turns: int = 0
    tests: int = 0

    @classmethod
    def of(cls, memory: ClientMemory, experiment: Experiment) -> RunLedger:
        """That of a run which asks for this experiment: the first message of a run pins it.

        Raises:
            RefusedError: the run began with another one.
        """
        said, asked = memory.note(LEDGER), digest(spoken(experiment))
        if not said:
            found = cls(asked)
            found.keep(memory)
            return found
        found = made(LEDGER, cls, json.loads(said))
        if found.experiment != asked:
            raise RefusedError("the run began with another experiment")
        return found

    def pin_classes(self, memory: ClientMemory, classes: list[str]) -> None:
        """Hold the run to the classes of its first turn.

        Raises:
            RefusedError: the run began with others.
        """
        asked = digest(classes)
        if self.classes not in ("", asked):
            raise RefusedError("the run began with other classes")
        self.classes = asked
        self.keep(memory)

    def count(self, what: Literal["turn", "test"], memory: ClientMemory, owner: Owner) -> None:
        """Count a turn or a test before it is taken: one that fails may have sent something.

        A test, of a model that the server chose, tells of this client's samples as a turn does.

        Raises:
            RefusedError: the owner allows no more.
        """
        counter = f"{what}s"
        if (had := getattr(self, counter)) >= owner.turns:
            raise RefusedError(f"another {what}: it has had the {owner.turns} of a run that are allowed")
        setattr(self, counter, had + 1)
        self.keep(memory)

    def keep(self, memory: ClientMemory) -> None:
        """Write it down."""
        memory.keep(LEDGER, json.dumps(asdict(self)).encode())


@dataclass(frozen=True)
class Today:
    """Of all runs since midnight, UTC."""

    day: str = ""
    turns: int = 0
    tests: int = 0
    sent: int = 0  # bytes

    @classmethod
    def read(cls, path: Path) -> Today:
        """From a client's file; a new day begins with nothing."""
        day = datetime.datetime.now(datetime.UTC).date().isoformat()
        found = made(str(path), cls, json.loads(path.read_text(encoding="utf-8"))) if path.exists() else cls()
        return found if found.day == day else cls(day)

    def count(self, path: Path, owner: Owner, turns: int = 0, tests: int = 0, sent: int = 0) -> None:
        """Count turns, tests, or bytes that are about to be sent, if there is room for them.

        Raises:
            RefusedError: they would be more than the owner allows in a day.
        """
        if turns and self.turns + turns > owner.turns_per_day:
            raise RefusedError(f"another turn today: {owner.turns_per_day} are allowed in a day")
        if tests and self.tests + tests > owner.turns_per_day:
            raise RefusedError(f"another test today: {owner.turns_per_day} are allowed in a day")
        if self.sent + sent > owner.megabytes_per_day * 1e6:
            raise RefusedError(f"another {sent / 1e6:.1f} MB: {owner.megabytes_per_day:g} MB are allowed in a day")
        found = Today(self.day, self.turns + turns, self.tests + tests, self.sent + sent)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_text(path, json.dumps(asdict(found)) + "\n")


def forget_old(folder: Path, owner: Owner) -> list[str]:
    """Delete what is kept of runs that have asked for nothing for as many days as the owner keeps it; their names.

    A run that is going on, or may go on soon, is not among them; one that is over is kept as long, for its model.
    """
    old = _old(_runs(folder), owner)
    for place in old:
        shutil.rmtree(place)
    return [place.name for place in old]


def _runs(folder: Path) -> list[Path]:
    """The folders of all runs of which something is kept."""
    return [place for place in folder.iterdir() if place.is_dir()] if folder.is_dir() else []


def _old(runs: Collection[Path], owner: Owner) -> list[Path]:
    oldest = time.time() - owner.keep_days * 86_400
    return [place for place in runs if max(file.stat().st_mtime for file in (place, *place.iterdir())) < oldest]


@dataclass(frozen=True)
class SumsGiven:
    """Over which clients this one has helped to unmask a sum, by what it had trained from; in all runs.

    The sum over a set and that over another one, from the same beginning, differ by what some clients added. A run's
    name is the server's to choose, so the beginning is what counts: one beginning, one set of clients, for ever.

    Args:
        path: the file of it.
    """

    path: Path

    def check(self, beginning: str, who: Collection[int]) -> None:
        """Refuse a sum over others than before.

        Args:
            beginning: a digest of what the turn began with.
            who: the clients of the sum.

        Raises:
            RefusedError: there was one over others, or there are more sums than can be remembered.
        """
        given = self._read()
        if given.get(beginning, _set(who)) != _set(who):
            raise RefusedError(
                "from the same beginning it has given a sum over other clients; another seed has another"
            )
        if beginning not in given and len(given) >= MOST_SUMS:
            raise RefusedError(f"another sum: it remembers {MOST_SUMS}")

    def give(self, beginning: str, who: Collection[int]) -> None:
        """Write down, before it is given, a sum that was not refused."""
        self.check(beginning, who)
        given = self._read()
        if beginning not in given:
            write_text(self.path, json.dumps(given | {beginning: _set(who)}) + "\n")

    def _read(self) -> dict[str, str]:
        return dict(json.loads(self.path.read_text(encoding="utf-8"))) if self.path.exists() else {}


def _set(who: Collection[int]) -> str:
    return digest(sorted(set(who)))


def check_room(folder: Path, run: str, owner: Owner) -> None:
    """Refuse a new run where those before have used the room that the owner gives.

    Raises:
        RefusedError: there are too many runs, or they have kept too much.
    """
    if (folder / run).is_dir():
        return
    runs = _runs(folder)
    lasting = _lasting(runs)
    for place in {*runs} - {*lasting}:
        shutil.rmtree(place)
    refuse(_objections_to_more(lasting, owner))


def room_objections(folder: Path, owner: Owner) -> list[str]:
    """To a run that would begin now, when what is old would be deleted first; nothing is deleted."""
    runs = _runs(folder)
    return _objections_to_more(_lasting({*runs} - {*_old(runs, owner)}), owner)


def _lasting(runs: Collection[Path]) -> Collection[Path]:
    """Those that stay when another begins: where there are many, those that never had a turn go."""
    return runs if len(runs) < MOST_RUNS else [place for place in runs if any(place.glob("*.safetensors"))]


def _objections_to_more(runs: Collection[Path], owner: Owner) -> list[str]:
    kept = sum(file.stat().st_size for place in runs for file in place.iterdir())
    full = len(runs) >= MOST_RUNS or kept > owner.disk_megabytes * 1e6
    return ["a new run: what it keeps of others has used the room that is allowed"] if full else []


def digest(value: Any) -> str:
    """Of what can be written as JSON."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
