"""Several methods × seeds on the same footing: one folder a run, one table."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from protofed.errors import UserError, unknown
from protofed.experiment import Experiment, absolute_name, with_absolute_paths
from protofed.internal.atomic_files import write_text
from protofed.internal.schema import check_type
from protofed.internal.yaml_files import read_yaml
from protofed.methods import build_method, method_class, parameters
from protofed.runs.folder import make_folder
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.studies.workers import Task, at_once, cores, play_all, run_name

__all__ = ["Comparison", "MethodRow", "Spread"]

SEEDS = 3
"""How many seeds a comparison has unless told otherwise: what a spread needs at least."""
MOST_SEEDS = 1000


@dataclass(frozen=True)
class Spread:
    """Record a number over seeds.

    Args:
        mean: the mean.
        std: the sample standard deviation; 0 for a single value.
        values: the number for each seed.

    Example:
        >>> from protofed.studies.comparison import Spread
        >>> Spread.of([90.0, 92.0, 94.0])
        Spread(mean=92.0, std=2.0, values=[90.0, 92.0, 94.0])
    """

    mean: float
    std: float
    values: list[float]

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Compute mean and standard deviation of some values; the deviation of a single value is 0."""
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0, list(values))


@dataclass(frozen=True)
class MethodRow:
    """Record one method of a comparison over its seeds.

    Args:
        method: the method's name.
        score: the accuracy that its paper reports, a key of `accuracy`.
        rounds: how many rounds each seed played.
        accuracy: accuracies in percent after the last round, by model/test/rule.
        diagnostic: those by class means of the client's own data, a rule that the method itself does not have.
        bytes_up_per_round: bytes from all clients to the server.
        bytes_down_per_round: bytes from the server to all clients.
        seconds: how long a run took.
        guarantee: of privacy, where it is promised: that of the seed which spent most.

    Example:
        >>> from protofed.studies.comparison import MethodRow, Spread
        >>> accuracy, other = {"own/own/head": Spread.of([80.0, 82.0])}, Spread.of([0.0, 0.0])
        >>> row = MethodRow("local", "own/own/head", [5, 5], accuracy, [], other, other, other)
        >>> row.accuracy[row.score].mean
        81.0
    """

    method: str
    score: str
    rounds: list[int]
    accuracy: dict[str, Spread]
    diagnostic: list[str]
    bytes_up_per_round: Spread
    bytes_down_per_round: Spread
    seconds: Spread
    guarantee: str | None = None


@dataclass(frozen=True)
class Comparison:
    """Record the runs of several methods with several seeds, and a row for each method.

    Args:
        results: the result of every run, method by method.
        rows: one for each method.
        folder: where the comparison is on disk; None for one in memory.

    Example:
        >>> from pathlib import Path
        >>> from protofed.runs.result import Result
        >>> from protofed.studies.comparison import Comparison, MethodRow, Spread
        >>> score, other = "own/own/nearest", Spread.of([0.0])
        >>> row = MethodRow("fedproto", score, [1], {score: Spread.of([50.0])}, [], other, other, other)
        >>> print(Comparison([Result.read(Path("digits"))], [row]).to_csv().strip())
        method,quantity,mean,std,seeds
        fedproto,own/own/nearest,50.0,0.0,1
        fedproto,bytes_up_per_round,0.0,0.0,1
        fedproto,bytes_down_per_round,0.0,0.0,1
        fedproto,seconds,0.0,0.0,1
    """

    results: list[Result]
    rows: list[MethodRow]
    folder: str | None = None

    def notes(self) -> list[str]:
        """List what makes the methods unequal: rounds, bytes and budgets."""
        notes = []
        rounds = {row.method: sorted(set(row.rounds)) for row in self.rows}
        if len({tuple(found) for found in rounds.values()}) > 1:
            notes.append("methods differ in rounds: " + ", ".join(f"{name} {found}" for name, found in rounds.items()))
        traffic = {row.method: row.bytes_up_per_round.mean + row.bytes_down_per_round.mean for row in self.rows}
        if len(set(traffic.values())) > 1:
            least, most = min(traffic, key=traffic.__getitem__), max(traffic, key=traffic.__getitem__)
            spread = f"{least} ({traffic[least]:,.0f}) to {most} ({traffic[most]:,.0f})"
            notes.append(f"methods differ in bytes per round: from {spread}")
        for limit in ("time budget", "privacy budget"):
            early = [f"{run.method} seed {run.seed} ({run.rounds})" for run in self.results if run.stopped == limit]
            if early:
                notes.append(f"the {limit} cut rounds short: {', '.join(early)}")
        return notes

    def to_json(self) -> str:
        """Return the text of compare.json."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        runs = [{"method": r.method, "seed": r.seed, "folder": r.folder} for r in self.results]
        return json.dumps({"rows": rows, "notes": self.notes(), "runs": runs}, indent=2) + "\n"

    def to_csv(self) -> str:
        """Return the text of compare.csv: one line per method and quantity."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["method", "quantity", "mean", "std", "seeds"])
        for row in self.rows:
            other = {
                "bytes_up_per_round": row.bytes_up_per_round,
                "bytes_down_per_round": row.bytes_down_per_round,
                "seconds": row.seconds,
            }
            for name, spread in (row.accuracy | other).items():
                writer.writerow([row.method, name, spread.mean, spread.std, len(spread.values)])
        return text.getvalue()


