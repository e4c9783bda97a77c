"""FedNH: its head and its server are plain loops, prototypes stay unit and fixed in training, and engines agree."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock, Server, Trained
from protofed.methods.fednh import FedNH, W
from protofed.models import MODELS, build
from protofed.models.layers import step
from protofed.models.normalised_head import NormalisedHead
from protofed.prototypes import Prototypes
from tests.reference import fednh as slow
from tests.support import server_runs
from tests.support.nets import Noisy, Plain, gap, own, play, taken_by
from tests.support.turns import turn_of

quick = settings(max_examples=12, deadline=None)
numbers = st.integers(0, 2**16)
VARIANTS: dict[str, dict[str, Any]] = {
    "fednh": {},
    "fednh clipped": {"scale": 300.0},
    "fednh rho": {"rho": 0.5},
    "fednh samples": {"averaging": "samples"},
}


@quick
@given(batch=st.integers(1, 5), features=st.integers(2, 6), seed=numbers, scale=st.sampled_from([1.0, 20.0]))
def test_the_normalised_head_is_the_loop(batch: int, features: int, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    head = NormalisedHead(features, 2, scale).double()
    z = torch.randn(batch, features, dtype=torch.float64)
    assert_close(head.prototypes @ head.prototypes.T, torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert_close(head(z), torch.stack([slow.cosine_logits(row, head.prototypes, scale) for row in z]))
    assert_close(head(7 * z), head(z))
    assert [name for name, _ in head.named_parameters()] == ["scale"]
    assert [name for name, _ in head.named_buffers()] == ["prototypes"]


def test_a_feature_of_zeros_has_a_finite_loss_and_gradient() -> None:
    head = NormalisedHead(4, 3, 20.0)
    z = torch.zeros(2, 4, requires_grad=True)
    nn.functional.cross_entropy(head(z), torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())
    assert head.scale.grad is not None
    assert bool(head.scale.grad.isfinite().all())


def test_more_classes_than_features_are_refused() -> None:
    with pytest.raises(UserError, match="orthogonal"):
        build(Plain, (1, 8, 8), 7, 0, FedNH().extend)
    build(Plain, (1, 8, 8), 6, 0, FedNH().extend)


def logits_only(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 12), nn.ReLU(), nn.Linear(12, classes))


@pytest.mark.parametrize("model", [*MODELS, logits_only, Noisy])
def test_every_model_takes_the_normalised_head(model: Any) -> None:
    ready = isinstance(model, str) and model.startswith("head")
    shape = taken_by(model, (512, 1, 1) if ready else (3, 32, 32) if model == "resnet18" else (3, 16, 16))
    classes = 8
    module = build(model, shape, classes, 0, FedNH(scale=5.0).extend)
    again = build(model, shape, classes, 0, FedNH(scale=5.0).extend)
    assert gap(module.state_dict(), again.state_dict()) == 0  # no two clients differ
    assert {"head.scale", W} == {name for name in module.state_dict() if "head." in name}
    module.eval()
    with torch.no_grad():
        out = module(shape.example(2))
    head = cast(NormalisedHead, module.head)
    expected = torch.stack([slow.cosine_logits(z, head.prototypes, 5.0) for z in out.features])
    if isinstance(model, str) and model.endswith("fedpcl"):  # which scales its logits to length 1, whatever the head
        expected = nn.functional.normalize(expected.relu(), dim=1)
    assert_close(out.logits, expected, atol=1e-5, rtol=1e-4)
    module.train()
    with step(torch.tensor(0)):
        loss = nn.functional.cross_entropy(module(shape.example(3)).logits, torch.tensor([0, 1, 2]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


def directions(clients: int, samples: int, seed: int) -> tuple[Trained, list[dict[int, tuple[Tensor, int]]]]:
    """What clients trained, with −1 for padding and class 3 nowhere, and what each should send."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(clients, samples, 5, generator=rng, dtype=torch.float64)
    labels = torch.randint(-1, 3, (clients, samples), generator=rng)
    features[0, 0] = 0  # a dead feature
    weights = {"w": torch.randn(clients, 3, generator=rng), W: torch.zeros(clients, 4, 5)}
    trained = Trained(weights, torch.full((clients,), samples), features, labels, 4, torch.arange(clients))
    pairs = [[(z, int(y)) for z, y in zip(*row, strict=True) if y >= 0] for row in zip(features, labels, strict=True)]
    return trained, [slow.class_directions(own) for own in pairs]


