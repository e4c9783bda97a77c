"""Several methods × seeds on the same footing: a row a method. It is a sweep with an empty grid."""

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
from typing import ClassVar

from protofed.runs.result import Result
from protofed.studies.grid import GridStudy

__all__ = ["Comparison", "MethodRow", "Spread"]


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
        """List what makes the methods unequal: rounds, bytes and budgets, and what runs have to say."""
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
        return [*notes, *dict.fromkeys(note for run in self.results for note in run.notes())]

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

    def files(self) -> dict[str, str]:
        """What is written into its folder."""
        return {"compare.json": self.to_json(), "compare.csv": self.to_csv()}


@dataclass(frozen=True)
class ComparisonStudy(GridStudy[Comparison]):
    """Several methods, several seeds."""

    command: ClassVar = "compare"
    end: ClassVar = "compare.json"
    reported: ClassVar = True
    form: ClassVar = {name: kind for name, kind in GridStudy.form.items() if name not in ("grid", "score")}

    def assemble(self, results: Sequence[Result], folder: Path | None) -> Comparison:
        """A row a method."""
        return Comparison(list(results), rows_of(results), None if folder is None else str(folder))


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
