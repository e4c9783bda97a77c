"""Models that clients send, and whole runs of FeSEM, FedNH and FedCDA, whose server does more than average."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from protofed.messages import Upload
from protofed.runs.run import Run
from tests.reference.methods import State
from tests.support.nets import Norm, assert_same_run, federation, gap, play


def models(clients: int, seed: int) -> State:
    """Models of some clients: parameters of several shapes and types, BatchNorm's statistics, an integer."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(clients, 3, 2, generator=rng, dtype=torch.float64),
        "b": torch.randn(clients, 4, generator=rng),
        "s": torch.randn(clients, generator=rng, dtype=torch.float64),
        "norm.running_mean": 100 * torch.randn(clients, 4, generator=rng, dtype=torch.float64),
        "norm.running_var": 100 * torch.rand(clients, 4, generator=rng, dtype=torch.float64),
        "batches": torch.randint(0, 99, (clients,), generator=rng),
    }


def rows(stacked: State) -> list[State]:
    return [{name: value[k] for name, value in stacked.items()} for k in range(len(stacked["w"]))]


def draw(rng: torch.Generator, clients: int, low: int = 1) -> list[int]:
    """Some clients, in client order."""
    number = int(torch.randint(low, clients + 1, (), generator=rng))
    return sorted(torch.randperm(clients, generator=rng)[:number].tolist())


def upload(stacked: State, samples: Sequence[int], **more: Tensor) -> Upload:
    return Upload(stacked, {}, {"samples": torch.tensor(samples), **more})


ROUNDS = {"fesem": 3, "fednh": 3, "fedcda": 4}


@cache
def played(method: str, engine: str, **params: Any) -> Run:
    """Some rounds of a method with what differs from its defaults."""
    return play(method, params, engine, rounds=ROUNDS[method])


def assert_engines_agree_to_rounding(method: str, params: Mapping[str, Any]) -> None:
    """In rounds of which some clients are absent."""
    one, other = played(method, "sequential", **params), played(method, "stacked", **params)
    assert {tuple(line.participants) for line in one.history} != {tuple(range(5))}
    assert_same_run(one, other)


def assert_runs_differ(method: str, params: Mapping[str, Any], others: Mapping[str, Any]) -> None:
    """In the weights that are sent."""
    run, other = played(method, "stacked", **params), played(method, "stacked", **others)
    assert gap(dict(run.broadcast.weights), dict(other.broadcast.weights)) > 1e-6


def assert_learns(method: str) -> None:
    """After 10 rounds on three clients that know all four classes."""
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = play(
        method, clients=clients, engine="stacked", rounds=10, participation=1.0, model=Norm, lr=0.1, eval_every=10
    )
    assert run.history[-1].accuracy[type(run.method).score] > 75
