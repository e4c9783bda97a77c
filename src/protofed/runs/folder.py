"""The run folder: config.yaml, rounds.jsonl, result.json, checkpoint/. A file is replaced whole or not at all."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypedDict

from protofed.errors import UserError
from protofed.experiment import Experiment, read_yaml
from protofed.internal.schema import require

SEVERAL = {
    "compare.yaml": "compare.json",
    "reproduce.yaml": "table.json",
    "sweep.yaml": "sweep.json",
    "choose-k.yaml": "choose-k.json",
}
"""What the folder of several runs begins and ends with."""


class Scalars(TypedDict):
    """How many numbers clients sent."""

    weights: int
    prototypes: int


class Described(TypedDict):
    """What is said of a set of prototypes; see prototypes/describe.py."""

    each: list[int]
    padded: float
    drift: float | None


class _Sometimes(TypedDict, total=False):
    """What not every line of rounds.jsonl says."""

    losses: list[float]  # of each participant


class Line(_Sometimes):
    """The form of a line of rounds.jsonl; it may say more."""

    round: int
    seconds: float
    loss: float
    participants: list[int]
    bytes_up: int
    bytes_down: int
    scalars_up: Scalars
    prototypes: dict[str, Described]
    clusters: dict[str, list[int]]
    accuracy: dict[str, float]  # none of a round that was not evaluated
    per_client: dict[str, list[float]]
    per_domain: dict[str, dict[str, float]]
    diagnostic: list[str]
    interval: dict[str, float]


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that a reader, or a crash, sees the old content or the new, never a part."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(text, encoding="utf-8")
    os.replace(draft, path)  # noqa: PTH105 - Path.replace is the same call; this one is the documented atomic rename


class RunFolder:
    """Reads and writes one run."""

    def __init__(self, path: Path) -> None:
        from protofed.runs.checkpoint import Checkpoint  # and torch, which a file alone does not need

        self.path = path
        self.rounds = path / "rounds.jsonl"
        self.result = path / "result.json"
        self.look = path / "look.safetensors"
        self.label = path / "flower.json"  # only of a run over Flower
        self.checkpoint = Checkpoint(path / "checkpoint")
        self._claim: IO[bytes] | None = None

    @classmethod
    def create(cls, path: Path, experiment: Experiment) -> RunFolder:
        """A new folder; an existing one is never written over."""
        return cls(make_folder(path, "config.yaml", experiment.to_yaml()))

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
                raise UserError("DIR", str(self.path), "another process is playing this run") from None
            except OSError:  # a file system without locks
                pass
            self._claim = claim
        return self

    def __enter__(self) -> RunFolder:
        self.checkpoint.__enter__()
        return self.claim()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.checkpoint.__exit__(kind, error, at)
        finally:
            if self._claim is not None:
                self._claim.close()
                self._claim = None

    def experiment(self) -> Experiment:
        """What was run."""
        return Experiment.from_mapping(read_yaml(self.path / "config.yaml"))

    def append_round(self, line: Mapping[str, Any]) -> None:
        """Add a round as it happens."""
        with self.rounds.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def played(self) -> list[dict[str, Any]]:
        """The rounds so far, of a run that may be going on; a line that is only partly there is left out."""
        return self._parsed(self._lines(whole=True))

    def read_rounds(self, upto: int) -> list[dict[str, Any]]:
        """The first rounds, whatever follows them."""
        lines = self._lines()
        if len(lines) < upto:
            raise UserError("DIR", str(self.path), f"rounds.jsonl has {len(lines)} rounds, its checkpoint {upto}")
        return self._parsed(lines[:upto])

    def keep_rounds(self, rounds: Sequence[Mapping[str, Any]]) -> None:
        """Drop all others from the file, if there is one: later ones, and a line cut short by a crash."""
        if self.rounds.exists():
            write_atomically(self.rounds, "".join(json.dumps(line) + "\n" for line in rounds))

    def _lines(self, whole: bool = False) -> list[str]:
        """The lines of rounds.jsonl; only the whole ones, if the last may be in the writing."""
        try:
            text = self.rounds.read_text(encoding="utf-8") if self.rounds.exists() else ""
        except (OSError, UnicodeDecodeError) as error:
            raise UserError("DIR", str(self.path), f"rounds.jsonl cannot be read: {error}") from None
        return (text[: text.rfind("\n") + 1] if whole else text).splitlines()

    def _parsed(self, lines: Sequence[str]) -> list[dict[str, Any]]:
        try:
            return [_round(json.loads(line), number) for number, line in enumerate(lines, 1)]
        except (ValueError, RecursionError) as error:  # UserError is a ValueError
            raise UserError("DIR", str(self.path), f"rounds.jsonl cannot be read: {error}") from None


def _round(line: Any, number: int) -> dict[str, Any]:
    """A line, if it is that of a round."""
    what = f"line {number}"
    require(what, line, Line)
    if line["round"] != number:
        raise UserError(f"{what}: round", line["round"], f"it must be {number}")
    if len(line.get("losses", line["participants"])) != len(line["participants"]):  # both may be empty (--privacy)
        raise UserError(f"{what}: participants", line["participants"], "there must be a loss of each")
    if not (line["per_client"].keys() <= line["accuracy"].keys() and all(line["per_client"].values())):
        raise UserError(f"{what}: per_client", list(line["per_client"]), "each must have an accuracy, and clients")
    return dict(line)


def run_folders(folder: Path) -> list[Path]:
    """A run's folder, or those below it, but for drafts."""
    if (folder / "config.yaml").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.rglob("config.yaml"))
    return [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def make_folder(path: Path, name: str, text: str) -> Path:
    """A new folder with one file in it; like a file, it is there whole or not at all."""
    if path.exists():
        raise UserError("--out", str(path), "it exists already; name a new folder")
    draft = path.with_name(f".{path.name}.draft-{os.getpid()}")
    try:
        draft.mkdir(parents=True, exist_ok=True)
        (draft / name).write_text(text, encoding="utf-8")
        draft.rename(path)
    except OSError as error:
        shutil.rmtree(draft, ignore_errors=True)
        raise UserError("--out", str(path), f"it cannot be made: {error.strerror}") from None
    return path


def fresh_path(name: str, folder: Path = Path("runs")) -> Path:
    """A folder of this name, which may hold a path, numbered if that is taken."""
    name = re.sub(r"[/\\]+", "-", name)
    path, number = folder / name, 1
    while path.exists():
        number += 1
        path = folder / f"{name}-{number}"
    return path
