"""FedHEAL: masks, client weights and server are plain loops; keeping all and weighing none it is FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server, Trained, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedheal import KEPT, FedHEAL
from tests.reference import fedheal as slow
from tests.support import whole_runs
from tests.support.nets import federation, gap, play
from tests.support.server_runs import models, rows
from tests.support.whole_runs import Levels

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
NAMES = ("w", "b", "s")


def trained_to(stacked: dict[str, Tensor]) -> Trained:
    clients, empty = len(stacked["w"]), torch.empty(0)
    return Trained(stacked, torch.ones(clients), empty, empty, 4, empty)


@quick
@given(clients=st.integers(1, 3), turns=st.integers(1, 6), seed=seeds, tau=st.sampled_from([-1.0, 0.0, 0.3, 0.6]))
def test_masks_and_memory_are_the_loops_over_several_turns(clients: int, turns: int, seed: int, tau: float) -> None:
    method, rng = FedHEAL(threshold=tau), torch.Generator().manual_seed(seed)
    taken = torch.zeros(clients, dtype=torch.int64)
    (first,) = rows(models(1, seed))
    memory = {n: v.expand(clients, *v.shape) for n, v in method.memory(first, 4).items()}
    assert set(memory) == set(NAMES)
    past: list[list[dict[str, Tensor]]] = [[] for _ in range(clients)]
    for number in range(turns):
        (old,), stacked = rows(models(1, seed + 2 * number)), models(clients, seed + 2 * number + 1)
        stacked["w"][0, 0, 0] = old["w"][0, 0]  # one that does not move
        turn = Turn(Broadcast(old), Clock(number, 9), memory=memory, taken=taken)
        sent, remembered = (hook(trained_to(stacked), turn) for hook in (method.upload, method.remember))
        assert isinstance(sent, Upload)
        for k in range(clients):
            updates = {name: stacked[name][k] - old[name] for name in NAMES}
            for name in NAMES:
                kept = slow.keeps([one[name] for one in past[k]], updates[name], tau)
                assert torch.equal(sent.numbers[KEPT + name][k], kept)
                assert torch.equal(sent.weights[name][k], torch.where(kept, stacked[name][k], old[name]))
            for name in ("norm.running_mean", "norm.running_var", "batches"):
                assert torch.equal(sent.weights[name][k], stacked[name][k])
        # Some sit a turn out.
        here = torch.rand(clients, generator=rng) < 0.7
        memory = {
            n: torch.where(here.view(-1, *(1,) * (v.dim() - 1)), remembered[n], v)  # type: ignore[index]
            for n, v in memory.items()
        }
        taken = taken + here
        for k in here.nonzero().flatten().tolist():
            past[k].append({name: stacked[name][k] - old[name] for name in NAMES})


@quick
@given(
    clients=st.integers(1, 4), seed=seeds, beta=st.sampled_from([0.0, 0.4, 1.0]), dropped=st.sampled_from([0.0, 0.5, 1])
)
def test_the_server_is_the_loop_over_several_rounds(clients: int, seed: int, beta: float, dropped: float) -> None:
    """Of 5 clients some, among them new ones; the first entry is dropped by all, and one client moves nothing."""
    rng = torch.Generator().manual_seed(seed)
    p, delta, broadcast = dict[int, float](), dict[int, float](), Broadcast(rows(models(1, seed))[0])
    for number in range(3):
        who = sorted(torch.randperm(5, generator=rng)[:clients].tolist())
        stacked, old = models(clients, seed + number + 1), dict(broadcast.weights)
        kept = {n: torch.rand(stacked[n].shape, generator=rng) >= dropped for n in NAMES}
        kept["w"][:, 0, 0] = False
        kept["s"][0] = True
        sent = {n: torch.where(kept[n], v, old[n]) if n in NAMES else v for n, v in stacked.items()}
        numbers = {"samples": torch.arange(1, clients + 1), **{KEPT + n: mask for n, mask in kept.items()}}
        clock = Clock(number, 3, tuple(who), 5)
        broadcast = FedHEAL(beta=beta).aggregate(Upload(sent, {}, numbers), Server(broadcast, clock))
        updates = [{n: stacked[n][k] - old[n] for n in NAMES} for k in range(clients)]
        masks = [{n: kept[n][k] for n in NAMES} for k in range(clients)]
        far = [slow.length(one, mask) for one, mask in zip(updates, masks, strict=True)]
        before = [p.get(k, 1 / clients) for k in who]
        weights, changes = slow.weigh(far, before, [delta.get(k, 0.0) for k in who], beta)
        p |= dict(zip(who, weights, strict=True))
        delta |= dict(zip(who, changes, strict=True))
        expected = slow.server({n: old[n] for n in NAMES}, updates, masks, weights)
        assert_close({n: broadcast.weights[n] for n in NAMES}, expected, atol=1e-5, rtol=1e-5)  # b is of float32
        assert_close(broadcast.weights["w"], expected["w"])
        assert torch.equal(broadcast.weights["w"][0, 0], old["w"][0, 0])
        assert_close(broadcast.kept["weights"][0, who], torch.tensor(weights).double(), atol=1e-6, rtol=1e-6)
        share = torch.tensor(weights).double() / sum(weights)
        name = "norm.running_var"
        assert_close(broadcast.weights[name], torch.tensordot(share, stacked[name], 1), atol=1e-6, rtol=1e-6)


def test_where_nobody_moves_nothing_is_divided_by_zero() -> None:
    old = {"w": torch.ones(2, 2)}
    numbers = {"samples": torch.tensor([1, 2]), "kept/w": torch.zeros(2, 2, 2).bool()}
    sent = Upload({"w": old["w"].repeat(2, 1, 1)}, {}, numbers)
    found = FedHEAL().aggregate(sent, Server(Broadcast(old), Clock(0, 1, (0, 1), 2)))
    assert torch.equal(found.weights["w"], old["w"])
    assert bool(found.kept["weights"].isfinite().all())


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("averaging", ["uniform", "samples"])
def test_keeping_all_and_weighing_none_it_is_fedavg(averaging: Any, engine: str) -> None:
    """All take part: exactly with equal weights, otherwise to rounding, for shares are divided by their sum again."""
    method = FedHEAL(threshold=-1.0, beta=0.0, averaging=averaging)
    run, plain = (whole_runs.run_of(one, engine, participation=1.0) for one in (method, FedAvg(averaging=averaging)))
    if averaging == "uniform":
        whole_runs.assert_exactly_the_same(run, plain)
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) < 1e-14


def test_each_half_changes_a_run() -> None:
    base, masked, weighed = (
        play("fedheal", {"threshold": tau, "beta": beta}, rounds=4)
        for tau, beta in ((-1.0, 0.0), (0.3, 0.0), (-1.0, 0.4))
    )
    for run in (masked, weighed):
        assert gap(dict(run.broadcast.weights), dict(base.broadcast.weights)) > 1e-5


def test_a_client_far_from_the_average_counts_for_more() -> None:
    clients = federation([{0: 12, 1: 12, 2: 12}, {0: 12, 1: 12, 2: 12}, {3: 40, 4: 40}], test=30)
    run = whole_runs.run_of(FedHEAL(), "stacked", 6, Levels, clients=clients, participation=1.0)
    weights = run.broadcast.kept["weights"][0]
    assert float(weights[2]) > float(weights[:2].max())


def test_fedheal_learns() -> None:
    whole_runs.assert_learns(FedHEAL())
