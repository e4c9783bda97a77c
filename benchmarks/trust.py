"""python -m benchmarks.trust: what attackers who may know the defence cost with `--defence default` (docs/trust.md).

One process a core; a cell that the JSON file has is not played again, so it can be stopped and continued. The settings
of training were fixed before the first defended run; constants of the defence were chosen on other seeds.
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

METHODS = ("fedavg", "fedproto", "mp-fedcl", "fedplcc", "fedsc", "fednh")
PARAMS = {
    "fedplcc": {"lambda1": 1.0},  # its value on DomainNet: with 100 an MLP's loss does not stay finite
    "fedsc": {"rpcl_weight": 1.0, "cpdr_weight": 1.0},
}
COMMON: dict[str, Any] = {
    **{"clients": 20, "attackers": 0.2, "rounds": 20, "eval_every": 20, "min_size": 5},
    **{"alpha": 0.5, "batch_size": 16, "epochs": 5, "engine": "stacked"},
}
ONCE: dict[str, Any] = {"epochs": 1, "lr": 0.05}
"""A fifth of the steps at five times the rate: a round moves a model as far."""
MNIST: dict[str, Any] = {"dataset": "mnist", "train_size": 4000}


class Setting(NamedTuple):
    """Data, model and training."""

    about: str
    options: Mapping[str, Any]
    promised: bool = True  # whether what is lost is bounded, or reported as it is


SETTINGS: dict[str, Setting] = {
    "digits-mlp": Setting("digits, `mlp`, 5 epochs", {"dataset": "digits"}),
    "digits-mlp-1": Setting("digits, `mlp`, 1 epoch", {"dataset": "digits", **ONCE}),
    "mnist-mlp": Setting("MNIST, `mlp`, 5 epochs", MNIST),
    "mnist-mlp-1": Setting("MNIST, `mlp`, 1 epoch", {**MNIST, **ONCE}),
    "digits-cnn": Setting("digits, `cnn`, 5 epochs", {"dataset": "digits", "model": "cnn", "lr": 0.03}),
    "digits-cnn-1": Setting("digits, `cnn`, 1 epoch", {"dataset": "digits", "model": "cnn", **ONCE, "lr": 0.1}),
    "mnist-cnn": Setting("MNIST, `cnn`, 5 epochs", {**MNIST, "model": "cnn"}),
    "mnist-cnn-1": Setting("MNIST, `cnn`, 1 epoch", {**MNIST, "model": "cnn", **ONCE}),
    "default": Setting(
        "digits, `mlp`, the library's default options, far from trained",
        {"epochs": 1, "batch_size": 32},
        promised=False,
    ),
    "digits-mlp-0.1": Setting("digits, `mlp`, 5 epochs, Dir(0.1)", {"dataset": "digits", "alpha": 0.1}, promised=False),
    "domains": Setting(
        "digit-domains, `mlp`, 5 epochs, a domain a client",
        {"dataset": "digit-domains", "split": "domains", "train_size": 4000},
        promised=False,
    ),
}
SEEDS = {"default": (0, 1, 31)}
USUAL = (0, 1, 2)
ABSENT = "absent"
"""Of attackers that add nothing, which needs no defence: nothing can leave more."""
ORDER = (
    *("none", ABSENT, "adaptive", "sign-flip", "loss-gradient", "declared", "cones", "sybils", "label-flip"),
    *("quiet-backdoor", "slow-drift"),
    *("inside", "split", "impossible-state", "alie", "min-max", "min-sum", "ipm", "scaled-prototypes"),
    *("random-prototypes", "stale-replay", "free-rider", "collusion", "backdoor"),
)
"""Attacks, those first of which most is expected: a table that was stopped has these."""
DEFENCE = "default"
LOST = 5.0
"""Points that any attack may cost under the defence, where something is promised."""
COST = 2.0
"""Points that the defence may lose without attack."""
BEGIN, END = "<!-- begin: written by python -m benchmarks.trust -->", "<!-- end: trust -->"

Known = Mapping[str, Mapping[str, Any]]


class Cell(NamedTuple):
    """One run."""

    setting: str
    method: str
    attack: str
    defence: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the file."""
        return "|".join(map(str, self))

    def experiment(self, data_dir: str | None, device: str = "auto") -> Experiment:
        """What is run."""
        own = {"method": self.method, "params": PARAMS.get(self.method, {}), "seed": self.seed}
        trust = {"attack": self.attack, "defence": self.defence}
        options = dict(SETTINGS[self.setting].options)
        machine = {"data_dir": data_dir if options.get("dataset") == "mnist" else None, "threads": 1, "device": device}
        return Experiment.from_mapping({**COMMON, **options, **own, **trust, **machine})