@quick
@given(clients=st.integers(1, 4), samples=st.integers(1, 9), seed=numbers, rho=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_fednh_is_the_loop(clients: int, samples: int, seed: int, rho: float) -> None:
    trained, expected = directions(clients, samples, seed)
    method = build_method("fednh", {"rho": rho})
    sent = method.upload(trained, turn_of(trained))
    assert list(sent.weights) == ["w"]
    means = sent.prototypes["means"]
    for k, found in enumerate(expected):
        assert means.present[k].nonzero().flatten().tolist() == sorted(found)
        for c, (mu, n) in found.items():
            assert_close(means.vectors[k, c, 0], mu)
            assert means.counts[k, c, 0] == n

    torch.manual_seed(seed)
    old = nn.init.orthogonal_(torch.empty(4, 5, dtype=torch.float64))
    received = method.aggregate(sent, Server(Broadcast({W: old}), Clock(0, 1, tuple(range(clients)), clients))).weights
    new = received[W]
    assert_close(received["w"], trained.weights["w"].mean(0))
    moves = slow.move(old, expected, rho)
    zero = moves.norm(dim=1) < 1e-6  # ρ = 0 and nothing but dead features
    assert_close(new[~zero], moves[~zero])
    assert_close(new.norm(dim=1), torch.ones(4, dtype=torch.float64))
    held = {c for found in expected for c in found}
    for c in set(range(4)) - held:
        assert torch.equal(new[c], old[c])
    assert 3 not in held


def test_a_prototype_that_would_vanish_stays() -> None:
    old = torch.eye(3, dtype=torch.float64)
    means = Prototypes(-old.view(1, 3, 1, 3), torch.ones(1, 3, 1, dtype=torch.float64))
    sent = Upload({"w": torch.ones(1, 2)}, {"means": means}, {"samples": torch.tensor([3])})
    new = (
        build_method("fednh", {"rho": 0.5})
        .aggregate(sent, Server(Broadcast({W: old}), Clock(0, 1, (0,), 1)))
        .weights[W]
    )
    assert torch.equal(new, old)


def test_prototypes_are_fixed_while_a_client_trains_and_unit_ever_after() -> None:
    run = play("fednh", rounds=0, participation=1.0)
    for _ in range(3):
        before = run.broadcast.weights[W]
        run.play_round()
        mine = run.engine.groups[0].own.take(range(5))
        assert all(torch.equal(matrix, before) for matrix in mine[W])
        assert len(set(mine["head.scale"].flatten().tolist())) == 5
        after = run.broadcast.weights[W]
        assert_close(after.norm(dim=1), torch.ones(6, dtype=torch.float64), atol=1e-6, rtol=0)
        assert torch.equal(after[5], before[5])  # nobody holds class 5
        assert all(not torch.equal(after[c], before[c]) for c in range(5))


def test_large_gradients_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one step a client moves by lr · 10 at most, weight decay aside; without clipping it moves farther."""
    setting: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch_size": 64, "weight_decay": 0.0, "model": Plain}
    start, clipped = play("fednh", rounds=0, model=Plain), play("fednh", {"scale": 300.0}, **setting)
    monkeypatch.setattr(FedNH, "clip", None)
    free = play("fednh", {"scale": 300.0}, **setting)
    begin = own(start)["own/0/hidden.weight"]
    moves = [(own(run)["own/0/hidden.weight"] - begin).flatten(1).norm(dim=1) for run in (clipped, free)]
    assert bool((moves[0] <= 0.02 * 10 + 1e-9).all())
    assert bool((moves[1] > moves[0]).any())


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding(variant: str) -> None:
    server_runs.assert_engines_agree_to_rounding("fednh", VARIANTS[variant])


@pytest.mark.parametrize("variant", ["fednh clipped", "fednh rho", "fednh samples"])
def test_every_option_changes_the_run(variant: str) -> None:
    server_runs.assert_runs_differ("fednh", VARIANTS[variant], {})


def test_fednh_learns() -> None:
    server_runs.assert_learns("fednh")
