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
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedsc import FedSC
from protofed.models import build
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from protofed.runs.run import Run
from tests.support.nets import Part, Plain, assert_same_run, federation, own, play
from tests.support.prototype_cases import random_prototypes
from tests.support.relation_runs import CLOCK, C, D

ONE_OF_FOUR: tuple[Part, ...] = ({0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}, {2: 3})
EDGES: dict[str, tuple[Sequence[Part], dict[str, Any]]] = {
    "a client with one sample": ([{0: 1}, {0: 9, 1: 10}, {1: 1}], {}),
    "nobody has more than one": ([{0: 1}, {1: 1}], {}),
    "a single client": ([{0: 9, 1: 10}], {}),
    "a batch larger than every client": ([{0: 5, 1: 6}, {2: 7}], {"batch_size": 64}),
    "a batch larger than one client": ([{0: 3, 1: 2}, {0: 20, 2: 14}], {"batch_size": 16}),
    # BatchNorm's running statistics of nobody: FedSC's loss is steep there
    "batches of one sample": ([{0: 3, 1: 2}, {1: 4}], {"batch_size": 1, "epochs": 1, "lr": 1e-3}),
    "one sample over": ([{0: 9}, {1: 9}, {1: 8}], {}),
    # in three rounds client 0 and two others are asked; nobody holds classes 3 to 5
    "one of four a round": (ONE_OF_FOUR, {"participation": 0.25, "rounds": 3, "seed": 4}),
}

MILD = ("nobody has more than one", "a batch larger than one client", "one sample over")
"""Near another edge; `make test` leaves them out."""


@pytest.mark.parametrize("method", [*METHODS, "fedpcl code"])
@pytest.mark.parametrize(
    "edge", [pytest.param(edge, marks=pytest.mark.slow) if edge in MILD else edge for edge in EDGES]
)
def test_engines_agree_at_the_edges_and_nothing_breaks(edge: str, method: str) -> None:
    parts, more = EDGES[edge]
    options: dict[str, Any] = {
        "clients": federation(parts, test=30),
        "participation": 1.0,
        "rounds": 2,
        "epochs": 1,
        **more,
    }
    if method == "fedpcl code":
        method, options["params"] = "fedpcl", {"reading": "code"}
    run, other = (play(method, engine=engine, **options) for engine in ("sequential", "stacked"))
    assert_same_run(run, other)
    assert all(bool(value.isfinite().all()) for value in run.state().values())
    for line in run.history:
        for name, scores in line.per_client.items():
            assert len(scores) == len(parts), name
            assert all(0 <= score <= 100 for score in scores), name
    if edge == "one of four a round":
        check_who_took_part(run, play(method, **{**options, "rounds": 0}))


def check_who_took_part(run: Run, before: Run) -> None:
    """Whoever did not is as it was, and the server's prototypes are of the last round's classes."""
    asked = {client for line in run.history for client in line.participants}
    assert 0 in asked
    (idle,) = set(range(4)) - asked
    for name, tensor in own(run).items():
        assert torch.equal(tensor[idle], own(before)[name][idle]), name
    moved = {
        client for client in asked if any((own(run)[n] - own(before)[n])[client].abs().max() > 0 for n in own(run))
    }
    assert moved == asked or not run.method.phases(1)  # who does not train, has what the server made before
    held = (run.federation.counts > 0)[torch.tensor(run.history[-1].participants)].any(0)
    for prototypes in run.broadcast.prototypes.values():
        flat = prototypes.present if prototypes.counts.dim() == 2 else prototypes.present.any(0)
        assert flat.tolist() == held.tolist()


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
