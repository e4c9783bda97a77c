"""One experiment over a grid of settings: every combination × method × seed is a run; one table, one plot."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypedDict

from protofed.errors import UserError, missing_value
from protofed.evaluation import accuracy as evaluation
from protofed.evaluation.names import asking_for, check_metric, split_name
from protofed.experiment import Experiment
from protofed.internal.higher import ask
from protofed.internal.schema import made, read_json, require
from protofed.methods import METHODS, method_class
from protofed.runs.failure import FailedRun
from protofed.runs.result import Result, common_score
from protofed.studies.comparison import CUT_SHORT, MethodRow, parted, rows_of, summary_of
from protofed.studies.frames import frame_of
from protofed.studies.grid import Grid, GridStudy, Setting, is_of_data, text_of
from protofed.studies.significance import tests_csv, tests_of
from protofed.studies.spread import Spread
from protofed.studies.workers import Ending

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


__all__ = ["Sweep", "SweepCell"]


@dataclass(frozen=True)
class SweepCell:
    """Record one method with one setting, over its seeds.

    Args:
        setting: a value for each swept name that concerns the method.
        row: what its runs came to.

    Example:
        >>> from protofed.studies.comparison import MethodRow
        >>> from protofed.studies.spread import Spread
        >>> from protofed.studies.sweeps import SweepCell
        >>> accuracy, other = {"own/own/head": Spread.of([80.0, 82.0])}, Spread.of([0.0, 0.0])
        >>> cell = SweepCell({"lr": 0.1}, MethodRow("local", "own/own/head", [5, 5], accuracy, [], other, other, other))
        >>> cell.method, cell.setting, cell.row.accuracy["own/own/head"].mean
        ('local', {'lr': 0.1}, 81.0)
    """

    setting: Setting
    row: MethodRow

    @property
    def method(self) -> str:
        """Its name."""
        return self.row.method


@dataclass(frozen=True)
class Sweep:
    """Record the runs of a sweep, and a cell for each setting and method.

    Args:
        grid: the swept names and their values.
        score: the accuracy that counts; None for that of each method's paper.
        cells: one for each setting and method.
        results: the result of every run, cell by cell.
        folder: where the sweep is on disk; None for one in memory.
        failures: the runs that did not come to their end.

    Example:
        >>> import protofed
        >>> tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 1, "device": "cpu", "threads": 1}
        >>> found = protofed.sweep({"lr": [0.01, 0.1]}, ["fedavg"], seeds=2, jobs=1, **tiny)
        >>> [(cell.setting, len(cell.row.rounds)) for cell in found.cells], len(found.results)
        ([({'lr': 0.01}, 2), ({'lr': 0.1}, 2)], 4)
    """

    grid: Grid
    score: str | None
    cells: list[SweepCell]
    results: list[Result]
    folder: str | None = None
    failures: list[FailedRun] = field(default_factory=list)

    def __repr__(self) -> str:
        rows = {" ".join(filter(None, [cell.method, text_of(cell.setting)])): cell.row for cell in self.cells}
        return f"Sweep(over {', '.join(self.grid)}, {summary_of(rows, self.results)})"

    def frame(self) -> DataFrame:
        """Return accuracies as a pandas data frame: a row for each setting, method, seed, round, client and score."""
        settings = [cell.setting for cell in self.cells for _ in cell.row.rounds]
        return frame_of(self.results, settings, list(self.grid))

    def plot(self) -> Figure:
        """Draw the score over the first swept name, a line for each method and setting of the others."""
        figure: Figure = ask("figure_of", self)
        return figure

    def _repr_html_(self) -> str:
        return str(ask("html_of", self))

    @property
    def shown_score(self) -> str:
        """The accuracy that counts: the one asked for, or one that all methods have."""
        return self.score or common_score([(cell.row.score, _own(cell.row)) for cell in self.cells])

    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        notes = []
        for cell in {cell.method: cell for cell in self.cells}.values():
            if cell.row.rounds and self.shown_score not in cell.row.accuracy:
                notes.append(f"{cell.method} has no {self.shown_score}, only {', '.join(cell.row.accuracy)}")
        for limit in CUT_SHORT:
            early = sum(run.stopped == limit for run in self.results)
            if early:
                notes.append(f"the {limit} cut rounds short in {early} of {len(self.results)} runs")
        return [*notes, *dict.fromkeys(note for run in self.results for note in run.notes())]

    def tests(self) -> list[dict[str, Any]]:
        """Test the line with the best mean of each score against the others, paired over seeds, on the same data.

        A line is a method with what else is varied. `setting` says which data: runs on other data are not compared.
        """
        settings: dict[str, dict[str, list[Result]]] = {}
        runs = iter(self.results)
        for cell in self.cells:
            data = {name: value for name, value in cell.setting.items() if is_of_data(name)}
            rest = {name: value for name, value in cell.setting.items() if name not in data}
            line = " ".join(filter(None, [cell.method, text_of(rest)]))
            settings.setdefault(text_of(data), {})[line] = list(itertools.islice(runs, len(cell.row.rounds)))
        return [{"setting": text, **test} for text, lines in settings.items() for test in tests_of(lines)]

    def to_json(self) -> str:
        """The text of sweep.json."""
        cells = [{"setting": cell.setting, **dataclasses.asdict(cell.row)} for cell in self.cells]
        runs = [{"method": r.method, "seed": r.seed, "folder": r.folder} for r in self.results]
        values = {"grid": self.grid, "score": self.score, "cells": cells, "notes": self.notes(), "tests": self.tests()}
        values["runs"] = runs
        values["failures"] = [dataclasses.asdict(failed) for failed in self.failures]
        return json.dumps(values, indent=2) + "\n"

    def to_csv(self) -> str:
        """One line per setting, method and accuracy; a parameter that the method lacks is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.grid, "method", "quantity", "mean", "std", "seeds"])
        for cell in self.cells:
            values = [cell.setting.get(name, "") for name in self.grid]
            told = {name: found for name, found in cell.row.further.items() if found is not None}
            for name, spread in (cell.row.accuracy | told).items():
                writer.writerow([*values, cell.method, name, spread.mean, spread.std, len(spread.values)])
            if cell.row.failed:
                writer.writerow([*values, cell.method, "failed", len(cell.row.failed), 0, cell.row.seeds])
        return text.getvalue()

    @classmethod
    def read(cls, path: Path) -> Sweep:
        """Read what `to_json` wrote; the results themselves are in the folders of the runs.

        Args:
            path: a file sweep.json.

        Returns:
            The sweep, without results.

        Raises:
            UserError: the file cannot be read as one.
        """
        found = read_json(path)
        require(str(path), found, _Written)
        cells = [SweepCell(one["setting"], _row(path, one)) for one in found["cells"]]
        return cls(found["grid"], found["score"], cells, [], str(path.parent))

    def files(self) -> dict[str, str]:
        """What is written into its folder, but for the plot."""
        return {"sweep.json": self.to_json(), "sweep.csv": self.to_csv(), "tests.csv": tests_csv(self.tests())}


