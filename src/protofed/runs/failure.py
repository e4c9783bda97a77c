"""The third ending of a run: it failed. What a folder, a table and a report say of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from protofed.errors import DivergedError, UserError
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.internal.digests import json_with_digest
from protofed.internal.schema import made, read_json

__all__ = ["FailedRun"]

FILE = "failure.json"
FEWER = "fewer runs at a time (--jobs) need less memory"
Kind = Literal["diverged", "died", "failed"]


@dataclass(frozen=True)
class FailedRun:
    """Record a run that did not come to its end.

    Args:
        method: the method's name.
        seed: the seed of the run.
        kind: `diverged`, where a loss is no longer finite; `died`, where its process ended; otherwise `failed`.
        reason: what happened, in one line.
        round: in which round, from 1; None where that is not known.
        client: at which client; None where that is not known.
        advice: what may help, as the method says.
        setting: what is varied, in a sweep.
        folder: where the run is on disk; not part of failure.json.

    Example:
        >>> from protofed.runs.failure import FailedRun
        >>> failed = FailedRun("fedplcc", 0, "diverged", "the loss of client 1 became nan", round=2, client=1)
        >>> failed.short
        'diverged (round 2)'
    """

    method: str
    seed: int
    kind: Kind
    reason: str
    round: int | None = None
    client: int | None = None
    advice: str = ""
    setting: str = ""
    folder: str | None = None

    @property
    def short(self) -> str:
        """Say it in the cell of a table."""
        return self.kind if self.round is None else f"{self.kind} (round {self.round})"

    @property
    def name(self) -> str:
        """Name the run among several."""
        return f"{self.method} seed {self.seed}{self.setting and f', {self.setting}'}"

    def __str__(self) -> str:
        return f"{self.name}: {self.reason}{self.advice and f'; {self.advice}'}"

    @classmethod
    def of(cls, experiment: Experiment, error: BaseException, rounds: int | None = None) -> FailedRun:
        """Describe the failure of an experiment by what was raised after so many rounds."""
        from protofed.methods import method_class  # and torch, which who only reads failures does not import

        method, seed = method_class(experiment.method), experiment.seed
        number = None if rounds is None else rounds + 1
        if isinstance(error, DivergedError):
            number = error.round or number
            return cls(method.name, seed, "diverged", error.where or _line(error), number, error.client, method.advice)
        if isinstance(error, UserError):
            return cls(method.name, seed, "failed", _line(error), number, advice=error.hint or "")
        if type(error).__name__ == "OutOfMemoryError":  # torch's
            return cls(method.name, seed, "failed", "the GPU's memory is full", number, advice=FEWER)
        return cls(method.name, seed, "failed", f"{type(error).__name__}: {_line(error)}".rstrip(": "), number)

    def write(self, folder: Path) -> None:
        """Write it into the folder of its run, if that was made."""
        if folder.is_dir():
            values = dataclasses.asdict(self)
            del values["folder"], values["setting"]
            write_text(folder / FILE, json_with_digest(json.dumps(values, indent=2)))

    @classmethod
    def read(cls, folder: Path) -> FailedRun | None:
        """Read how the run of a folder failed; None if it did not."""
        path = folder / FILE
        return made(str(path), cls, read_json(path), folder=str(folder)) if path.is_file() else None


def forget_failure(folder: Path) -> None:
    """Let a run that has failed be played again, from its last checkpoint."""
    (folder / FILE).unlink(missing_ok=True)


def score_of(method: str) -> str:
    """The accuracy that a method's paper reports; a user's own is a file with code, which is not run for it."""
    from protofed.methods import METHODS, method_class

    return method_class(method).score if method in METHODS else "own/own/head"


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())
