"""One experiment over a grid of settings: every combination × method × seed is a run; one table, one plot."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from protofed.errors import UserError, unknown
from protofed.evaluation import accuracy as evaluation
from protofed.experiment import Experiment, options
from protofed.internal.atomic_files import write_text
from protofed.internal.schema import check_type
from protofed.methods import method_class, parameters
from protofed.runs.folder import make_folder
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.runs.setup import prepare
from protofed.studies import comparison
from protofed.studies.comparison import MethodRow, rows_of
from protofed.studies.workers import Task, play_all, run_name

Grid = Mapping[str, Sequence[Any]]
"""What is swept: names of options or of methods' parameters, and their values."""
Setting = dict[str, Any]
"""One value for each swept name that concerns a method."""

OPTIONS = {*options()}
CONFIG = "sweep.yaml"
_NOT_SWEPT = {"method": "name several with --method", "seed": "see --seeds", "params": "name the parameter itself"}


@dataclass(frozen=True)
class Plan:
    """What is to be run: the runs, each with its setting.

    A method that lacks a swept parameter has the same run for all its values: it is there once.
    """

    grid: Grid
    methods: Sequence[str]
    seeds: int
    jobs: int | None
    score: str | None  # the accuracy that is shown; unless given, the one that each method's paper reports
    experiment: Experiment
    runs: list[tuple[Setting, Experiment]]

    def tasks(self, folder: Path | None) -> list[Task]:
        """The runs, those of each setting in a folder of its own."""
        return [
            Task(run, None if folder is None else folder / _folder_name(setting) / run_name(run), text_of(setting))
            for setting, run in self.runs
        ]


@dataclass(frozen=True)
class SweepCell:
    """One method with one setting, over its seeds."""

    setting: Setting
    row: MethodRow

    @property
    def method(self) -> str:
        """Its name."""
        return self.row.method


@dataclass(frozen=True)
class Sweep:
    """What came out: a cell for each setting and method."""

    grid: Grid
    score: str | None
    cells: list[SweepCell]
    results: list[Result]
    folder: str | None = None

    def score_of(self, cell: SweepCell) -> str:
        """The accuracy that counts: the one asked for, or what the method's paper reports."""
        return self.score or cell.row.score

    def notes(self) -> list[str]:
        """What a reader of the table should know."""
        notes = []
        for cell in {cell.method: cell for cell in self.cells}.values():
            if self.score_of(cell) not in cell.row.accuracy:
                notes.append(f"{cell.method} has no {self.score}, only {', '.join(cell.row.accuracy)}")
        for limit in ("time budget", "privacy budget"):
            early = sum(run.stopped == limit for run in self.results)
            if early:
                notes.append(f"the {limit} cut rounds short in {early} of {len(self.results)} runs")
        return notes

    def to_json(self) -> str:
        """The text of sweep.json."""
        cells = [{"setting": cell.setting, **dataclasses.asdict(cell.row)} for cell in self.cells]
        runs = [{"method": r.method, "seed": r.seed, "folder": r.folder} for r in self.results]
        values = {"grid": self.grid, "score": self.score, "cells": cells, "notes": self.notes(), "runs": runs}
        return json.dumps(values, indent=2) + "\n"

    def to_csv(self) -> str:
        """One line per setting, method and accuracy; a parameter that the method lacks is empty."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*self.grid, "method", "quantity", "mean", "std", "seeds"])
        for cell in self.cells:
            values = [cell.setting.get(name, "") for name in self.grid]
            for name, spread in cell.row.accuracy.items():
                writer.writerow([*values, cell.method, name, spread.mean, spread.std, len(spread.values)])
        return text.getvalue()


def plan(
    grid: Grid, methods: Sequence[str], seeds: int, jobs: int | None, score: str | None, experiment: Experiment
) -> Plan:
    """Every combination × method × seed, checked as far as that is possible without data."""
    if not grid:
        raise UserError("--grid", "", "name what is varied, as in --grid alpha=0.1,0.5,1")
    if score is not None and not evaluation.NAME.fullmatch(score):
        parts = "own or global / own, all, domain, val or novel / head, nearest, nearest-own or N-way-K-shot"
        raise UserError("--score", score, f"write model/test/rule, such as own/all/nearest: {parts}")
    _check(grid, methods, experiment.params)
    grid = {name: list(values) for name, values in grid.items()}
    combinations = list(itertools.product(*grid.values()))
    experiment = comparison.share_cores(experiment, len(combinations) * len(methods) * seeds, jobs)
    runs: dict[tuple[str, str], tuple[Setting, Experiment]] = {}
    for values in combinations:
        point = dict(zip(grid, values, strict=True))
        options = {_bare(name): value for name, value in point.items() if _is_option(name)}
        params = {**experiment.params, **{_bare(name): value for name, value in point.items() if not _is_option(name)}}
        common = Experiment.from_mapping({**dataclasses.asdict(experiment), **options, "params": params})
        for run in comparison.plan(methods, seeds, common):
            setting = {name: value for name, value in point.items() if _is_option(name) or _bare(name) in run.params}
            runs.setdefault((_folder_name(setting), run_name(run)), (setting, run))
    return Plan(grid, methods, seeds, jobs, score, experiment, list(runs.values()))


def sweep(planned: Plan, folder: Path | None, progress: Progress) -> Sweep:
    """Play every run, several at once; those that a folder already holds are taken from it or continued."""
    results = play_all(planned.tasks(folder), progress, planned.jobs)
    cells: dict[tuple[str, str], tuple[Setting, list[Result]]] = {}
    for (setting, _), result in zip(planned.runs, results, strict=True):
        cells.setdefault((text_of(setting), result.method), (setting, []))[1].append(result)
    made = Sweep(
        planned.grid,
        planned.score,
        [SweepCell(setting, *rows_of(runs)) for setting, runs in cells.values()],
        results,
        None if folder is None else str(folder),
    )
    if folder is not None:
        write_text(folder / "sweep.json", made.to_json())
        write_text(folder / "sweep.csv", made.to_csv())
    return made


def create_folder(path: Path, planned: Plan, config: str = CONFIG) -> Path:
    """A new folder for a sweep, with what is needed to run or resume it; wrong input leaves none behind."""
    for _, run in planned.runs:
        if run.seed == planned.experiment.seed:
            prepare(run)
    shared = (planned.methods, planned.seeds, planned.jobs, planned.experiment)
    text = comparison.config_text(*shared, grid=dict(planned.grid), score=planned.score)
    return make_folder(path, config, text)


def read_config(path: Path) -> tuple[dict[str, list[Any]], list[str], int, int | None, str | None, dict[str, Any]]:
    """Grid, methods, seeds, jobs, score and the common experiment of a sweep's YAML file."""
    methods, seeds, jobs, values = comparison.read_config(path)
    grid = check_type("grid", values.pop("grid", {}), dict)
    score = check_type("score", values.pop("score", None), str | None)
    lists = {str(name): check_type(f"grid: {name}", swept, list) for name, swept in grid.items()}
    return lists, methods, seeds, jobs, score, values


