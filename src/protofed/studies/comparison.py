"""Several methods × seeds on the same footing: a row per method. It is a sweep with an empty grid."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from protofed.experiment import Experiment
from protofed.internal.higher import ask
from protofed.methods import METHODS, method_class, parameters
from protofed.runs.failure import FailedRun, score_of
from protofed.runs.result import FURTHER, Result
from protofed.studies.frames import frame_of
from protofed.studies.grid import Grid, GridStudy, Setting, check_values, task_of, with_values
from protofed.studies.significance import tests_csv, tests_of
from protofed.studies.spread import Spread
from protofed.studies.tuning import Tuned, Tuning, tuning_csv, tuning_notes
from protofed.studies.workers import Ending, Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

__all__ = ["Comparison", "MethodRow"]

CUT_SHORT = ("time budget", "privacy budget", "patience", "callback")
"""What may end a run before its last round."""


@dataclass(frozen=True)
class MethodRow:
    """Record one method of a comparison over its seeds.

    Args:
        method: the method's name.
        score: the accuracy that its paper reports, a key of `accuracy`.
        rounds: how many rounds each seed played.
        accuracy: accuracies in percent after the last round, by model/test/rule, and metrics by model/test/rule:metric;
            of those seeds that have it.
        diagnostic: those by class means of the client's own data, a rule that the method itself does not have.
        bytes_up_per_round: bytes from all clients to the server.
        bytes_down_per_round: bytes from the server to all clients.
        seconds: how long a run took.
        guarantee: of privacy, where it is promised: that of the seed which spent most.
        failed: how the seeds ended that are in none of these numbers, such as `diverged (round 2)`.
        prototypes_per_class: how many of a class the server sends in the end, on average; None where it sends none.
        rejected_uploads: uploads that the server's screening rejected, over all rounds; None where none was.
        suspected_uploads: uploads that a defence suspected, over all rounds; None without a defence.

    Example:
        >>> from protofed.studies.comparison import MethodRow
        >>> from protofed.studies.spread import Spread
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
    failed: list[str] = field(default_factory=list)
    prototypes_per_class: Spread | None = None
    rejected_uploads: Spread | None = None
    suspected_uploads: Spread | None = None

    @property
    def further(self) -> dict[str, Spread | None]:
        """What only some methods and runs have, by its name in compare.csv."""
        return {name: getattr(self, name) for name in FURTHER}

    @property
    def seeds(self) -> int:
        """Count the runs, those that failed too."""
        return len(self.rounds) + len(self.failed)


