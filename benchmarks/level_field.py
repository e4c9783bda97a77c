"""The level field: methods beside each other, each at the best of its rates and weights, with the same budget.

What `python -m benchmarks.queue benchmarks/plans/level-field.yaml` has played is read here. The best is that of the
highest mean on held-out training data; every combination of values that was tried by as many seeds counts.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHOSEN_BY = ("global/val/head", "own/val/head")
"""The score that values are chosen by: the first that a method has."""

Run = Mapping[str, Any]


class Tuned(NamedTuple):
    """A method in one setting, at its best."""

    method: str
    values: Mapping[str, Any]  # what was chosen, of what varies
    tried: int  # combinations of values
    failed: int  # of these, how many had a run that diverged
    runs: Sequence[Run]  # those of the best, a seed each

    def score(self, name: str) -> tuple[float, float] | None:
        """The mean and the standard deviation over seeds, where the method has such a score."""
        if any(name not in run["accuracy"] for run in self.runs):
            return None
        found = [run["accuracy"][name] for run in self.runs]
        return statistics.mean(found), statistics.stdev(found) if len(found) > 1 else 0.0

    @property
    def validation(self) -> tuple[float, float]:
        """What it was chosen by, mean and standard deviation."""
        return next(found for name in CHOSEN_BY if (found := self.score(name)) is not None)

    @property
    def rule(self) -> str:
        """How a client's own model answers: the head, or the method's own rule."""
        return str(self.runs[0]["score"]).rpartition("/")[2]

    @property
    def sent(self) -> float:
        """Megabytes that all clients send and are sent, on average over seeds."""
        return float(statistics.mean(run["bytes_up"] + run["bytes_down"] for run in self.runs)) / 1e6


def read(path: Path) -> list[Run]:
    """The runs of a queue's file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def tuned(runs: Sequence[Run], setting: str) -> list[Tuned]:
    """Each method of a setting at its best, in the order of the first runs."""
    by_method: dict[str, list[Run]] = {}
    for run in runs:
        if run["setting"] == setting:
            by_method.setdefault(run["options"]["method"], []).append(run)
    return [one for method, own in by_method.items() for one in _best(method, own)]


def _best(method: str, runs: Sequence[Run]) -> Iterator[Tuned]:
    """The best combination of values of one method, if one has every seed."""
    varied = _varied([run["options"] for run in runs])
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps({name: _value(run["options"], name) for name in varied}), []).append(run)
    seeds = max(len(group) for group in groups.values())
    finished = {
        key: group for key, group in groups.items() if len(group) == seeds and not any("failed" in run for run in group)
    }
    failed = sum(any("failed" in run for run in group) for group in groups.values())
    found = [Tuned(method, json.loads(key), len(groups), failed, group) for key, group in finished.items()]
    if found:
        yield max(found, key=lambda one: one.validation[0])


def _varied(options: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of options and parameters, but for the seed, that are not the same in all."""
    names = {*(name for one in options for name in one if name not in ("seed", "params"))}
    names |= {f"params.{name}" for one in options for name in one["params"]}
    return sorted(name for name in names if len({json.dumps(_value(one, name)) for one in options}) > 1)


def _value(options: Mapping[str, Any], name: str) -> Any:
    head, _, tail = name.partition(".")
    return options["params"].get(tail) if head == "params" and tail else options.get(name)


def table(runs: Sequence[Run], setting: str, scores: Sequence[str]) -> str:
    """The methods of a setting, those with the best averaged model first; {rule} in a score is the method's own."""
    found = sorted(tuned(runs, setting), key=lambda one: (one.score(scores[-1]) or (0.0,))[0], reverse=True)
    titles = [score.replace("/{rule}", "").replace("/head", "") for score in scores]
    lines = ["| method | chosen | diverged | seeds | validation | " + " | ".join(titles) + " | MB sent |"]
    lines.append("|---|---|---:|---:|---:" + "|---:" * (len(scores) + 1) + "|")
    for one in found:
        chosen = ", ".join(f"{name.removeprefix('params.')} {value:g}" for name, value in one.values.items())
        numbers = [one.validation, *(one.score(score.format(rule=one.rule)) for score in scores)]
        cells = ["–" if number is None else f"{number[0]:.1f} ± {number[1]:.1f}" for number in numbers]
        row = [one.method, chosen, f"{one.failed} of {one.tried}", str(len(one.runs)), *cells, f"{one.sent:,.0f}"]
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)
