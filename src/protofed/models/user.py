"""A user's own nn.Module, checked and made to speak like ours."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from protofed.data.preparation import Shape
from protofed.errors import UserError
from protofed.models.attention import Attention
from protofed.models.layers import BatchNorm, Dropout, Dropout2d, step
from protofed.models.output import Output
from protofed.models.tied import tie

DROPOUTS: dict[type[nn.Module], type[Dropout]] = {
    nn.Dropout: Dropout,
    nn.Dropout1d: Dropout2d,
    nn.Dropout2d: Dropout2d,
}
HANDLED = "nn.Dropout, 1d and 2d, and those of nn.MultiheadAttention"


def adopt(module: nn.Module, shape: Sequence[int], classes: int) -> nn.Module:
    """Make a module usable in every engine: it returns Output, has `head` and `feature_size`, and uses our layers.

    BatchNorm, Dropout and attention with dropout are swapped for ours. A module that returns logits is cut before its
    last layer and becomes `body` and `head`. One that returns (features, logits) or Output keeps its names if its
    classifier is called `head`; otherwise it too becomes `body` and `head`.
    """
    swap_layers(module)
    x = Shape.of(shape).example(2)
    module.eval()
    with torch.no_grad():
        module = _returning_output(module, x)
        out = _run(module, x)
        _check_output(module, out, classes)
        _check_training(module, x)
    if getattr(module, "feature_size", None) != out.features.shape[1]:
        module.feature_size = out.features.shape[1]
    return tie(module).train()


def swap_layers(module: nn.Module) -> None:
    """Put our layers in the place of torch's that draw or keep statistics."""
    swapped: dict[nn.Module, nn.Module] = {}  # a layer used in two places stays one layer
    for name, layer in list(module.named_modules(remove_duplicate=False))[1:]:
        if isinstance(layer, _BatchNorm) and layer not in swapped:
            swapped[layer] = _our_norm(module, name, layer)
        elif isinstance(layer, _DropoutNd) and type(layer) in DROPOUTS and layer not in swapped:
            swapped[layer] = DROPOUTS[type(layer)](layer.p)
        elif type(layer) is nn.MultiheadAttention and layer.dropout > 0 and layer not in swapped:
            swapped[layer] = _our_attention(module, name, layer)
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


def _our_attention(module: nn.Module, name: str, layer: nn.MultiheadAttention) -> Attention:
    if layer.bias_k is not None or layer.add_zero_attn:
        raise _refusal(module, f"its layer {name} ({_kind(layer)}) has dropout with add_bias_kv or add_zero_attn")
    return Attention.of(layer)


class LayerCall(NamedTuple):
    """A layer's call in a forward: what it was given and what it made."""

    name: str
    given: Tensor
    made: Tensor


def _returning_output(module: nn.Module, x: Tensor) -> nn.Module:
    result, calls = _recorded(module, x)
    match result:
        case Tensor():
            last = [call for call in calls if call.made is result and call.given.dim() == 2]
            linear = [call for call in last if isinstance(module.get_submodule(call.name), nn.Linear)]
            places = [*linear[:1], *_descending(module, last)]
            why = "its forward must return (features, logits), or logits straight from an nn.Linear or another layer"
        case Output() | (Tensor(), Tensor()):
            features, logits = result[:2]
            if not isinstance(result, Output):
                module.register_forward_hook(_as_output)
            fitting = [call for call in calls if call.given.shape == features.shape]
            if any(call.name == "head" and call.made.shape == logits.shape for call in fitting):
                return module
            named = [call for call in fitting if call.made is logits]
            places = sorted(named, key=lambda call: call.given is not features)
            why = (
                "its logits must come straight from a layer that takes the features, such as an nn.Linear named `head`"
            )
        case _:
            raise _refusal(module, f"its forward must return (features, logits) or logits, not {type(result).__name__}")
    for call in places:
        if all(_same(module, _Split(deepcopy(module), call.name), x, train) for train in (False, True)):
            return _Split(module, call.name)
    raise _refusal(module, why)


