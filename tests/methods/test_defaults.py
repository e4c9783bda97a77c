"""Every method gets through training with its defaults, at the highest of the usual learning rates."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from protofed.data.build import federation_of
from protofed.data.federation import Federation
from protofed.errors import DivergedError
from protofed.experiment import Experiment
from protofed.methods import METHODS
from protofed.runs.run import new_run

HARD: dict[str, Any] = {"dataset": "digit-domains", "train_size": 400, "batch_size": 8, "lr": 0.05, "rounds": 2}
"""Many large steps on few images."""


@pytest.fixture(scope="module")
def data() -> Federation:
    """Dealt out as by default; its test images, which are not asked for, are few."""
    made = federation_of(Experiment(**HARD))
    pool = made.clients[0].pool.take(torch.arange(20))
    return replace(made, clients=tuple(replace(one, pool=pool, own=torch.arange(20)) for one in made.clients))


def losses(method: str, params: dict[str, float], model: str, data: Federation) -> list[float]:
    """Of each client in each round."""
    few = {"public_images": 64, "public_batch": 32} if method == "fccl-plus" else {}
    given: dict[str, Any] = {"method": method, "params": {**few, **params}, "model": model, "public": "digits"}
    run = new_run(Experiment(**HARD, **given, engine="stacked", device="cpu", eval_every=2), federation=data)
    return [loss for _ in range(2) for loss in run.play_round().losses or []]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_losses_stay_finite(method: str, model: str, data: Federation) -> None:
    found = losses(method, {}, model, data)
    assert found
    assert all(map(math.isfinite, found))


@pytest.mark.parametrize(
    ("method", "params"),
    [("fedplvm", {"lam": 100.0}), ("fedplcc", {"lambda1": 100.0})],
)
def test_with_the_papers_values_they_do_not_which_is_why_these_are_no_defaults(
    method: str, params: dict[str, float], data: Federation
) -> None:
    with pytest.raises(DivergedError):
        losses(method, params, "cnn", data)
