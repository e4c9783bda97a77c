"""Progress: live bars in a terminal and in a notebook, plain lines on stderr elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import import_module
from typing import TYPE_CHECKING, Any

from protofed.internal.words import counted
from protofed.runs.failure import FailedRun
from protofed.runs.result import Result
from protofed.server.round import Round

if TYPE_CHECKING:
    from rich.progress import TaskID


def label(method: str, seed: int, setting: str = "") -> str:
    """A run's name among several."""
    return f"{method} seed {seed}{setting and f', {setting}'}"


@dataclass(frozen=True)
class Standing:
    """How far a run is, in plain values that can come from another process."""

    method: str
    seed: int
    rounds: int
    done: int
    engine: str
    loss: float | None = None  # of the round that is just over; none when a run starts or goes on
    score: str = ""
    seconds_left: float = 0.0
    setting: str = ""  # what is varied, in a sweep
    numbers: Mapping[str, float] = field(default_factory=dict)  # of the round that is just over, for a log

    @property
    def label(self) -> str:
        """Its name among several."""
        return label(self.method, self.seed, self.setting)


class Progress:
    """Says nothing: the base of the others, and what --quiet uses."""

    def tell(self, standing: Standing) -> None:
        """A run starts, goes on or has played a round; of several runs, perhaps in another process."""

    def stops(self, played: Round) -> bool:  # noqa: ARG002 - for those who decide
        """Whether a run ends with the round that it has just played."""
        return False

    def finish(self, result: Result, setting: str = "") -> None:
        """One of several runs is over, or was already."""

    def fail(self, failed: FailedRun) -> None:
        """One of several runs has failed, or had already."""

    def end(self) -> None:
        """Everything is over."""


class Relay(Progress):
    """Passes on how far a run is, and who may end it."""

    def __init__(self, send: Callable[[Standing], None], ask: Callable[[Round], bool] = lambda _: False) -> None:
        self.send, self.ask = send, ask

    def tell(self, standing: Standing) -> None:
        """To whoever shows it."""
        self.send(standing)

    def stops(self, played: Round) -> bool:
        """Whoever was named is asked."""
        return self.ask(played)


OnRound = Callable[[Round], bool | None]
"""What a user wants called after every round; True ends the run."""

BOOLEANS = ("bool", "torch.bool")
"""What Python, NumPy and torch call the type of what is true or false."""


class CallbackError(Exception):
    """A user's function has raised its cause: that ends everything, and is no failure of a run."""


class Asking(Progress):
    """Passes on how far runs are, and calls a user's function after every round."""

    def __init__(self, shown: Progress, on_round: OnRound) -> None:
        self.shown, self.on_round = shown, on_round

    def tell(self, standing: Standing) -> None:
        """To whoever shows it."""
        self.shown.tell(standing)

    def stops(self, played: Round) -> bool:
        """Only what is true ends a run, not any value that counts as such: `file.write` returns a number, say."""
        try:
            answer = self.on_round(played)
            return str(getattr(answer, "dtype", type(answer).__name__)) in BOOLEANS and bool(answer)
        except Exception as error:
            raise CallbackError from error

    def fail(self, failed: FailedRun) -> None:
        """Likewise."""
        self.shown.fail(failed)

    def finish(self, result: Result, setting: str = "") -> None:
        """Likewise."""
        self.shown.finish(result, setting)

    def end(self) -> None:
        """Likewise."""
        self.shown.end()


class Lines(Progress):
    """One line per round, or two lines per run when there are several."""

    def __init__(self, runs: int = 1) -> None:
        self.runs = runs
        self.numbers: dict[str, int] = {}
        self.began = time.monotonic()
        self.played = self.finished = 0

    def tell(self, standing: Standing) -> None:
        """What is run by which engine; then, of a single run, every round."""
        name = self._numbered(standing.label)
        if standing.loss is None:
            _say(f"{name}: {counted(standing.rounds, 'round')}, {standing.engine}")
        elif self.runs == 1:
            left = f"{standing.seconds_left:.0f} s left" if standing.seconds_left else ""
            parts = (f"round {standing.done}/{standing.rounds}", standing.score, f"loss {standing.loss:.3f}", left)
            _say(f"{name}: {'  '.join(part for part in parts if part)}")

    def finish(self, result: Result, setting: str = "") -> None:
        """What the run came to."""
        name = label(result.method, result.seed, setting)
        self.played += name in self.numbers  # the others were complete before
        self.finished += 1
        score = f"{result.score} {result.accuracy[result.score].last:.1f} %"
        _say(f"{self._numbered(name)}: {score} after {counted(result.rounds, 'round')}{self._left()}")

    def fail(self, failed: FailedRun) -> None:
        """What happened to the run."""
        self.played += failed.name in self.numbers
        self.finished += 1
        _say(f"{self._numbered(failed.name)}: {failed.short}: {failed.reason}{self._left()}")

    def _left(self) -> str:
        """How long all runs may take, if it is worth a word."""
        each = (time.monotonic() - self.began) / max(1, self.played)
        minutes = each * (self.runs - self.finished) / 60
        return f", about {minutes:.0f} min left" if minutes >= 1 else ""

    def _numbered(self, name: str) -> str:
        """Runs are numbered as they begin."""
        number = self.numbers.setdefault(name, len(self.numbers) + 1)
        return f"[{number}/{self.runs}] {name}" if self.runs > 1 else name