@dataclass(frozen=True)
class Comparison:
    """Record the runs of several methods with several seeds, and a row for each method.

    Args:
        results: the result of every run that came to its end, method by method.
        rows: one for each method.
        folder: where the comparison is on disk; None for one in memory.
        failures: the runs that did not come to their end.
        tuned: what was chosen for each method, and how; empty where nothing was tuned.

    Example:
        >>> from pathlib import Path
        >>> from protofed.runs.result import Result
        >>> from protofed.studies.comparison import Comparison, MethodRow
        >>> from protofed.studies.spread import Spread
        >>> score, other = "own/own/nearest", Spread.of([0.0])
        >>> row = MethodRow("fedproto", score, [1], {score: Spread.of([50.0])}, [], other, other, other)
        >>> print(Comparison([Result.read(Path("digits"))], [row]).to_csv().strip())
        method,quantity,mean,std,seeds
        fedproto,own/own/nearest,50.0,,1
        fedproto,bytes_up_per_round,0.0,,1
        fedproto,bytes_down_per_round,0.0,,1
        fedproto,seconds,0.0,,1
    """

    results: list[Result]
    rows: list[MethodRow]
    folder: str | None = None
    failures: list[FailedRun] = field(default_factory=list)
    tuned: list[Tuned] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"Comparison({summary_of({row.method: row for row in self.rows}, self.results)})"

    def frame(self) -> DataFrame:
        """Return accuracies as a pandas data frame: a row for each method, seed, evaluated round, client and score."""
        return frame_of(self.results)

    def plot(self) -> Figure:
        """Draw an accuracy that all methods have over rounds: the mean over seeds, and one deviation around it."""
        figure: Figure = ask("figure_of", self)
        return figure

    def _repr_html_(self) -> str:
        return str(ask("html_of", self))

    def notes(self) -> list[str]:
        """List what makes the methods unequal: rounds, bytes and budgets, and what runs have to say."""
        notes = []
        finished = [row for row in self.rows if row.rounds]
        rounds = {row.method: sorted(set(row.rounds)) for row in finished}
        if len({tuple(found) for found in rounds.values()}) > 1:
            notes.append("methods differ in rounds: " + ", ".join(f"{name} {found}" for name, found in rounds.items()))
        traffic = {row.method: row.bytes_up_per_round.mean + row.bytes_down_per_round.mean for row in finished}
        if len(set(traffic.values())) > 1:
            least, most = min(traffic, key=traffic.__getitem__), max(traffic, key=traffic.__getitem__)
            spread = f"{least} ({traffic[least]:,.0f}) to {most} ({traffic[most]:,.0f})"
            notes.append(f"methods differ in bytes per round: from {spread}")
        for limit in CUT_SHORT:
            early = [f"{run.method} seed {run.seed} ({run.rounds})" for run in self.results if run.stopped == limit]
            if early:
                notes.append(f"the {limit} cut rounds short: {', '.join(early)}")
        notes += tuning_notes(self.tuned)
        return [*notes, *dict.fromkeys(note for run in self.results for note in run.notes())]

    def to_json(self) -> str:
        """Return the text of compare.json."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        runs = [{"method": r.method, "seed": r.seed, "folder": r.folder} for r in self.results]
        failures = [dataclasses.asdict(failed) for failed in self.failures]
        values = {"rows": rows, "notes": self.notes(), "tests": self.tests(), "runs": runs, "failures": failures}
        if self.tuned:
            values["tuning"] = [{**dataclasses.asdict(one), "told": one.told} for one in self.tuned]
        return json.dumps(values, indent=2) + "\n"

    def tests(self) -> list[dict[str, Any]]:
        """Test the method with the best mean of each score against the others, paired over seeds.

        Diagnostics are not compared. `p_holm` is corrected for all methods that are compared with the best.
        """
        lines: dict[str, list[Result]] = {}
        for run in self.results:
            lines.setdefault(run.method, []).append(run)
        return tests_of(lines)

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
            other |= {name: found for name, found in row.further.items() if found is not None}
            for name, spread in (row.accuracy | other if row.rounds else {}).items():
                writer.writerow([row.method, name, spread.mean, spread.std, len(spread.values)])
            if row.failed:
                writer.writerow([row.method, "failed", len(row.failed), 0, row.seeds])
        return text.getvalue()

    def files(self) -> dict[str, str]:
        """What is written into its folder."""
        files = {"compare.json": self.to_json(), "compare.csv": self.to_csv(), "tests.csv": tests_csv(self.tests())}
        return files | ({"tuning.csv": tuning_csv(self.tuned)} if self.tuned else {})


@dataclass(frozen=True)
class ComparisonStudy(GridStudy[Comparison]):
    """Several methods, several seeds."""

    command: ClassVar = "compare"
    end: ClassVar = "compare.json"
    reported: ClassVar = True
    form: ClassVar = {
        **{name: kind for name, kind in GridStudy.form.items() if name not in ("grid", "score")},
        "tune": dict,
    }

    tune: Grid = field(default_factory=dict)  # what is chosen for each method, on validation data, before the test

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tune", check_values("--tune", self.tune))

    @cached_property
    def tuning(self) -> Tuning | None:
        """The trials that choose, if something is tuned."""
        return Tuning(self.tune, self) if self.tune else None

    def size(self) -> int | None:
        """How many runs it has, trials too; none if a user's own method would have to be asked."""
        if not self.tune:
            return super().size()
        return self.total(None) if all(method in METHODS for method in self.methods) else None

    def total(self, folder: Path | None) -> int:
        """How many runs are played in all, trials too."""
        return len(super().tasks(folder)) + (len(self.tuning.trials) if self.tuning else 0)

    def tasks(self, folder: Path | None) -> list[Task]:
        """The trials, and the runs of methods that have nothing to choose."""
        runs = super().tasks(folder)
        if self.tuning is None:
            return runs
        known = [task for task in runs if task.experiment.method not in self.tuning.tuned]
        return [*self.tuning.tasks(folder), *known]

    def chooses(self, experiment: Experiment) -> bool:
        """The trials, whose seeds the test does not have."""
        return self.tuning is not None and experiment.seed >= self.experiment.seed + self.seeds

    def further(self, endings: Sequence[Ending], folder: Path | None) -> list[Task]:
        """The runs of the other methods, with what their trials chose; in folders that say what that is."""
        if self.tuning is None:
            return []
        tasks = []
        for method, tuned in self.tuning.choices(endings[: len(self.tuning.trials)]).items():
            if method in self.tuning.tuned:
                chosen = dataclasses.replace(self, methods=[method], experiment=self._of(method, tuned.chosen), tune={})
                tasks += [task_of(run, tuned.chosen, folder) for _, run in chosen.runs]
        return tasks

    def _of(self, method: str, setting: Setting) -> Experiment:
        """The experiment of one method with chosen values."""
        known = parameters(method_class(method))
        mine = {name: value for name, value in self.experiment.params.items() if name in known}
        return with_values(dataclasses.replace(self.experiment, params=mine), setting)

    def assemble(self, endings: Sequence[Ending], folder: Path | None) -> Comparison:
        """A row per method."""
        tuned: list[Tuned] = []
        if self.tuning is not None:
            trials, endings = endings[: len(self.tuning.trials)], endings[len(self.tuning.trials) :]
            tuned = list(self.tuning.choices(trials).values())
            order = [one.method for one in tuned]
            endings = sorted(endings, key=lambda ending: order.index(ending.method))
        results, failures = parted(endings)
        return Comparison(results, rows_of(endings), None if folder is None else str(folder), failures, tuned)