class _Written(TypedDict):
    """What sweep.json must say to be drawn again."""

    grid: dict[str, list[Any]]
    score: str | None
    cells: list[dict[str, Any]]


def _row(path: Path, cell: Mapping[str, Any]) -> MethodRow:
    """A cell's numbers, as they were before they were written."""
    values = {name: value for name, value in cell.items() if name != "setting"}
    if not isinstance(cell.get("setting"), dict) or not isinstance(values.get("accuracy"), dict):
        raise UserError("FILE", str(path), "each cell must have a setting and accuracies")
    values["accuracy"] = {name: made(str(path), Spread, one) for name, one in values["accuracy"].items()}
    numbers = [name for name, one in values.items() if name != "accuracy" and isinstance(one, dict)]
    return made(str(path), MethodRow, values | {name: made(str(path), Spread, values[name]) for name in numbers})


def _own(row: MethodRow) -> list[str]:
    """The accuracies by rules of the method's own, which what its paper reports is."""
    return [name for name in row.accuracy if name not in row.diagnostic or name == row.score]


@dataclass(frozen=True)
class SweepStudy(GridStudy[Sweep]):
    """A grid, and perhaps the accuracy that counts."""

    command: ClassVar = "sweep"
    end: ClassVar = "sweep.json"

    methods: Sequence[str] = (Experiment.method,)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.grid:
            raise missing_value("--grid", "name what is varied, as in --grid alpha=0.1,0.5,1")
        if self.score is None:
            return
        base, metric = split_name(self.score)
        if not self._is_known(base):
            parts = (
                "own or global / own, all, domain, unseen, val or novel / head, nearest, nearest-own or N-way-K-shot"
            )
            raise UserError("--score", self.score, "it must be model/test/rule, such as own/all/nearest", hint=parts)
        if metric or self.score != base:
            check_metric("--score", metric, single=True)
            object.__setattr__(self, "experiment", asking_for(self.experiment, self.score))

    def _is_known(self, score: str) -> bool:
        """Whether some accuracy is called so; a rule may be a method's own."""
        rules = [method_class(method).rule for method in self.methods if method in METHODS]
        names = {f"own/{test}/{rule}" for rule in rules if rule for test in evaluation.TESTS}
        return score in names or evaluation.NAME.fullmatch(score) is not None

    def assemble(self, endings: Sequence[Ending], folder: Path | None) -> Sweep:
        """A cell for each setting and method."""
        return swept(self, endings, folder)


def swept(study: GridStudy[Any], endings: Sequence[Ending], folder: Path | None) -> Sweep:
    """What the runs of a study over a grid came to."""
    cells: dict[tuple[str, str], tuple[Setting, list[Ending]]] = {}
    for (setting, _), ending in zip(study.runs, endings, strict=True):
        cells.setdefault((text_of(setting), ending.method), (setting, []))[1].append(ending)
    results, failures = parted(endings)
    return Sweep(
        study.grid,
        study.score,
        [SweepCell(setting, *rows_of(runs)) for setting, runs in cells.values()],
        results,
        None if folder is None else str(folder),
        failures,
    )
