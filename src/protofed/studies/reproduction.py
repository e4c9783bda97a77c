"""A paper's table or figure, run with its protocol: ours beside the published numbers, cell by cell."""

from __future__ import annotations

import csv
import dataclasses
import io
import itertools
import json
import shlex
import statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import yaml

from protofed.data import describe
from protofed.errors import UserError
from protofed.internal.schema import made
from protofed.internal.yaml_files import read_yaml
from protofed.methods import build_method
from protofed.models.encoder import Encoder
from protofed.prototypes import distance
from protofed.runs.folder import RunFolder
from protofed.runs.result import Accuracy, Result
from protofed.runs.run import new_run
from protofed.server.round import Round
from protofed.studies.comparison import Spread
from protofed.studies.papers import (
    COMMUNICATION,
    DISTANCE,
    EACH_ROUND,
    PaperCell,
    Target,
    Trial,
    chosen,
    find_target,
    needs_file,
)
from protofed.studies.study import SEEDS, Study, check_seeds
from protofed.studies.workers import Task, share_cores


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
        return notes + [f"{number} of {len(self.rows)} cells: {reason}" for reason, number in missing.items()]

    def lines(self) -> list[list[str]]:
        """The rows as text under COLUMNS."""
        return [_shown(row) for row in self.rows]

    def to_json(self) -> str:
        """The text of table.json."""
        target = {name: getattr(self.target, name) for name in ("name", "title", "paper", "link", "variant", "about")}
        trials = {
            trial.name: {"experiment": dict(trial.values), "sources": dict(trial.sources)}
            for trial in self.target.trials()
        }
        rows = [row.to_dict() for row in self.rows]
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


ROUNDS_TO = "rounds_to_"
ACCURACIES = ("test_acc", "mean_client_test_acc", "global_test_acc", "final_acc", EACH_ROUND)


