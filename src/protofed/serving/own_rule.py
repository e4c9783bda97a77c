"""A client's turn as tensors: what a method's own rule of prediction may look at, in the file of an exported model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from protofed.messages import Broadcast
from protofed.methods.base import Clock, Turn
from protofed.prototypes import Prototypes

PARTS = ("previous", "memory", "weights", "numbers", "vectors", "slots")
"""Mappings of a turn; the last four are what was received, `slots` the counts of its prototypes."""


def turn_tensors(turn: Turn) -> dict[str, Tensor]:
    """One client's turn after training as flat named tensors, float32 where they are floating-point."""
    sets = turn.received.prototypes.items()
    parts = {
        "previous": turn.previous,
        "memory": turn.memory,
        "weights": turn.received.weights,
        "numbers": turn.received.numbers,
        "vectors": {name: found.vectors for name, found in sets},
        "slots": {name: found.counts for name, found in sets},
    }
    clock = turn.clock
    flat = {f"{part}/{name}": tensor for part, some in parts.items() for name, tensor in some.items()}
    flat |= {"taken": turn.taken, "counts": turn.counts, "lr": turn.lr, "momentum": torch.tensor(turn.momentum)}
    flat["clock"] = torch.tensor([clock.round, clock.rounds, *clock.who, clock.clients, clock.seed])
    whole = {name: tensor.float() if tensor.is_floating_point() else tensor for name, tensor in flat.items()}
    return {name: tensor.clone(memory_format=torch.contiguous_format) for name, tensor in whole.items()}


def turn_from(flat: Mapping[str, Tensor]) -> Turn:
    """The turn that `turn_tensors` was made from; a file of another form is a KeyError or a ValueError."""
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
    for path, tensor in flat.items():
        part, slash, name = path.partition("/")
        if slash:
            parts[part][name] = tensor
    played, rounds, client, clients, seed = flat["clock"].tolist()
    sets = {name: Prototypes(vectors, parts["slots"][name]) for name, vectors in parts["vectors"].items()}
    return Turn(
        Broadcast(parts["weights"], sets, parts["numbers"]),
        Clock(played, rounds, (client,), clients, seed),
        previous=parts["previous"],
        taken=flat["taken"],
        memory=parts["memory"],
        counts=flat["counts"],
        lr=flat["lr"],
        momentum=float(flat["momentum"]),
    )