def cells(settings: Sequence[str], attacks: Sequence[str] = ORDER) -> Iterator[Cell]:
    """Everything there is to run; what sends no prototypes cannot be attacked through them."""
    for attack in attacks:
        for setting in settings:
            for method in METHODS:
                if method == "fedavg" and attack in (
                    "inside",
                    "split",
                    "scaled-prototypes",
                    "random-prototypes",
                    "collusion",
                ):
                    continue
                for seed in seeds(setting):
                    if attack in ("none", ABSENT):
                        yield Cell(setting, method, attack, "none", seed)
                    if attack != ABSENT:
                        yield Cell(setting, method, attack, DEFENCE, seed)


def seeds(setting: str) -> Sequence[int]:
    """Of which a setting's numbers are the mean."""
    return SEEDS.get(setting, USUAL)


def play(cell: Cell, data_dir: str | None, device: str) -> dict[str, Any]:
    """The accuracy that the method's paper reports, of the honest clients, and who was found out."""
    from protofed.runs.run import new_run  # here, because a new process reads this file first

    began = time.perf_counter()
    run = new_run(cell.experiment(data_dir, device))
    try:
        result = run.play(None, Progress())
    except (DivergedError, LostError) as error:
        return {"value": None, "why": str(error)}
    found: dict[str, Any] = {"score": result.score, "value": result.accuracy[result.score].last}
    attackers = set(run.attack.who) if run.attack else set()
    if cell.defence != "none":
        honest = set(range(result.clients)) - attackers
        lines = [{*(played.suspected or ()), *played.left_out} for played in run.history]
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
    parser.add_argument("--data-dir", help="folder with MNIST; without it, settings that need none")
    parser.add_argument("--setting", action="append", choices=list(SETTINGS), help="those named alone")
    parser.add_argument("--attack", action="append", choices=["none", *ATTACKS], help="those named alone")
    parser.add_argument("--device", default="auto", help="of every run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--budget", type=float, default=float("inf"), help="start nothing after so many seconds")
    parser.add_argument("--report", action="store_true", help="run nothing, only write the page")
    return parser


def main(words: Sequence[str] | None = None) -> int:
    """Run what is missing, and write it down."""
    asked = arguments().parse_args(words)
    known = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    if not asked.report:
        _play_missing(asked, known)
    if asked.page:
        before, _, rest = asked.page.read_text("utf-8").partition(BEGIN)
        write_text(asked.page, f"{before}{BEGIN}\n\n{page(known)}\n\n{END}{rest.partition(END)[2]}")
    return 0


def _play_missing(asked: argparse.Namespace, known: dict[str, Any]) -> None:
    """Cells go to processes one by one, so that one that is stopped leaves whole attacks, not parts of all."""
    possible = [name for name in SETTINGS if asked.data_dir or SETTINGS[name].options.get("dataset") != "mnist"]
    wanted = cells(asked.setting or possible, [name for name in ORDER if name in (asked.attack or ORDER)])
    missing = [cell for cell in wanted if cell.key not in known]
    end = time.monotonic() + asked.budget
    with ProcessPoolExecutor(asked.jobs, get_context("spawn")) as pool:
        waiting = {pool.submit(play, cell, asked.data_dir, asked.device): cell for cell in missing}
        for number, future in enumerate(as_completed(waiting), 1):
            if future.cancelled():
                continue
            known[waiting[future].key] = future.result()
            write_text(asked.out, json.dumps(known, indent=1, sort_keys=True) + "\n")
            print(f"{number}/{len(missing)} {waiting[future].key} {known[waiting[future].key]}", flush=True)
            if time.monotonic() > end:
                pool.shutdown(wait=True, cancel_futures=True)


