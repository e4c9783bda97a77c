"""Whether clients can be trained side by side: a few samples of two clients of each kind are, for two rounds."""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Sequence
from copy import deepcopy

import torch
from torch import nn

from protofed.data.federation import Client, Federation
from protofed.engines.base import Engine
from protofed.engines.client_group import Group
from protofed.engines.draws import without_draws
from protofed.engines.sequential import Sequential
from protofed.engines.stacked import Stacked
from protofed.errors import UserError
from protofed.methods.base import Clock, Method

SAMPLES = (4, 3)
"""Of the two clients of a group: one batch each, and that of the second is padded."""

Cast = Callable[[type[Engine], Federation, Sequence[Group]], Engine]
"""Makes an engine of a kind for some clients."""


def cannot_batch(method: Method, federation: Federation, groups: Sequence[Group], cast: Cast) -> str | None:
    """Why clients cannot be trained side by side though one after the other they can; None if they can.

    Raises:
        UserError: they cannot be trained at all.
    """
    try:
        _rehearse(Stacked, method, federation, groups, cast)
    except Exception as error:  # whatever a user's model or method raises
        try:
            _rehearse(Sequential, method, federation, groups, cast)
        except UserError:
            raise
        except Exception:  # no matter of batches: the run itself will say it
            return None
        return f"{_culprit(error, method)} cannot be batched over clients{_detail(error)}"
    return None


def _rehearse(kind: type[Engine], method: Method, federation: Federation, groups: Sequence[Group], cast: Cast) -> None:
    """Two rounds, because most losses need what the first one made, and a test."""
    few = [_few(client, size) for group in groups for client, size in zip(_two(group), SAMPLES, strict=True)]
    small = dataclasses.replace(federation, clients=tuple(few), novel=None, numbers=None, size=None)
    stand_ins = [
        Group(
            (2 * place, 2 * place + 1),
            few[2 * place :][:2],
            deepcopy(group.module),
            group.device,
            group.dtype,
            1e18,
            group.classes,
            group.own.first_memory,
        )
        for place, group in enumerate(groups)
    ]
    engine = cast(kind, small, stand_ins)
    if isinstance(engine, Stacked):
        engine.captures = False  # recordings take long, and are another matter
    who, broadcast = tuple(range(len(few))), engine.initial_broadcast()
    with without_draws(method, engine.device):
        for number in range(2):
            clock = Clock(number, 2, who, len(who), engine.experiment.seed)
            uploads = engine.round(who, broadcast, clock).uploads
            broadcast = method.aggregate(uploads, engine.server(broadcast, clock))
    for group in stand_ins:
        engine.forward(group, group.own.take([0, 1]), group.inputs(group.x[:2], [0, 1]))


def _two(group: Group) -> list[Client]:
    return [group.clients[0], group.clients[-1]]


def _few(client: Client, size: int) -> Client:
    """A client with its first samples."""
    pool = client.pool.take(torch.arange(1))
    train = client.train.take(torch.arange(min(size, len(client.train))))
    return dataclasses.replace(client, train=train, pool=pool, own=torch.arange(1), validation=None)


def _culprit(error: Exception, method: Method) -> str:
    """The innermost layer that was being run, or else the method."""
    scopes = [frame.f_locals.get("self") for frame, _ in traceback.walk_tb(error.__traceback__)]
    layers = [type(scope) for scope in scopes if isinstance(scope, nn.Module)]
    if not layers:
        return method.name
    return f"nn.{layers[-1].__name__}" if layers[-1].__module__.startswith("torch.nn.") else layers[-1].__name__


def _detail(error: Exception) -> str:
    """What was raised; of a layer that torch's vmap does not know, its name says enough."""
    first = (str(error).splitlines() or [""])[0]
    return "" if first.startswith("Batching rule not implemented") else f" ({type(error).__name__}: {first})"
