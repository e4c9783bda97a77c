"""Methods in whole runs: which equal which, and the edges that every method must survive."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from protofed.engines.client_group import Personal, Turns
from protofed.methods import METHODS
from protofed.methods.base import Clock
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run
from tests.support.nets import UNEQUAL, Noisy, Norm, federation, gap, own, play

SEED = 4  # one with which three rounds of one client ask client 0 and two others


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fedprox", {"mu": 0}),
        ("mp-fedcl", {"contrast": "none"}),
        ("mp-fedcl", {"contrast_weight": 0}),
        ("sp-fedcl", {"contrast": "none"}),
        ("dp-fedcl", {"contrast_weight": 0}),
        ("fedproto", {"lam": 0, "share_weights": True}),
    ],
)
def test_without_its_term_a_method_trains_exactly_as_fedavg(method: str, params: dict[str, Any]) -> None:
    plain, run = play("fedavg"), play(method, params)
    assert gap(own(run), own(plain)) == 0
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) == 0


def test_without_its_term_fedproto_trains_exactly_as_local() -> None:
    assert gap(own(play("fedproto", {"lam": 0})), own(play("local"))) == 0


def test_sp_fedcl_is_mp_fedcl_with_one_prototype() -> None:
    single, multiple = play("sp-fedcl"), play("mp-fedcl", {"k": 1})
    assert gap(single.state(), multiple.state()) < 1e-12
    assert [line["per_client"] for line in single.history] == [line["per_client"] for line in multiple.history]
    assert gap(single.state(), play("mp-fedcl", {"k": 2}).state()) > 1e-5


# FedRep has more epochs, FedPCL and FCCL+ another optimiser, FedNH another head, FedNTD a teacher, FedRCL pairs.
OTHERWISE = ("fedrep", "fedpcl", "fccl-plus", "fednh", "fedntd", "fedrcl")


@pytest.mark.parametrize("method", [name for name in METHODS if name not in OTHERWISE])
def test_the_first_round_is_cross_entropy_from_the_common_start(method: str) -> None:
    run, plain = play(method, rounds=1, epochs=1, batch_size=64), play("local", rounds=1, epochs=1, batch_size=64)
    assert run.history[0]["loss"] == plain.history[0]["loss"]  # one step: FedProx has not moved yet
    assert gap(own(run), own(plain)) < 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_every_method_survives_the_edges(method: str, engine: str) -> None:
    """One of four clients a round, one of them never; one has a single sample; nobody holds classes 3 to 5."""
    clients = federation([{0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}, {2: 3}], test=60)
    before = play(method, engine=engine, clients=clients, rounds=0, seed=SEED, participation=0.25)
    run = play(method, engine=engine, clients=clients, rounds=3, seed=SEED, participation=0.25)
    asked = {client for line in run.history for client in line["participants"]}
    assert 0 in asked
    assert len(asked) == 3

    (idle,) = set(range(4)) - asked
    for name, tensor in own(run).items():
        assert bool(tensor.isfinite().all()), name
        assert torch.equal(tensor[idle], own(before)[name][idle]), name
    moved = {
        client for client in asked if any((own(run)[n] - own(before)[n])[client].abs().max() > 0 for n in own(run))
    }
    assert moved == asked

    held = clients.counts > 0
    last = held[torch.tensor(run.history[-1]["participants"])].any(0)
    for prototypes in run.broadcast.prototypes.values():
        assert bool(prototypes.vectors.isfinite().all())
        flat = prototypes.present if prototypes.counts.dim() == 2 else prototypes.present.any(0)
        assert flat.tolist() == last.tolist()
    for line in run.history:
        for name, scores in line["per_client"].items():
            assert len(scores) == 4, name
            assert all(0 <= score <= 100 for score in scores), name


def test_fedproto_clients_agree_on_the_start_and_then_differ() -> None:
    run = play("fedproto", participation=1.0, rounds=0)
    assert all(bool((tensor == tensor[:1]).all()) for tensor in own(run).values())
    run.play_round()
    assert all(gap_between(run, 0, other) > 1e-4 for other in range(1, len(UNEQUAL)))


def gap_between(run: Run, one: int, other: int) -> float:
    return max(float((tensor[one] - tensor[other]).abs().max()) for tensor in own(run).values())


def test_averaged_clients_start_the_next_round_from_the_mean() -> None:
    run = play("fedavg", participation=1.0, rounds=1)
    group = run.engine.groups[0]
    turns = Turns(Clock(1, 3), run.broadcast, Personal({}, {}, group.taken[[3, 0]], {}, {}))
    start = group.start([3, 0], turns)
    for name, tensor in start.items():
        assert_close(tensor[0], run.broadcast.weights[name])
        assert_close(tensor[1], run.broadcast.weights[name])
        share = torch.tensor([len(client.train) for client in run.federation.clients], dtype=torch.float64)
        mean = (
            group.own.take(range(len(share)))[name] * (share / share.sum()).view(-1, *[1] * (tensor.dim() - 1))
        ).sum(0)
        assert_close(tensor[0], mean)


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "mp-fedcl", "sp-fedcl", "dp-fedcl"])
def test_methods_learn(method: str) -> None:
    """After 12 rounds on three clients that know all four classes, far better than a guess by its own rule."""
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = play(method, clients=clients, engine="stacked", rounds=12, participation=1.0, model=Norm, lr=0.1)
    before, after = run.history[0]["accuracy"], run.history[-1]["accuracy"]
    score = type(run.method).score
    assert after[score] > 75
    assert after[score] >= before[score]


@pytest.mark.parametrize(("method", "params"), [*((name, {}) for name in METHODS), ("fedproto", {"initial": "own"})])
@pytest.mark.parametrize("engine", [pytest.param("sequential", marks=pytest.mark.slow), "stacked"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    method: str, params: dict[str, str], engine: str, tmp_path: Path
) -> None:
    """What clients and server keep is in the checkpoint: weights, heads, previous models, centres, caches."""
    whole, cut, resumed = (play(method, params, engine, rounds=0, model=Noisy, epochs=1) for _ in range(3))
    for run, rounds in ((whole, 4), (cut, 2), (resumed, 0)):
        run.experiment = replace(run.experiment, rounds=4)
        for _ in range(rounds):
            run.play_round()
    folder = RunFolder.create(tmp_path / "run", cut.experiment)
    for line in cut.history:
        folder.append_round(line)
    folder.checkpoint.save(cut.broadcast, cut.engine.groups, 2)
    resumed.restore(folder)
    for _ in range(2):
        resumed.play_round()
    assert gap(resumed.state(), whole.state()) == 0
    assert [line["per_client"] for line in resumed.history] == [line["per_client"] for line in whole.history]
