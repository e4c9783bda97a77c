"""A user's own nn.Module, checked and made to speak like ours."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from protofed.errors import UserError
from protofed.models.layers import BatchNorm, Dropout, Dropout2d, step
from protofed.models.output import Output

DROPOUTS: dict[type[nn.Module], type[Dropout]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: Dropout2d,
    nn.Dropout2d: Dropout2d,
}


def adopt(module: nn.Module, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Make a module usable in every engine: it returns Output, has `head` and `feature_size`, and uses our layers.

    BatchNorm and Dropout are swapped for ours. A module that returns logits is cut before its last nn.Linear and
    becomes `body` and `head`; one that returns (features, logits) or Output keeps its shape and names.
    """
    _swap_layers(module)
    x = torch.linspace(-1, 1, 2 * torch.Size(shape).numel()).view(2, *shape)
    module.eval()
    with torch.no_grad():
        module = _returning_output(module, x)
        out = _run(module, x)
        _check_output(module, out, classes)
        _check_training(module, x)
    if getattr(module, "feature_size", None) != out.features.shape[1]:
        module.feature_size = out.features.shape[1]
    return module.train()


def _swap_layers(module: nn.Module) -> None:
    swapped: dict[nn.Module, nn.Module] = {}  # a layer used in two places stays one layer
    for name, layer in list(module.named_modules(remove_duplicate=False))[1:]:
        if isinstance(layer, _BatchNorm) and layer not in swapped:
            swapped[layer] = _our_norm(module, name, layer)
        elif isinstance(layer, _DropoutNd) and type(layer) in DROPOUTS and layer not in swapped:
            swapped[layer] = DROPOUTS[type(layer)](layer.p)
        if layer in swapped:
            module.set_submodule(name, swapped[layer])


def _our_norm(module: nn.Module, name: str, layer: _BatchNorm) -> BatchNorm:
    if type(layer) not in (nn.BatchNorm1d, nn.BatchNorm2d):
        raise _refusal(module, f"its layer {name} is {_kind(layer)}; only nn.BatchNorm1d and 2d are handled")
    if layer.momentum is None or layer.running_mean is None or layer.running_var is None:
        raise _refusal(module, f"its layer {name} ({_kind(layer)}) needs a momentum and running statistics")
    ours = BatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine)
    ours.weight, ours.bias = layer.weight, layer.bias
    ours.running_mean, ours.running_var = layer.running_mean, layer.running_var
    return ours


def _returning_output(module: nn.Module, x: Tensor) -> nn.Module:
    called: list[str] = []
    hooks = [
        layer.register_forward_hook(lambda *_, name=name: called.append(name))
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear)
    ]
    result = _run(module, x)
    for hook in hooks:
        hook.remove()
    match result:
        case Output():
            return module
        case (Tensor(), Tensor()):
            module.register_forward_hook(_as_output)
            return module
        case Tensor() if called and called[-1]:
            split = _Split(module, called[-1])
            if torch.allclose(_run(split, x).logits, result, atol=1e-5):
                return split
    raise _refusal(module, "its forward must return (features, logits), or logits straight from an nn.Linear")


class _Split(nn.Module):
    """A module that returns logits, cut before its last linear layer."""

    def __init__(self, module: nn.Module, last: str) -> None:
        super().__init__()
        self.head = module.get_submodule(last)
        module.set_submodule(last, nn.Identity())
        self.body = module

    def forward(self, x: Tensor) -> Output:
        features = self.body(x)
        return Output(features, self.head(features), ())


def _as_output(_module: nn.Module, _args: Any, result: tuple[Tensor, Tensor]) -> Output:
    return Output(*result, blocks=())


def _check_output(module: nn.Module, out: Output, classes: int) -> None:
    if out.logits.shape != (2, classes):
        raise _refusal(module, f"for 2 images its logits have shape {tuple(out.logits.shape)}, not (2, {classes})")
    if out.features.dim() != 2 or len(out.features) != 2:
        raise _refusal(module, f"for 2 images its features have shape {tuple(out.features.shape)}, not (2, D)")
    head = getattr(module, "head", None)
    if not isinstance(head, nn.Linear) or head.weight.shape != (classes, out.features.shape[1]):
        raise _refusal(module, "its classifier must be an nn.Linear from the features to the logits, named `head`")


def _check_training(module: nn.Module, x: Tensor) -> None:
    """Engines agree only if a training forward neither draws from a stream nor keeps state of its own."""
    trial = deepcopy(module).train()
    for weight in trial.parameters():  # moved, as training would, so that a statistic of the weights moves too
        weight.add_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
    with torch.random.fork_rng(devices=[]), step(torch.tensor(0)):
        before = torch.get_rng_state()
        _run(trial, x)
        if not torch.equal(before, torch.get_rng_state()):
            raise _refusal(module, "its forward draws random numbers; of those only nn.Dropout, 1d and 2d are handled")
    for name, layer in trial.named_modules():
        old = dict(module.get_submodule(name).named_buffers(recurse=False))
        changed = any(not torch.equal(old[key], new) for key, new in layer.named_buffers(recurse=False))
        if changed and not isinstance(layer, BatchNorm):
            raise _refusal(module, f"its layer {name} ({_kind(layer)}) keeps state between batches")


def _run(module: nn.Module, x: Tensor) -> Any:
    try:
        return module(x)
    except Exception as error:
        raise _refusal(
            module, f"its forward on an input of shape {tuple(x.shape)} raised {type(error).__name__}: {error}"
        ) from error


def _refusal(module: nn.Module, why: str) -> UserError:
    return UserError("--model", _kind(module.body if isinstance(module, _Split) else module), why)


def _kind(module: nn.Module) -> str:
    return type(module).__name__