def _recorded(module: nn.Module, x: Tensor) -> tuple[Any, list[LayerCall]]:
    """What a module makes of x, and the calls of its layers with parameters, the innermost first."""
    calls: list[LayerCall] = []

    def record(name: str, given: tuple[Any, ...], made: Any) -> None:
        if given and isinstance(given[0], Tensor) and isinstance(made, Tensor):
            calls.append(LayerCall(name, given[0], made))

    hooks = [
        layer.register_forward_hook(lambda _, given, made, name=name: record(name, given, made))
        for name, layer in module.named_modules()
        if name and any(True for _ in layer.parameters())
    ]
    try:
        return _run(module, x), calls
    finally:
        for hook in hooks:
            hook.remove()


def _descending(module: nn.Module, calls: Sequence[LayerCall]) -> list[LayerCall]:
    """The outermost of nested calls, but of an nn.Sequential what it ends with."""
    return [call for call in reversed(calls) if not isinstance(module.get_submodule(call.name), nn.Sequential)]


def _same(module: nn.Module, split: nn.Module, x: Tensor, train: bool) -> bool:
    """Whether both make the same logits; what draws is refused later."""
    found = []
    with torch.random.fork_rng(devices=[]):
        for one in (module, split):
            torch.default_generator.manual_seed(0)
            try:
                with step(torch.tensor(0)):
                    out = deepcopy(one).train(train)(x)
            except Exception:  # a layer that is not the last is followed by what does not fit its input
                return False
            found.append(out if isinstance(out, Tensor) else out[1])
    return found[0].shape == found[1].shape and torch.allclose(found[0], found[1], atol=1e-5)


class _Split(nn.Module):
    """A module cut before the layer that makes its logits: `body` gives that layer's input in their place."""

    def __init__(self, module: nn.Module, last: str) -> None:
        super().__init__()
        self.head = module.get_submodule(last)
        module.set_submodule(last, nn.Identity())
        self.body = module

    def forward(self, x: Tensor) -> Output:
        out = self.body(x)
        if isinstance(out, Output):
            return out._replace(logits=self.head(out.logits))
        return Output(out, self.head(out), ())


def _as_output(_module: nn.Module, _args: Any, result: tuple[Tensor, Tensor]) -> Output:
    return Output(*result, blocks=())


def _check_output(module: nn.Module, out: Output, classes: int) -> None:
    if out.logits.shape != (2, classes):
        raise _refusal(module, f"for 2 samples its logits have shape {tuple(out.logits.shape)}, not (2, {classes})")
    if out.features.dim() != 2 or len(out.features) != 2:
        raise _refusal(module, f"for 2 samples its features have shape {tuple(out.features.shape)}, not (2, D)")


def _check_training(module: nn.Module, x: Tensor) -> None:
    """Engines agree only if a training forward neither draws from a stream nor keeps state of its own."""
    trial = deepcopy(module).train()
    for weight in trial.parameters():  # moved, as training would, so that a statistic of the weights moves too
        weight.add_(torch.linspace(-1, 1, weight.numel()).view_as(weight))
    with torch.random.fork_rng(devices=[]), step(torch.tensor(0)):
        before = torch.get_rng_state()
        _run(trial, x)
        if not torch.equal(before, torch.get_rng_state()):
            why = f"its forward draws random numbers; of those only {HANDLED} are handled"
            own = any(isinstance(layer, nn.RNNBase) and layer.dropout for layer in trial.modules())
            place = "the dropout that nn.LSTM and the like have between layers" if own else "F.dropout"
            raise _refusal(module, why, f"nn.Dropout in place of {place} draws by the key of the step")
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


def _refusal(module: nn.Module, why: str, hint: str | None = None) -> UserError:
    return UserError("--model", _kind(module.body if isinstance(module, _Split) else module), why, hint=hint)


def _kind(module: nn.Module) -> str:
    return type(module).__name__
