"""MOON: its loss is a plain loop, whole runs are those of a slow reference, and engines agree in float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.moon import Moon
from protofed.models import build, parameter_count
from protofed.models.net import Net
from protofed.models.projection import Projected
from tests.reference import moon as slow
from tests.support import whole_runs
from tests.support.given_outputs import Given, added, gradients, labels_of, modes_asked, normal, turn_of
from tests.support.nets import CLASSES
from tests.support.whole_runs import Levels, Restless

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
VARIANTS = {
    "moon": Moon(),
    "moon strong": Moon(mu=1.0, temperature=0.2),
    "moon projection": Moon(projection=True),
}


@quick
@given(seeds, st.integers(1, 6), st.sampled_from([0.1, 0.5, 2.0]), st.sampled_from([0.1, 5.0]))
def test_moon_contrasts_the_received_with_the_previous_model(seed: int, batch: int, tau: float, mu: float) -> None:
    y, logits = labels_of(batch, 3, seed), normal(batch, 3, seed=seed)
    now, received, last = (Given(normal(batch, 4, seed=seed + i), logits) for i in range(3))
    expected = mu * slow.moon(now.features, received.features, last.features, tau).detach()
    method = Moon(mu=mu, temperature=tau)
    for taken in (1, 7):
        assert_close(added(method, now, y, turn_of(received, last, taken)).detach(), expected)


def test_moon_says_nothing_in_a_clients_first_turn_and_then_log_2_at_equal_models() -> None:
    net = Given(normal(4, 5, seed=1), normal(4, 3, seed=2))
    y = labels_of(4, 3, 0)
    assert not added(Moon(), net, y, turn_of(net, net, taken=0)).any()
    assert not added(Moon(), net, y, turn_of(net)).any()
    assert_close(
        added(Moon(mu=2), net, y, turn_of(net, net, 1)), torch.full((4,), 2 * math.log(2), dtype=torch.float64)
    )


def test_moon_pulls_to_the_received_model_and_teaches_neither_it_nor_the_previous_one() -> None:
    now, received, last = (Given(normal(4, 5, seed=i), normal(4, 3, seed=9)) for i in range(3))
    turn = turn_of(received, last, 1)
    for weights in (turn.received.weights, turn.previous):
        for weight in weights.values():
            weight.requires_grad_()
    y = labels_of(4, 3, 0)
    before = added(Moon(), now, y, turn)
    sides = [turn.received.weights["features"], turn.previous["features"]]
    moved = torch.autograd.grad(before.sum(), [now.features, *sides], allow_unused=True)
    assert moved[0].abs().max() > 1e-3
    assert moved[1] is None
    assert moved[2] is None
    with torch.no_grad():
        now.features -= 0.1 * moved[0]
    assert bool((added(Moon(), now, y, turn) < before).all())


def test_moon_is_finite_without_features() -> None:
    net, other = Given(torch.zeros(3, 4).double(), normal(3, 3, seed=1)), Given(normal(3, 4, seed=2), torch.zeros(3, 3))
    y = torch.tensor([0, 1, 2])
    for turn in (turn_of(net, other, 1), turn_of(other, net, 1), turn_of(other, other, 0)):
        assert bool(added(Moon(), net, y, turn).isfinite().all())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(Moon(), net, y, turn))


def test_the_projection_head_is_the_papers_and_the_old_classifier_is_gone() -> None:
    method = Moon(projection=True)
    plain, module = (build("cnn", (1, 28, 28), 10, 5, extend) for extend in (None, method.extend))
    assert isinstance(module, Projected)
    assert parameter_count(plain) == 21_840
    assert parameter_count(module) == 21_840 - 510 + (50 * 50 + 50) + (50 * 256 + 256) + 2_570
    x = torch.linspace(-1, 1, 3 * 784).view(3, 1, 28, 28)
    out, base = module.eval()(x), plain.eval()(x)
    layers = module.projection
    assert_close(out.features, layers[2](layers[0](base.features).relu()))  # the body starts as without the projection
    assert_close(out.logits, nn.functional.linear(out.features, module.head.weight, module.head.bias))
    assert [block.shape for block in out.blocks] == [block.shape for block in base.blocks]
    assert module.feature_size == out.features.shape[1] == 256
    again = build("cnn", (1, 28, 28), 10, 5, method.extend).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in module.state_dict().items())
    assert Moon().extend(plain, 10) is plain


def test_teachers_are_asked_in_eval_mode() -> None:
    assert modes_asked(Moon()) == [True, False, False]


def test_the_losses_run_under_vmap_with_clients_in_different_turns() -> None:
    """A stacked step where one client has no previous model and another has."""
    module = build(Levels, (1, 8, 8), CLASSES, 0).double()
    x, y = normal(2, 5, 1, 8, 8, seed=0), labels_of(10, CLASSES, 0).view(2, 5)
    last = {name: torch.stack([value, value + 0.3]) for name, value in module.state_dict().items()}

    def one(x: Tensor, y: Tensor, last: dict[str, Tensor], taken: Tensor) -> Tensor:
        turn = Turn(Broadcast(module.state_dict()), Clock(1, 3), last, taken=taken)
        return Moon().loss(Net(module), Batch(x, y, torch.ones_like(y, dtype=torch.bool)), turn)

    both = vmap(one)(x, y, last, torch.tensor([0, 2]))
    for k, taken in enumerate((0, 2)):
        alone = one(x[k], y[k], {name: value[k] for name, value in last.items()}, torch.tensor(taken))
        assert_close(both[k], alone)
    ce = nn.functional.cross_entropy(module(x[0]).logits, y[0], reduction="none")
    assert_close(both[0], ce, atol=0, rtol=1e-12)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    whole_runs.assert_rounds_are_those_of_plain_loops(Moon(), engine, slow.moon_term(5.0, 0.5))


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding_and_the_term_takes_part(variant: str) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(VARIANTS[variant])


def test_moon_without_its_term_is_exactly_fedavg() -> None:
    whole_runs.assert_exactly_fedavg(Moon(mu=0))


def test_moon_is_fedavg_until_a_client_returns() -> None:
    """With one client a round, the first return is where the runs part."""
    run, plain = (
        whole_runs.run_of(method, "stacked", 5, Restless, participation=0.2, seed=0) for method in (Moon(), FedAvg())
    )
    asked = [line.participants[0] for line in run.history]
    first = next(number for number, who in enumerate(asked) if who in asked[:number])
    assert first > 1
    losses = [(a.loss, b.loss) for a, b in zip(run.history, plain.history, strict=True)]
    assert all(a == b for a, b in losses[:first])
    assert losses[first][0] > losses[first][1] + 0.1


def test_moon_learns() -> None:
    whole_runs.assert_learns(Moon(mu=1.0))
