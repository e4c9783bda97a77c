"""python -m benchmarks.trust: accuracy without attack, attacked, and attacked and defended, for docs/security.md.

One process a core; a cell that the JSON file has is not played again, so it can be stopped and continued.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from protofed.errors import DivergedError, LostError
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.runs.progress import Progress
from protofed.trust.attacks import ATTACKS
from protofed.trust.tailored_attacks import TAILORED

METHODS = ("fedavg", "fedproto", "mp-fedcl", "fedplcc", "fedsc")
PARAMS = {"fedplcc": {"lambda1": 1.0}}  # its value on DomainNet: with 100 an MLP's loss does not stay finite
COMMON: dict[str, Any] = {
    **{"clients": 20, "attackers": 0.2, "rounds": 20, "eval_every": 20, "min_size": 5},
    **{"epochs": 5, "batch_size": 16},
}
DATASETS: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits", "model": "mlp"},
    "mnist": {"dataset": "mnist", "model": "cnn", "train_size": 4000},
}
PLAIN = [name for name, attack in ATTACKS.items() if attack not in TAILORED]
ALPHAS = (0.5, 0.05)
SEEDS = 3
DEFENCE = "outliers"
PROMISED = ("label-flip", "sign-flip", "scaled-prototypes", "random-prototypes", "stale-replay")
"""What the default defence must stop, at α = 0.5: within LOST points of the run without attack."""
LOST = 5.0
COST = 2.0
"""Points that it may lose without attack."""
BEGIN, END = "<!-- begin: written by python -m benchmarks.trust -->", "<!-- end: trust -->"


class Cell(NamedTuple):
    """One run."""

    dataset: str
    alpha: float
    method: str
    attack: str
    defence: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return "|".join(map(str, self))

    def experiment(self, data_dir: str | None) -> Experiment:
        """What is run."""
        own = {"method": self.method, "params": PARAMS.get(self.method, {}), "alpha": self.alpha, "seed": self.seed}
        trust = {"attack": self.attack, "defence": self.defence}
        machine = {"data_dir": data_dir if self.dataset != "digits" else None, "threads": 1}
        return Experiment.from_mapping({**COMMON, **DATASETS[self.dataset], **own, **trust, **machine})


def cells(datasets: Sequence[str], alphas: Sequence[float]) -> Iterator[Cell]:
    """Everything there is to run; what sends no prototypes cannot be attacked through them."""
    for seed in range(SEEDS):
        for alpha in alphas:
            for dataset in datasets:
                for attack in ("none", *PLAIN):
                    for method in METHODS:
                        for defence in ("none", DEFENCE):
                            if method != "fedavg" or not ("prototypes" in attack or attack == "collusion"):
                                yield Cell(dataset, alpha, method, attack, defence, seed)


def play(cell: Cell, data_dir: str | None) -> dict[str, Any]:
    """The accuracy that the method's paper reports, of the honest clients, and who was found out."""
    from protofed.runs.run import new_run  # here, because a new process reads this file first

    began = time.perf_counter()
    run = new_run(cell.experiment(data_dir))
    try:
        result = run.play(None, Progress())
    except (DivergedError, LostError) as error:
        return {"value": None, "why": str(error)}
    found: dict[str, Any] = {"score": result.score, "value": result.accuracy[result.score].last}
    attackers = set(run.attack.who) if run.attack else set()
    if cell.defence != "none":
        honest = set(range(result.clients)) - attackers
        lines = [set(played.suspected or ()) for played in run.history]
        found["honest_blamed"] = statistics.fmean(len(line & honest) / len(honest) for line in lines)
        if attackers:
            found["attackers_blamed"] = statistics.fmean(len(line & attackers) / len(attackers) for line in lines)
    if run.history[-1].backdoor is not None:
        found["backdoor"] = run.history[-1].backdoor
    return found | {"seconds": time.perf_counter() - began}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/trust.json"), help="file of the numbers")
    parser.add_argument("--page", type=Path, help="page whose table is written anew")
    parser.add_argument("--data-dir", help="folder with MNIST; without it, digits alone")
    parser.add_argument("--alpha", type=float, action="append", help=f"of the split; {ALPHAS} unless given")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start nothing after so many seconds")
    parser.add_argument("--report", action="store_true", help="run nothing, only write the page")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, and write it down."""
    asked = arguments().parse_args(words)
    known = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    if not asked.report:
        datasets = list(DATASETS) if asked.data_dir else ["digits"]
        missing = [cell for cell in cells(datasets, asked.alpha or ALPHAS) if cell.key not in known]
        end = time.monotonic() + asked.budget
        with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
            waiting = {pool.submit(play, cell, asked.data_dir): cell for cell in missing}
            for number, future in enumerate(as_completed(waiting), 1):
                if future.cancelled():
                    continue
                known[waiting[future].key] = future.result()
                write_text(asked.out, json.dumps(known, indent=1, sort_keys=True) + "\n")
                print(f"{number}/{len(missing)} {waiting[future].key} {known[waiting[future].key]}", flush=True)
                if time.monotonic() > end:
                    pool.shutdown(wait=True, cancel_futures=True)
    if asked.page:
        before, _, rest = asked.page.read_text("utf-8").partition(BEGIN)
        write_text(asked.page, f"{before}{BEGIN}\n\n{page(known)}\n\n{END}{rest.partition(END)[2]}")
    return 0


def page(known: Mapping[str, Mapping[str, Any]]) -> str:
    """A table for each dataset and split."""
    parts = []
    for alpha in ALPHAS:
        for dataset in DATASETS:
            lines = list(_rows(known, dataset, alpha))
            if lines:
                head = ["| attack | " + " | ".join(METHODS) + " |", "|---" + "|---:" * len(METHODS) + "|"]
                parts.append(
                    "\n".join([f"**{dataset}, Dir({alpha:g})**", "", *head, *lines, "", _worst(known, dataset, alpha)])
                )
    return "\n\n".join(parts)


def lost(known: Mapping[str, Mapping[str, Any]], dataset: str, alpha: float, method: str, attack: str) -> float | None:
    """Points that the defended runs are below those without attack and defence; None if a run is missing or failed."""
    defended, clean = (
        _mean([known.get(Cell(dataset, alpha, method, what, how, seed).key) for seed in range(SEEDS)])
        for what, how in ((attack, DEFENCE), ("none", "none"))
    )
    return None if defended is None or clean is None else clean - defended


def _worst(known: Mapping[str, Mapping[str, Any]], dataset: str, alpha: float) -> str:
    """What the defence costs at most, without attack and under those that it is to stop."""
    texts = []
    for name, attacks in (("without attack", ("none",)), ("under the attacks that it is to stop", PROMISED)):
        found = [
            (points, method, attack)
            for attack in attacks
            for method in METHODS
            if (points := lost(known, dataset, alpha, method, attack)) is not None
        ]
        if found:
            points, method, attack = max(found)
            texts.append(f"{name} {max(points, 0):.1f} points ({method}{f', {attack}' if attack != 'none' else ''})")
    return f"Lost at most, defended, against the run without attack: {'; '.join(texts)}."


def _rows(known: Mapping[str, Mapping[str, Any]], dataset: str, alpha: float) -> Iterator[str]:
    for attack in ("none", *PLAIN):
        texts = [_text(known, dataset, alpha, method, attack) for method in METHODS]
        if any(texts):
            yield f"| {attack} | " + " | ".join(text or "–" for text in texts) + " |"


def _text(known: Mapping[str, Mapping[str, Any]], dataset: str, alpha: float, method: str, attack: str) -> str:
    """Attacked → defended; ✗ where a promise is not kept."""
    plain, defended = (
        [known.get(Cell(dataset, alpha, method, attack, how, seed).key) for seed in range(SEEDS)]
        for how in ("none", DEFENCE)
    )
    if None in plain or None in defended:
        return ""
    text = f"{_spread(plain)} → {_spread(defended)}"
    if attack == "backdoor":
        obeyed = [statistics.fmean(one.get("backdoor", 0.0) for one in some if one) for some in (plain, defended)]
        text += f" (obeyed {obeyed[0]:.0f} → {obeyed[1]:.0f} %)"
    if alpha != ALPHAS[0] or attack not in ("none", *PROMISED):
        return text
    points = lost(known, dataset, alpha, method, attack)
    return text + ("" if points is not None and points <= (COST if attack == "none" else LOST) else " ✗")


def _values(some: Sequence[Mapping[str, Any] | None]) -> list[float]:
    return [one["value"] for one in some if one and one["value"] is not None]


def _mean(some: Sequence[Mapping[str, Any] | None]) -> float | None:
    values = _values(some)
    return statistics.fmean(values) if len(values) == len(some) else None


def _spread(some: Sequence[Mapping[str, Any] | None]) -> str:
    values = _values(some)
    if len(values) < len(some):
        return f"{len(some) - len(values)} of {len(some)} failed"
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


if __name__ == "__main__":
    sys.exit(main())
