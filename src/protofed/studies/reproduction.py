"""A paper's table or figure, or some of its cells, run with the paper's protocol."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
import yaml

from protofed.data import describe
from protofed.errors import UserError
from protofed.experiment import PATHS, flag_of
from protofed.internal.schema import made
from protofed.internal.yaml_files import read_yaml
from protofed.methods import build_method
from protofed.models.encoder import read_encoder
from protofed.runs.folder import RunFolder
from protofed.studies.comparison import parted
from protofed.studies.papers import EACH_ROUND, PaperCell, Target, Trial, chosen, find_target, needs_file
from protofed.studies.reproduced import ROUNDS_TO, Reproduction
from protofed.studies.study import SEEDS, Study, check_seeds
from protofed.studies.workers import Ending, Task, share_cores


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
        return made(str(config), cls, read_yaml(config, as_written=True))

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
            read_encoder(str(self.machine["encoder"]), torch.device("cpu"))
        if folder is None or not self.config(folder).is_file():
            return super().begin(folder)
        begun = self.open(folder)
        kept = {name: value for name, value in begun.machine.items() if name == "threads"}
        if begun != dataclasses.replace(self, jobs=begun.jobs, machine={**kept, **self.machine}):
            hint = f"see its {self.config(folder).name}, or name a new folder"
            raise UserError("--out", str(folder), "it holds another reproduction", hint=hint)
        return begun

    def assemble(self, endings: Sequence[Ending], folder: Path | None) -> Reproduction:  # noqa: ARG002
        """The table with our numbers; a cell of which a run failed says so and has none."""
        rest, missing = iter(endings), dict(self.missing)
        by_trial = {}
        for trial in self.trials():
            results, failures = parted(list(itertools.islice(rest, self.seeds)))
            if failures:
                missing[trial.name] = f"{failures[0].short}, {len(failures)} of {self.seeds} seeds"
            else:
                by_trial[trial.name] = results
        results, failures = parted(endings)
        found = Reproduction.of(self.table, self.again(), self.seeds, by_trial, missing)
        return dataclasses.replace(found, results=results, failures=failures)

    def again(self, folder: Path | None = None) -> str:  # noqa: ARG002
        """The command that a reader types to get the same: folders and files are theirs to name."""
        flags: dict[str, Any] = {
            "only": ",".join(self.only),
            "methods": ",".join(self.methods),
            "variant": self.variant,
        }
        flags |= {"seeds": self.seeds, **{name: self.machine.get(name) for name in ("seed", "eval_every", "precision")}}
        flags |= {name: name.upper() for name in PATHS if self.machine.get(name)}
        given = (f"{flag_of(name)} {shlex.quote(str(value))}" for name, value in flags.items() if value)
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


def _check_protocol(task: Task, trial: Trial) -> None:
    """What the folder holds of a run was made by the protocol of today; only files may have moved since."""
    if task.folder is None or not task.folder.exists():
        return
    held = RunFolder.open(task.folder).experiment()
    moved = needs_file(trial.values)
    for name in trial.values:
        there, now = getattr(held, name), getattr(task.experiment, name)
        if there != now and name not in moved:
            why, hint = f"its {name} is {there}, in the protocol {now}", "remove that folder, or name a new one"
            raise UserError("--out", str(task.folder), why, hint=hint)
