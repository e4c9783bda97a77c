"""The contrasts with a pool go through it in chunks and keep no similarities: the same numbers in less memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.func import vmap
from torch.testing import assert_close

from protofed.prototypes import Prototypes, losses, pooled_contrast, slot_contrast
from tests.reference import contrasts as reference
from tests.support.prototype_cases import Dispatched, quick, random_features, random_labels, random_prototypes, seeds

Contrast = Callable[[Tensor, Tensor, Prototypes, float], Tensor]
CONTRASTS: dict[str, tuple[Contrast, Contrast]] = {
    "slot": (slot_contrast, reference.slot_contrast),
    "pooled": (pooled_contrast, reference.pooled_contrast),
}
every_contrast = pytest.mark.parametrize("name", CONTRASTS)
TAU = 0.07


def value_and_gradient(loss: Callable[[Tensor], Tensor], z: Tensor) -> tuple[Tensor, Tensor]:
    """A loss and its gradient, each sample with a weight of its own."""
    z = z.clone().requires_grad_()
    value = loss(z)
    weight = 1 + torch.arange(value.numel(), dtype=z.dtype).view_as(value)
    (gradient,) = torch.autograd.grad((weight * value).sum(), z)
    return value.detach(), gradient


@every_contrast
@quick
@example(batch=4, clients=2, classes=3, slots=2, dim=3, tau=TAU, scale=3e-9, chunk=7, seed=0)
@example(batch=4, clients=2, classes=3, slots=2, dim=3, tau=TAU, scale=0.0, chunk=7, seed=0)
@given(
    batch=st.integers(1, 4),
    clients=st.integers(1, 4),
    classes=st.integers(1, 4),
    slots=st.integers(1, 3),
    dim=st.integers(1, 5),
    tau=st.sampled_from([0.01, TAU, 1.0]),
    scale=st.sampled_from([1e-6, 1.0, 1e6]),
    chunk=st.sampled_from([1, 7, 2**16]),
    seed=seeds,
)
def test_values_and_gradients_are_autograds(
    name: str,
    batch: int,
    clients: int,
    classes: int,
    slots: int,
    dim: int,
    tau: float,
    scale: float,
    chunk: int,
    seed: int,
) -> None:
    ours, theirs = CONTRASTS[name]
    z, labels = scale * random_features(batch, dim, seed=seed), random_labels(batch, classes=classes, seed=seed)
    pool = random_prototypes(clients, classes, slots, dim, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(losses, "_CHUNK", chunk)
        value, gradient = value_and_gradient(lambda z: ours(z, labels, pool, tau), z)
    expected, slope = value_and_gradient(lambda z: theirs(z, labels, pool, tau), z)
    assert_close(value, expected, atol=1e-12, rtol=1e-12)
    assert_close(gradient * max(scale, 1e-8), slope * max(scale, 1e-8), atol=1e-11, rtol=1e-11)


@every_contrast
@pytest.mark.parametrize("shared", [True, False])
def test_chunks_and_vmap_change_nothing(name: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = CONTRASTS[name]
    z, labels = random_features(3, 7, 4, seed=1), random_labels(3, 7, classes=5, seed=1)
    pools = random_prototypes(3, 6, 5, 2, 4, seed=4)
    if shared:
        pools = Prototypes(pools.vectors[:1].expand(3, -1, -1, -1, -1), pools.counts[:1].expand(3, -1, -1, -1))
    expected = value_and_gradient(
        lambda z: torch.stack([ours(z[i], labels[i], pools.take(i), TAU) for i in range(3)]), z
    )
    dims, given_pool = ((0, 0, None), pools.take(0)) if shared else ((0, 0, 0), pools)
    for chunk in (1, 20, 150, 2**16):
        monkeypatch.setattr(losses, "_CHUNK", chunk)
        mapped = vmap(lambda z, y, pool: ours(z, y, pool, TAU), in_dims=dims)
        assert_close(value_and_gradient(lambda z: mapped(z, labels, given_pool), z), expected, atol=1e-11, rtol=1e-11)  # noqa: B023


@every_contrast
def test_gradients_are_the_slopes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "_CHUNK", 16)
    ours, _ = CONTRASTS[name]
    z, labels = random_features(4, 3, seed=0).requires_grad_(), torch.tensor([0, 1, 2, -1])
    pool = random_prototypes(3, 3, 2, 3, seed=1)
    assert torch.autograd.gradcheck(lambda z: ours(z, labels, pool, 0.5), z)


@every_contrast
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sharp_and_distant_similarities_stay_finite(name: str, dtype: torch.dtype) -> None:
    # Cosines of 1 and −1 at a temperature where only differences of exponents survive.
    ours, _ = CONTRASTS[name]
    z, labels = torch.tensor([[3.0, 0.0], [-1e5, 0.0], [0.0, 1e-5]], dtype=dtype), torch.tensor([0, 0, 1])
    pool = Prototypes(torch.tensor([[[[2.0, 0.0]], [[-7.0, 0.0]]]], dtype=dtype), torch.ones(1, 2, 1, dtype=dtype))
    value, gradient = value_and_gradient(lambda z: ours(z, labels, pool, 1e-3), z)
    assert_close(value, torch.tensor([0.0, 2000.0, torch.tensor(2.0).log()], dtype=dtype))
    assert gradient.isfinite().all()
    assert value.dtype == gradient.dtype == dtype


@every_contrast
def test_half_precision_features_meet_a_pool_in_single_precision(name: str) -> None:
    ours, _ = CONTRASTS[name]
    z, labels = random_features(5, 8, seed=0).to(torch.bfloat16), torch.tensor([0, 1, 2, 0, 1])
    pool = Prototypes(*(x.float() for x in random_prototypes(2, 3, 2, 8, seed=0, empty=0)))
    value, gradient = value_and_gradient(lambda z: ours(z, labels, pool, TAU), z)
    assert_close(value, ours(z.float(), labels, pool, TAU))
    assert gradient.dtype == torch.bfloat16


@every_contrast
def test_memory_does_not_grow_with_batch_times_pool(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _ = CONTRASTS[name]
    batch, dim, chunk = 16, 2, 512
    z, labels = random_features(batch, dim, seed=0).requires_grad_(), random_labels(batch, classes=4, seed=0)
    pool = random_prototypes(50, 4, 3, dim, seed=0)
    kept: list[int] = []

    def keep(saved: Tensor) -> Tensor:
        kept.append(saved.numel())
        return saved

    def largest() -> int:
        seen = Dispatched()
        with seen, saved_tensors_hooks(keep, lambda saved: saved):
            torch.autograd.backward(ours(z, labels, pool, TAU).sum())
        assert seen.host_waits() == 0
        return seen.largest

    assert largest() >= batch * pool.counts.numel()  # in one chunk
    monkeypatch.setattr(losses, "_CHUNK", chunk)
    assert largest() <= max(chunk, pool.vectors.numel())
    assert max(kept) <= batch * dim
