"""The run folder: config.yaml, rounds.jsonl, result.json, checkpoint/. A file is replaced whole or not at all."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_folder, write_text, writing
from protofed.internal.digests import json_with_digest, parse_json, yaml_with_digest
from protofed.internal.yaml_files import read_yaml
from protofed.server.round import Round

if TYPE_CHECKING:
    from protofed.runs.checkpoint import Checkpoint

LONGEST_NAME = 200
"""Bytes of a folder's name, to which a number may be added; most systems take 255."""
TUNING = "tuning"
"""The folder of a study whose runs only chose values for others."""


class BusyError(UserError):
    """A run that another process is playing."""


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds = path / "rounds.jsonl"
        self.result = path / "result.json"
        self.snapshot = path / "snapshot.safetensors"
        if not self.snapshot.exists() and (old := path / "look.safetensors").exists():  # its name before 0.2
            self.snapshot = old
        self.motion = path / "motion.safetensors"
        self.network_label = path / "flower.json"
        self._claim: IO[bytes] | None = None

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The state after the last checkpointed round."""
        from protofed.runs.checkpoint import Checkpoint  # and torch, which the other files do not need

        return Checkpoint(self.path / "checkpoint", self.rounds)

    @property
    def over_network(self) -> bool:
        """Whether the run was played over a network, so that its clients' models and data are not here."""
        return self.network_label.is_file()

    @classmethod
    def create(cls, path: Path, experiment: Experiment) -> RunFolder:
        """A new folder; an existing one is never written over."""
        return cls(make_folder(path, "config.yaml", yaml_with_digest(experiment.to_yaml())))

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder that a run has written."""
        if not (path / "config.yaml").is_file():
            raise UserError("DIR", str(path), "it is not a run folder: it has no config.yaml")
        return cls(path)

    def claim(self) -> RunFolder:
        """From now on, and until it has played, this process alone writes here."""
        if self._claim is None:
            claim = (self.path / "config.yaml").open("r+b")  # NFS locks only what may be written
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                claim.close()
                raise BusyError("DIR", str(self.path), "another process is running it") from None
            except OSError:  # a file system without locks
                pass
            self._claim = claim
        return self

    def release(self) -> None:
        """Let others write here again."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def is_played(self) -> bool:
        """Whether a process is playing it; where files have no locks, that is assumed."""
        with (self.path / "config.yaml").open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                return True
        return False

    def __enter__(self) -> RunFolder:
        self.checkpoint.__enter__()
        return self.claim()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.checkpoint.__exit__(kind, error, at)
        finally:
            self.release()

    def experiment(self) -> Experiment:
        """What was run, if config.yaml is as it was written."""
        return Experiment.from_mapping(read_yaml(self.path / "config.yaml", as_written=True))

    def append_round(self, played: Round) -> None:
        """Add a round as it happens."""
        with writing(self.rounds), self.rounds.open("a", encoding="utf-8") as file:
            file.write(_line(played))

    def played(self) -> list[Round]:
        """The rounds so far; of a run that may be going on a line that is only partly there is left out."""
        return self._parsed(self._lines(whole=not self.result.exists()))

    def read_rounds(self, upto: int) -> list[Round]:
        """The first rounds, whatever follows them."""
        lines = self._lines()
        if len(lines) < upto:
            raise UserError("DIR", str(self.path), f"rounds.jsonl has {len(lines)} rounds, its checkpoint {upto}")
        return self._parsed(lines[:upto])

    def keep_rounds(self, rounds: Sequence[Round]) -> None:
        """Drop all others from the file, if there is one: later ones, and a line cut short by a crash."""
        if self.rounds.exists():
            write_text(self.rounds, "".join(map(_line, rounds)))

    def _lines(self, whole: bool = False) -> list[str]:
        """The lines of rounds.jsonl; only the whole ones, if the last may be in the writing."""
        try:
            text = self.rounds.read_text(encoding="utf-8") if self.rounds.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UserError("DIR", str(self.path), f"rounds.jsonl cannot be read: {error}") from None
        return (text[: text.rfind("\n") + 1] if whole else text).splitlines()

    def _parsed(self, lines: Sequence[str]) -> list[Round]:
        try:
            return [Round.from_json(parse_json(line), number) for number, line in enumerate(lines, 1)]
        except (ValueError, RecursionError) as error:  # UserError is a ValueError
            raise UserError("DIR", str(self.path), f"rounds.jsonl cannot be read: {error}") from None


def _line(played: Round) -> str:
    """A line that is JSON: no reader takes what Python writes for infinity."""
    return json_with_digest(json.dumps(played.to_json(), allow_nan=False)) + "\n"


def run_folders(folder: Path, trials: bool = False) -> list[Path]:
    """A run's folder, or those below it, but for drafts and, unless asked for, trials that chose values for others."""
    if (folder / "config.yaml").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.rglob("config.yaml"))
    parts = {path: path.relative_to(folder).parts for path in found}
    whole = [path for path in found if not any(part.startswith(".") for part in parts[path])]
    return [path for path in whole if trials or TUNING not in parts[path]]


def make_folder(path: Path, name: str, text: str) -> Path:
    """A new folder with one text file in it."""
    return write_folder(path, lambda draft: (draft / name).write_text(text, encoding="utf-8"))


def fresh_path(name: str, folder: Path = Path("runs")) -> Path:
    """A folder of this name, which may hold a path, numbered if that is taken."""
    name = re.sub(r"[/\\]+", "-", name).encode()[:LONGEST_NAME].decode(errors="ignore")
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}"
    return path
