"""python -m benchmarks.question: does FedSC help, and if not, what of it hurts? docs/results/fedsc-question.json.

Short runs that change one thing at a time: how prototypes are taken, the client split, BatchNorm, the length, the scale
of the terms. On CIFAR-10 they are those of FedSC's reduced tables but for that one thing, so that FedAvg, FedSC and its
terms alone under NID1 stand there. A folder goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from benchmarks.tables import RESULTS
from protofed.models.layers import BatchNorm
from protofed.models.mlp import Mlp
from protofed.models.resnet import resnet10
from protofed.runs.folder import RunFolder
from protofed.runs.progress import progress
from protofed.runs.result import Result
from protofed.studies.papers import find_target
from protofed.studies.study import SEEDS
from protofed.studies.workers import Task, play_all

Method = tuple[str, Mapping[str, Any]]
"""A method's name, and what of its parameters differs from the table's."""

NAME = "fedsc-question"
SCORE = "global/all/head"
REFUSED = "rounds in which an upload was refused"
GROUPS = 32


def group_norm(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """ResNet-10 that knows no statistics of a batch."""
    return _without_batches(resnet10(shape, classes))


def batch_norm(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """MP-FedCL's MLP with BatchNorm after each hidden layer."""
    model = Mlp(shape, classes)
    for number, layer in enumerate(model.encoder):
        model.encoder[number] = _normed(layer)
    model.hidden = _normed(model.hidden)  # type: ignore[assignment]  # a layer and its norm in the place of the layer
    return model


def _normed(layer: nn.Module) -> nn.Sequential:
    assert isinstance(layer, nn.Linear)
    return nn.Sequential(layer, BatchNorm(layer.out_features))


def _without_batches(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if isinstance(child, BatchNorm):
            setattr(module, name, nn.GroupNorm(GROUPS, len(child.running_mean)))
        else:
            _without_batches(child)
    return module


FEDAVG: Method = ("fedavg", {})


def fedsc(**params: Any) -> Method:
    """FedSC with these parameters in place of the table's."""
    return "fedsc", params


TWO_WAYS = {"fedavg": FEDAVG, "last-epoch": fedsc()}
EVERY_WAY = {**TWO_WAYS, "eval-pass": fedsc(collect="eval-pass")}


@dataclass(frozen=True)
class Setup:
    """Some runs that have all but the method in common: what is changed for all of them, and each one's method."""

    changes: Mapping[str, Any]
    runs: Mapping[str, Method]


HERE = Path(__file__).relative_to(Path(__file__).parent.parent)
MNIST = {
    "dataset": "mnist",
    "train_size": 4000,
    "split": "dirichlet",
    "rounds": 40,
    "augment": "none",
    "precision": "float32",
}
SETUPS = {
    "resnet10, nid1": Setup(
        {},
        {
            "eval-pass": fedsc(collect="eval-pass"),
            "U=none": fedsc(U="none"),
            "both weights 0.1": fedsc(rpcl_weight=0.1, cpdr_weight=0.1),
            "temperature 0.5": fedsc(temperature=0.5),
        },
    ),
    "resnet10, dirichlet": Setup({"split": "dirichlet"}, EVERY_WAY),
    "resnet10 with GroupNorm, nid1": Setup({"model": f"{HERE}:group_norm"}, TWO_WAYS),
    "resnet10, nid1, 10 epochs": Setup({"epochs": 10}, EVERY_WAY),
    "MNIST, MLP": Setup({**MNIST, "model": "mlp"}, EVERY_WAY),
    "MNIST, MLP with BatchNorm": Setup({**MNIST, "model": f"{HERE}:batch_norm"}, EVERY_WAY),
    # With batches of 64 and seed 0 two clients end an epoch with two images, which BatchNorm makes 1 and -1 of.
    "MNIST, MLP with BatchNorm, batches of 60": Setup(
        {**MNIST, "model": f"{HERE}:batch_norm", "batch_size": 60}, EVERY_WAY
    ),
}


def tasks(setup: Setup, machine: Mapping[str, Any], folder: Path) -> dict[str, list[Task]]:
    """The runs by name, one a seed."""
    trials = {trial.name: trial for trial in find_target("fedsc/table1", "reduced").trials()}
    found = {}
    for name, (method, params) in setup.runs.items():
        base = trials[f"cifar10-nid1-a=0.2-{method}"].experiment(machine)
        experiment = replace(base, **setup.changes, params={**base.params, **params})
        found[name] = [
            Task(replace(experiment, seed=seed), folder / name / f"seed{seed}", name) for seed in range(SEEDS)
        ]
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Play what is asked for, and put it beside what is known."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.question", description=__doc__)
    parser.add_argument("--only", action="append", choices=SETUPS, help="a set-up; all unless given")
    parser.add_argument("--data-dir", type=Path, required=True, help="folder with the datasets")
    parser.add_argument("--out", type=Path, default=Path("runs") / NAME, help="folder of the runs; they are continued")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    asked = parser.parse_args(words)
    machine = {"data_dir": str(asked.data_dir.resolve()), "precision": "bf16", "eval_every": 15}
    names = asked.only or list(SETUPS)
    by_setup = {name: tasks(SETUPS[name], machine, asked.out / name) for name in names}
    every = [task for some in by_setup.values() for runs in some.values() for task in runs]
    results = iter(one for one in play_all(every, progress(True), asked.jobs) if isinstance(one, Result))
    file = RESULTS / f"{NAME}.json"
    known = json.loads(file.read_text("utf-8")) if file.exists() else {}
    for name, some in by_setup.items():
        found = {label: [next(results) for _ in runs] for label, runs in some.items()}
        known[name] = {label: [round(one.accuracy[SCORE].last, 2) for one in ones] for label, ones in found.items()}
        refused = {label: [_refusals(task) for task in runs] for label, runs in some.items()}
        known.setdefault(REFUSED, {})[name] = refused
    file.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")


def _refusals(task: Task) -> int:
    assert task.folder is not None  # each has one
    return sum(bool(played.left_out) for played in RunFolder(task.folder).played())


if __name__ == "__main__":
    main()