def open_folder(path: Path, config: str = CONFIG) -> Plan:
    """The plan of a sweep that was begun."""
    grid, methods, seeds, jobs, score, values = read_config(path / config)
    return plan(grid, methods, seeds, jobs, score, Experiment.from_mapping(values))


def text_of(setting: Setting) -> str:
    """A setting for people."""
    return " ".join(f"{name}={value}" for name, value in setting.items())


def _folder_name(setting: Setting) -> str:
    """The same as a folder's name, different for different settings whatever they hold; "" for the sweep's own."""
    return ",".join(f"{name}={quote(str(value), safe=' +:')}" for name, value in setting.items())


def _is_option(name: str) -> bool:
    """Whether a swept name is an option's; one that is also a parameter's is swept as option.NAME or params.NAME."""
    return name.startswith("option.") or name in OPTIONS


def _bare(name: str) -> str:
    return name.removeprefix("option.").removeprefix("params.")


def _check(grid: Grid, methods: Sequence[str], params: Mapping[str, Any]) -> None:
    """Every swept name must be an option or a parameter, and not both; every value is there once."""
    for name in grid:
        if sum((_bare(name), _is_option(name)) == (_bare(other), _is_option(other)) for other in grid) > 1:
            raise UserError("--grid", name, "it is there twice; give all its values at once")
        if not _is_option(name) and _bare(name) in params:
            raise UserError("--set", _bare(name), "it is varied; leave it out")
    owners = {name: method for method in methods for name in parameters(method_class(method))}
    for name, values in grid.items():
        bare = _bare(name)
        known = {*OPTIONS, *owners} if name == bare else OPTIONS if _is_option(name) else {*owners}
        if bare in _NOT_SWEPT:
            raise UserError("--grid", name, _NOT_SWEPT[bare])
        if bare not in known:
            raise unknown("--grid", bare, known - {*_NOT_SWEPT})
        if name in OPTIONS and name in owners:
            why = f"it is an option and a parameter of {owners[name]}: write option.{name} or params.{name}"
            raise UserError("--grid", name, why)
        if isinstance(values, str) or not values:
            raise UserError("--grid", name, "give it a list of values")
        for value in values:
            if sum(value == other for other in values) > 1:
                raise UserError("--grid", name, f"{value} is there twice")