def page(known: Known) -> str:
    """A table for each setting that something is known of."""
    parts = []
    for name, setting in SETTINGS.items():
        lines = list(_rows(known, name))
        if lines:
            head = ["| attack | " + " | ".join(METHODS) + " | caught | blamed |"]
            head.append("|---" + "|---:" * (len(METHODS) + 2) + "|")
            note = "" if setting.promised else " (nothing is promised)"
            parts.append("\n".join([f"**{setting.about}**{note}", "", *head, *lines, "", _worst(known, name)]))
    return "\n\n".join(parts)


def _rows(known: Known, setting: str) -> Iterator[str]:
    for name, attack in (("nobody defends or attacks", "none"), ("attackers left out from the start", ABSENT)):
        undefended = [_undefended(known, setting, method, attack) for method in METHODS]
        if any(value is not None for value in undefended):
            texts = ["–" if value is None else f"{value:.1f}" for value in undefended]
            yield f"| {name} | {' | '.join(texts)} | – | – |"
    for attack in ORDER:
        found = [_found(known, setting, method, attack) for method in METHODS]
        if any(found):
            texts = [_text(known, setting, method, attack) for method in METHODS]
            played = [one for some in found for one in some]
            rates = [_rate(played, name) for name in ("attackers_blamed", "honest_blamed")]
            yield f"| {attack} | {' | '.join(texts)} | {' | '.join(rates)} |"


def _found(known: Known, setting: str, method: str, attack: str, defence: str = DEFENCE) -> list[Mapping[str, Any]]:
    """The runs of all seeds; none if one is missing."""
    some = [known.get(Cell(setting, method, attack, defence, seed).key) for seed in seeds(setting)]
    return [one for one in some if one is not None] if None not in some else []


def _undefended(known: Known, setting: str, method: str, attack: str) -> float | None:
    values = [one["value"] for one in _found(known, setting, method, attack, "none")]
    return statistics.fmean(values) if values and None not in values else None


def lost(known: Known, setting: str, method: str, attack: str) -> float | None:
    """Points that the defended runs are below those without attack and defence; None if a run is missing or failed."""
    clean = _undefended(known, setting, method, "none")
    values = [one["value"] for one in _found(known, setting, method, attack)]
    return None if clean is None or not values or None in values else clean - statistics.fmean(values)


def _text(known: Known, setting: str, method: str, attack: str) -> str:
    """The mean under the defence; ✗ where a promise is not kept."""
    some = _found(known, setting, method, attack)
    if not some:
        return "–"
    values = [one["value"] for one in some if one["value"] is not None]
    text = f"{statistics.fmean(values):.1f}" if len(values) == len(some) else f"{len(some) - len(values)} failed"
    if ATTACKS[attack].backdoor if attack in ATTACKS else False:
        text += f" ({statistics.fmean(one.get('backdoor', 0.0) for one in some):.0f} % obey)"
    if not SETTINGS[setting].promised:
        return text
    points = lost(known, setting, method, attack)
    return text + ("" if points is not None and points <= (COST if attack == "none" else LOST) else " ✗")


def _rate(played: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [one[name] for one in played if name in one]
    return f"{100 * statistics.fmean(values):.0f} %" if values else "–"


def _worst(known: Known, setting: str) -> str:
    """What the defence costs at most, without attack and with."""
    texts = []
    for name, attacks in (("without attack", ["none"]), ("attacked", [one for one in ORDER if one != "none"])):
        found = [
            (points, method, attack)
            for attack in attacks
            for method in METHODS
            if (points := lost(known, setting, method, attack)) is not None
        ]
        if found:
            points, method, attack = max(found)
            texts.append(f"{name} {max(points, 0):.1f} points ({method}{f', {attack}' if attack != 'none' else ''})")
    return f"Lost at most: {'; '.join(texts)}."


if __name__ == "__main__":
    sys.exit(main())
