"""Methods survive single samples, absent clients and absent classes, and engines agree there too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS
from protofed.methods.base import Batch, Method, Server, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedntd import FedNTD
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedper import FedPer
from protofed.methods.fedrcl import FedRCL
from protofed.methods.fedrep import FedRep
from protofed.methods.fedsc import FedSC
from protofed.methods.moon import Moon
from protofed.models import build
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from tests.support import cluster_runs, relation_runs
from tests.support.nets import Part, Plain, assert_same_run, federation, own, play
from tests.support.prototype_cases import random_prototypes
from tests.support.relation_runs import CLOCK, C, D
from tests.support.whole_runs import run_of

SEED = 4  # one with which three rounds of one client ask client 0 and two others


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_every_method_survives_the_edges(method: str, engine: str) -> None:
    """One of four clients a round, one of them never; one has a single sample; nobody holds classes 3 to 5."""
    clients = federation([{0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}, {2: 3}], test=60)
    before = play(method, engine=engine, clients=clients, rounds=0, seed=SEED, participation=0.25)
    run = play(method, engine=engine, clients=clients, rounds=3, seed=SEED, participation=0.25)
    asked = {client for line in run.history for client in line.participants}
    assert 0 in asked
    assert len(asked) == 3

    (idle,) = set(range(4)) - asked
    for name, tensor in own(run).items():
        assert bool(tensor.isfinite().all()), name
        assert torch.equal(tensor[idle], own(before)[name][idle]), name
    moved = {
        client for client in asked if any((own(run)[n] - own(before)[n])[client].abs().max() > 0 for n in own(run))
    }
    assert moved == asked or not run.method.phases(1)  # who does not train, has what the server made before

    held = clients.counts > 0
    last = held[torch.tensor(run.history[-1].participants)].any(0)
    for prototypes in run.broadcast.prototypes.values():
        assert bool(prototypes.vectors.isfinite().all())
        flat = prototypes.present if prototypes.counts.dim() == 2 else prototypes.present.any(0)
        assert flat.tolist() == last.tolist()
    for line in run.history:
        for name, scores in line.per_client.items():
            assert len(scores) == 4, name
            assert all(0 <= score <= 100 for score in scores), name


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", ["fesem", "fednh", "fedcda"])
def test_single_samples_and_absent_clients_do_no_harm(method: str, engine: str) -> None:
    """One of four clients a round; nobody holds classes 3 to 5."""
    clients = federation([{0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}, {2: 3}], test=30)
    run = play(method, engine=engine, clients=clients, rounds=3, participation=0.25, seed=4)
    assert len({client for line in run.history for client in line.participants}) < 4
    for name, tensor in run.state().items():
        assert bool(tensor.isfinite().all()), name


@pytest.mark.parametrize("kind", [Moon, FedPer, FedRep, FedNTD, FedRCL])
@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([{0: 1}, {0: 9, 1: 10}, {1: 1}], {}),
        ([{0: 1}, {1: 1}], {}),
        ([{0: 3, 1: 2}, {1: 4}], {"batch_size": 1, "epochs": 1}),
        ([{0: 3, 1: 2}, {0: 12, 2: 9}], {"batch_size": 16}),
    ],
)
def test_engines_agree_at_the_edges(kind: type[Method], parts: list[Part], options: dict[str, Any]) -> None:
    options = {"rounds": 2, "clients": federation(parts, test=30), "participation": 1.0, **options}
    assert_same_run(run_of(kind(), "sequential", **options), run_of(kind(), "stacked", **options))


@cluster_runs.every_method
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_single_samples_and_absent_classes_do_no_harm_to_clusters(kind: type[FedAvg], engine: str) -> None:
    """A quarter of the clients a round, single samples, classes that nobody in the round holds; the paper's λ."""
    run = cluster_runs.start(
        kind(), engine, ({0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}, {2: 1}), participation=0.25, rounds=4, lr=1e-3
    )
    for _ in range(4):
        line = run.play_round()
        assert bool(torch.tensor(line.loss).isfinite())
        held = (run.federation.counts[torch.tensor(line.participants)] > 0).any(0)
        (broadcast,) = run.broadcast.prototypes.values()
        assert broadcast.present.tolist() == held.tolist()
    assert len({client for line in run.history for client in line.participants}) > 1
    assert all(bool(value.isfinite().all()) for value in own(run).values())


