"""What cannot be batched over clients is trained one after the other by `auto`, and refused by `stacked`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Method, Trained, Turn, cross_entropy
from protofed.methods.fedavg import FedAvg
from protofed.models import ModelSpec
from protofed.models.net import Net
from protofed.prototypes import Prototypes, class_means
from protofed.runs.run import Run, new_run
from tests.support.nets import Norm, Plain, Shape, assert_same_run, federation, gap, own, play


class Rows(nn.Module):
    """A recurrent network over the rows of an image."""

    def __init__(self, shape: Shape, classes: int, kind: type[nn.Module] = nn.LSTM) -> None:
        super().__init__()
        self.rows = kind(shape[2], 6, batch_first=True)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.rows(x.flatten(1, 2))[0][:, -1]
        return features, self.head(features)


class Asks(nn.Module):
    """Looks at the value of a tensor, which vmap does not allow."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(torch.Size(shape).numel(), 6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.hidden(x.flatten(1))
        if float(features.detach().sum()) == 123.456:
            features = features + 1
        return features, self.head(features)


class AsksInTests(Asks):
    """The same, but only when it is tested."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if not self.training:
            return super().forward(x)
        features = self.hidden(x.flatten(1))
        return features, self.head(features)


class Attends(nn.Module):
    """Attention over the rows of an image, which can be batched."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(shape[2], 2, batch_first=True)
        self.head = nn.Linear(shape[2], classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        rows = x.flatten(1, 2)
        features = self.attention(rows, rows, rows, need_weights=False)[0].mean(1)
        return features, self.head(features)


MODELS: dict[str, tuple[ModelSpec, str]] = {
    "LSTM": (Rows, r"nn\.LSTM cannot be batched over clients$"),
    "GRU": (partial(Rows, kind=nn.GRU), r"nn\.GRU cannot be batched over clients$"),
    "RNN": (partial(Rows, kind=nn.RNN), r"nn\.RNN cannot be batched over clients$"),
    "asks": (Asks, r"Asks cannot be batched over clients \(RuntimeError: .+\)$"),
    "asks in tests": (AsksInTests, r"AsksInTests cannot be batched over clients \(RuntimeError: .+\)$"),
}
every_model = pytest.mark.parametrize("name", MODELS)


@dataclass(frozen=True)
class AsksLater(FedAvg):
    """Asks for the value of a tensor as soon as there are prototypes: in the second round."""

    name: ClassVar[str] = "asks-later"
    collect = "eval-pass"

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        out = model(batch.x)
        if "means" in turn.received.prototypes and bool(out.features.sum() > 1e9):
            return cross_entropy(out.logits, batch.y) * 2
        return cross_entropy(out.logits, batch.y)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        return {"means": class_means(trained.features, trained.labels, trained.classes)}

    def aggregate(self, uploads, server) -> Broadcast:  # type: ignore[no-untyped-def]
        means = uploads.prototypes["means"]
        return Broadcast(super().aggregate(uploads, server).weights, {"means": means.take(0)})


@dataclass(frozen=True)
class Prepared(FedAvg):
    """Needs in every step what it has made of the data before."""

    name: ClassVar[str] = "prepared"
    prepares: ClassVar[bool] = True

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> Mapping[str, Tensor]:  # noqa: ARG002
        return {"size": features.abs().mean((1, 2))}

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        return super().loss(model, batch, turn) * turn.prepared["size"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every engine is measured anew."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def begin(method: Method, engine: Any, model: ModelSpec = Plain) -> Run:
    """A run of a method of one's own, at its beginning."""
    experiment = Experiment(engine=engine, precision="float64", device="cpu", batch_size=8, rounds=3)
    return new_run(experiment, method, federation(), [model])


@every_model
def test_auto_trains_it_one_client_after_the_other_and_says_why(name: str) -> None:
    model, why = MODELS[name]
    run, plain = play("fedavg", engine="auto", model=model), play("fedavg", engine="sequential", model=model)
    assert run.engine.name == "sequential"
    assert re.match(why, run.setup.engine_reason)
    assert run.setup.engine_reason in run.standing().engine
    assert "\n" not in run.standing().engine
    assert_same_run(run, plain, 1e-15)
    assert gap(own(run), own(play("fedavg", model=model, rounds=0))) > 1e-3


@every_model
def test_stacked_refuses_it_before_training(name: str) -> None:
    model, why = MODELS[name]
    with pytest.raises(UserError, match=rf"--engine.*{why[:-1]}") as error:
        play("fedavg", engine="stacked", model=model, rounds=0)
    assert "\n" not in str(error.value)
    assert error.value.hint == "--engine sequential trains it"


@pytest.mark.parametrize("name", ["LSTM", "asks"])
def test_lanes_of_one_client_need_no_batching(name: str) -> None:
    model, _ = MODELS[name]
    runs = [play("fedavg", engine=engine, width=width, model=model) for engine, width in (("stacked", 1), ("auto", 1))]
    assert [run.engine.name for run in runs] == ["stacked", "stacked"]
    assert_same_run(runs[0], play("fedavg", engine="sequential", model=model))


def test_every_architecture_is_tried() -> None:
    """The larger group can be batched, the smaller one cannot."""
    data, experiment = federation(), Experiment(method="fedproto", engine="auto", device="cpu", batch_size=8)
    assert new_run(experiment, federation=data, models=[Plain, Plain, Rows]).engine.name == "sequential"


@pytest.mark.parametrize("model", [Norm, Attends])
def test_what_can_be_batched_is_measured(model: ModelSpec) -> None:
    run = play("fedavg", engine="auto", model=model, rounds=0)
    assert run.setup.engine_reason.startswith("measured")
    one, other = (play("fedavg", engine=engine, model=model) for engine in ("sequential", "stacked"))
    assert_same_run(one, other)


def test_a_loss_that_cannot_be_batched_is_found_though_it_fails_in_the_second_round_only() -> None:
    run = begin(AsksLater(), "auto")
    assert run.setup.engine_reason.startswith("asks-later cannot be batched over clients (RuntimeError:")
    for _ in range(3):
        run.play_round()
    with pytest.raises(UserError, match="asks-later cannot be batched"):
        begin(AsksLater(), "stacked")


@pytest.mark.parametrize("engine", ["auto", "sequential", "stacked"])
def test_a_trial_prepares_as_a_turn_does(engine: str) -> None:
    run = begin(Prepared(), engine)
    assert run.engine.trial(run.engine.groups[0], [0, 1], 1) > 0
    run.play_round()


def test_what_fails_in_either_engine_is_not_blamed_on_batches() -> None:
    for engine in ("auto", "sequential", "stacked"):
        with pytest.raises(UserError, match="compares block features"):
            play("fedrcl", engine=engine, model=Rows, rounds=1)


def test_a_rehearsal_leaves_nothing_behind() -> None:
    generator = torch.get_rng_state()
    runs = [play("mp-fedcl", engine=engine, rounds=0) for engine in ("sequential", "stacked")]
    assert torch.equal(torch.get_rng_state(), generator)
    assert_same_run(runs[0], runs[1], 1e-15)