def share_cores(experiment: Experiment, runs: int, jobs: int | None) -> Experiment:
    """The experiment with its CPU threads: those of one run when so many go on at a time.

    Threads touch the last bits of a result, so they are part of the plan, whichever process then plays a run.
    """
    together = at_once(jobs, experiment, runs)
    return dataclasses.replace(experiment, threads=experiment.threads or max(1, cores() // together))


def check_seeds(seeds: int) -> None:
    """A typing error should not plan runs for years."""
    if not 1 <= seeds <= MOST_SEEDS:
        raise UserError("--seeds", seeds, f"it must be from 1 to {MOST_SEEDS}")


def plan(methods: Sequence[str], seeds: int, experiment: Experiment) -> list[Experiment]:
    """The runs of a comparison; a parameter goes to every method that has it, and some method must."""
    if not methods:
        raise UserError("--method", "", "name at least one method")
    check_seeds(seeds)
    classes = {method: method_class(method) for method in methods}
    names = [classes[method].name for method in methods]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise UserError("--method", ",".join(methods), f"more than one is called {', '.join(sorted(doubled))}")
    known = {method: parameters(found) for method, found in classes.items()}
    everything = {name for names in known.values() for name in names}
    for name in experiment.params:
        if name not in everything:
            raise unknown("--set", name, everything)
    runs = []
    for method in methods:
        values = {name: value for name, value in experiment.params.items() if name in known[method]}
        build_method(method, values)
        for seed in range(experiment.seed, experiment.seed + seeds):
            runs.append(dataclasses.replace(experiment, method=method, params=values, seed=seed))
    return runs


def compare(runs: Sequence[Experiment], folder: Path | None, progress: Progress, jobs: int | None = None) -> Comparison:
    """Play every run, several at once; those that a folder already holds are taken from it or continued."""
    tasks = [Task(run, None if folder is None else folder / run_name(run)) for run in runs]
    results = play_all(tasks, progress, jobs)
    comparison = Comparison(results, rows_of(results), None if folder is None else str(folder))
    if folder is not None:
        write_text(folder / "compare.json", comparison.to_json())
        write_text(folder / "compare.csv", comparison.to_csv())
    return comparison


def create_folder(path: Path, methods: Sequence[str], seeds: int, jobs: int | None, experiment: Experiment) -> Path:
    """A new folder for a comparison, with what is needed to run or resume it."""
    return make_folder(path, "compare.yaml", config_text(methods, seeds, jobs, experiment))


def config_text(methods: Sequence[str], seeds: int, jobs: int | None, experiment: Experiment, **more: Any) -> str:
    """The YAML that `read_config` reads back, in any folder."""
    values = dataclasses.asdict(with_absolute_paths(experiment))
    del values["method"]
    config = {**more, "methods": list(map(absolute_name, methods)), "seeds": seeds, "jobs": jobs, **values}
    return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)


def read_config(path: Path) -> tuple[list[str], int, int | None, dict[str, Any]]:
    """Methods, seeds, jobs and the common experiment of a comparison's YAML file."""
    values = read_yaml(path)
    methods = check_type("methods", values.pop("methods", []), list)
    seeds = check_type("seeds", values.pop("seeds", SEEDS), int)
    jobs = check_type("jobs", values.pop("jobs", None), int | None)
    return [str(name) for name in methods], seeds, jobs, values


def rows_of(results: Sequence[Result]) -> list[MethodRow]:
    """A row for each method that the runs are of."""
    by_method: dict[str, list[Result]] = {}
    for result in results:
        by_method.setdefault(result.method, []).append(result)
    rows = []
    for method, runs in by_method.items():
        names = runs[0].accuracy
        rows.append(
            MethodRow(
                method=method,
                score=runs[0].score,
                rounds=[run.rounds for run in runs],
                accuracy={name: Spread.of([run.accuracy[name].last for run in runs]) for name in names},
                diagnostic=[name for name in names if names[name].diagnostic],
                bytes_up_per_round=Spread.of([run.bytes_up / run.rounds for run in runs]),
                bytes_down_per_round=Spread.of([run.bytes_down / run.rounds for run in runs]),
                seconds=Spread.of([run.seconds for run in runs]),
                guarantee=max(runs, key=lambda run: math.inf if run.epsilon is None else run.epsilon).guarantee,
            )
        )
    return rows
