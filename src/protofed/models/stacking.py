"""How layers run for all clients at once.

`vmap` maps any layer over clients, but for a few it can do no better than a grouped convolution, copies of weights, or
a kernel a client. Inside `stacking` those few are given the tensors of all clients, with a leading client axis, and
take one batched matrix product instead. Models are written with plain torch and know nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Sides = int | tuple[int, int]


class stacking(TorchFunctionMode):
    """Inside a vmapped function: linear, conv2d, max_pool2d, batch_norm and group_norm of all clients in one call."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        layer = _LAYERS.get(function)
        if layer is None:
            return function(*args, **given)
        return layer(*args, **given)


class _AllClients(torch.autograd.Function):
    """Hands a layer the tensors behind vmap's, the client axis first, or no such axis where all clients share one."""

    @staticmethod
    def forward(layer: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
        raise NotImplementedError("only under vmap")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: what the layer does is differentiated as it is."""

    @staticmethod
    def vmap(
        info: Any, in_dims: Sequence[Any], layer: Callable[..., Tensor], *tensors: Tensor | None
    ) -> tuple[Tensor, int]:
        placed = [
            tensor if tensor is None or dim is None else tensor.movedim(dim, 0)
            for tensor, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        own = [dim is not None for dim in in_dims[1:]]
        return layer(info.batch_size, own, *placed), 0


def _mapped(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and torch._C._functorch.is_batchedtensor(tensor) for tensor in tensors)


def _all_clients(layer: Callable[..., Tensor], *tensors: Tensor | None) -> Tensor:
    return cast(Tensor, _AllClients.apply(layer, *tensors))  # type: ignore[no-untyped-call]  # torch does not type it


class _Products(torch.autograd.Function):
    """x wᵀ + b for every client: [N, B, I], [N, O, I], [N, O] or none make [N, B, O].

    Its own backward, because torch's makes the weights' gradients transposed and then copies them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, w)
        return torch.bmm(x, w.mT) if b is None else torch.baddbmm(b.unsqueeze(1), x, w.mT)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, w = ctx.saved_tensors
        needs_x, needs_w, needs_b = ctx.needs_input_grad
        return (
            torch.bmm(grad, w) if needs_x else None,
            _long_product(grad, x) if needs_w else None,
            grad.sum(1) if needs_b else None,
        )


