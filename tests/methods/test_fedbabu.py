"""FedBABU: bodies are trained below one fixed head, which only a client's own answers see fine-tuned."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods.base import Clock, Server, Trained
from protofed.methods.fedbabu import FedBABU
from protofed.models import build
from tests.reference import fedbabu as slow
from tests.support import whole_runs
from tests.support.nets import gap
from tests.support.turns import turn_of
from tests.support.whole_runs import Levels, Restless

quick = settings(max_examples=15, deadline=None)
HEAD = {"head.weight", "head.bias"}


def head(name: str) -> bool:
    return name in HEAD


def body(name: str) -> bool:
    return name not in HEAD


def test_the_body_is_trained_and_then_the_head() -> None:
    first, second = FedBABU(tune_epochs=4).phases(3)
    assert (first.epochs, second.epochs) == (3, 4)
    names = ["conv1.weight", "hidden.bias", "header.weight", "head.weight"]
    assert [first.trains(name) for name in names] == [True, True, True, False]
    assert [second.trains(name) for name in names] == [False, False, False, True]


@quick
@given(clients=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_upload_and_server_are_the_loop(clients: int, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    first = {name: value.double() for name, value in build(Restless, (1, 4, 4), 3, 0).state_dict().items()}
    weights = {
        name: torch.randn(clients, *value.shape, generator=rng, dtype=torch.float64) for name, value in first.items()
    }
    samples = torch.randint(1, 50, (clients,), generator=rng)
    empty = torch.empty(clients, 0, dtype=torch.int64)
    trained = Trained(weights, samples, torch.empty(clients, 0, 6), empty, 3, torch.arange(clients))
    sent = FedBABU().upload(trained, turn_of(trained))
    assert set(sent.weights) == set(first) - HEAD
    result = FedBABU().aggregate(sent, Server(Broadcast(first), Clock(0, 1)))
    states = [{name: value[k] for name, value in weights.items()} for k in range(clients)]
    assert_close(dict(result.weights), slow.next_model(states, samples.tolist(), first))
    assert all(torch.equal(result.weights[name], first[name]) for name in HEAD)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_common_head_never_changes_and_own_heads_do(engine: str) -> None:
    run = whole_runs.run_of(FedBABU(), engine, 0, Restless, participation=1.0)
    begin = dict(run.broadcast.weights)
    for _ in range(2):
        run.play_round()
        assert all(torch.equal(run.broadcast.weights[name], begin[name]) for name in HEAD)
        mine = run.engine.groups[0].own.take(range(5))
        assert all(float((one - begin["head.weight"]).abs().max()) > 1e-3 for one in mine["head.weight"])
        assert float((run.broadcast.weights["hidden.weight"] - begin["hidden.weight"]).abs().max()) > 1e-3
    assert {"own/own/head", "global/all/head"} <= set(run.history[-1].accuracy)


def test_fine_tuning_changes_no_body() -> None:
    """However long a client fine-tunes, others receive the same; BatchNorm's statistics aside."""
    short, long = (whole_runs.run_of(FedBABU(tune_epochs=n), "sequential", 3, Levels) for n in (1, 4))
    assert gap(dict(short.broadcast.weights), dict(long.broadcast.weights)) == 0
    heads = [run.engine.groups[0].own.take(range(5))["head.weight"] for run in (short, long)]
    assert float((heads[0] - heads[1]).abs().max()) > 1e-3


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    whole_runs.assert_rounds_are_those_of_plain_loops(FedBABU(tune_epochs=1), engine, trains=[body, head], stays=head)


@pytest.mark.parametrize("method", [FedBABU(), FedBABU(tune_epochs=1), FedBABU(averaging="uniform")])
def test_engines_agree_to_rounding_and_phases_matter(method: FedBABU) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(method)


def test_fedbabu_learns() -> None:
    whole_runs.assert_learns(FedBABU())
