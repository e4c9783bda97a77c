"""Values that a comparison chooses for each method before it is tested: on validation data, with the same budget.

Every method is given as many trials as the one with most combinations has: one with fewer tries each with more seeds.
No seed of a trial is a seed of the test, and a value of which a trial failed is not chosen.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from protofed.evaluation.accuracy import validation_name
from protofed.evaluation.names import best_of
from protofed.experiment import HELD_OUT, Experiment
from protofed.methods import method_class, parameters
from protofed.runs.failure import FailedRun
from protofed.runs.folder import TUNING
from protofed.runs.result import Result
from protofed.studies.grid import (
    Grid,
    GridStudy,
    Setting,
    bare_name,
    check_names,
    is_option,
    task_of,
    text_of,
    varied,
)
from protofed.studies.spread import Spread
from protofed.studies.workers import Ending, Task

__all__ = ["Tried", "Tuned"]

TUNABLE = ("batch_size", "lr", "lr_decay", "momentum", "optimiser", "weight_decay")
"""The options that may be tuned: others would change the question, or how much training a method is given."""


@dataclass(frozen=True)
class Tried:
    """Record how well a method did with some values on validation data.

    Args:
        setting: the values, by their names.
        accuracy: on held-out training data after the last round, in percent; None where a run failed.
        failed: how runs ended that failed, such as `diverged (round 2)`.

    Example:
        >>> from protofed.studies.spread import Spread
        >>> from protofed.studies.tuning import Tried
        >>> Tried({"lr": 0.1}, Spread.of([80.0, 82.0])).accuracy.mean
        81.0
    """

    setting: Setting
    accuracy: Spread | None
    failed: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Tuned:
    """Record which values a method was tested with, and what it took to choose them.

    Args:
        method: the method's name.
        score: the accuracy or metric that has chosen; None for a method that has nothing to choose.
        chosen: the values; empty where there was nothing to choose, or every trial failed.
        trials: what was tried.
        runs: how many runs that took.
        seconds: how long their rounds took in all, without those that failed.

    Example:
        >>> from protofed.studies.spread import Spread
        >>> from protofed.studies.tuning import Tried, Tuned
        >>> trials = [Tried({"lr": 0.1}, Spread.of([80.0])), Tried({"lr": 0.01}, Spread.of([70.0]))]
        >>> Tuned("fedavg", "global/val/head", {"lr": 0.1}, trials, runs=2, seconds=1.5).cost
        '2 runs, 1.5 s'
    """

    method: str
    score: str | None
    chosen: Setting
    trials: list[Tried]
    runs: int
    seconds: float

    @property
    def cost(self) -> str:
        """Say what the choice took, in a cell of a table."""
        return f"{self.runs} runs, {self.seconds:.1f} s" if self.runs else "–"

    @property
    def told(self) -> str:
        """Say what was chosen, and how, in a sentence."""
        if not self.trials:
            return f"{self.method} had nothing to choose"
        chosen = next((trial for trial in self.trials if trial.setting == self.chosen), None)
        if chosen is None or chosen.accuracy is None:
            return f"no trial of {self.method} came to its end ({self.cost}): it was tested with the values that it had"
        by = f"{self.score} {chosen.accuracy.mean:.2f} %"
        return f"{self.method} was tested with {text_of(self.chosen)}, chosen by {by} ({self.cost})"


class Tuning:
    """The trials of a comparison's methods."""

    def __init__(self, tune: Grid, study: GridStudy[Any]) -> None:
        check_names("--tune", tune, study.methods, study.experiment, TUNABLE)
        grids = {method: _grid(method, tune) for method in study.methods}
        most = max(_size(grid) for grid in grids.values())
        common = replace(
            study.experiment,
            seed=study.experiment.seed + study.seeds,  # those of the test come before
            val_fraction=study.experiment.val_fraction or HELD_OUT,
        )
        self.methods, self.metric = study.methods, common.val_metric
        self.trials: list[tuple[str, Setting, Experiment]] = []
        for method, grid in grids.items():
            known = parameters(method_class(method))
            mine = {name: value for name, value in common.params.items() if name in known}
            runs = varied(grid, [method], most // _size(grid), replace(common, params=mine), study.params_of)
            self.trials += [(method, setting, run) for setting, run in runs if grid]

    @property
    def tuned(self) -> set[str]:
        """The methods that have something to choose."""
        return {method for method, _, _ in self.trials}

    def tasks(self, folder: Path | None) -> list[Task]:
        """The runs of all trials, in a folder of their own in that of the comparison."""
        place = None if folder is None else folder / TUNING
        tasks = [task_of(run, setting, place) for _, setting, run in self.trials]
        return [task._replace(setting=f"trial {task.setting}") for task in tasks]

    def choices(self, endings: Sequence[Ending]) -> dict[str, Tuned]:
        """What the trials chose, by the methods' names in the study; of equals, what was named first."""
        ended = list(zip(self.trials, endings, strict=True))
        return {
            method: _choice(
                method, self.metric, [(setting, ending) for (of, setting, _), ending in ended if of == method]
            )
            for method in self.methods
        }


def _choice(method: str, metric: str, ended: Sequence[tuple[Setting, Ending]]) -> Tuned:
    name = method_class(method).name
    results = [ending for _, ending in ended if isinstance(ending, Result)]
    known = {name for result in results for name in result.accuracy}
    score = validation_name(results[0].score, metric, known) if results else None
    settings = {text_of(setting): setting for setting, _ in ended}
    tried = []
    for text, setting in settings.items():
        endings = [ending for given, ending in ended if text_of(given) == text]
        failed = [ending.short for ending in endings if isinstance(ending, FailedRun)]
        of = [ending.accuracy.get(score) for ending in endings if score and isinstance(ending, Result)]
        values = [accuracy.last for accuracy in of if accuracy is not None]
        tried.append(Tried(setting, Spread.of(values) if values and not failed else None, failed))
    means = {number: trial.accuracy.mean for number, trial in enumerate(tried) if trial.accuracy is not None}
    chosen = tried[best_of(score or "")(means, key=means.__getitem__)].setting if means else {}
    return Tuned(name, score, chosen, tried, len(ended), sum(result.seconds for result in results))


def tuning_notes(found: Sequence[Tuned]) -> list[str]:
    """What a reader of a tuned comparison has to know."""
    told = [one.told for one in found if one.trials and not one.chosen]
    ends: dict[str, list[str]] = {}
    for one in found:
        for name in one.chosen:
            if _at_an_end(name, one):
                ends.setdefault(name, []).append(one.method)
    wider = "a wider range may do better"
    return told + [f"{', '.join(who)} chose the smallest or largest {name}: {wider}" for name, who in ends.items()]


def _at_an_end(name: str, one: Tuned) -> bool:
    values = {trial.setting[name] for trial in one.trials if isinstance(trial.setting[name], int | float)}
    return len(values) > 2 and one.chosen[name] in (min(values), max(values))


def tuning_csv(found: Sequence[Tuned]) -> str:
    """The text of tuning.csv: a line for each method and setting."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "setting", "score", "mean", "std", "seeds", "failed", "chosen"])
    for one in found:
        for trial in one.trials:
            spread = trial.accuracy
            numbers = ["", "", 0] if spread is None else [spread.mean, spread.std, len(spread.values)]
            chosen = "yes" if trial.setting == one.chosen else "no"
            writer.writerow([one.method, text_of(trial.setting), one.score, *numbers, len(trial.failed), chosen])
    return text.getvalue()


def _grid(method: str, tune: Grid) -> Grid:
    """What is tuned of a method."""
    known = parameters(method_class(method))
    return {name: values for name, values in tune.items() if is_option(name) or bare_name(name) in known}


def _size(grid: Grid) -> int:
    return math.prod(map(len, grid.values()))
