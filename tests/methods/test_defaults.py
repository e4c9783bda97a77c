"""Every method gets through training with its defaults, at the highest and the lowest of the usual learning rates."""

from __future__ import annotations

import functools
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
from protofed.runs.run import Run, new_run

HARD: dict[str, Any] = {"dataset": "digit-domains", "train_size": 240, "batch_size": 8, "lr": 0.05, "rounds": 2}
"""Many large steps on few images."""
SMALL = {"mlp": {"image_size": 14}, "cnn": {}}
"""For an MLP the images are smaller, with a quarter of the weights."""
FEW = {"fccl-plus": {"public_images": 64, "public_batch": 32}}
"""Parameters that make a method fast."""
DATA: dict[str, dict[str, Any]] = {
    "digits": {"dataset": "digits"},
    "digit-domains": {"dataset": "digit-domains"},
    "by domains": {"dataset": "digit-domains", "split": "domains", "clients": 4},
}
RATES = {0.01: (0,), 0.05: (0, 1)}
"""Seeds of each: what diverges does so at the higher one."""


@functools.cache
def data(**options: Any) -> Federation:
    """Dealt out as experiments say; its test images, which are not asked for, are few."""
    made = federation_of(Experiment(**options))
    clients = []
    for one in made.clients:
        few = torch.arange(0, len(one.pool), max(1, len(one.pool) // 20))[:20]
        clients.append(replace(one, pool=one.pool.take(few), own=torch.arange(20)))
    return replace(made, clients=tuple(clients))


def begun(method: str, params: dict[str, float], federation: Federation, **options: Any) -> Run:
    """A run of a method on the CPU."""
    given: dict[str, Any] = {"method": method, "params": {**FEW.get(method, {}), **params}, "device": "cpu"}
    public = "digit-domains" if options["dataset"] == "digits" else "digits"
    return new_run(Experiment(**options, **given, public=public, threads=1), federation=federation)


def losses(method: str, params: dict[str, float], model: str) -> list[float]:
    """Of each client in each round of a hard start."""
    few = {name: HARD[name] for name in ("dataset", "train_size")} | SMALL[model]
    options = {**HARD, **SMALL[model], "model": model, "engine": "stacked", "eval_every": 2}
    run = begun(method, params, data(**few), **options)
    return [loss for _ in range(2) for loss in run.play_round().losses or []]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("model", [pytest.param("mlp", marks=pytest.mark.slow), "cnn"])
def test_losses_stay_finite(method: str, model: str) -> None:
    found = losses(method, {}, model)
    assert found
    assert all(map(math.isfinite, found))


@pytest.mark.slow  # 720 runs of seconds
@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("what", DATA)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_comes_to_its_end_with_its_defaults(method: str, what: str, model: str, rate: float) -> None:
    for seed in RATES[rate]:
        of = {**DATA[what], "train_size": 600, "seed": seed}
        run = begun(method, {}, data(**of), **of, model=model, lr=rate, engine="sequential", rounds=20, eval_every=20)
        while not run.over():
            run.play_round()
        assert all(0 <= value <= 100 for value in run.history[-1].accuracy.values())
        for values in run.broadcast.prototypes.values():
            assert bool(values.vectors.isfinite().all())


@pytest.mark.parametrize(
    ("method", "params"),
    [("fedplvm", {"lam": 100.0}), ("fedplcc", {"lambda1": 100.0})],
)
def test_with_the_papers_values_they_do_not_which_is_why_these_are_no_defaults(
    method: str, params: dict[str, float]
) -> None:
    with pytest.raises(DivergedError):
        losses(method, params, "cnn")
