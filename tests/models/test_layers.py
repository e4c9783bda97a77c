"""Dropout and BatchNorm: the same in a loop, under vmap and with padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, vmap

from protofed.errors import UserError
from protofed.models.layers import BatchNorm, Dropout, Dropout2d, step

KEY = torch.tensor(3)


def assert_same(left: object, right: object) -> None:
    """Equal up to the last digits of float64."""
    torch.testing.assert_close(left, right, rtol=0, atol=1e-12)


def noise(*shape: int) -> Tensor:
    """Float64 numbers away from zero mean and unit variance."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 3 + 2


def pair(features: int) -> tuple[BatchNorm, nn.Module]:
    """Our BatchNorm and torch's, with the same weights."""
    ours = BatchNorm(features).double()
    theirs = nn.BatchNorm2d(features).double()
    with torch.no_grad():
        for mine, other in ((ours.weight, theirs.weight), (ours.bias, theirs.bias)):
            assert mine is not None
            mine.copy_(noise(features))
            other.copy_(mine)
    return ours, theirs


def test_dropout_of_a_sample_does_not_depend_on_padding() -> None:
    x = torch.ones(6, 5, 4, 4)
    for layer in (Dropout(0.5), Dropout2d(0.5)):
        with step(KEY):
            short = layer(x[:4])
        with step(KEY, torch.arange(6) < 4):
            padded = layer(x)
        torch.testing.assert_close(padded[:4], short, rtol=0, atol=0)


@settings(max_examples=30, deadline=None)
@given(st.floats(0.05, 0.9), st.integers(0, 2**32 - 1))
def test_dropout_keeps_the_expectation(p: float, key: int) -> None:
    with step(torch.tensor(key)):
        dropped = Dropout(p)(torch.ones(100, 200, dtype=torch.float64))
    assert dropped.mean().item() == pytest.approx(1, abs=6 * (p / (1 - p) / 20_000) ** 0.5)


def test_dropout2d_drops_whole_channels() -> None:
    with step(KEY):
        dropped = Dropout2d(0.5)(torch.ones(8, 6, 3, 3))
    assert torch.equal(dropped.amin((2, 3)), dropped.amax((2, 3)))
    assert set(dropped.unique().tolist()) == {0.0, 2.0}


def test_each_site_and_each_key_has_its_own_mask() -> None:
    layer, x = Dropout(0.5), torch.ones(50, 50)
    with step(KEY):
        first, second = layer(x), layer(x)
    with step(KEY):
        again = layer(x)
    with step(KEY + 1):
        other = layer(x)
    assert torch.equal(first, again)
    for different in (second, other):
        assert (first == different).double().mean().item() == pytest.approx(0.5, abs=0.06)


def test_dropout_is_the_identity_when_not_training() -> None:
    x = noise(3, 4)
    assert torch.equal(Dropout(0.5).eval()(x), x)
    assert torch.equal(Dropout(0)(x), x)


@pytest.mark.parametrize("p", [-0.1, 1.0])
def test_dropout_refuses_a_probability_it_cannot_scale_for(p: float) -> None:
    with pytest.raises(UserError, match="dropout probability"):
        Dropout(p)


@pytest.mark.parametrize("layer", [Dropout(), BatchNorm(4)])
def test_training_needs_an_open_step(layer: nn.Module) -> None:
    with pytest.raises(RuntimeError, match="needs protofed"):
        layer(torch.ones(2, 4))


@pytest.mark.parametrize("shape", [(6, 3), (6, 3, 5), (6, 3, 4, 2)])
@pytest.mark.parametrize("masked", [False, True])
def test_batchnorm_of_real_samples_is_torchs(shape: tuple[int, ...], masked: bool) -> None:
    ours, theirs = pair(3)
    for number in range(3):  # running statistics over several steps
        x = noise(*shape) * (number + 1)
        left, right = x.clone().requires_grad_(), x.clone().requires_grad_()
        with step(KEY, torch.ones(6, dtype=torch.bool) if masked else None):
            mine = ours(left)
        other = theirs(right.view(*shape, *(1,) * (4 - len(shape)))).view(shape)
        assert_same(mine, other)
        mine.pow(3).sum().backward()
        other.pow(3).sum().backward()
        torch.testing.assert_close(left.grad, right.grad, rtol=1e-10, atol=1e-9)
        assert_same(ours.running_mean, theirs.running_mean)
        assert_same(ours.running_var, theirs.running_var)
    assert_same(ours.eval()(x), theirs.eval()(x.view(*shape, *(1,) * (4 - len(shape)))).view(shape))