def summary_of(rows: Mapping[str, MethodRow], results: Sequence[Result]) -> str:
    """A study in a line or two: what it is of, and the first three scores by name."""
    told = {name: row.accuracy.get(row.score) for name, row in rows.items()}
    scores = [
        f"{name} {rows[name].score} {spread.mean:.2f} %" if spread else f"{name} {', '.join(rows[name].failed)}"
        for name, spread in told.items()
    ][:3]
    more = [f"{len(rows) - 3} more"] if len(rows) > 3 else []
    number = f"{len(results)} run{'s' * (len(results) != 1)}"
    return f"{number} on {results[0].dataset if results else 'nothing'}: {', '.join([*scores, *more])}"


def parted(endings: Sequence[Ending]) -> tuple[list[Result], list[FailedRun]]:
    """The runs that came to their end, and those that did not."""
    results = [ending for ending in endings if isinstance(ending, Result)]
    return results, [ending for ending in endings if isinstance(ending, FailedRun)]


def rows_of(endings: Sequence[Ending]) -> list[MethodRow]:
    """A row for each method that the runs are of; runs that failed are in none of its numbers."""
    by_method: dict[str, list[Ending]] = {}
    for ending in endings:
        by_method.setdefault(ending.method, []).append(ending)
    rows = []
    for method, some in by_method.items():
        runs, failures = parted(some)
        failed = [one.short for one in failures]
        if not runs:
            none = Spread(0.0, None, [])
            rows.append(MethodRow(method, score_of(method), [], {}, [], none, none, none, failed=failed))
            continue
        names = {name: found for run in runs for name, found in run.accuracy.items()}
        rows.append(
            MethodRow(
                method=method,
                score=runs[0].score,
                rounds=[run.rounds for run in runs],
                accuracy={
                    name: Spread.of([run.accuracy[name].last for run in runs if name in run.accuracy]) for name in names
                },
                diagnostic=[name for name in names if names[name].diagnostic],
                bytes_up_per_round=Spread.of([run.bytes_up / run.rounds for run in runs]),
                bytes_down_per_round=Spread.of([run.bytes_down / run.rounds for run in runs]),
                seconds=Spread.of([run.seconds for run in runs]),
                guarantee=max(runs, key=lambda run: math.inf if run.epsilon is None else run.epsilon).guarantee,
                failed=failed,
                **{name: _known([getattr(run, name) for run in runs]) for name in FURTHER},
            )
        )
    return rows


def _known(values: Sequence[float | None]) -> Spread | None:
    """Of the seeds; those without are 0, unless all are."""
    return Spread.of([value or 0.0 for value in values]) if any(value is not None for value in values) else None
