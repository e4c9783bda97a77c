"""One experiment over a grid of settings: every combination × method × seed is a run; one table, one plot."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from protofed.errors import UserError, missing_value
from protofed.evaluation import accuracy as evaluation
from protofed.experiment import Experiment
from protofed.runs.result import Result
from protofed.studies.comparison import MethodRow, rows_of
from protofed.studies.grid import Grid, GridStudy, Setting, text_of


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

    def files(self) -> dict[str, str]:
        """What is written into its folder, but for the plot."""
        return {"sweep.json": self.to_json(), "sweep.csv": self.to_csv()}


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
        if self.score is not None and not evaluation.NAME.fullmatch(self.score):
            parts = "own or global / own, all, domain, val or novel / head, nearest, nearest-own or N-way-K-shot"
            raise UserError("--score", self.score, "it must be model/test/rule, such as own/all/nearest", hint=parts)

    def assemble(self, results: Sequence[Result], folder: Path | None) -> Sweep:
        """A cell for each setting and method."""
        return swept(self, results, folder)


def swept(study: GridStudy[Any], results: Sequence[Result], folder: Path | None) -> Sweep:
    """What the runs of a study over a grid came to."""
    cells: dict[tuple[str, str], tuple[Setting, list[Result]]] = {}
    for (setting, _), result in zip(study.runs, results, strict=True):
        cells.setdefault((text_of(setting), result.method), (setting, []))[1].append(result)
    return Sweep(
        study.grid,
        study.score,
        [SweepCell(setting, *rows_of(runs)) for setting, runs in cells.values()],
        list(results),
        None if folder is None else str(folder),
    )
