"""Layers of all clients in one call, against a loop over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from protofed.models import MODELS, build
from protofed.models.layers import step
from protofed.models.stacking import _LAYERS, _long_product, _patches, bytes_per_image, stacking
from tests.support.nets import taken_by

CLIENTS = 3
quick = settings(max_examples=25, deadline=None)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def agree(layer: Callable[..., Tensor], *tensors: Tensor, shared: tuple[bool, ...] = ()) -> None:
    """Values and gradients of a layer inside `stacking` are those of a loop; `shared` tensors have no client axis."""
    common = shared or (False,) * len(tensors)
    given_tensors = [tensor.clone().requires_grad_() for tensor in tensors]

    def together(*mine: Tensor) -> Tensor:
        with stacking():
            return layer(*mine)

    fast = vmap(together, in_dims=tuple(None if one else 0 for one in common))(*given_tensors)
    rows = [[t if one else t[k] for t, one in zip(given_tensors, common, strict=True)] for k in range(CLIENTS)]
    slow = torch.stack([layer(*row) for row in rows])
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-10)
    weight = draw(*slow.shape, seed=9)
    gradients = [torch.autograd.grad((made * weight).sum(), given_tensors) for made in (fast, slow)]
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "shared", [(False, False, False), (True, False, False), (False, True, True), (True, False, True)]
)
@pytest.mark.parametrize("rows", [(), (4,), (2, 4)])
def test_linear(rows: tuple[int, ...], shared: tuple[bool, ...]) -> None:
    sizes = [(*rows, 5), (6, 5), (6,)]
    tensors = [draw(*((CLIENTS,) * (not one)), *size) for size, one in zip(sizes, shared, strict=True)]
    agree(functional.linear, *tensors, shared=shared)


@quick
@given(
    channels=st.integers(1, 3),
    outputs=st.integers(1, 4),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    shared=st.booleans(),
    bias=st.booleans(),
)
def test_convolutions(
    channels: int, outputs: int, kernel: int, stride: int, padding: int, shared: bool, bias: bool
) -> None:
    x = draw(*((CLIENTS,) * (not shared)), 2, channels, 6, 5)
    w, b = draw(CLIENTS, outputs, channels, kernel, kernel, seed=1), draw(CLIENTS, outputs, seed=2)

    def layer(x: Tensor, w: Tensor, *b: Tensor) -> Tensor:
        return torch.conv2d(x, w, b[0] if b else None, stride, padding)

    agree(layer, x, w, *([b] if bias else []), shared=(shared, False, *([False] if bias else [])))


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_group_norm(affine: bool, shared: bool) -> None:
    x = draw(*((CLIENTS,) * (not shared)), 2, 4, 3, 3)
    scale = [draw(CLIENTS, 4, seed=1), draw(CLIENTS, 4, seed=2)] if affine or shared else []

    def layer(x: Tensor, *scale: Tensor) -> Tensor:
        weight, bias = scale or (None, None)
        return functional.group_norm(x, 2, weight, bias)

    agree(layer, x, *scale, shared=(shared, *(False for _ in scale)))


def test_a_group_norm_of_clients_side_by_side() -> None:
    """The layout of a batch on a CPU, which vmap's own group_norm refuses."""
    x = draw(2, 3, 3, CLIENTS, 4).permute(3, 0, 4, 1, 2)
    agree(lambda x: functional.group_norm(x, 2), x)


def test_grouped_dilated_and_named_paddings_are_torchs_own() -> None:
    x, w = draw(CLIENTS, 2, 4, 6, 6), draw(CLIENTS, 4, 1, 3, 3, seed=1)
    agree(lambda x, w: torch.conv2d(x, w, None, 1, 1, 1, 4), x, w)
    w = draw(CLIENTS, 3, 4, 3, 3, seed=1)
    agree(lambda x, w: torch.conv2d(x, w, None, 1, 1, 2), x, w)
    agree(lambda x, w: torch.conv2d(x, w, None, 1, "same"), x, w)
    agree(lambda x, w: torch.conv2d(x, w, None, 1, 1), x, w[0], shared=(False, True))  # a teacher's, the same for all


@quick
@given(
    kernel=st.integers(1, 3),
    stride=st.integers(1, 3),
    padding=st.integers(0, 2),
    sides=st.tuples(*[st.integers(3, 7)] * 2),
)
def test_patches_times_weights_are_a_convolution(
    kernel: int, stride: int, padding: int, sides: tuple[int, int]
) -> None:
    """The formulation that a GPU uses, here on a CPU."""
    x, w = draw(CLIENTS, 2, 3, *sides), draw(CLIENTS, 4, 3, kernel, kernel, seed=1)
    rows, (height, width) = _patches(x, (kernel, kernel), (stride, stride), (padding, padding))
    made = torch.unflatten(rows @ w.flatten(2).mT, 1, (2, height, width)).permute(0, 1, 4, 2, 3)
    slow = torch.stack([torch.conv2d(x[k], w[k], None, stride, padding) for k in range(CLIENTS)])
    torch.testing.assert_close(made, slow)


