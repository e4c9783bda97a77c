"""Our numbers beside a paper's: how a cell is read from results, and the table that comes out."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from protofed.prototypes import distance
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.runs.process import process_settings
from protofed.runs.result import Accuracy, Result
from protofed.runs.run import new_run
from protofed.server.round import Round
from protofed.studies.papers import COMMUNICATION, DISTANCE, EACH_ROUND, PaperCell, Target, Trial
from protofed.studies.spread import Spread

ROUNDS_TO = "rounds_to_"
ACCURACIES = ("test_acc", "mean_client_test_acc", "global_test_acc", "final_acc", EACH_ROUND)
"""The metrics that are accuracies, whichever one the trial reads."""

NEAR, NOISY = 2.0, 5.0
"""Points: accuracies that differ by no more agree, and by more than the second they do not, whatever the noise."""


def agrees(difference: float, values: Sequence[float]) -> bool:
    """Say whether an accuracy is a paper's: within 2 points, or twice the standard error over seeds, at most 5.

    Args:
        difference: ours, on the mean over seeds, minus the paper's, in points.
        values: ours of each seed. Spreads over clients say nothing about how sure a mean is.
    """
    error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0
    return abs(difference) <= min(max(NEAR, 2 * error), NOISY)


@dataclass(frozen=True)
class Cost:
    """What a trial's runs took, on the mean over seeds: a whole run, all clients."""

    rounds: float
    seconds: float
    bytes_up: float
    bytes_down: float
    clients: int
    device: str

    @classmethod
    def of(cls, results: Sequence[Result]) -> Cost:
        """The mean."""
        rounds, seconds, up, down = (
            statistics.fmean(getattr(result, name) for result in results)
            for name in ("rounds", "seconds", "bytes_up", "bytes_down")
        )
        return cls(rounds, seconds, up, down, results[0].clients, results[0].device)


@dataclass(frozen=True)
class ReproducedCell:
    """A cell with our number, or with the reason why there is none."""

    cell: PaperCell
    ours: Spread | None
    trials: list[str] = field(default_factory=list)  # what was run for it
    missing: str = ""
    rounds: list[float] | None = None  # the accuracy of each round, where the figure shows that

    @property
    def difference(self) -> float | None:
        """Ours minus the paper's."""
        return None if self.ours is None or self.cell.published is None else self.ours.mean - self.cell.published

    @property
    def agrees(self) -> bool | None:
        """Whether an accuracy agrees with the paper's, if the protocol is; None where one is missing, or is none."""
        if self.ours is None or self.difference is None or self.cell.metric not in ACCURACIES:
            return None
        return agrees(self.difference, self.ours.values)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        cell, ours = self.cell, self.ours
        values: dict[str, Any] = {
            **{name: getattr(cell, name) for name in ("dataset", "setting", "method", "metric")},
            "score": None if cell.trial is None else cell.trial.reading.score,
            "ours": None if ours is None else ours.mean,
            "ours_std": None if ours is None else ours.std,
            "values": [] if ours is None else ours.values,  # of each seed
            "paper": cell.published,
            "paper_std": cell.published_std,
            "difference": self.difference,
            "missing": self.missing,
            "note": cell.note,
            "trials": self.trials,
        }
        return values if self.rounds is None else values | {"rounds": self.rounds}


