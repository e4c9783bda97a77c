"""LG-FedAvg: the head is averaged and the body stays, whole runs are those of a slow reference, engines agree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.messages import Broadcast
from protofed.methods.base import Clock, Server, Trained
from protofed.methods.fedavg import FedAvg
from protofed.methods.lg_fedavg import LGFedAvg
from protofed.models import build
from protofed.runs.run import new_run
from tests.reference import lg_fedavg as slow
from tests.support import whole_runs
from tests.support.nets import gap, own
from tests.support.turns import turn_of
from tests.support.whole_runs import Levels, Restless

quick = settings(max_examples=15, deadline=None)


def head(name: str) -> bool:
    return name.startswith("head.")


@quick
@given(
    clients=st.integers(1, 5),
    seed=st.integers(0, 2**16),
    common=st.sampled_from(["head", " hidden, head ", "conv,hidden,head"]),
)
def test_upload_and_server_are_the_loop(clients: int, seed: int, common: str) -> None:
    rng = torch.Generator().manual_seed(seed)
    module = build(Restless, (1, 4, 4), 3, 0)
    weights = {
        name: torch.randn(clients, *value.shape, generator=rng, dtype=torch.float64)
        for name, value in module.state_dict().items()
    }
    samples = torch.randint(1, 50, (clients,), generator=rng)
    empty = torch.empty(clients, 0, dtype=torch.int64)
    trained = Trained(weights, samples, torch.empty(clients, 0, 6), empty, 3, torch.arange(clients))
    method = LGFedAvg(common=common)
    result = method.aggregate(method.upload(trained, turn_of(trained)), Server(Broadcast(), Clock(0, 1)))
    states = [{name: value[k] for name, value in weights.items()} for k in range(clients)]
    assert_close(dict(result.weights), slow.mean_of_heads(states, [word.strip() for word in common.split(",")]))


def test_the_head_is_averaged_and_bodies_stay() -> None:
    run = whole_runs.run_of(LGFedAvg(), "sequential", 2, Restless, participation=1.0)
    mine = run.engine.groups[0].own.take(range(5))
    assert set(run.broadcast.weights) == {"head.weight", "head.bias"}
    for name, value in run.broadcast.weights.items():
        assert_close(value, mine[name].mean(0))
    for name in ("conv.weight", "norm.running_mean", "hidden.weight"):
        assert all(float((mine[name][0] - other).abs().max()) > 1e-4 for other in mine[name][1:])
    assert not any(name.startswith("global") for name in run.history[-1].accuracy)  # there is no whole model


def test_bodies_may_differ() -> None:
    """All that clients have in common is the head: two architectures with features of one size."""
    run = whole_runs.run_of(LGFedAvg(), "sequential", 0)
    experiment, federation = run.experiment, run.federation
    mixed = new_run(experiment, LGFedAvg(), federation, [Levels, Restless])
    for _ in range(2):
        mixed.play_round()
    assert len(mixed.engine.groups) == 2
    assert set(mixed.broadcast.weights) == {"head.weight", "head.bias"}
    with pytest.raises(UserError, match="one architecture"):
        new_run(experiment, FedAvg(), federation, [Levels, Restless])


def test_when_everything_is_common_it_is_exactly_fedavg() -> None:
    everything = LGFedAvg(common="conv,norm,hidden,head")
    whole_runs.assert_exactly_fedavg(everything, "uniform")
    parts = whole_runs.played(LGFedAvg(), "sequential")
    assert gap(own(parts), own(whole_runs.run_of(everything, "sequential"))) > 1e-4


@pytest.mark.parametrize("common", ["", " , ", "fc"])
def test_what_averages_nothing_is_refused(common: str) -> None:
    with pytest.raises(UserError, match=rf"'{common}' for --set common.*conv1, conv2, hidden, head"):
        build("cnn", (1, 28, 28), 10, 0, LGFedAvg(common=common).extend)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    whole_runs.assert_rounds_are_those_of_plain_loops(LGFedAvg(), engine, shares=head, by_samples=False)


@pytest.mark.parametrize("method", [LGFedAvg(), LGFedAvg(common="hidden,head"), LGFedAvg(averaging="samples")])
def test_engines_agree_to_rounding_and_bodies_stay(method: LGFedAvg) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(method)


def test_lg_fedavg_learns() -> None:
    whole_runs.assert_learns(LGFedAvg())
