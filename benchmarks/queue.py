"""python -m benchmarks.queue PLAN.yaml --out FILE.jsonl: every run that is still wanted, in order of worth.

A line of the file is a run that has ended. What the file has is not played again, so the queue can be cut off at any
moment, and goes on elsewhere with the same file. A plan is YAML:

    settings:                       # options of an experiment, by name
      mnist: {dataset: mnist, model: mlp, rounds: 60, alpha: 0.05}
    runs:                           # in order of worth; each with every seed and every combination of what varies
      - {setting: mnist, method: fedavg, seeds: [0, 1, 2], vary: {lr: [0.03, 0.1]}}
      - {setting: mnist, method: fednh, seeds: [0, 1, 2], params: {rho: 0.9}, options: {lr: 0.1}}
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
import yaml

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.schema import made
from protofed.runs.progress import Progress

PARAMS = "params."
"""What the name of a method's parameter that varies begins with."""


@dataclass(frozen=True)
class Entry:
    """A line of a plan: runs of one method in one setting."""

    setting: str
    method: str
    seeds: list[int]
    params: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    vary: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, settings: Mapping[str, Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
        """What is run: options of an experiment, seeds outermost, so that one seed of everything comes first."""
        if self.setting not in settings:
            raise UserError("setting", self.setting, f"the plan has {', '.join(settings)}")
        for seed in self.seeds:
            for values in itertools.product(*self.vary.values()):
                chosen = dict(zip(self.vary, values, strict=True))
                params = {name.removeprefix(PARAMS): chosen.pop(name) for name in list(chosen) if PARAMS in name}
                own = {"method": self.method, "params": {**self.params, **params}, "seed": seed}
                yield {**settings[self.setting], **self.options, **chosen, **own}


def planned(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """The runs of a plan with their settings' names, in order; each is checked before anything is played."""
    try:
        plan = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise UserError("PLAN", str(path), f"it cannot be read: {error}") from None
    if not isinstance(plan, dict) or set(plan) != {"settings", "runs"}:
        raise UserError("PLAN", str(path), "it must have settings and runs")
    found = []
    for line in plan["runs"]:
        entry = made("run", Entry, line)
        for options in entry.runs(plan["settings"]):
            Experiment.from_mapping(options)
            found.append((entry.setting, options))
    return found


def key_of(options: Mapping[str, Any]) -> str:
    """A run's name in the file."""
    return json.dumps(options, sort_keys=True)


def ended(path: Path) -> set[str]:
    """The runs that the file has; a last line that was cut off is none."""
    lines = path.read_text("utf-8").split("\n")[:-1] if path.exists() else []
    return {key_of(json.loads(line)["options"]) for line in lines}


def play(setting: str, options: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """How a run has ended: its accuracies after the last round, or why it failed.

    One that found no memory on the GPU, because of others beside it, has not ended: it is "unplayed".
    """
    from protofed.runs.run import new_run  # here, because a new process reads this file first

    began = time.perf_counter()
    line: dict[str, Any] = {"setting": setting, "options": dict(options)}
    try:
        experiment = Experiment.from_mapping({**options, "eval_every": options.get("rounds", 1), **machine})
        result = new_run(experiment).play(None, Progress())
    except torch.OutOfMemoryError as error:
        return {**line, "unplayed": str(error).split("\n")[0]}
    except (UserError, RuntimeError) as error:  # one that diverged
        return {**line, "failed": str(error).split("\n")[0]}
    numbers = {name: round(accuracy.last, 3) for name, accuracy in result.accuracy.items()}
    sent = {"bytes_up": result.bytes_up, "bytes_down": result.bytes_down}
    return {**line, "score": result.score, "accuracy": numbers, **sent, "seconds": time.perf_counter() - began}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.queue", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("plan", type=Path, help="YAML file of the runs")
    parser.add_argument("--out", type=Path, required=True, help="file of the runs that have ended, a line each")
    parser.add_argument("--data-dir", help="folder with the datasets' files")
    parser.add_argument("--device", default="auto", help="cpu, cuda or auto")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes; at most 4 on a GPU")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start nothing after so many seconds")
    parser.add_argument("--list", action="store_true", help="only say what is still wanted")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Play what is missing; 1 if a run failed."""
    asked = arguments().parse_args(words)
    try:
        plan = planned(asked.plan)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    known = ended(asked.out)
    wanted = [(setting, options) for setting, options in plan if key_of(options) not in known]
    print(f"{len(wanted)} of {len(plan)} runs are wanted", flush=True)
    if asked.list:
        for setting, options in wanted:
            print(setting, key_of(options))
        return 0
    machine = {"device": asked.device, "threads": 1, "data_dir": asked.data_dir}
    failed = [_told(line, asked.out) for line in _played(wanted, machine, asked.jobs, asked.budget)]
    return int(any(failed))


def _played(
    wanted: Sequence[tuple[str, dict[str, Any]]], machine: Mapping[str, Any], jobs: int, budget: float
) -> Iterator[dict[str, Any]]:
    """Runs as they end; no more are begun than go on at once."""
    end, rest = time.monotonic() + budget, iter(wanted)
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        going: set[Future[dict[str, Any]]] = set()
        while True:
            room = jobs - len(going) if time.monotonic() < end else 0
            going |= {pool.submit(play, *one, machine) for one in itertools.islice(rest, room)}
            if not going:
                return
            done, going = wait(going, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _told(line: Mapping[str, Any], path: Path) -> bool:
    """Write and say how a run ended, and whether it failed; what was not played stays wanted."""
    if "unplayed" in line:
        print(line["setting"], key_of(line["options"]), line["unplayed"], flush=True)
        return True
    path.parent.mkdir(parents=True, exist_ok=True)
    text = path.read_text("utf-8") if path.exists() else ""
    cut = text.rfind("\n") + 1  # where a line was cut off, the next one takes its place
    with path.open("r+b" if path.exists() else "wb") as file:
        file.seek(len(text[:cut].encode()))
        file.truncate()
        file.write((json.dumps(line, sort_keys=True) + "\n").encode())
    found = line.get("failed") or line["accuracy"].get(line["score"])
    print(line["setting"], key_of(line["options"]), found, flush=True)
    return "failed" in line


if __name__ == "__main__":
    sys.exit(main())
