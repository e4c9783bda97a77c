"""How far the runs of a folder are, from its files alone: a table for a terminal; the viewer is the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from protofed.errors import UserError
from protofed.methods import METHODS, method_class
from protofed.report.terminal import TextTable
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder, run_folders
from protofed.runs.progress import seconds_left
from protofed.studies.kinds import KINDS, kind_of

BARS = "▁▂▃▄▅▆▇█"
WIDTH = 8
"""Characters of a curve."""

MOST = 40
"""Of more runs a terminal does not show those that came to their end."""


@dataclass(frozen=True)
class Watched:
    """How far one run is."""

    name: str
    rounds: int
    done: int
    losses: list[float]  # of each round
    score: str  # the accuracy of the curve
    scores: list[float]  # of each round that was evaluated
    accuracy: Mapping[str, float]  # in the last of them
    seconds_left: float | None  # none before the first round
    state: Literal["going on", "stopped", "ended", "failed", "unreadable"]
    failure: str = ""  # how it failed
    reason: str = ""  # why it cannot be read

    @property
    def ended(self) -> bool:
        """Whether nothing more comes of it by itself."""
        return self.state in ("ended", "failed", "unreadable")


@dataclass(frozen=True)
class View:
    """How far a run or a study is."""

    title: str
    runs: list[Watched]
    waiting: int  # runs of a study that have not begun, as far as that is known
    ended: bool


def look(folder: Path) -> View:
    """The folder of a run, or of a study, as it is now; a study ends with its table."""
    if (folder / "config.yaml").is_file():
        run = _run(folder, folder.resolve().name)
        return View(str(folder), [run], 0, run.ended)
    kind = kind_of(folder)
    if kind is None:
        names = ", ".join(known.config(folder).name for known in KINDS)
        raise UserError("DIR", str(folder), f"it is not the folder of runs: it has none of config.yaml, {names}")
    runs = [_readable(path, str(path.relative_to(folder))) for path in run_folders(folder, trials=True)]
    waiting = max(0, (kind.open(folder).size() or 0) - len(runs))
    ended = (folder / kind.end).is_file() and not waiting and all(run.ended for run in runs)
    return View(str(folder), runs, waiting, ended)


def _readable(path: Path, name: str) -> Watched:
    """One run of several; a damaged file must not hide the others."""
    try:
        return _run(path, name)
    except UserError as error:
        return Watched(name, 0, 0, [], "", [], {}, None, "unreadable", reason=str(error))


def _run(path: Path, name: str) -> Watched:
    folder = RunFolder.open(path)
    experiment, history = folder.experiment(), folder.played()
    tested = [played.accuracy for played in history if played.accuracy]
    # A user's own method is a file with code, which looking at a folder must not run.
    score = method_class(experiment.method).score if experiment.method in METHODS else ""
    if not all(score in accuracy for accuracy in tested):
        score = "own/own/head"
    failed = FailedRun.read(path)
    ended = folder.result.exists()
    state: Any = "ended" if ended else "failed" if failed else "going on" if folder.is_played() else "stopped"
    seconds = [played.seconds for played in history]
    left = seconds_left(seconds, experiment.rounds, experiment.time_budget) if history and state == "going on" else None
    return Watched(
        name=name,
        rounds=experiment.rounds,
        done=len(history),
        losses=[played.loss for played in history],
        score=score,
        scores=[accuracy[score] for accuracy in tested if score in accuracy],
        accuracy=tested[-1] if tested else {},
        seconds_left=0.0 if ended else left,
        state=state,
        failure=failed.short if failed else "",
    )


def table(view: View) -> TextTable:
    """A row per run; every accuracy of a single one below it."""
    below = f"{view.waiting} not begun" if view.waiting else ""
    if len(view.runs) == 1 and not view.waiting:
        below = ", ".join(f"{name} {value:.1f}" for name, value in view.runs[0].accuracy.items())
    shown = view.runs
    if len(view.runs) > MOST:
        shown = [run for run in view.runs if run.state != "ended"]
        below = f"{len(view.runs) - len(shown)} ended, {below}".removesuffix(", ")
    below = "\n".join([below, *(f"{run.name} cannot be read: {run.reason}" for run in shown if run.reason)]).strip()
    rows = []
    for run in shown:
        loss = f"{run.losses[-1]:.3f}" if run.losses else ""
        score = f"{run.scores[-1]:.1f}" if run.scores else ""
        left = run.failure or run.state if run.state != "going on" else ""
        left = left or ("" if run.seconds_left is None else f"{run.seconds_left:.0f} s")
        cells = (f"{run.done}/{run.rounds}", loss, curve(run.losses), run.score, score, curve(run.scores), left)
        rows.append([run.name, *cells])
    titles = ("run", "rounds", "loss", "", "score", "%", "", "left")
    return TextTable(titles, rows, view.title, below, align="lrrllrlr")


def curve(values: Sequence[float]) -> str:
    """A small curve from the lowest to the highest, of evenly spaced values if there are too many."""
    if len(values) > WIDTH:
        values = [values[number * (len(values) - 1) // (WIDTH - 1)] for number in range(WIDTH)]
    low, span = min(values, default=0.0), max(values, default=0.0) - min(values, default=0.0)
    return "".join(BARS[int((value - low) / (span or 1) * (len(BARS) - 1))] for value in values)