def _long_product(a: Tensor, b: Tensor) -> Tensor:
    """aᵀ b, [N, O, I], of [N, B, O] and [N, B, I]: for a long B in parts, or a GPU would have little to do at once."""
    parts = next((p for p in range(min(16, a.shape[1] // 256), 1, -1) if a.shape[1] % p == 0), 1)
    if not a.is_cuda or parts == 1:
        return torch.bmm(a.mT, b)
    split = [torch.unflatten(value, 1, (parts, -1)).flatten(0, 1) for value in (a, b)]
    return torch.unflatten(torch.bmm(split[0].mT, split[1]), 0, (len(a), parts)).sum(1)


def _products(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
    kind = x.device.type
    if torch.is_autocast_enabled(kind):  # autocast does not look into a Function's backward
        low = torch.get_autocast_dtype(kind)
        x, w, b = x.to(low), w.to(low), None if b is None else b.to(low)
    return cast(Tensor, _Products.apply(x, w, b))  # type: ignore[no-untyped-call]  # torch does not type it


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    def layer(clients: int, own: Sequence[bool], x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        if not own[1]:
            return functional.linear(x, w, b)
        x = x if own[0] else x.expand(clients, *x.shape)
        rows = x.flatten(1, -2) if x.dim() > 2 else x.unsqueeze(1)
        return _products(rows, w, b).view(*x.shape[:-1], w.shape[1])

    shared_bias = bias is not None and _mapped(weight) != _mapped(bias)
    if shared_bias or not _mapped(x, weight):
        return functional.linear(x, weight, bias)
    return _all_clients(layer, x, weight, bias)


def _conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sides = 1,
    padding: Sides | str = 0,
    dilation: Sides = 1,
    groups: int = 1,
) -> Tensor:
    """Every client's patches side by side, times its weights: many tiny convolutions as one batched product."""
    steps, edges = _pair(stride), padding if isinstance(padding, str) else _pair(padding)

    def layer(clients: int, own: Sequence[bool], x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
        x = x if own[0] else x.expand(clients, *x.shape)
        if not x.is_cuda:
            bias = None if b is None else b.flatten()
            made = torch.conv2d(_side_by_side(x), w.flatten(0, 1), bias, stride, padding, groups=clients)
            return _apart(made, clients)
        rows, (height, width) = _patches(x, cast(tuple[int, int], w.shape[-2:]), steps, cast(tuple[int, int], edges))
        made = _products(rows, w.flatten(2), b)
        return torch.unflatten(made, 1, (x.shape[1], height, width)).permute(0, 1, 4, 2, 3)

    plain = groups == 1 and _pair(dilation) == (1, 1) and not isinstance(padding, str) and x.dim() == 4
    if not plain or not _mapped(weight) or (bias is not None and not _mapped(bias)):
        return torch.conv2d(x, weight, bias, stride, padding, dilation, groups)
    return _all_clients(layer, x, weight, bias)


def _patches(
    x: Tensor, kernel: tuple[int, int], steps: tuple[int, int], edges: tuple[int, int]
) -> tuple[Tensor, tuple[int, int]]:
    """[N, B·h·w, c·k·k] from images [N, B, c, H, W], and (h, w)."""
    if edges != (0, 0):
        x = functional.pad(x, (edges[1], edges[1], edges[0], edges[0]))
    found = x.unfold(3, kernel[0], steps[0]).unfold(4, kernel[1], steps[1])  # [N, B, c, h, w, k, k]
    return found.permute(0, 1, 3, 4, 2, 5, 6).flatten(4, 6).flatten(1, 3), (found.shape[3], found.shape[4])


def _max_pool2d(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    def layer(clients: int, own: Sequence[bool], x: Tensor) -> Tensor:  # noqa: ARG001
        if not x.is_cuda:
            return _apart(functional.max_pool2d(_side_by_side(x), *args, **kwargs), clients)
        return torch.unflatten(functional.max_pool2d(x.flatten(0, 1), *args, **kwargs), 0, x.shape[:2])

    return _all_clients(layer, x) if _mapped(x) else functional.max_pool2d(x, *args, **kwargs)


def _batch_norm(
    x: Tensor,
    mean: Tensor | None,
    var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Clients side by side as channels; running statistics are updated in place."""

    def layer(clients: int, own: Sequence[bool], x: Tensor, *parts: Tensor | None) -> Tensor:  # noqa: ARG001
        mean, var, weight, bias = (None if part is None else part.flatten() for part in parts)
        made = functional.batch_norm(_side_by_side(x), mean, var, weight, bias, training, momentum, eps)
        return _apart(made, clients)

    given = (x, mean, var, weight, bias)
    if all(part is None or _mapped(part) for part in given):
        return _all_clients(layer, *given)
    return functional.batch_norm(*given, training, momentum, eps)


def _group_norm(
    x: Tensor, groups: int, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """All clients' samples as one batch, for none knows of another; vmap's own refuses some layouts."""

    def layer(clients: int, own: Sequence[bool], x: Tensor) -> Tensor:  # noqa: ARG001
        return torch.unflatten(functional.group_norm(x.flatten(0, 1), groups, eps=eps), 0, x.shape[:2])

    if not _mapped(x):
        return functional.group_norm(x, groups, weight, bias, eps)
    made, shape = _all_clients(layer, x), (-1, *(1,) * (x.dim() - 2))
    made = made if weight is None else made * weight.view(shape)
    return made if bias is None else made + bias.view(shape)


def bytes_per_image(module: nn.Module, image: Tensor) -> int:
    """What a layer holds at most of each image: what comes in, the patches of a convolution, what goes out."""
    held = [image.numel()]

    def look(layer: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        numbers = [value.numel() for value in (*inputs, output) if isinstance(value, Tensor)]
        if isinstance(layer, nn.Conv2d):
            numbers.append(output[0, 0].numel() * layer.weight[0].numel())
        held.append(sum(numbers))

    hooks = [layer.register_forward_hook(look) for layer in module.modules() if not list(layer.children())]
    training = module.training
    try:
        with torch.no_grad():
            module.eval()(image.unsqueeze(0))
    finally:
        module.train(training)
        for hook in hooks:
            hook.remove()
    return max(held) * image.element_size()


def _side_by_side(x: Tensor) -> Tensor:
    """Clients as channels: [N, B, c, ...] becomes [B, N·c, ...]."""
    return x.transpose(0, 1).flatten(1, 2)


def _apart(x: Tensor, clients: int) -> Tensor:
    """And back."""
    return torch.unflatten(x, 1, (clients, -1)).transpose(0, 1)


def _pair(value: Sides) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else cast(tuple[int, int], tuple(value))


_LAYERS: dict[Callable[..., Any], Callable[..., Tensor]] = {
    functional.linear: _linear,
    torch.conv2d: _conv2d,
    functional.max_pool2d: _max_pool2d,
    functional.batch_norm: _batch_norm,
    functional.group_norm: _group_norm,
}
