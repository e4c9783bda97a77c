"""Clients of one architecture side by side, and what they bring into a round."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from protofed.data.federation import Client, Federation
from protofed.engines.client_models import Store, room
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Clock, Method, Turn
from protofed.models import ModelSpec, build
from protofed.models.stacking import bytes_per_image
from protofed.models.start import start_from
from protofed.prototypes import Prototypes
from protofed.randomness import key

State = Mapping[str, Tensor]

CPU_IMAGES = 512
"""Images times models in a pass without gradients; with 10,000 the CNN took longer, in either engine."""
GPU_BYTES = 4 * 2**30
"""What such a pass may take on a GPU, which is only busy with many: 19,000 images of the CNN, 760 of ResNet-10."""


class Personal(NamedTuple):
    """What differs between the clients of a group in a round; every tensor has a leading client axis."""

    previous: dict[str, Tensor]
    prepared: dict[str, Tensor]
    memory: dict[str, Tensor]
    taken: Tensor
    counts: Tensor
    steps: Tensor
    lr: Tensor
    weights: dict[str, Tensor]  # what was received, if not the same for all
    prototypes: dict[str, Prototypes]
    numbers: dict[str, Tensor]

    def rows(self, index: int | slice | Tensor) -> Personal:
        """Of some clients."""
        sets = {name: found.take(index) for name, found in self.prototypes.items()}
        previous, prepared, memory, weights, numbers = (
            {name: value[index] for name, value in part.items()}
            for part in (self.previous, self.prepared, self.memory, self.weights, self.numbers)
        )
        own = self.taken[index], self.counts[index], self.steps[index], self.lr[index]
        return Personal(previous, prepared, memory, *own, weights, sets, numbers)


class Turns(NamedTuple):
    """The turns of some clients of a group."""

    clock: Clock
    shared: Broadcast | None  # what was received, if the same for all
    personal: Personal
    momentum: float = 0.0

    def turn(self, personal: Personal, key: Tensor, phase: int = 0) -> Turn:
        """One client's turn or, with a leading client axis, those of several."""
        return Turn(
            received=self.shared or Broadcast(personal.weights, personal.prototypes, personal.numbers),
            clock=self.clock,
            previous=personal.previous,
            prepared=personal.prepared,
            taken=personal.taken,
            memory=personal.memory,
            counts=personal.counts,
            steps=personal.steps,
            lr=personal.lr,
            key=key,
            phase=phase,
            momentum=self.momentum,
        )


