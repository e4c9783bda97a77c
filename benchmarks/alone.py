"""python -m benchmarks.alone TABLE...: what a round of each method takes that has the machine to itself.

The runs of a table share a machine, so that their seconds depend on their neighbours. This plays a few rounds of each
method that "What we learned" compares, one after the other, and keeps the seconds in docs/results/alone.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.results_page import ALONE, SCENARIOS, Page, Scenario
from benchmarks.tables import RESULTS
from protofed.experiment import Experiment
from protofed.runs.run import Run, new_run
from protofed.studies.papers import find_target

ROUNDS = 6
"""Of a run: the first two record and warm up, the last is evaluated."""


def experiments(scenario: Scenario, machine: Mapping[str, Any]) -> Iterator[tuple[str, str, Experiment]]:
    """Every run of a scenario, cut short: its table, its name, and what it is."""
    for name in scenario.tables:
        table = Page(RESULTS).measured(name)
        trials = {trial.name: trial for trial in find_target(table["name"], table["variant"]).trials()}
        for cell in scenario.cells(table):
            for trial in cell["trials"]:
                yield name, trial, trials[trial].experiment({**machine, "rounds": ROUNDS, "eval_every": ROUNDS})


def seconds(run: Run) -> float:
    """Of a round; the median of those that neither warm up nor are evaluated."""
    return float(statistics.median([run.play_round().seconds for _ in range(ROUNDS)][2:-1]))


def main(words: Sequence[str] | None = None) -> None:
    """Measure what is asked for, beside what was measured before."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.alone", description=__doc__)
    compared = [table for scenario in SCENARIOS for table in scenario.tables]
    parser.add_argument("tables", nargs="+", metavar="TABLE", choices=compared, help="one of " + ", ".join(compared))
    parser.add_argument("--data-dir", type=Path, help="folder with the datasets")
    parser.add_argument("--precision", default="float32", help="as the table's")
    asked = parser.parse_args(words)
    machine = {"data_dir": None if asked.data_dir is None else str(asked.data_dir), "precision": asked.precision}
    file = RESULTS / f"{ALONE}.json"
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for scenario in SCENARIOS:
        for table, name, experiment in experiments(scenario, machine):
            if table in asked.tables:
                run = new_run(experiment)
                of_table = known.setdefault(table, {})
                of_table[name] = {"device": run.device.type, "seconds": round(seconds(run), 4)}
                print(f"{table}, {name}: {of_table[name]['seconds']} s a round", flush=True)
                file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
