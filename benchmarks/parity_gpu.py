"""The fast path on a GPU against the sequential engine, in float64: every method, weights and accuracies.

    python -m benchmarks.parity_gpu [--out docs/results/parity_gpu.json]
    python -m benchmarks.parity_gpu --width 1 --models resnet10 --methods fedavg    # several at a time: under load

Each method plays some rounds of the digits with partial participation, clients of unequal size, two local epochs and
two models: one with BatchNorm, one with dropout. Differences are the largest between any two numbers of the runs'
states: clients' models, what the server sends, and what it keeps.
"""

from __future__ import annotations

import argparse
import json
import warnings
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from protofed.experiment import Experiment
from protofed.methods import METHODS
from protofed.models.layers import BatchNorm, Dropout
from protofed.models.output import Output
from protofed.runs.run import Run, new_run

ROUNDS = 3
NEEDS: dict[str, dict[str, Any]] = {
    "fccl-plus": {"public": "digit-domains", "params": {"public_images": 64, "public_batch": 32}, "lr": 1e-4}
}
"""FCCL+ wants public images; Adam takes steps of rounding where a gradient is 0, so its rate is small."""


class Norm(nn.Module):
    """Convolution, BatchNorm, pooling: as small as that goes."""

    feature_size = 16

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        channels, height, width = shape
        self.conv, self.norm = nn.Conv2d(channels, 8, 3, padding=1, bias=False), BatchNorm(8)
        self.hidden, self.head = nn.Linear(8 * (height // 2) * (width // 2), 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Output:
        block = self.norm(self.conv(x))
        features = self.hidden(nn.functional.max_pool2d(block.relu(), 2).flatten(1)).relu()
        return Output(features, self.head(features), (block,))


class Drop(nn.Module):
    """Two hidden layers with dropout after each."""

    feature_size = 16

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.body, self.dropout = nn.Linear(torch.Size(shape).numel(), 24), Dropout(0.3)
        self.hidden, self.head = nn.Linear(24, 16), nn.Linear(16, classes)

    def forward(self, x: Tensor) -> Output:
        block = self.body(x.flatten(1))
        features = self.hidden(self.dropout(block.relu())).relu()
        return Output(features, self.head(self.dropout(features)), (block,))


SMALL: dict[str, type[nn.Module]] = {"Norm": Norm, "Drop": Drop}


def play(engine: Literal["sequential", "stacked"], method: str, model: str, width: int | None, device: str) -> Run:
    """Some rounds of one engine."""
    given: dict[str, Any] = {"lr": 0.05, "params": {}, **NEEDS.get(method, {})}
    experiment = Experiment(
        method=method,
        engine=engine,
        model="mlp" if model in SMALL else model,
        width=width,
        device=device,
        precision="float64",
        clients=6,
        participation=0.7,
        train_size=400,
        alpha=0.3,
        batch_size=16,
        epochs=2,
        rounds=ROUNDS,
        seed=1,
        **given,
    )
    run = new_run(experiment, models=[SMALL[model]] if model in SMALL else None)
    for _ in range(ROUNDS):
        run.play_round()
    return run


def compare(method: str, model: str, width: int | None, device: str) -> dict[str, object]:
    """The largest difference between two engines' states, and whether every client's accuracies are the same."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        slow, fast = play("sequential", method, model, None, device), play("stacked", method, model, width, device)
    states = slow.state(), fast.state()
    assert states[0].keys() == states[1].keys()
    errors = [float((states[0][name] - states[1][name]).abs().max()) for name in states[0] if states[0][name].numel()]
    same = all(one.per_client == other.per_client for one, other in zip(slow.history, fast.history, strict=True))
    captured = not any("captured" in str(warning.message) for warning in told)
    return {"method": method, "model": model, "difference": max(errors), "same": same, "captured": captured}


def main() -> None:
    """Print a line a method and model; save them if asked to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--models", default=",".join(SMALL), help="Norm, Drop, or any that `protofed models` lists")
    parser.add_argument("--width", type=int, default=None, help="clients in one step")
    given = parser.parse_args()
    rows = []
    for method in given.methods.split(","):
        for model in given.models.split(","):
            rows.append(compare(method, model, given.width, given.device))
            print(json.dumps(rows[-1]), flush=True)
    machine = torch.cuda.get_device_name() if given.device == "cuda" else "CPU"
    report = {"machine": machine, "torch": torch.__version__, "width": given.width, "rows": rows}
    if given.out is not None:
        given.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