@pytest.mark.parametrize("rows", [3, 511, 512, 4608, 5000])
def test_a_long_product_in_parts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = draw(2, rows, 3), draw(2, rows, 4, seed=1)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))
    torch.testing.assert_close(_long_product(a, b), a.mT @ b)


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (1, 1, 2, 2), (2, 2, 5, 3)])
def test_pooling_with_ties_and_odd_sides(shape: tuple[int, int, int, int]) -> None:
    x = torch.randint(0, 3, (CLIENTS, *shape), generator=torch.Generator().manual_seed(0)).double()  # many ties
    agree(lambda x: functional.max_pool2d(x, 2), x)
    agree(nn.MaxPool2d(3, 2, 1), x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("affine", [True, False])
def test_batch_normalisation_and_its_running_statistics(training: bool, affine: bool) -> None:
    x, w, b = draw(CLIENTS, 4, 3, 2, 2), draw(CLIENTS, 3, seed=1), draw(CLIENTS, 3, seed=2)
    statistics = [(torch.zeros(CLIENTS, 3).double(), torch.ones(CLIENTS, 3).double()) for _ in range(2)]

    def norm(x: Tensor, mean: Tensor, var: Tensor, w: Tensor, b: Tensor) -> Tensor:
        with stacking():
            return functional.batch_norm(x, mean, var, w if affine else None, b if affine else None, training)

    fast = vmap(norm)(x, *statistics[0], w, b)
    for k in range(CLIENTS):
        mean, var = (part[k] for part in statistics[1])
        slow = functional.batch_norm(x[k], mean, var, w[k] if affine else None, b[k] if affine else None, training)
        torch.testing.assert_close(fast[k], slow)
    torch.testing.assert_close(statistics[0], statistics[1])
    assert bool((statistics[0][0] != 0).any()) == training


def test_the_layers_are_found_where_modules_call_them() -> None:
    """Each of them is called by its nn.Module under the name it is replaced by."""
    called = set()
    layers = dict(_LAYERS)

    def noting(name: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def layer(*args: Any, **kwargs: Any) -> Tensor:
            called.add(name)
            return layers[name](*args, **kwargs)

        return layer

    _LAYERS.update({name: noting(name) for name in layers})
    try:
        norms = nn.BatchNorm2d(2), nn.GroupNorm(1, 2)
        module = nn.Sequential(nn.Conv2d(1, 2, 3), *norms, nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 2))
        with stacking():
            module(torch.zeros(2, 1, 8, 8))
    finally:
        _LAYERS.update(layers)
    assert called == set(layers)


@pytest.mark.parametrize("model", [name for name in MODELS if name != "resnet18"])
def test_models_are_what_a_loop_makes_of_them(model: str) -> None:
    shape = taken_by(model, (512, 1, 1) if model.startswith("head") else (1, 16, 16))
    module = build(model, shape, 4, 1).double().train()
    drawn = draw(CLIENTS, 3, *shape)
    x, keys = drawn.mul(9).long() % shape.tokens if shape.tokens else drawn, torch.arange(CLIENTS)
    noise = torch.Generator().manual_seed(0)

    def near(value: Tensor) -> Tensor:
        return value + 0.05 * torch.rand(CLIENTS, *value.shape, generator=noise, dtype=value.dtype)

    start = {name: near(value.detach()) for name, value in module.state_dict().items()}

    def forward(state: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        with step(key):
            out = functional_call(module, state, (x,))
        return torch.cat([out.logits, out.features], 1)

    def together(state: dict[str, Tensor], x: Tensor, key: Tensor) -> Tensor:
        with stacking():
            return forward(state, x, key)

    results = []
    for fast in (True, False):
        state = {name: value.clone() for name, value in start.items()}
        weights = [state[name].requires_grad_() for name, _ in module.named_parameters()]
        rows = [{name: value[k] for name, value in state.items()} for k in range(CLIENTS)]
        made = (
            vmap(together)(state, x, keys)
            if fast
            else torch.stack([forward(rows[k], x[k], keys[k]) for k in range(CLIENTS)])
        )
        results.append((made, torch.autograd.grad(made.square().sum(), weights), state))
    torch.testing.assert_close(results[0], results[1], rtol=1e-8, atol=1e-8)


def test_a_convolution_is_counted_with_its_patches() -> None:
    module = nn.Sequential(nn.Conv2d(2, 5, 3), nn.Flatten(), nn.Linear(5 * 4 * 4, 7)).double()
    patches = 4 * 4 * 2 * 3 * 3
    module.train()
    assert bytes_per_image(module, draw(2, 6, 6)) == 8 * (2 * 6 * 6 + 5 * 4 * 4 + patches)
    assert module.training
    assert not any(layer._forward_hooks for layer in module.modules())
