"""Small networks, small federations and short runs for the tests of engines, methods and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.data import Client, Dataset, Federation, Samples
from protofed.data.preparation import Shape as SampleShape
from protofed.data.sources.digits import digits
from protofed.experiment import Experiment
from protofed.methods import METHODS, build_method
from protofed.models import ModelSpec, Output
from protofed.runs.run import Run, new_run

Shape = tuple[int, int, int]
Part = Mapping[int, int]  # class -> number of samples
Flat = dict[str, Tensor]

CLASSES = 6

KINDS = (
    "fedavg",
    "fedproto",
    "mp-fedcl",
    "fedplcc",
    "fedsc",
    "fedrep",
    "moon",
    "fednh",
    "scaffold",
    "ditto",
    "fed3r",
    "fedtgp",
)
"""One of each kind of step, of message, of memory and of server."""
one_of_each_kind = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in KINDS else [pytest.mark.slow]) for name in METHODS]
)
"""All methods; those like another are slow tests."""


def trains(method: str) -> bool:
    """Whether clients train; otherwise no optimiser and no step changes anything."""
    return bool(build_method(method, {}).phases(1))


# Class 5 is held by nobody. With batches of 8: 41 and 17 leave one sample over, 19 leaves three, 9 is one batch.
UNEQUAL: tuple[Part, ...] = ({0: 20, 1: 16, 2: 5}, {1: 9, 2: 8}, {0: 3, 3: 16}, {3: 12, 4: 12}, {0: 4, 4: 5})


# A few public images; a small step, because Adam makes steps of the rounding left in a gradient that is exactly 0.
PARAMS: dict[str, dict[str, Any]] = {"fccl-plus": {"public_images": 40, "public_batch": 16}}
SETTINGS: dict[str, dict[str, Any]] = {"fccl-plus": {"lr": 1e-4}}


class Norm(nn.Module):
    """Two convolutions with BatchNorm, 8 features; returns (features, logits).

    The convolutions have no bias: BatchNorm would cancel it, and Adam make steps of the rounding left in its gradient.
    """

    def __init__(self, shape: Shape, classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        inputs, height, width = shape
        self.body = nn.Sequential(
            nn.Conv2d(inputs, 4, 3, padding=1, bias=False),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout2d(dropout),
            nn.AvgPool2d(2),
            nn.Conv2d(4, 6, 3, padding=1, bias=False),
            nn.BatchNorm2d(6),
            nn.ReLU(),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(6 * (height // 4) * (width // 4), 8),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(8, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(self.dropout(features))


class Noisy(Norm):
    """The same with both kinds of dropout; the maps before ReLU are block features."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes, dropout=0.25)

    def forward(self, x: Tensor) -> Output:  # type: ignore[override]  # models may return either
        first = self.body[:2](x)
        second = self.body[2:7](first)
        features = self.body[7:](second)
        return Output(features, self.head(self.dropout(features)), (first, second))


class Plain(nn.Module):
    """One hidden layer of 6 features, neither BatchNorm nor dropout."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(torch.Size(shape).numel(), 6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Output:
        features = self.hidden(x.flatten(1))
        return Output(features, self.head(features), (features,))


SERIES, TEXT = SampleShape((4, 9), masked=True), SampleShape((9,), tokens=12)
SEQUENCES = {"cnn1d": SERIES, "gru": SERIES, "transformer": TEXT, "embedding-bag": TEXT}
"""The models that take no pictures, each with a small shape of what it takes."""


def taken_by(model: Any, picture: Shape) -> SampleShape:
    """The shape of a picture, or of what else a model takes."""
    return SEQUENCES.get(model) or SampleShape(picture) if isinstance(model, str) else SampleShape(picture)


@cache
def source() -> Dataset:
    """scikit-learn's digits, read once."""
    return digits()


def federation(parts: Sequence[Part] = UNEQUAL, test: int = 90, classes: int = CLASSES) -> Federation:
    """Clients with so many digits of each class; no two share one. The test pool holds all classes."""
    data = source()
    used = [0] * classes
    pool = data.test.take((data.test.labels < classes).nonzero().flatten()[:test])
    clients = []
    for part in parts:
        rows = []
        for label, number in part.items():
            found = (data.train.labels == label).nonzero().flatten()
            rows.append(found[used[label] : used[label] + number])
            used[label] += number
        own = torch.isin(pool.labels, torch.tensor(list(part))).nonzero().flatten()
        clients.append(Client(data.train.take(torch.cat(rows)), pool, own, None, data.preparation))
    return Federation(tuple(clients), tuple(str(c) for c in range(classes)))


def play(
    method: str = "fedavg",
    params: Mapping[str, Any] | None = None,
    engine: str = "sequential",
    rounds: int = 3,
    model: ModelSpec = Noisy,
    clients: Federation | None = None,
    **settings: Any,
) -> Run:
    """A run that has played its rounds, in float64 unless told otherwise."""
    given: dict[str, Any] = {
        "participation": 0.6,
        "epochs": 2,
        "batch_size": 8,
        "lr": 0.02,
        "lr_decay": 0.9,
        "weight_decay": 1e-3,
    }
    given |= {"precision": "float64", "device": "cpu", "public": "digits", "rounds": max(1, rounds)}
    given |= SETTINGS.get(method, {}) | settings
    given |= {"method": method, "params": params or PARAMS.get(method, {}), "engine": engine}
    run = new_run(Experiment(**given), federation=clients or federation(), models=[model])
    for _ in range(rounds):
        run.play_round()
    return run


def assert_same_run(a: Run, b: Run, tolerance: float = 1e-9, but: str = "nothing") -> None:
    """Weights, buffers, prototypes and losses agree, and every prediction counts the same; `but` some weights."""
    left, right = a.state(), b.state()
    assert left.keys() == right.keys()
    assert any(name.startswith("own/") for name in left)
    for name in (name for name in left if not name.endswith(but)):
        assert_close(left[name], right[name], atol=tolerance, rtol=0, msg=f"{name} differs between the engines")
    for one, other in zip(a.history, b.history, strict=True):
        assert abs(one.loss - other.loss) < tolerance
        for what in ("participants", "per_client", "per_domain", "bytes_up", "bytes_down"):
            assert getattr(one, what) == getattr(other, what), what


def gap(a: Flat, b: Flat) -> float:
    """The largest difference between two states; infinite if they do not hold the same tensors."""
    if a.keys() != b.keys() or any(a[name].shape != b[name].shape for name in a):
        return float("inf")
    return max(float((a[name] - b[name]).abs().max()) for name in a if a[name].numel())


def own(run: Run) -> Flat:
    """The clients' own models."""
    return {name: tensor for name, tensor in run.state().items() if name.startswith("own/")}


def images(number: int, shape: Shape, classes: int, seed: int, domain: int = 0) -> Samples:
    """Random pictures whose class shows in their brightness."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(number) % classes
    noise = torch.randint(0, 60, (number, *shape), generator=rng)
    return Samples.of((noise + labels.view(-1, 1, 1, 1) * 190 // classes).to(torch.uint8), labels, domain)
