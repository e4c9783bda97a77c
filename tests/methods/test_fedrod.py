"""FedRoD: its losses are plain loops, its generic part without the prior is FedAvg, own answers add both heads."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.evaluation.snapshot import take_snapshot
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedrod import FedRoD
from protofed.models import MODELS, Output, build
from protofed.models.layers import step
from protofed.models.net import Net
from tests.reference import fedrod as slow
from tests.support import whole_runs
from tests.support.given_outputs import normal
from tests.support.nets import Noisy, Plain, gap, own, taken_by
from tests.support.whole_runs import Restless

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


def drawn(classes: int, batch: int, seed: int) -> tuple[nn.Module, Batch, Tensor]:
    """A model whose heads differ, a batch of classes that a client has, and how often it has each."""
    rng = torch.Generator().manual_seed(seed)
    module = build(Plain, (1, 2, 2), classes, seed, FedRoD().extend).double()
    with torch.no_grad():
        module.get_parameter("private_head.weight").add_(normal(classes, 6, seed=seed))
    counts = torch.randint(0, 3, (classes,), generator=rng) * torch.randint(1, 90, (classes,), generator=rng)
    counts[int(torch.randint(0, classes, (), generator=rng))] += 1
    held = counts.nonzero().flatten()
    y = held[torch.randint(0, len(held), (batch,), generator=rng)]
    return module, Batch(normal(batch, 1, 2, 2, seed=seed), y, torch.ones_like(y).bool()), counts


def loss(method: FedRoD, module: nn.Module, batch: Batch, counts: Tensor) -> Tensor:
    return method.loss(Net(module), batch, Turn(Broadcast(), Clock(1, 3), counts=counts))


@quick
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_loss_is_the_loop(seed: int, batch: int, classes: int, gamma: float) -> None:
    module, data, counts = drawn(classes, batch, seed)
    out, labels = module(data.x), data.y.tolist()
    mine = module.get_submodule("private_head")(out.features)
    expected = slow.balanced(out.logits, labels, counts.tolist(), gamma) + slow.private(out.logits, mine, labels)
    assert_close(loss(FedRoD(gamma=gamma), module, data, counts), expected, atol=1e-12, rtol=1e-10)
    assert_close(FedRoD().answer(out, Turn(Broadcast(), Clock(0, 1))), out.logits + mine)


@quick
@given(seeds)
def test_each_head_learns_from_its_own_loss_and_the_body_from_the_generic_one(seed: int) -> None:
    module, data, counts = drawn(4, 5, seed)
    names = [name for name, _ in module.named_parameters()]
    found = torch.autograd.grad(loss(FedRoD(), module, data, counts).sum(), list(module.parameters()))
    out, labels = module(data.x), data.y.tolist()
    generic = slow.balanced(out.logits, labels, counts.tolist(), 1.0).sum()
    private = slow.private(out.logits, module.get_submodule("private_head")(out.features.detach()), labels).sum()
    for name, gradient in zip(names, found, strict=True):
        source = private if name.startswith("private_head") else generic
        (expected,) = torch.autograd.grad(source, [module.get_parameter(name)], retain_graph=True)
        assert_close(gradient, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_finite_for_classes_that_a_client_lacks(dtype: torch.dtype) -> None:
    """Padding may be of such a class; real samples are not."""
    module, data, _ = drawn(3, 3, 0)
    module = module.to(dtype)
    batch = Batch(100 * data.x.to(dtype), torch.tensor([0, 1, 2]), torch.tensor([False, True, False]))
    found = loss(FedRoD(), module, batch, torch.tensor([0, 3, 0]))
    assert bool(found.isfinite().all())
    for gradient in torch.autograd.grad(found.sum(), list(module.parameters())):
        assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("model", [*MODELS, Noisy, Restless])
def test_every_model_takes_a_private_head(model: Any) -> None:
    shape = taken_by(model, (3, 32, 32))
    module, plain = build(model, shape, 7, 0, FedRoD().extend), build(model, shape, 7, 0)
    state = module.state_dict()
    assert set(state) - set(plain.state_dict()) == {"private_head.weight", "private_head.bias"}
    assert gap({name: state[name] for name in plain.state_dict()}, plain.state_dict()) == 0
    assert torch.equal(state["private_head.weight"], state["head.weight"])
    x = shape.example(3)
    module.train()
    with step(torch.tensor(0)):
        out: Output = module(x)
    assert_close(out.more["private_head"], module.get_submodule("private_head")(out.features))


def generic(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value for name, value in state.items() if "private_head" not in name}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_generic_part_without_its_prior_is_exactly_fedavg(engine: str) -> None:
    run, plain = (whole_runs.run_of(method, engine) for method in (FedRoD(gamma=0), FedAvg()))
    assert gap(generic(own(run)), own(plain)) == 0
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) == 0
    ours, theirs = run.history[-1].accuracy, plain.history[-1].accuracy
    assert {name: ours[name] for name in theirs} == theirs
    assert gap(generic(own(whole_runs.played(FedRoD(), engine))), own(plain)) > 1e-4


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_private_heads_stay_and_own_answers_add_both(engine: str) -> None:
    run = whole_runs.run_of(FedRoD(), engine, 2, Restless, participation=1.0)
    group = run.engine.groups[0]
    mine = group.own.take(range(5))
    assert not any(name.startswith("private_head") for name in run.broadcast.weights)
    assert all(
        float((mine["private_head.weight"][0] - one).abs().max()) > 1e-3 for one in mine["private_head.weight"][1:]
    )
    accuracy = run.history[-1].per_client
    assert {"own/own/both-heads", "own/all/both-heads", "own/all/head", "global/all/head"} <= set(accuracy)
    assert "global/all/both-heads" not in accuracy  # the server has no private head
    pool = run.federation.clients[0].pool
    for k in range(5):
        group.module.load_state_dict({name: value[k] for name, value in mine.items()})
        group.module.eval()
        with torch.no_grad():
            out = group.module(group.inputs(pool.x))
            both = out.logits + group.module.get_submodule("private_head")(out.features)
        hits = 100 * float((both.argmax(-1) == pool.labels).double().mean())
        assert accuracy["own/all/both-heads"][k] == pytest.approx(hits)


def test_a_look_at_a_run_is_by_both_heads() -> None:
    run = whole_runs.run_of(FedRoD(), "sequential", 2, Restless, participation=1.0)
    seen = take_snapshot(run.engine, run.broadcast, 0, run.history[-1].participants)
    assert (seen.model, seen.rule) == ("own", "both-heads")
    right = float(seen.confusion.diagonal().sum() / seen.confusion.sum())
    sizes = [len(client.own) for client in run.federation.clients]
    scores = run.history[-1].per_client["own/own/both-heads"]
    assert 100 * right == pytest.approx(sum(s * n for s, n in zip(scores, sizes, strict=True)) / sum(sizes))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    def shares(name: str) -> bool:
        return not name.startswith("private_head.")

    method = FedRoD(gamma=0.8)
    whole_runs.assert_rounds_are_those_of_plain_loops(method, engine, slow.fedrod_term(0.8), shares=shares)


@pytest.mark.parametrize("method", [FedRoD(), FedRoD(gamma=0.5), FedRoD(averaging="uniform")])
def test_engines_agree_to_rounding_and_the_prior_takes_part(method: FedRoD) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(method)


def test_fedrod_learns() -> None:
    whole_runs.assert_learns(FedRoD())
