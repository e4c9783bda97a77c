"""FedCDA: its server is a plain loop, one kept model is FedAvg, the warm-up ends, and engines agree in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.messages import Broadcast
from protofed.methods import build_method
from protofed.methods.base import Clock, Server
from protofed.methods.server.cross_round import Cache
from protofed.models import parameter_count
from protofed.randomness import generator
from tests.reference import fedcda as slow
from tests.reference.methods import State, weighted_mean
from tests.support import server_runs
from tests.support.nets import Plain, federation, gap, own, play
from tests.support.server_runs import draw, models, rows, upload

quick = settings(max_examples=12, deadline=None)
numbers = st.integers(0, 2**16)
# name -> (what differs from the defaults, the variant that it must differ from)
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "fedcda": ({}, ""),
    "fedcda both": ({"smoothness": 20.0}, "fedcda"),  # here, with weights that small, the loss alone decides
    "fedcda variance": ({"smoothness": 100.0}, "fedcda both"),
    "fedcda one group": ({"smoothness": 20.0, "groups": 1}, "fedcda both"),
    "fedcda two kept": ({"smoothness": 100.0, "k": 2}, "fedcda variance"),
    "fedcda warm-up": ({"warmup": 2}, "fedcda"),
}


@quick
@given(
    clients=st.integers(1, 6),
    k=st.integers(1, 3),
    groups=st.integers(1, 4),
    seed=numbers,
    smoothness=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_fedcda_is_the_loop(clients: int, k: int, groups: int, seed: int, smoothness: float) -> None:
    """Five rounds, the first a warm-up, with changing participants and half-filled caches."""
    rng = torch.Generator().manual_seed(seed)
    params = {"k": k, "groups": groups, "smoothness": smoothness, "warmup": 1}
    method, expected, sent = build_method("fedcda", params), slow.FedCDA(k, smoothness), Broadcast()
    for number in range(5):
        who = draw(rng, clients)
        stacked = {name: value[: len(who)] for name, value in models(clients, seed + number).items()}
        loss = 5 * torch.rand(len(who), generator=rng, dtype=torch.float64)
        samples = torch.randint(1, 50, (len(who),), generator=rng).tolist()
        expected.add(who, rows(stacked), loss.tolist())
        mean = weighted_mean(rows(stacked), samples)
        order = torch.randperm(len(who), generator=generator(0, "fedcda", number)).tolist()
        if number:
            size, more = divmod(len(who), groups)
            ends = [size * (g + 1) + min(g + 1, more) for g in range(groups)]
            parts = [order[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]
            expected.select(who, parts)
            mean |= {name: value for name, value in expected.mean().items() if name in ("w", "b", "s")}
        before = {name: value.clone() for name, value in sent.kept.items()}
        old = sent
        sent = method.aggregate(
            upload(stacked, samples, loss=loss), Server(sent, Clock(number, 5, tuple(who), clients))
        )
        assert gap(before, dict(old.kept)) == 0 if before else not old.kept
        assert_close(dict(sent.weights), mean)
        kept = Cache.unpack(sent.kept)
        for client in range(clients):
            models_of = list(expected.cache.get(client, []))
            assert int(kept.turns[client].clamp(max=k)) == len(models_of)
            if models_of:
                assert_close(
                    {name: value[0] for name, value in kept.selected(torch.tensor([client])).items()},
                    {name: value for name, value in expected.selected[client][0].items() if name in ("w", "b", "s")},
                )
                assert sorted(kept.losses[client, : len(models_of)].tolist()) == sorted(f for _, f in models_of)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_fedcda_that_keeps_one_model_is_the_plain_mean_of_everyone_s_last(engine: str) -> None:
    run = play("fedcda", {"k": 1, "warmup": 0}, engine, rounds=0, model=Plain)
    last: dict[int, State] = {}
    for _ in range(4):
        line = run.play_round()
        mine = run.engine.groups[0].own.take(range(5))
        last |= {client: {name: value[client] for name, value in mine.items()} for client in line.participants}
        expected = weighted_mean(list(last.values()), [1.0] * len(last))
        assert gap(dict(run.broadcast.weights), expected) < 1e-14
    assert 3 < len(last) <= 5  # more than take part in a round


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_fedcda_that_keeps_one_model_is_fedavg_if_all_take_part(engine: str) -> None:
    plain = play("fedavg", {"averaging": "uniform"}, engine, participation=1.0)
    run = play("fedcda", {"averaging": "uniform", "k": 1, "warmup": 0}, engine, participation=1.0)
    assert gap(own(run), own(plain)) == 0
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) == 0


def test_the_warm_up_is_fedavg() -> None:
    for rounds, same in ((2, True), (4, False)):
        warm, plain = (
            play(name, params, rounds=rounds) for name, params in (("fedcda", {"warmup": 2}), ("fedavg", {}))
        )
        assert (gap(dict(warm.broadcast.weights), dict(plain.broadcast.weights)) == 0) == same
        assert warm.broadcast.kept["turns"].sum() == 3 * rounds  # models are kept from the first round on


@pytest.mark.parametrize(("rounds", "warmup"), [(4, 0), (5, 1), (100, 20), (250, 50), (1000, 50)])
def test_the_warm_up_lasts_a_fifth_of_the_rounds(rounds: int, warmup: int) -> None:
    method, stacked = build_method("fedcda", {}), models(2, 0)
    sent = upload(stacked, [1, 9], loss=torch.tensor([1.0, 2.0]))
    fedavg, mean = (weighted_mean(rows(stacked), weight) for weight in ([1, 9], [1, 1]))
    for number in {max(0, warmup - 1), warmup}:
        result = method.aggregate(sent, Server(Broadcast(), Clock(number, rounds, (0, 1), 2))).weights
        assert_close(result["w"], (fedavg if number < warmup else mean)["w"])
        assert_close(result["norm.running_mean"], fedavg["norm.running_mean"])  # always this round's


def test_fedcda_keeps_k_models_a_client_and_sends_none() -> None:
    run = play("fedcda", {"k": 2}, rounds=3)
    size = parameter_count(run.engine.groups[0].module)
    kept = Cache.unpack(run.broadcast.kept)
    assert sum(tensor.numel() for tensor in kept.models.values()) == 5 * 2 * size
    assert not any("running" in name for name in kept.models)
    assert not any(name.startswith("kept") or "models/" in name for name in run.broadcast.flat())


def test_a_client_sends_its_mean_loss_of_the_last_epoch() -> None:
    clients = federation([{0: 9, 1: 8}], test=30)
    one = play("fedcda", rounds=0, clients=clients, participation=1.0, epochs=1, model=Plain)
    once = one.engine.round([0], one.broadcast, Clock(0, 1, (0,), 1))
    first = float(once.uploads.numbers["loss"])
    assert_close(first, once.losses[0])
    two = play("fedcda", rounds=0, clients=clients, participation=1.0, epochs=2, model=Plain)
    twice = two.engine.round([0], two.broadcast, Clock(0, 1, (0,), 1))
    last = float(twice.uploads.numbers["loss"])
    assert last < first
    assert abs((first + last) / 2 - twice.losses[0]) < 1e-12  # the first epoch has the same batches


def test_too_many_combinations_are_refused_with_the_parameters_that_make_them() -> None:
    stacked = models(33, 0)
    sent = upload(stacked, [1] * 33, loss=torch.zeros(33))
    clock = Clock(0, 100, tuple(range(33)), 33)
    with pytest.raises(UserError, match=r"'3' for --set groups: .* k=3 .* 177,147 combinations"):
        build_method("fedcda", {}).aggregate(sent, Server(Broadcast(), clock))  # 3¹¹, already in the warm-up
    build_method("fedcda", {"groups": 4}).aggregate(sent, Server(Broadcast(), clock))


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding(variant: str) -> None:
    server_runs.assert_engines_agree_to_rounding("fedcda", VARIANTS[variant][0])


@pytest.mark.parametrize("variant", [name for name, (_, other) in VARIANTS.items() if other])
def test_every_option_changes_the_run(variant: str) -> None:
    params, other = VARIANTS[variant]
    server_runs.assert_runs_differ("fedcda", params, VARIANTS[other][0])


def test_fedcda_learns() -> None:
    server_runs.assert_learns("fedcda")
