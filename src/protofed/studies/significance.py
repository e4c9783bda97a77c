"""Whether one method is better than another: paired over seeds, corrected for how many are compared.

The t-test takes differences as normal; of few seeds it sees large effects only, which is why effect size and interval
stand beside every p.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from protofed.evaluation.names import lower_is_better

if TYPE_CHECKING:
    from protofed.runs.result import Result

SURE = 0.05
"""Below this a difference is called clear."""
CONFIDENCE = 0.95
"""Of the interval of a difference."""


@dataclass(frozen=True)
class Paired:
    """The best of several lines against another, over the seeds that both have."""

    difference: float  # mean over seeds of best minus other, in points
    low: float | None  # of the interval; None where the seeds do not differ, or are too few
    high: float | None
    effect: float | None  # Cohen's d of paired values: the mean difference over its standard deviation
    p: float | None
    p_holm: float | None  # corrected for all comparisons with the best
    seeds: int

    def words(self, lower: bool = False) -> str:
        """What may be concluded, where higher is better or, if so said, `lower`."""
        side, sign = ("above", -1) if lower else ("below", 1)
        if self.seeds < 2:
            return "one common seed: nothing can be said"
        if self.p is None:
            return (
                "equal in every seed"
                if self.difference == 0
                else f"{sign * self.difference:.1f} {side} the best in every seed"
            )
        assert self.low is not None  # as p is
        assert self.high is not None
        assert self.effect is not None
        sure = "clearly" if (self.p_holm or 0.0) < SURE else "not clearly"
        low, high = sorted((sign * self.low, sign * self.high))
        return (
            f"{sure} {side} the best ({sign * self.difference:.1f} points, {low:.1f} to {high:.1f}, "
            f"d = {sign * self.effect:.1f}, p = {self.p_holm:.2g}, {self.seeds} seeds)"
        )


def paired(best: Mapping[int, float], other: Mapping[int, float]) -> Paired:
    """Compare two lines by their values for each seed; not corrected yet."""
    seeds = sorted(best.keys() & other.keys())
    differences = [best[seed] - other[seed] for seed in seeds]
    mean = statistics.fmean(differences) if seeds else 0.0
    spread = statistics.stdev(differences) if len(seeds) > 1 else 0.0
    if spread <= 1e-9 * max(1.0, abs(mean)):  # a test would divide by nothing
        return Paired(mean, None, None, None, None, None, len(seeds))
    from scipy.stats import t

    error, freedom = spread / math.sqrt(len(seeds)), len(seeds) - 1
    half = float(t.ppf((1 + CONFIDENCE) / 2, freedom)) * error
    p = 2 * float(t.sf(abs(mean) / error, freedom))
    return Paired(mean, mean - half, mean + half, mean / spread, p, p, len(seeds))


def corrected(tests: Sequence[Paired]) -> list[Paired]:
    """With p as Holm (1979) corrects it: the smallest of m times m, the next times m − 1, none below the one before."""
    order = sorted((number for number, test in enumerate(tests) if test.p is not None), key=lambda n: tests[n].p or 0.0)
    found, least = list(tests), 0.0
    for place, number in enumerate(order):
        least = max(least, min(1.0, (len(order) - place) * (tests[number].p or 0.0)))
        found[number] = replace(tests[number], p_holm=least)
    return found


def against_best(lines: Mapping[str, Mapping[int, float]], lower: bool = False) -> tuple[str, dict[str, Paired]]:
    """The line with the highest mean, or the lowest where that is better, and every other one against it.

    Args:
        lines: by name, the value of each seed; at least one line, and no line is empty.
        lower: whether a lower value is the better one.

    Returns:
        The name of the best, and the corrected tests of the others by name.
    """
    best = (min if lower else max)(lines, key=lambda name: statistics.fmean(lines[name].values()))
    others = [name for name in lines if name != best]
    return best, dict(zip(others, corrected([paired(lines[best], lines[name]) for name in others]), strict=True))


def tests_of(lines: Mapping[str, Sequence[Result]]) -> list[dict[str, Any]]:
    """For each accuracy the line with the best mean against the others that have it, paired over seeds.

    Diagnostics are not compared. `p_holm` is corrected for all lines that are compared with the best.

    Args:
        lines: the runs of each, by name.
    """
    found = []
    for score in dict.fromkeys(name for runs in lines.values() for run in runs for name in run.accuracy):
        values = {
            name: {run.seed: run.accuracy[score].last for run in runs if _ranked(run, score)}
            for name, runs in lines.items()
        }
        if having := {name: seeds for name, seeds in values.items() if seeds}:
            best, tests = against_best(having, lower_is_better(score))
            found += [{"score": score, "best": best, "other": other, **asdict(test)} for other, test in tests.items()]
    return found


def _ranked(run: Result, score: str) -> bool:
    """Whether a run has an accuracy, by a rule of the method's own."""
    return score in run.accuracy and not run.accuracy[score].diagnostic


def tests_csv(tests: Sequence[Mapping[str, Any]]) -> str:
    """A line for each test; nothing where there is none."""
    text = io.StringIO()
    if tests:
        writer = csv.DictWriter(text, list(tests[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(tests)
    return text.getvalue()
