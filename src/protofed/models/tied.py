"""Parameters that a module has under several names: they are trained, averaged, sent and saved once, by the first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

PLACES = "tied_places"
"""Where a tied module says which further places its tensors have, and their first names."""


def tie(module: nn.Module) -> nn.Module:
    """Let the module's state have each tensor once; to be called again when the module has changed."""
    known = hasattr(module, PLACES)
    if not known and any(True for _ in _aliases(_named(module))):
        module.register_state_dict_post_hook(_once)  # type: ignore[no-untyped-call]  # torch does not type it
        module.register_load_state_dict_pre_hook(_again)  # type: ignore[no-untyped-call]
        known = True
    if known:
        setattr(module, PLACES, dict(_aliases(_placed(module))))
    return module


def call(module: nn.Module, state: Mapping[str, Tensor], x: Tensor, **options: Any) -> Any:
    """The module's forward, which may have options, with other tensors, each by its first name.

    torch's `functional_call` ties by names: of a layer in two places it would put the second back wrongly.
    """
    if not hasattr(module, PLACES):
        return functional_call(module, dict(state), (x,), options)
    further = {place: state[first] for place, first in getattr(module, PLACES).items() if first in state}
    return functional_call(module, {**state, **further}, (x,), options, tie_weights=False)


def _named(module: nn.Module) -> Iterable[tuple[str, Tensor]]:
    """Every name of every parameter and buffer."""
    return chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))


def _placed(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The same without those of a layer that was there under another name."""
    for prefix, layer in module.named_modules():
        for name, tensor in chain(layer._parameters.items(), layer._buffers.items()):
            if tensor is not None:
                yield f"{prefix}.{name}" if prefix else name, tensor


def _aliases(named: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, str]]:
    """Each further name of a tensor, and its first."""
    first: dict[int, str] = {}
    for name, tensor in named:
        if first.setdefault(id(tensor), name) != name:
            yield name, first[id(tensor)]


def _once(module: nn.Module, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name, _ in _aliases(_named(module)):
        state.pop(prefix + name, None)


def _again(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, first in _aliases(_named(module)):
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])
