"""Progress on stderr: a live bar in a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from protofed.results.result import Result
    from protofed.runner import Run


class Progress:
    """Says nothing: the base of the others, and what --quiet uses."""

    def begin(self, run: Run) -> None:
        """A run starts, or goes on."""

    def advance(self, run: Run, line: dict[str, Any]) -> None:
        """A round is over; `line` is what rounds.jsonl says of it."""

    def finish(self, result: Result) -> None:
        """One of several runs is over, or was already."""

    def end(self) -> None:
        """Everything is over."""


class Lines(Progress):
    """One line a round, or one line a run when there are several."""

    def __init__(self, runs: int = 1) -> None:
        self.runs = runs
        self.number = 1

    def begin(self, run: Run) -> None:
        """Say what is run, and by which engine."""
        _say(f"{self._label(run)}: {run.experiment.rounds} rounds, {_engine(run)}")

    def advance(self, run: Run, line: dict[str, Any]) -> None:
        """Round, accuracy so far, time left."""
        if self.runs == 1:
            left = _seconds_left(run)
            _say(
                f"{self._label(run)}: round {line['round']}/{run.experiment.rounds}  {_score(run, line)}  "
                f"loss {line['loss']:.3f}" + (f"  {left:.0f} s left" if left else "")
            )

    def finish(self, result: Result) -> None:
        """What the run came to."""
        score = f"{result.score} {result.accuracy[result.score].last:.1f} %"
        _say(f"{self._many()}{result.method} seed {result.seed}: {score} after {result.rounds} rounds")
        self.number += 1

    def _label(self, run: Run) -> str:
        return f"{self._many()}{run.method.name} seed {run.experiment.seed}"

    def _many(self) -> str:
        return f"[{self.number}/{self.runs}] " if self.runs > 1 else ""


class Bar(Progress):
    """A live bar for a terminal."""

    def __init__(self, runs: int = 1) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self.runs = runs
        self.bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[score]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.total = self.bar.add_task("all runs", total=runs, score="") if runs > 1 else None
        self.bar.start()

    def begin(self, run: Run) -> None:
        """A bar of its own for each run."""
        if len(run.history) == 0:
            self.bar.console.print(f"{run.method.name} seed {run.experiment.seed}: {_engine(run)}", highlight=False)
        self.bar.add_task(
            f"{run.method.name} seed {run.experiment.seed}",
            total=run.experiment.rounds,
            completed=len(run.history),
            score="",
        )

    def advance(self, run: Run, line: dict[str, Any]) -> None:
        """Move the bar."""
        self.bar.update(self.bar.task_ids[-1], advance=1, score=_score(run, line))

    def finish(self, result: Result) -> None:  # noqa: ARG002
        """One bar less, one run more."""
        if self.total is not None:
            self.bar.update(self.total, advance=1)
            for task in self.bar.task_ids[1:]:
                self.bar.remove_task(task)

    def end(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()


def progress(quiet: bool, runs: int = 1) -> Progress:
    """What fits the terminal."""
    if quiet:
        return Progress()
    return Bar(runs) if sys.stderr.isatty() else Lines(runs)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _engine(run: Run) -> str:
    return f"{run.engine.name} engine on {run.device} ({run.engine_reason})"


def _score(run: Run, line: dict[str, Any]) -> str:
    name = run.method.score if run.method.score in line["accuracy"] else "own/own/head"
    return f"{name} {line['accuracy'][name]:.1f} %"


def _seconds_left(run: Run) -> float:
    done = [float(line["seconds"]) for line in run.history]
    left = sum(done) / len(done) * (run.experiment.rounds - len(done))
    budget = run.experiment.time_budget
    return left if budget is None else min(left, budget - sum(done))
