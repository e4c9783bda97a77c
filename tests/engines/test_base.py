"""What all engines share: a loss that is no longer finite ends a run, and says whose it was."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import Tensor

import protofed
from protofed.errors import DivergedError
from protofed.methods import METHODS, method_class, parameters
from protofed.methods.base import Batch, Turn
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net


@dataclass(frozen=True)
class Bursting(FedAvg):
    """The loss is no number from the second round on."""

    name: ClassVar[str] = "bursting"
    advice: ClassVar[str] = "leave it"

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """FedAvg's, times what is no number."""
        late = torch.as_tensor(turn.clock.round) >= 1
        return super().loss(model, batch, turn) * torch.where(late, torch.nan, 1.0)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_run_that_diverges_says_where_and_what_to_do(engine: str) -> None:
    tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 3, "device": "cpu", "seed": 4}
    with pytest.raises(DivergedError) as caught:
        protofed.run(Bursting(), engine=engine, **tiny)  # type: ignore[arg-type]
    assert str(caught.value) == "bursting with seed 4 diverged: the loss of client 0 became nan in round 2, step 1"
    assert caught.value.hint == "leave it"


@pytest.mark.parametrize("name", METHODS)
def test_what_a_method_advises_can_be_set(name: str) -> None:
    cls = method_class(name)
    assert "--lr" in cls.advice
    assert set(re.findall(r"--set (\w+)", cls.advice)) <= parameters(cls).keys()
    assert "--set" in cls.advice or name not in ("fedplvm", "fedplcc")


@dataclass(frozen=True)
class Heavier(FedAvg):
    """The loss grows with the momentum."""

    name: ClassVar[str] = "heavier"

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """FedAvg's, times 1 + ρ."""
        return super().loss(model, batch, turn) * (1 + turn.momentum)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("given", "rho"), [({"momentum": 0.25}, 0.25), ({"optimiser": "adam"}, 0.0)])
def test_a_turn_knows_the_momentum_of_its_sgd(engine: str, given: dict[str, object], rho: float) -> None:
    tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 1, "device": "cpu", "steps": 1, **given}
    heavier, plain = (protofed.run(method, engine=engine, **tiny) for method in (Heavier(), FedAvg()))  # type: ignore[arg-type]
    assert heavier.history[0].loss == pytest.approx((1 + rho) * plain.history[0].loss)
