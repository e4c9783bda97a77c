"""How fast the engines are: medians of interleaved repeats in one run, as ratios, and peak memory.

    python -m benchmarks.engines

FedProto's CNN on random 28×28 images, batch 8, 50 steps a client: local training with the prototype loss, prototypes
and upload. The plain loop is what a careful user would write without ProtoFed.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, max_pool2d, mse_loss

from protofed.data import Client, Federation, Samples
from protofed.engines import ENGINES
from protofed.engines.base import Engine
from protofed.engines.group import group_clients
from protofed.experiment import Experiment
from protofed.methods import build_method
from protofed.methods.base import Clock

REPEATS, BATCH, STEPS, CLASSES = 7, 8, 50, 10


def federation(clients: int, steps: int = STEPS) -> Federation:
    """Clients with random images for so many batches."""
    draws = torch.Generator().manual_seed(0)

    def samples(number: int) -> Samples:
        images = torch.randint(0, 256, (number, 1, 28, 28), generator=draws, dtype=torch.uint8)
        return Samples.of(images, torch.randint(0, CLASSES, (number,), generator=draws))

    pool, rows = samples(10), torch.arange(10)
    members = [Client(samples(BATCH * steps), pool, rows, None, (0.5,), (0.25,)) for _ in range(clients)]
    return Federation(tuple(members), tuple(str(number) for number in range(CLASSES)))


def engine(name: str, clients: Federation) -> Callable[[], None]:
    """A round of an engine, after a first one so that there are prototypes to be pulled to."""
    experiment = Experiment(method="fedproto", model="cnn", clients=len(clients.clients), batch_size=BATCH, rounds=1000)
    device = torch.device("cpu")
    method = build_method("fedproto", {})
    made: Engine = ENGINES[name](
        experiment, method, clients, group_clients(experiment, method, clients, ["cnn"], device), device
    )
    everyone = range(len(clients.clients))
    uploads, _ = made.round(everyone, made.initial_broadcast(), Clock(0, 1000))
    broadcast = method.aggregate(uploads, made.initial_broadcast(), Clock(0, 1000))

    def play() -> None:
        uploads, _ = made.round(everyone, broadcast, Clock(1, 1000))
        method.aggregate(uploads, broadcast, Clock(1, 1000))

    return play


class PlainCnn(nn.Module):
    """FedProto's CNN, written with torch alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.dropout2d, self.dropout = nn.Dropout2d(0.5), nn.Dropout(0.5)
        self.hidden, self.head = nn.Linear(320, 50), nn.Linear(50, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = max_pool2d(self.conv1(x), 2).relu()
        x = max_pool2d(self.dropout2d(self.conv2(x)), 2).relu()
        features = self.hidden(x.flatten(1)).relu()
        return features, self.head(self.dropout(features))


def plain(clients: Federation) -> Callable[[], None]:
    """The same round as a hand-written loop over clients and batches."""
    models = [PlainCnn() for _ in clients.clients]
    targets = torch.randn(CLASSES, 50).relu()

    def play() -> None:
        means = []
        for model, client in zip(models, clients.clients, strict=True):
            images, labels = client.train.images, client.train.labels
            optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
            sums, counts = torch.zeros(CLASSES, 50), torch.zeros(CLASSES)
            for rows in torch.split(torch.randperm(len(labels)), BATCH):
                x, y = (images[rows].float() / 255 - 0.5) / 0.25, labels[rows]
                features, logits = model(x)
                loss = cross_entropy(logits, y) + mse_loss(features, targets[y])
                optimiser.zero_grad()
                torch.autograd.backward(loss)
                sums.index_add_(0, y, features.detach())
                counts += y.bincount(minlength=CLASSES)
                optimiser.step()
            means.append(sums / counts.clamp(min=1).unsqueeze(1))
        torch.stack(means).mean(0)

    return play


def seconds(play: Callable[[], None]) -> float:
    """One timed round."""
    began = time.perf_counter()
    play()
    return time.perf_counter() - began


def compare(clients: int) -> dict[str, float]:
    """Median seconds of each contender; repeats take turns so that a slow moment hits all of them."""
    data = federation(clients)
    contenders = {
        "plain loop": plain(data),
        "sequential": engine("sequential", data),
        "stacked": engine("stacked", data),
    }
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for play in contenders.values():
        play()
    for _ in range(REPEATS):
        for name, play in contenders.items():
            times[name].append(seconds(play))
    return {name: statistics.median(values) for name, values in times.items()}


def peak_memory(clients: int) -> float:
    """Peak megabytes that a process needs for a stacked round, over its peak for one client (Linux)."""
    code = (
        "from benchmarks.engines import engine, federation, high_water\n"
        "engine('stacked', federation(1, 2))()\nbefore = high_water()\n"
        f"engine('stacked', federation({clients}, 2))()\nprint(high_water() - before)"
    )
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def high_water() -> float:
    """The most memory this process has had, in megabytes."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return float(status.split("VmHWM:")[1].split()[0]) / 1000


def main() -> None:
    """Print everything as a table and as JSON."""
    report: dict[str, dict[str, float]] = {}
    for clients in (20, 100):
        found = compare(clients)
        report[f"{clients} clients"] = {
            **found,
            "stacked is faster than sequential by": found["sequential"] / found["stacked"],
            "sequential takes, of the plain loop's time": found["sequential"] / found["plain loop"],
        }
    report["peak MB of a stacked round"] = {
        f"{clients} clients": peak_memory(clients) for clients in (50, 100, 200, 400)
    }
    for title, values in report.items():
        print(title)
        for name, value in values.items():
            print(f"  {name:45} {value:8.3f}")
    print(json.dumps(report))


if __name__ == "__main__":
    main()