@dataclass(frozen=True)
class ReproductionStudy(Study[Reproduction]):
    """A table or figure, or some of its cells; what is run for it says the paper's protocol."""

    command: ClassVar = "reproduce"
    end: ClassVar = "table.json"
    reported: ClassVar = True

    target: str
    variant: str | None = None
    only: Sequence[str] = ()
    methods: Sequence[str] = ()
    seeds: int = SEEDS
    jobs: int | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)  # fields of Experiment: data_dir, encoder, device, …

    def __post_init__(self) -> None:
        check_seeds(self.seeds)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The study that a folder was begun with."""
        config = cls.config(folder)
        return made(str(config), cls, read_yaml(config))

    def to_yaml(self) -> str:
        """The text of reproduce.yaml."""
        values = dataclasses.asdict(self) | {"only": list(self.only), "methods": list(self.methods)}
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)

    @cached_property
    def table(self) -> Target:
        """The cells asked for; wrong input is found here, before anything is run."""
        target = chosen(find_target(self.target, self.variant), self.only, self.methods)
        if self.machine.get("eval_every", 1) != 1 and any(_needs_every_round(cell) for cell in target.cells):
            raise UserError("--eval-every", self.machine["eval_every"], f"{target.name} is about every round")
        for trial in target.trials():
            experiment = trial.experiment(self.machine)
            build_method(experiment.method, experiment.params)
        return target

    @cached_property
    def missing(self) -> dict[str, str]:
        """Why trials cannot be run here, by their names."""
        return obstacles(self.table, absent_data(self.machine), self.machine)

    def trials(self) -> list[Trial]:
        """What can be run here."""
        return [trial for trial in self.table.trials() if trial.name not in self.missing]

    def size(self) -> int:
        """How many runs it has here."""
        return len(self.trials()) * self.seeds

    def with_threads(self) -> Self:
        """The same with the CPU threads of a run decided."""
        first, *_ = self.tasks(None)
        threads = share_cores(first.experiment, self.size(), self.jobs).threads
        return dataclasses.replace(self, machine={**self.machine, "threads": threads})

    def tasks(self, folder: Path | None) -> list[Task]:
        """The runs of every trial that can be run here; what the folder holds of them is by the same protocol."""
        trials = self.trials()
        if not trials:
            reasons = "; ".join(dict.fromkeys(self.missing.values()))
            raise UserError("TABLE", self.table.name, f"none of its cells can be run here: {reasons}")
        tasks = []
        for trial in trials:
            experiment = trial.experiment(self.machine)
            for seed in range(experiment.seed, experiment.seed + self.seeds):
                path = None if folder is None else folder / trial.name / f"seed{seed}"
                tasks.append(Task(dataclasses.replace(experiment, seed=seed), path, trial.name))
                _check_protocol(tasks[-1], trial)
        return tasks

    def begin(self, folder: Path | None) -> Self:
        """Begin, or go on with a folder that the same study has begun, with whatever number of jobs."""
        if self.machine.get("encoder") is not None:
            Encoder.read(Path(self.machine["encoder"]), torch.device("cpu"))
        if folder is None or not self.config(folder).is_file():
            return super().begin(folder)
        begun = self.open(folder)
        kept = {name: value for name, value in begun.machine.items() if name == "threads"}
        if begun != dataclasses.replace(self, jobs=begun.jobs, machine={**kept, **self.machine}):
            why = f"it holds another reproduction: see its {self.config(folder).name}, or name a new folder"
            raise UserError("--out", str(folder), why)
        return begun

    def assemble(self, results: Sequence[Result], folder: Path | None) -> Reproduction:  # noqa: ARG002
        """The table with our numbers."""
        rest = iter(results)
        by_trial = {trial.name: list(itertools.islice(rest, self.seeds)) for trial in self.trials()}
        encoders = {json.dumps(result.encoder): result.encoder for result in results if result.encoder}
        return Reproduction(
            self.table,
            self.again(),
            self.seeds,
            _rows(self.table, by_trial, self.missing),
            {name: Cost.of(some) for name, some in by_trial.items()},
            [_card(card) for card in encoders.values()],
        )

    def again(self, folder: Path | None = None) -> str:  # noqa: ARG002
        """The command that a reader types to get the same: folders and files are theirs to name."""
        flags: dict[str, Any] = {
            "only": ",".join(self.only),
            "methods": ",".join(self.methods),
            "variant": self.variant,
        }
        flags |= {"seeds": self.seeds, **{name: self.machine.get(name) for name in ("seed", "eval_every", "precision")}}
        flags |= {name: name.upper() for name in ("data_dir", "encoder") if self.machine.get(name)}
        given = (f"--{name.replace('_', '-')} {shlex.quote(str(value))}" for name, value in flags.items() if value)
        return " ".join(["protofed reproduce", self.target, *given])


def _needs_every_round(cell: PaperCell) -> bool:
    when = cell.trial.reading.when if cell.trial else "last"
    return when != "last" or cell.metric == EACH_ROUND or cell.metric.startswith(ROUNDS_TO)


def absent_data(machine: Mapping[str, Any]) -> dict[str, str]:
    """The datasets whose files are not there, each with what to do about it."""
    folder = machine.get("data_dir")
    known = describe(None if folder is None else Path(folder))
    return {row["name"]: row["reason"] for row in known if not row["present"]}


def obstacles(target: Target, absent: Container[str], machine: Mapping[str, Any]) -> dict[str, str]:
    """Why trials cannot be run here, by their names: data or an encoder is missing."""
    found = {}
    for trial in target.trials():
        wanted = [*trial.values["dataset"].split("+"), trial.values.get("public")]
        reasons = [f"data missing: {name}" for name in wanted if name in absent]
        if needs_file(trial.values) and machine.get("encoder") is None:
            reasons.append("encoder missing")
        if reasons:
            found[trial.name] = ", ".join(reasons)
    return found


def obstacle(target: Target, cell: PaperCell, found: Mapping[str, str]) -> str:
    """Why there is no number for a cell; a mean lacks what the first of its cells lacks."""
    trials = [one.trial for one in target.behind(cell) if one.trial]
    return next((found[trial.name] for trial in trials if trial.name in found), "")


def _check_protocol(task: Task, trial: Trial) -> None:
    """What the folder holds of a run was made by the protocol of today; only files may have moved since."""
    if task.folder is None or not task.folder.exists():
        return
    held = RunFolder.open(task.folder).experiment()
    moved = needs_file(trial.values)
    for name in trial.values:
        there, now = getattr(held, name), getattr(task.experiment, name)
        if there != now and name not in moved:
            why = f"its {name} is {there}, in the protocol {now}: remove that folder, or name a new one"
            raise UserError("--out", str(task.folder), why)


def _card(card: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in card.items() if not isinstance(value, list | tuple))


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
