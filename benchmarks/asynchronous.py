"""python -m benchmarks.asynchronous: what asynchronous rounds gain where a fifth of the clients is ten times slower.

One process a core; a run that the JSON file has is not played again. The page is docs/asynchronous.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.runs.progress import Progress

METHODS = ("fedavg", "fedproto", "mp-fedcl")
WAYS: dict[str, dict[str, Any]] = {
    "synchronous": {"rounds": 15},
    "--async 10": {"async_": 10, "rounds": 30, "eval_every": 2},
    "--async 5": {"async_": 5, "rounds": 120, "eval_every": 4},
}
"""The first two have 300 turns, the last, whose aggregations are of few clients, 600."""
COMMON: dict[str, Any] = {
    **{"clients": 20, "delays": "1,1,1,1,10", "alpha": 0.5, "lr": 0.05},
    **{"engine": "sequential", "device": "cpu", "threads": 1},
}
SEEDS = 3
PARTS = (0.8, 0.9)
"""Of the accuracy that the synchronous run has in the end."""
BEGIN, END = "<!-- begin: written by python -m benchmarks.asynchronous -->", "<!-- end: asynchronous -->"


class Cell(NamedTuple):
    """One run."""

    method: str
    way: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return "|".join(map(str, self))


def cells() -> Iterator[Cell]:
    """Everything there is to run."""
    for seed in range(SEEDS):
        yield from (Cell(method, way, seed) for method in METHODS for way in WAYS)


def play(cell: Cell) -> dict[str, Any]:
    """The accuracy that the method's paper reports, by the seconds of the virtual clock, and how old uploads were."""
    from protofed.runs.run import new_run  # here, because a new process reads this file first

    run = new_run(Experiment(**COMMON, **WAYS[cell.way], method=cell.method, seed=cell.seed))
    score = run.play(None, Progress()).score
    ages = [age for line in run.history for age in line.staleness or [0]]
    curve = [(line.clock, line.accuracy[score]) for line in run.history if line.accuracy]
    return {"score": score, "curve": curve, "staleness": [statistics.fmean(ages), max(ages)]}


def reached(curve: Sequence[Sequence[float]], target: float) -> float | None:
    """When an accuracy was reached for good: no later test is below it."""
    below = [place for place, (_, value) in enumerate(curve) if value < target]
    first = below[-1] + 1 if below else 0
    return curve[first][0] if first < len(curve) else None


def page(known: Mapping[str, Any]) -> str:
    """The table: means over seeds."""
    head = ["method", "score", "rounds", *(f"s to {part:.0%}" for part in PARTS), "last, %", "s in all", "staleness"]
    rows = [head, ["---"] * len(head)]
    for method in METHODS:
        for way in WAYS:
            runs = [known.get(Cell(method, way, seed).key) for seed in range(SEEDS)]
            ends = [known.get(Cell(method, "synchronous", seed).key) for seed in range(SEEDS)]
            pairs = [(one, end["curve"][-1][1]) for one, end in zip(runs, ends, strict=True) if one and end]
            if not pairs:
                continue
            times = []
            for part in PARTS:
                found = [reached(one["curve"], part * end) for one, end in pairs]
                done = [value for value in found if value is not None]
                lack = "" if len(done) == len(found) else f" ({len(done)} of {len(found)} seeds)"
                times.append(f"{statistics.fmean(done):.1f}{lack}" if done else "not reached")
            last = statistics.fmean(one["curve"][-1][1] for one, _ in pairs)
            seconds = statistics.fmean(one["curve"][-1][0] for one, _ in pairs)
            mean, most = (max(column) for column in zip(*(one["staleness"] for one, _ in pairs), strict=True))
            ages = f"{mean:.1f}, at most {most}"
            rows.append([method, f"`{pairs[0][0]['score']}`", way, *times, f"{last:.1f}", f"{seconds:.0f}", ages])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, and write it down."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.asynchronous", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/asynchronous.json"), help="file of the numbers")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    asked = parser.parse_args(words)
    known = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    missing = [cell for cell in cells() if cell.key not in known]
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(play, cell): cell for cell in missing}
        for future in as_completed(waiting):
            known[waiting[future].key] = future.result()
            write_text(asked.out, json.dumps(known, sort_keys=True) + "\n")
            print(f"{len(known)}/{len(METHODS) * len(WAYS) * SEEDS} {waiting[future].key}", flush=True)
    if asked.page:
        before, _, rest = asked.page.read_text("utf-8").partition(BEGIN)
        write_text(asked.page, f"{before}{BEGIN}\n\n{page(known)}\n\n{END}{rest.partition(END)[2]}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