class Group:
    """Clients that share an architecture and an input shape, side by side on the device."""

    def __init__(
        self,
        members: Sequence[int],
        clients: Sequence[Client],
        module: nn.Module,
        device: torch.device,
        dtype: torch.dtype,
        room: float,
        classes: int,
        memory: Mapping[str, Tensor] | None = None,
    ) -> None:
        """`room` is how many bytes of the device's memory models may take, `memory` what each client begins with."""
        self.members, self.classes = tuple(members), classes
        self.module = module.to(device=device, dtype=dtype)
        self.device, self.dtype = device, dtype
        self.hold(clients)
        self.test = clients[0].pool
        preparations = [client.preparation for client in clients]
        self.shape = preparations[0].shape(self.x)
        """Of a sample, as models see it."""
        self.personal = len(set(preparations)) > 1
        """Whether clients have statistics of their own: each then sees the same sample in its own way."""
        self._affine: tuple[Tensor, Tensor] | None = None
        if preparations[0].kind != "none":
            parts = [each.affine(len(self.shape)) for each in (preparations if self.personal else preparations[:1])]
            middle, scale = (torch.stack(part).to(device, dtype) for part in zip(*parts, strict=True))
            self._affine = (middle, scale) if self.personal else (middle[0], scale[0])
        kept = {name: value.to(device) for name, value in (memory or {}).items()}
        self.own = Store(self.module.state_dict(), len(clients), room, kept)
        """Each client's own model as it was last trained, and what it remembers."""
        self.taken = torch.zeros(len(clients), dtype=torch.int64, device=device)
        """How many turns each client has had."""
        self.drawn_anew: list[str] = []
        """Tensors that the file of initial weights did not give."""

    def hold(self, clients: Sequence[Client]) -> None:
        """Take in what the members have to train on from now on."""
        self.clients = tuple(clients)
        self.sizes = [len(client.train) for client in clients]
        self.begins = [0, *accumulate(self.sizes)][:-1]
        self.x = torch.cat([client.train.x for client in clients]).to(self.device)
        self.labels = torch.cat([client.train.labels for client in clients]).to(self.device)
        self.owners = torch.arange(len(clients)).repeat_interleave(torch.tensor(self.sizes)).to(self.device)
        self.counts = torch.stack([client.counts(self.classes) for client in clients]).to(self.device)

    def images_at_once(self, models: int) -> int:
        """How many images so many models may look at in one pass without gradients."""
        if self.device.type == "cpu":
            return max(1, CPU_IMAGES // models)
        return max(1, GPU_BYTES // (self._per_image * models))

    @property
    def feature_size(self) -> int:
        """How long a feature is."""
        return cast(int, self.module.feature_size)

    @cached_property
    def _per_image(self) -> int:
        return bytes_per_image(self.module, self.inputs(self.x[:1], 0)[0])

    def inputs(self, x: Tensor, rows: int | Sequence[int] | Tensor = 0) -> Tensor:
        """What models see of samples as they are stored.

        Args:
            x: samples [B, ...], or those of each client [clients, B, ...].
            rows: whose models they are.

        Returns:
            The same shape; [clients, B, ...] for several clients with statistics of their own.
        """
        x = x.to(self.device)
        if self._affine is None:
            return x if self.shape.tokens else x.to(self.dtype)
        middle, scale = self._affine
        if self.personal:
            where = rows if isinstance(rows, (int, Tensor)) else torch.tensor(rows, device=self.device)
            middle, scale = middle[where], scale[where]
            if not isinstance(rows, int):
                middle, scale = middle.unsqueeze(1), scale.unsqueeze(1)
        seen = (x - middle) * scale
        if self.shape.masked:  # what pads a series stays 0
            seen = seen * x.select(-2, -1).unsqueeze(-2)
        return seen

    def start(self, rows: Sequence[int], turns: Turns) -> dict[str, Tensor]:
        """The weights a turn starts from, to be read only: the client's own, with what was received in their place."""
        shared = turns.shared.weights if turns.shared is not None else {}
        received = {name: value.expand(len(rows), *value.shape) for name, value in shared.items()}
        received |= turns.personal.weights
        own = {} if received.keys() >= self.own.initial.keys() else self.own.take(rows)
        return {name: received[name] if name in received else own[name] for name in self.own.initial}

    def keep(self, rows: Sequence[int], weights: State, memory: State) -> None:
        """Keep what clients have just trained, and what they remember."""
        self.own.put(rows, weights, memory)
        index = self.own.index(rows)
        self.taken.index_add_(0, index, torch.ones_like(index))


def group_clients(
    experiment: Experiment,
    method: Method,
    federation: Federation,
    models: Sequence[ModelSpec],
    device: torch.device,
) -> list[Group]:
    """Clients grouped by architecture, input and test pool; models are dealt to clients in contiguous blocks."""
    total = federation.total
    alike: dict[Hashable, list[int]] = {}
    for index, client in federation.members.items():
        spec = models[index * len(models) // total]
        prepared = client.preparation
        like = (client.train.x.shape[1:], client.train.x.dtype, prepared.kind, prepared.tokens, prepared.masked)
        kind = (spec, like, id(client.pool))
        alike.setdefault(kind, []).append(index)
    dtype = torch.float64 if experiment.precision == "float64" else torch.float32
    anew: list[list[str]] = []

    def extend(module: nn.Module, classes: int) -> nn.Module:
        anew.append([] if experiment.start is None else start_from(Path(experiment.start), module))
        return method.extend(module, classes)

    groups = []
    for members in alike.values():
        clients = [federation.members[index] for index in members]
        spec = models[members[0] * len(models) // total]
        classes = len(federation.classes)
        shape = clients[0].preparation.shape(clients[0].train.x)
        draw = partial(build, spec, shape, classes, extend=extend)
        share = room(device) * len(members) / total
        module = draw(key(experiment.seed, "weights")).to(device, dtype)
        memory = method.memory(module.state_dict(), classes)
        group = Group(members, clients, module, device, dtype, share, classes, memory)
        group.drawn_anew = anew[-1]
        if method.initial == "own":
            for row, index in enumerate(members):
                state = draw(key(experiment.seed, "weights", index)).to(device, dtype).state_dict()
                mine = method.memory(state, classes)
                one, other = ({name: value.unsqueeze(0) for name, value in part.items()} for part in (state, mine))
                group.own.put([row], one, other)
        groups.append(group)
    return groups
