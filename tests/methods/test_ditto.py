"""Ditto: its average is FedAvg's to the bit, its personal models those of plain loops."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.evaluation.snapshot import take_snapshot
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Turn
from protofed.methods.ditto import AVERAGE, PERSONAL, Ditto
from protofed.methods.fedavg import FedAvg
from protofed.models import build
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.models.twin import Twin
from protofed.runs.run import Run
from tests.reference import ditto as slow
from tests.reference.plain_rounds import Data
from tests.support import whole_runs
from tests.support.nets import Noisy, Plain, federation, gap
from tests.support.whole_runs import PARTS, Levels, Restless

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


def part(state: Any, prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}


def twin(seed: int) -> tuple[Twin, Batch]:
    """Two networks that differ, and a batch."""
    module = build(Plain, (1, 3, 3), 4, seed, Ditto().extend).double()
    assert isinstance(module, Twin)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in module.personal.parameters():
            value.add_(torch.randn(value.shape, generator=rng, dtype=torch.float64))
    x = torch.randn(5, 1, 3, 3, generator=rng, dtype=torch.float64)
    return module, Batch(x, torch.randint(0, 4, (5,), generator=rng), torch.ones(5, dtype=torch.bool))


@quick
@given(seed=seeds, lam=st.sampled_from([0.0, 0.1, 2.0]))
def test_each_phase_has_the_loss_of_its_model(seed: int, lam: float) -> None:
    module, batch = twin(seed)
    received = {name: value + 0.1 for name, value in module.state_dict().items() if name.startswith(AVERAGE)}
    turn = Turn(Broadcast(received), Clock(1, 3))
    method = Ditto(lam=lam)
    ce = [
        torch.nn.functional.cross_entropy(one(batch.x).logits, batch.y, reduction="none")
        for one in (module.average, module.personal)
    ]
    pulled = slow.pull(module.personal.state_dict(), part(received, AVERAGE), lam)
    assert_close(method.loss(Net(module), batch, turn), ce[0])
    assert_close(method.loss(Net(module), batch, turn._replace(phase=1)), ce[1] + pulled)


def test_a_phase_teaches_its_model_only() -> None:
    module, batch = twin(3)
    received = {name: value.clone() for name, value in module.state_dict().items() if name.startswith(AVERAGE)}
    for phase, prefix in enumerate((AVERAGE, PERSONAL)):
        loss = Ditto().loss(Net(module), batch, Turn(Broadcast(received), Clock(1, 3), phase=phase)).mean()
        found = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
        for (name, _), gradient in zip(module.named_parameters(), found, strict=True):
            assert (gradient is not None) == name.startswith(prefix)


def test_the_copies_are_alike_at_first_and_do_not_share_memory() -> None:
    plain, module = build(Noisy, (1, 8, 8), 4, 7), build(Noisy, (1, 8, 8), 4, 7, Ditto().extend)
    assert isinstance(module, Twin)
    assert gap(plain.state_dict(), part(module.state_dict(), AVERAGE)) == 0
    assert gap(plain.state_dict(), part(module.state_dict(), PERSONAL)) == 0
    assert module.feature_size == plain.feature_size
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with step(torch.tensor(0)):
        module.train()(torch.randn(4, 1, 8, 8), personal=True)
    changed = {name for name, value in module.state_dict().items() if not torch.equal(value, before[name])}
    assert changed
    assert all(name.startswith(PERSONAL) for name in changed)  # BatchNorm's statistics of the model that ran


def test_in_eval_mode_a_model_answers_by_both() -> None:
    module, batch = twin(1)
    out = module.eval()(batch.x)
    assert_close(out.logits, module.average(batch.x).logits)
    assert_close(out.features, module.average(batch.x).features)
    answer = Ditto().answer(out, Turn(Broadcast(), Clock(0, 1)))
    assert_close(answer, module.personal(batch.x).logits)
    assert not torch.equal(answer, out.logits)


@pytest.mark.parametrize("averaging", ["samples", "uniform"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_its_average_is_exactly_fedavgs(averaging: Any, engine: str) -> None:
    """With BatchNorm, dropout, momentum, and clients that sit out."""
    run, plain = (
        whole_runs.run_of(method, engine) for method in (Ditto(averaging=averaging), FedAvg(averaging=averaging))
    )
    own, theirs = (one.engine.groups[0].own.take(range(5)) for one in (run, plain))
    assert gap(part(run.broadcast.weights, AVERAGE), dict(plain.broadcast.weights)) == 0
    assert gap(part(own, AVERAGE), theirs) == 0
    for one, other in zip(run.history, plain.history, strict=True):
        for name in ("global/own/head", "global/all/head", "own/own/head"):
            assert one.per_client[name] == other.per_client[name]
        assert one.bytes_up > 0


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_a_whole_run_is_that_of_plain_loops(lam: float, engine: str) -> None:
    """Two of three clients a round, four rounds at a falling rate."""
    clients = federation(PARTS, test=30)
    options: dict[str, Any] = {"weight_decay": 0.0, "participation": 0.67, "seed": 2, "clients": clients}
    run = whole_runs.run_of(Ditto(lam=lam), engine, 4, Levels, **options)
    group = run.engine.groups[0]
    rounds: list[dict[int, tuple[list[list[int]], list[list[int]]]]] = []
    for number, line in enumerate(run.history):
        rounds.append({})
        for who in line.participants:
            plan = run.engine.schedule(group, [who], Clock(number, 4)).rows[0]
            steps = [[int(row) for row in one if row >= 0] for one in plan]
            rounds[-1][who] = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    assert isinstance(group.module, Twin)
    module = deepcopy(group.module.average).double().requires_grad_()
    module.load_state_dict(part(group.own.initial, AVERAGE))
    data = [Data(group.inputs(client.train.x), client.train.labels) for client in clients.clients]
    average, personal = slow.play(module, data, rounds, [0.02 * 0.9**number for number in range(4)], lam)
    assert_close(part(run.broadcast.weights, AVERAGE), average, atol=1e-10, rtol=0)
    for name, value in part(group.own.take(range(3)), PERSONAL).items():
        assert_close(value, torch.stack([one[name] for one in personal]), atol=1e-10, rtol=0)


def distance(run: Run) -> float:
    """How far personal models are from the last average."""
    own = part(run.engine.groups[0].own.take(range(5)), PERSONAL)
    average = part(run.broadcast.weights, AVERAGE)
    return sum(float((own[name] - average[name]).square().sum()) for name in own if "running" not in name)


def test_a_stronger_pull_keeps_personal_models_nearer_and_the_average_as_it_is() -> None:
    free, held = (whole_runs.run_of(Ditto(lam=lam), "stacked", 4, participation=1.0) for lam in (0.0, 10.0))
    assert distance(held) < 0.5 * distance(free)
    assert gap(part(held.broadcast.weights, AVERAGE), part(free.broadcast.weights, AVERAGE)) == 0


def test_the_personal_model_stays_and_its_rule_is_reported() -> None:
    run = whole_runs.run_of(Ditto(), "stacked", 2, Restless)
    assert all(name.startswith(AVERAGE) for name in run.broadcast.weights)
    last = run.history[-1].accuracy
    assert {"own/own/personal", "own/all/personal", "global/all/head"} <= set(last)
    group = run.engine.groups[0]
    assert run.client_memory(group) == sum(value.nbytes for value in part(group.own.initial, PERSONAL).values())


def test_the_snapshot_counts_the_answers_of_the_personal_model() -> None:
    run = whole_runs.run_of(Ditto(lam=0.0), "stacked", 6, Levels, lr=0.1, participation=1.0)
    taken = take_snapshot(run.engine, run.broadcast, 0, run.history[-1].participants)
    assert taken.rule == "personal"
    asked = run.history[-1].per_client["own/own/personal"]
    images = [len(client.own) for client in run.federation.clients]
    expected = sum(round(score * size / 100) for score, size in zip(asked, images, strict=True))
    assert int(taken.confusion.trace()) == expected


def test_ditto_learns() -> None:
    whole_runs.assert_learns(Ditto())
