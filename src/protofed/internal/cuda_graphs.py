"""Work that a GPU records once, as a CUDA graph, and replays from then on."""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import cache, partial, wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

F = TypeVar("F", bound=Callable[..., Any])
KEPT = 8


def record(
    work: Callable[[], Any], device: torch.device, aside: torch.cuda.Stream | None = None, memory: Any = None
) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph that does `work` again when replayed, and what work returned: tensors that a replay fills anew.

    What is recorded on one stream shares what libraries keep for it, so two such graphs may not be replayed at once.
    """
    aside = aside or stream(device)
    aside.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(aside):
        for _ in range(2):  # libraries set themselves up when they are first used
            work()
    torch.cuda.current_stream(device).wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    collects = gc.isenabled()
    gc.disable()  # an old graph that is deleted while a new one is recorded would spoil it
    try:  # and so would a checkpoint on its way to the disk, but for the mode
        with torch.cuda.graph(graph, pool=memory, stream=aside, capture_error_mode="thread_local"):
            made = work()
    finally:
        if collects:
            gc.enable()
    return graph, made


class Recording:
    """A function of tensors; called with tensors of the same shapes, it is replayed.

    All recordings share the memory of what they make on the way, so they are replayed one after the other. They share
    a stream too: what one stream has given back to that memory, a recording on another does not find.
    """

    def __init__(self, function: Callable[..., Any], inputs: tuple[Any, ...], device: torch.device) -> None:
        self.inputs = tree_map(torch.clone, inputs)
        self.graph, self.made = record(lambda: function(*self.inputs), device, _common_stream(device), _common_pool())

    def __call__(self, *inputs: Any) -> Any:
        """What the function returns."""
        torch._foreach_copy_(tree_leaves(self.inputs), tree_leaves(inputs))
        self.graph.replay()
        return tree_map(torch.clone, self.made)


def replayed(function: F) -> F:
    """A function of tensors, and settings by name, that asks nothing of the host: on a GPU it is recorded and replayed.

    Each form of the tensors and settings that comes a second time has a recording; the last few are kept.
    """
    known: dict[Any, Recording | None] = {}

    @wraps(function)
    def wrapper(*tensors: Tensor, **settings: Any) -> Any:
        if not tensors[0].is_cuda or torch.cuda.is_current_stream_capturing():
            return function(*tensors, **settings)
        key = (shapes(tensors), tensors[0].device, tuple(settings.items()))
        if key not in known:
            known[key] = None
            for old in list(known)[:-KEPT]:
                del known[old]
            return function(*tensors, **settings)
        recording = known[key] or Recording(partial(function, **settings), tensors, tensors[0].device)
        known[key] = recording
        return recording(*tensors)

    return cast(F, wrapper)


def shapes(inputs: Any) -> tuple[Any, ...]:
    """What two calls must have in common for one recording."""
    return tuple((tuple(value.shape), value.dtype) for value in tree_leaves(inputs) if isinstance(value, Tensor))


def stream(device: torch.device) -> torch.cuda.Stream:
    """A stream of its own."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # torch does not type it


def pool() -> Any:
    """Memory that graphs share; no two of them may be replayed at once."""
    return torch.cuda.graph_pool_handle()


_common_pool = cache(pool)
_common_stream = cache(stream)