@pytest.mark.parametrize("edge", [({0: 1}, {1: 1}), ({0: 9, 1: 10},), ({0: 1}, {0: 9, 1: 10}, {1: 1})])
@cluster_runs.every_method
def test_engines_agree_on_clusters_at_the_edges(kind: type[FedAvg], edge: tuple[Part, ...]) -> None:
    one, other = (
        cluster_runs.start(kind(), engine, edge, participation=1.0, lr=1e-4) for engine in ("sequential", "stacked")
    )
    for run in (one, other):
        run.play_round()
        run.play_round()
    assert_same_run(one, other)


EDGES: dict[str, tuple[Sequence[Part], dict[str, Any]]] = {
    "one sample": ([{0: 1}, {0: 9, 1: 10}, {1: 1}], {}),
    "nobody has more": ([{0: 1}, {1: 1}], {}),
    "alone": ([{0: 9, 1: 10}], {}),
    "large batch": ([{0: 5, 1: 6}, {2: 7}], {"batch_size": 64}),
    "batches of one": ([{0: 3, 1: 2}, {1: 4}], {"batch_size": 1, "epochs": 1, "lr": 0.001}),
    "one a round": ([{0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}], {"participation": 0.3, "rounds": 3, "seed": 4}),
}


@pytest.mark.parametrize("method", [FedSC(), FedPCL(), FedPCL(reading="code")])
@pytest.mark.parametrize("edge", EDGES)
def test_engines_agree_on_fedsc_and_fedpcl_at_the_edges(edge: str, method: Method) -> None:
    parts, more = EDGES[edge]
    more = {"participation": 1.0, "rounds": 2, "clients": federation(parts, test=30), **more}
    one, other = relation_runs.play(method, "sequential", **more), relation_runs.play(method, "stacked", **more)
    assert_same_run(one, other)
    assert all(bool(value.isfinite().all()) for value in one.state().values())


def gradients(method: Method, sent: Broadcast, x: Tensor, y: Tensor, prepared: dict[str, Tensor]) -> list[Tensor]:
    module = build(Plain, (1, 3, 3), C, 0).to(x.dtype)
    turn = Turn(method.receive(sent), CLOCK, prepared=prepared)
    loss = method.loss(Net(module), Batch(x, y, torch.ones(len(y), dtype=torch.bool)), turn)
    assert bool(loss.isfinite().all())
    used = [module.get_parameter("hidden.weight"), module.get_parameter("hidden.bias")]
    return list(torch.autograd.grad(loss.mean(), used, allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [FedSC(), FedSC(U="none"), FedPCL(), FedPCL(reading="code")])
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("empty", [0.0, 0.6, 1.0])
def test_losses_and_gradients_are_finite_at_the_edges(
    method: Method, batch: int, empty: float, dtype: torch.dtype
) -> None:
    """Prototypes at the feature, at 0 and far off; U at its floor; no prototypes at all; a batch of one."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(batch, 1, 3, 3, generator=rng, dtype=dtype), torch.arange(batch) % C
    features = build(Plain, (1, 3, 3), C, 0).to(dtype)(x).features.detach()
    drawn = random_prototypes(3, C, 1, D, seed=3, empty=empty)
    sets = Prototypes(drawn.vectors.to(dtype), drawn.counts.to(dtype))
    sets.vectors[0, :, 0] = features[0] * sets.filled[0]
    sets.vectors[1, 1:] = 0
    sets.vectors[2, 1] *= 1e4
    name = "sets" if isinstance(method, FedPCL) else "means"
    sent = method.aggregate(Upload({}, {name: sets}), Server(Broadcast(), CLOCK))
    assert all(bool(found.vectors.isfinite().all()) for found in sent.prototypes.values())
    prepared = {"U": torch.full((3, C, 1), 1e-3, dtype=dtype)} if isinstance(method, FedSC) else {}
    assert all(bool(g.isfinite().all()) for g in gradients(method, sent, x, y, prepared))
    assert all(bool(g.isfinite().all()) for g in gradients(method, sent, x * 0, y, prepared))