def test_padding_does_not_reach_batchnorm() -> None:
    ours, theirs = pair(3)
    mask = torch.tensor([True, False, True, True, False])
    padded, real = noise(5, 3, 2, 2).requires_grad_(), noise(5, 3, 2, 2)[mask].requires_grad_()
    with step(KEY, mask):
        mine = ours(padded)
    other = theirs(real)
    assert_same(mine[mask], other)
    assert_same(ours.running_mean, theirs.running_mean)
    assert_same(ours.running_var, theirs.running_var)
    mine[mask].pow(3).sum().backward()
    other.pow(3).sum().backward()
    assert padded.grad is not None
    torch.testing.assert_close(padded.grad[mask], real.grad, rtol=1e-10, atol=1e-10)
    assert (padded.grad[~mask] == 0).all()
    for name in ("weight", "bias"):
        grads = getattr(ours, name).grad, getattr(theirs, name).grad
        torch.testing.assert_close(*grads, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("real", [0, 1])
def test_one_sample_or_none_uses_the_running_statistics(real: int) -> None:
    ours, theirs = pair(3)
    for layer in (ours, theirs):
        layer.running_mean.copy_(noise(3))  # type: ignore[operator]
        layer.running_var.copy_(noise(3).abs())  # type: ignore[operator]
    before = ours.running_mean.clone(), ours.running_var.clone()
    x = noise(4, 3, 2, 2).requires_grad_()
    with step(KEY, torch.arange(4) < real):
        mine = ours(x)
    with step(KEY):
        alone = ours(x[:1])
    assert_same(mine, theirs.eval()(x))
    assert_same(alone, theirs(x[:1]))
    torch.testing.assert_close((ours.running_mean, ours.running_var), before, rtol=0, atol=0)
    mine.sum().backward()
    assert x.grad is not None
    assert x.grad.isfinite().all()


def test_a_training_forward_does_not_spoil_the_gradient_of_an_evaluation() -> None:
    layer, _ = pair(3)
    x = noise(4, 3)
    expected = torch.autograd.grad(layer.eval()(x).square().sum(), list(layer.parameters()))
    loss = layer(x).square().sum()
    with step(KEY):
        layer.train()(x)
    assert_same(torch.autograd.grad(loss, list(layer.parameters())), expected)


def test_statistics_of_half_precision_are_taken_in_full() -> None:
    x = noise(8, 3, 16, 16).bfloat16()
    results = []
    for mask in (None, torch.ones(8)):
        layer = BatchNorm(3)
        with step(KEY, mask):
            results.append((layer(x), layer.running_mean, layer.running_var))
    torch.testing.assert_close(results[0], results[1], rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(results[0][1:], results[1][1:], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("masked", [False, True])
def test_stacked_equals_loop(masked: bool) -> None:
    module = nn.Sequential(nn.Conv2d(2, 3, 3), BatchNorm(3), Dropout2d(0.3), nn.Flatten(), Dropout(0.4)).double()
    clients, batch = 4, 5
    state = {name: noise(clients, *tensor.shape).abs() for name, tensor in module.state_dict().items()}
    x, keys = noise(clients, batch, 2, 5, 5), torch.arange(clients)
    masks = torch.arange(batch) < torch.tensor([[5], [3], [1], [0]])

    def forward(state: dict[str, Tensor], x: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        with step(key, mask if masked else None):
            out: Tensor = functional_call(module, state, (x,))
        return out.square().mean()

    def train(stacked: bool) -> tuple[Tensor, dict[str, Tensor], dict[str, Tensor]]:
        own = {name: tensor.clone() for name, tensor in state.items()}
        weights = {name: own[name].requires_grad_() for name, _ in module.named_parameters()}
        for _ in range(2):  # the second step sees the first one's running statistics
            if stacked:
                losses = vmap(forward)(own, x, keys, masks)
            else:
                rows = [{name: tensor[k] for name, tensor in own.items()} for k in range(clients)]
                losses = torch.stack([forward(rows[k], x[k], keys[k], masks[k]) for k in range(clients)])
            losses.sum().backward()  # type: ignore[no-untyped-call]
        buffers = {name: tensor for name, tensor in own.items() if name not in weights}
        grads = {name: tensor.grad for name, tensor in weights.items() if tensor.grad is not None}
        return losses.detach(), grads, buffers

    loop, stack = train(False), train(True)
    torch.testing.assert_close(stack, loop, rtol=1e-12, atol=1e-12)
    assert (stack[2]["1.running_mean"][0] != state["1.running_mean"][0]).any()