@dataclass(frozen=True)
class Reproduction:
    """A table with our numbers."""

    COLUMNS: ClassVar = ("dataset", "setting", "method", "measured", "ours", "paper", "difference")

    target: Target
    command: str  # what a reader types to get the same
    seeds: int
    rows: list[ReproducedCell]
    costs: dict[str, Cost]  # of each trial
    encoders: list[str]  # those that the runs used, in words
    results: list[Result] = field(default_factory=list)
    failures: list[FailedRun] = field(default_factory=list)

    @classmethod
    def of(
        cls, target: Target, command: str, seeds: int, results: Mapping[str, list[Result]], missing: Mapping[str, str]
    ) -> Reproduction:
        """The table with what its trials, by their names, came to; `missing` says why others were not run."""
        encoders = {json.dumps(r.encoder): r.encoder for some in results.values() for r in some if r.encoder}
        costs = {name: Cost.of(some) for name, some in results.items()}
        rows = _rows(target, results, missing)
        return cls(target, command, seeds, rows, costs, [_card(card) for card in encoders.values()])

    def headline(self) -> str:
        """What it is, and by which protocol."""
        protocol = (
            f"variant {self.target.variant}: {self.target.about}" if self.target.variant else "the paper's protocol"
        )
        return f"{self.target.name}: {self.target.title} ({protocol})"

    def notes(self) -> list[str]:
        """What a reader of the numbers has to know."""
        notes = [f"encoder: {text}" for text in self.encoders]
        told: dict[tuple[str, str], dict[str, None]] = {}
        for row in self.rows:
            if row.cell.note and row.ours:
                told.setdefault((row.cell.metric, row.cell.note), {})[row.cell.method] = None
        notes += [f"{metric} of {', '.join(methods)}: {note}" for (metric, note), methods in told.items()]
        missing: dict[str, int] = {}
        for row in self.rows:
            if row.missing:
                missing[row.missing] = missing.get(row.missing, 0) + 1
        notes += [f"{number} of {len(self.rows)} cells: {reason}" for reason, number in missing.items()]
        known = [row.agrees for row in self.rows if row.agrees is not None]
        if not known:
            return notes
        if not self.target.full:
            return [*notes, "a reduced protocol: its accuracies cannot be compared with the paper's"]
        within = f"within {NEAR:g} points, or twice the standard error over seeds, {NOISY:g} at most"
        return [*notes, f"{sum(known)} of {len(known)} accuracies agree with the paper's: {within}"]

    def lines(self) -> list[list[str]]:
        """The rows as text under COLUMNS."""
        return [_shown(row) for row in self.rows]

    def to_json(self) -> str:
        """The text of table.json."""
        target = {
            name: getattr(self.target, name) for name in ("name", "title", "paper", "link", "variant", "full", "about")
        }
        trials = {
            trial.name: {"experiment": dict(trial.values), "sources": dict(trial.sources)}
            for trial in self.target.trials()
        }
        rows = [row.to_dict() | {"agrees": row.agrees if self.target.full else None} for row in self.rows]
        costs = {name: dataclasses.asdict(cost) for name, cost in self.costs.items()}
        values = {**target, "command": self.command, "seeds": self.seeds, "notes": self.notes()}
        values |= {"cells": rows, "costs": costs, "protocol": trials}
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    def to_csv(self) -> str:
        """One line a cell."""
        text = io.StringIO()
        lines = [row.to_dict() for row in self.rows]
        names = [name for name, value in lines[0].items() if not isinstance(value, list)]
        writer = csv.DictWriter(text, names, extrasaction="ignore", lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return text.getvalue()

    def to_markdown(self) -> str:
        """The table for a document."""
        lines = [
            f"# {self.headline()}",
            "",
            f"{self.target.paper}, {self.target.link}; {self.seeds} seeds.",
            "",
        ]
        lines += ["| " + " | ".join(self.COLUMNS) + " |", "|---" * 4 + "|---:" * 3 + "|"]
        lines += ["| " + " | ".join(line) + " |" for line in self.lines()]
        return "\n".join([*lines, "", *(f"- {note}" for note in self.notes())]) + "\n"

    def files(self) -> dict[str, str]:
        """What is written into its folder."""
        return {"table.json": self.to_json(), "table.csv": self.to_csv(), "table.md": self.to_markdown()}


def _shown(row: ReproducedCell) -> list[str]:
    cell, ours = row.cell, row.ours
    found = row.missing or "–" if ours is None else number(ours.mean) + (f" ± {number(ours.std)}" if ours.std else "")
    paper = "–"
    if cell.published is not None:
        paper = number(cell.published) + (f" ± {number(cell.published_std)}" if cell.published_std else "")
    difference = "" if row.difference is None else f"{'+' * (row.difference >= 0)}{number(row.difference)}"
    accuracy = cell.trial is not None and cell.metric in ACCURACIES
    measured = cell.trial.reading.score if accuracy and cell.trial else cell.metric
    return [cell.dataset, cell.setting, cell.method, measured, found, paper, difference]


def number(value: float) -> str:
    """Percent with two digits, counts without any, very small numbers with those that matter."""
    if abs(value) >= 1000 or (abs(value) >= 100 and value == int(value)):
        return f"{value:,.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def obstacle(target: Target, cell: PaperCell, found: Mapping[str, str]) -> str:
    """Why there is no number for a cell; a mean lacks what the first of its cells lacks."""
    trials = [one.trial for one in target.behind(cell) if one.trial]
    return next((found[trial.name] for trial in trials if trial.name in found), "")


def _card(card: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in card.items() if not isinstance(value, list | tuple | None))


def _rows(target: Target, results: Mapping[str, list[Result]], found: Mapping[str, str]) -> list[ReproducedCell]:
    rows: dict[int, ReproducedCell] = {}  # by identity
    for cell in sorted(target.cells, key=lambda cell: cell.trial is None):  # means come last
        missing = obstacle(target, cell, found)
        if missing:
            row = ReproducedCell(cell, None, missing=missing)
        elif cell.trial is not None:
            row = _row(cell, cell.trial, results[cell.trial.name])
        else:
            known = [row.ours.values for one in target.behind(cell) if (row := rows[id(one)]).ours]
            row = ReproducedCell(cell, Spread.of([statistics.fmean(values) for values in zip(*known, strict=True)]))
        trials = {one.trial.name: None for one in target.behind(cell) if one.trial}
        rows[id(cell)] = dataclasses.replace(row, trials=list(trials))
    return [rows[id(cell)] for cell in target.cells]


def _row(cell: PaperCell, trial: Trial, results: Sequence[Result]) -> ReproducedCell:
    score = trial.reading.score
    if cell.metric in ACCURACIES:
        found = [result.accuracy[score] for result in results]
        values = [_accuracy(cell, trial, one) for one in found]
        ours = Spread.of(values)
        if trial.reading.spread == "clients":  # as the paper has it: over clients, not over seeds
            ours = dataclasses.replace(ours, std=statistics.fmean(statistics.pstdev(one.per_client) for one in found))
        rounds = _each_round(results, score) if cell.metric == EACH_ROUND else None
        return ReproducedCell(cell, ours, rounds=rounds)
    if cell.metric.startswith(ROUNDS_TO):
        goal = float(cell.metric.removeprefix(ROUNDS_TO).rstrip("%"))
        reached = [_first_round(result, score, goal) for result in results]
        known = [float(number) for number in reached if number is not None]
        return (
            ReproducedCell(cell, Spread.of(known))
            if len(known) == len(reached)
            else ReproducedCell(cell, None, missing=f"{goal:g} % not reached")
        )
    measure = _prototype_distance if cell.metric == DISTANCE else partial(_count, cell.metric)
    return ReproducedCell(cell, Spread.of([measure(result) for result in results]))


def _accuracy(cell: PaperCell, trial: Trial, accuracy: Accuracy) -> float:
    """Of a domain, if the cell is about one: where clients hold one domain each, client k is of domain k."""
    if cell.domain is None:
        return float(getattr(accuracy, trial.reading.when))
    by_domain = list((accuracy.per_domain or {}).values()) or accuracy.per_client
    return by_domain[list(trial.reading.domains).index(cell.domain)]


def _prototype_distance(result: Result) -> float:
    """The mean over clients of how far features are from the global prototypes of their classes: FedProto's L_R."""
    assert result.folder is not None
    folder = RunFolder.open(Path(result.folder))
    run = new_run(folder.experiment())
    run.restore(folder)
    prototypes = run.method.references(run.broadcast)
    assert prototypes is not None
    found = []
    for group in run.engine.groups:
        rows = range(len(group.members))
        with process_settings(run.experiment):
            features, labels = run.engine.embed(group, rows, group.own.take(rows))
        for some, of in zip(features, labels, strict=True):
            found.append(distance(some[of >= 0], of[of >= 0], prototypes, "mse").mean().item())
    return statistics.fmean(found)


def _rounds(result: Result) -> list[Round]:
    assert result.folder is not None
    return RunFolder(Path(result.folder)).played()


def _each_round(results: Sequence[Result], score: str) -> list[float]:
    """The mean over seeds after each evaluated round."""
    curves = [[played.accuracy[score] for played in _rounds(result) if played.accuracy] for result in results]
    return [statistics.fmean(values) for values in zip(*curves, strict=False)]


def _first_round(result: Result, score: str, goal: float) -> int | None:
    return next((played.round for played in _rounds(result) if played.accuracy.get(score, -1) >= goal), None)


def _count(metric: str, result: Result) -> float:
    """Numbers that clients send, as the papers count them."""
    rounds = _rounds(result)
    weights = statistics.fmean(played.scalars_up["weights"] for played in rounds)
    prototypes = statistics.fmean(played.scalars_up["prototypes"] for played in rounds)
    clients = statistics.fmean(len(played.participants) for played in rounds)
    if metric == "model_params":
        return weights / clients
    if metric == "prototype_scalars_per_client":
        return prototypes / clients
    if metric == "ratio":
        return prototypes / weights
    assert metric == COMMUNICATION, metric
    return weights + prototypes
