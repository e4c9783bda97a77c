"""FeSEM: its server is a plain loop, one cluster is FedAvg, and engines agree in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods import build_method
from protofed.methods.base import Clock, Server
from protofed.methods.fesem import FIRST_STEPS
from protofed.randomness import key
from tests.reference import fesem as slow
from tests.reference.methods import weighted_mean
from tests.support import server_runs
from tests.support.nets import UNEQUAL, Norm, federation, gap, own, play
from tests.support.server_runs import draw, models, rows, upload

quick = settings(max_examples=12, deadline=None)
numbers = st.integers(0, 2**16)
VARIANTS: dict[str, dict[str, Any]] = {
    "fesem": {},
    "fesem two": {"clusters": 2},
    "fesem uniform": {"averaging": "uniform"},
}


@quick
@given(clients=st.integers(1, 7), clusters=st.integers(1, 4), seed=numbers, averaging=st.booleans())
def test_fesem_is_the_loop(clients: int, clusters: int, seed: int, averaging: bool) -> None:
    """Four rounds with changing participants, fewer than clusters at times."""
    rng = torch.Generator().manual_seed(seed)
    method = build_method("fesem", {"clusters": clusters, "averaging": "samples" if averaging else "uniform"})
    expected, sent = slow.FeSEM(clusters), Broadcast(rows(models(1, seed))[0])
    for number in range(4):
        who, stacked = draw(rng, clients), models(clients, seed + number)
        stacked = {name: value[: len(who)] for name, value in stacked.items()}
        samples = torch.randint(1, 50, (len(who),), generator=rng).tolist()
        importance = [float(n) for n in samples] if averaging else [1.0] * len(who)
        if not number:
            expected.seed(rows(stacked), key(0, "fesem", 0))
        for _ in range(1 if number else FIRST_STEPS):
            expected.step(who, rows(stacked), importance)
        before = {name: value.clone() for name, value in sent.kept.items()}
        old, sent = (
            sent,
            method.aggregate(upload(stacked, samples), Server(sent, Clock(number, 4, tuple(who), clients))),
        )
        assert gap(before, dict(old.kept)) == 0 if before else not old.kept

        mean = weighted_mean(rows(stacked), importance)
        for client in range(clients):
            received = dict(method.send(sent, client).weights)
            centre = expected.centres[expected.member[client]] if client in expected.member else mean
            assert received.keys() == centre.keys()
            for name, value in received.items():
                if name != "batches":  # copied from any client
                    assert_close(value, centre[name])
        for k, centre in enumerate(expected.centres):
            assert_close(sent.kept["centres/w"][k], centre["w"])


def test_the_first_clustering_takes_several_steps() -> None:
    stacked, who = models(30, 0), list(range(30))
    result = build_method("fesem", {}).aggregate(
        upload(stacked, [1] * 30), Server(Broadcast(), Clock(0, 1, tuple(who), 30))
    )
    expected, members = slow.FeSEM(3), []
    expected.seed(rows(stacked), key(0, "fesem", 0))
    for _ in range(FIRST_STEPS):
        expected.step(who, rows(stacked), [1.0] * 30)
        members.append([expected.member[client] for client in who])
    assert members[0] != members[-1]
    assert result.kept["assignment"].tolist() == members[-1]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("participation", "averaging"), [(1.0, "samples"), (0.6, "samples"), (1.0, "uniform")])
def test_fesem_with_one_cluster_is_fedavg(engine: str, participation: float, averaging: str) -> None:
    settings: dict[str, Any] = {"engine": engine, "participation": participation}
    plain = play("fedavg", {"averaging": averaging}, **settings)
    single = play("fesem", {"averaging": averaging, "clusters": 1}, **settings)
    assert gap(own(single), own(plain)) == 0
    for client in range(len(UNEQUAL)):
        assert gap(dict(single.method.send(single.broadcast, client).weights), dict(plain.broadcast.weights)) == 0
    for one, other in zip(single.history, plain.history, strict=True):
        for what in ("loss", "per_client", "bytes_up", "bytes_down"):
            assert getattr(one, what) == getattr(other, what), what


def test_fesem_finds_clients_that_have_the_same_task() -> None:
    parts = [{0: 12, 1: 12}, {2: 12, 3: 12}, {0: 12, 1: 12}, {2: 12, 3: 12}]
    clients = federation(parts, classes=4, test=80)
    settings: dict[str, Any] = {"clients": clients, "rounds": 5, "participation": 1.0, "model": Norm, "lr": 0.1}
    run = play("fesem", {"clusters": 2}, "stacked", **settings)
    a, b, c, d = run.broadcast.kept["assignment"].tolist()
    assert (a, b) == (c, d)
    assert a != b
    plain = play("fedavg", engine="stacked", **settings)
    assert run.history[-1].accuracy["global/own/head"] >= plain.history[-1].accuracy["global/own/head"]
    assert run.history[-1].accuracy["global/own/head"] > 75


def test_fesem_sends_a_client_it_has_not_seen_the_mean_of_all() -> None:
    run = play("fesem", rounds=1)
    seen = run.history[0].participants
    for client in range(5):
        assert (run.method.send(run.broadcast, client) is run.broadcast) == (client not in seen)
    start = play("fesem", rounds=0)
    assert start.method.send(start.broadcast, 0) is start.broadcast


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding(variant: str) -> None:
    server_runs.assert_engines_agree_to_rounding("fesem", VARIANTS[variant])


@pytest.mark.parametrize("variant", ["fesem two", "fesem uniform"])
def test_every_option_changes_the_run(variant: str) -> None:
    server_runs.assert_runs_differ("fesem", VARIANTS[variant], {})


def test_fesem_learns() -> None:
    server_runs.assert_learns("fesem")