class Bar(Progress):
    """A live bar for a terminal: one for each run that is going on, and one for all."""

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
        self.finished = 0
        self.running: dict[str, tuple[TaskID, float]] = {}
        self.bar.start()

    def tell(self, standing: Standing) -> None:
        """A bar for each run that is going on."""
        if standing.loss is None:
            if standing.done == 0:
                self.bar.console.print(f"{standing.label}: {standing.engine}", highlight=False)
            task = self.bar.add_task(standing.label, total=standing.rounds, completed=standing.done, score="")
        else:
            task, _ = self.running[standing.label]
            self.bar.update(task, completed=standing.done, score=standing.score)
        self.running[standing.label] = task, standing.done / standing.rounds
        self._show_total()

    def finish(self, result: Result, setting: str = "") -> None:
        """One bar less, one run more."""
        self._over(label(result.method, result.seed, setting))

    def fail(self, failed: FailedRun) -> None:
        """The same, and what happened."""
        self.bar.console.print(f"{failed.name}: {failed.short}: {failed.reason}", highlight=False)
        self._over(failed.name)

    def _over(self, name: str) -> None:
        task, _ = self.running.pop(name, (None, 0.0))
        if task is not None:
            self.bar.remove_task(task)
        self.finished += 1
        self._show_total()

    def end(self) -> None:
        """Leave the terminal as it was."""
        self.bar.stop()

    def _show_total(self) -> None:
        """Runs done; parts of a run count for the time left."""
        if self.total is not None:
            self.bar.update(self.total, completed=self.finished + sum(part for _, part in self.running.values()))


class Cell(Progress):
    """The same in the output of a notebook's cell, which is replaced as runs go on."""

    def __init__(self, runs: int = 1) -> None:
        display: Any = import_module("IPython.display")
        self.runs, self.finished = runs, 0
        self.running: dict[str, Standing] = {}
        self.failed: list[FailedRun] = []
        self.html, self.at = display.HTML, time.monotonic()
        self.handle = display.display(self.html(""), display_id=True)

    def tell(self, standing: Standing) -> None:
        """A line for each run that is going on, ten times a second at most."""
        self.running[standing.label] = standing
        if time.monotonic() - self.at > 0.1:
            self._show()

    def finish(self, result: Result, setting: str = "") -> None:
        """One line less, one run more."""
        self.running.pop(label(result.method, result.seed, setting), None)
        self.finished += 1
        self._show()

    def fail(self, failed: FailedRun) -> None:
        """The same, and what happened, which stays."""
        self.running.pop(failed.name, None)
        self.failed.append(failed)
        self.finished += 1
        self._show()

    def end(self) -> None:
        """What is left in the cell."""
        self._show()

    def _show(self) -> None:
        lines = [escape(f"{failed.name}: {failed.short}: {failed.reason}") for failed in self.failed]
        lines += [_line_of(standing) for standing in self.running.values()]
        if self.runs > 1:
            lines.append(f"{_gauge(self.finished, self.runs)} {self.finished} of {self.runs} runs")
        self.handle.update(self.html("<br>".join(lines)))
        self.at = time.monotonic()


def _line_of(standing: Standing) -> str:
    """A run in a notebook's cell."""
    left = f"about {standing.seconds_left:.0f} s left" if standing.seconds_left else ""
    parts = (f"round {standing.done} of {standing.rounds}", standing.score, left)
    return f"{_gauge(standing.done, standing.rounds)} {escape(standing.label)}: {', '.join(filter(None, parts))}"


def _gauge(done: int, of: int) -> str:
    return f'<progress value="{done}" max="{of}"></progress>'


def progress(quiet: bool, runs: int = 1) -> Progress:
    """What fits the terminal, or the notebook."""
    if quiet:
        return Progress()
    if _in_notebook():
        return Cell(runs)
    return Bar(runs) if sys.stderr.isatty() else Lines(runs)


def _in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def told_score(score: str, accuracy: Mapping[str, float]) -> str:
    """The accuracy that counts, as far as there is one: none after a round without evaluation."""
    name = next((name for name in (score, "own/own/head", *accuracy) if name in accuracy), None)
    return f"{name} {accuracy[name]:.1f} %" if name else ""


def seconds_left(done: Sequence[float], rounds: int, budget: float | None) -> float:
    """How long the remaining rounds may take, after the seconds of those so far."""
    left = sum(done) / len(done) * (rounds - len(done))
    return left if budget is None else min(left, budget - sum(done))
