"""What an attack is, what attackers know of a round, and what they learn from trying an upload on the defence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from protofed.data.federation import Federation
from protofed.data.samples import Samples, is_picture
from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock
from protofed.prototypes import Prototypes

AttackMemory = dict[str, Tensor]
"""What attackers remember from round to round, by name; it is in checkpoints."""


Loss = Callable[[Mapping[str, Tensor]], Tensor]
"""The loss of a model with these weights on the attackers' own data: what they can really compute."""

Try = Callable[[Upload], Upload]
"""What screening and defences of this round would leave of uploads; nothing is remembered of it."""


def undefended(uploads: Upload) -> Upload:
    """Everything."""
    return uploads


@dataclass(frozen=True)
class Attack:
    """What the clients in `who` do; this one: nothing."""

    who: tuple[int, ...]
    seed: int
    name: ClassVar[str]
    about: ClassVar[str]
    backdoor: ClassVar[bool] = False  # whether it teaches the models a trigger

    def poison(self, train: Samples, classes: int) -> Samples:  # noqa: ARG002
        """An attacker's training data."""
        return train

    def answer(self, uploads: Upload, sent: Broadcast, clock: Clock, memory: AttackMemory) -> Upload:  # noqa: ARG002
        """What attackers send, given what honest training would have them send; clients are those of the clock."""
        return uploads

    def declares(self, samples: int) -> int:
        """How many training samples an attacker says it has, of so many."""
        return samples

    def federation(self, federation: Federation) -> Federation:
        """The same federation with the attackers' data poisoned."""
        clients = [
            replace(client, train=self.poison(client.train, len(federation.classes))) if member in self.who else client
            for member, client in federation.members.items()
        ]
        return replace(federation, clients=tuple(clients))

    def send(
        self,
        uploads: Upload,
        sent: Broadcast,
        clock: Clock,
        memory: AttackMemory,
        attempt: Try = undefended,
        loss: Loss | None = None,
    ) -> Upload:
        """A round's uploads, one for each client of the clock, with those of attackers exchanged."""
        rows = [row for row, member in enumerate(clock.who) if member in self.who]
        if not rows:
            return uploads
        index = torch.tensor(rows, device=_device(uploads))
        mine = clock._replace(who=tuple(clock.who[row] for row in rows))
        return put(uploads, index, self.chosen(Scene(uploads, index, sent, mine, memory, attempt, loss)))

    def chosen(self, scene: Scene) -> Upload:
        """What attackers send; one that knows nothing of the others or of the defence gives its `answer`."""
        return self.answer(scene.own, scene.sent, scene.clock, scene.memory)


class Scene(NamedTuple):
    """What the strongest attackers know of a round: all honest uploads, and the defence."""

    uploads: Upload  # what honest training gave, of all clients of the round
    rows: Tensor  # the attackers' places among them [A]
    sent: Broadcast
    clock: Clock  # of the attackers
    memory: AttackMemory
    attempt: Try
    loss: Loss | None = None  # on their own data; None where no model of their own is to be had

    @property
    def own(self) -> Upload:
        """What honest training gave the attackers."""
        return self.uploads.reorder(self.rows)

    @property
    def others(self) -> Upload:
        """What the honest clients send; the attackers' own, where there is nobody else."""
        honest = [row for row in range(clients_in(self.uploads)) if row not in set(self.rows.tolist())]
        return self.uploads.reorder(torch.tensor(honest, device=self.rows.device)) if honest else self.own

    def tried(self, answer: Upload) -> Upload:
        """What the server would average of the round if attackers sent this."""
        return self.attempt(put(self.uploads, self.rows, answer))


def triggered(images: Tensor) -> Tensor:
    """Images, [..., c, h, w], with a white square in the corner, a quarter of the side."""
    marked = images.clone()
    side = max(1, images.shape[-1] // 4)
    marked[..., -side:, -side:] = 255
    return marked


TO = 1
"""The class that a trigger makes everything."""


def marked(train: Samples, attack: str) -> Samples:
    """Every other image with the trigger, labelled TO."""
    if not is_picture(train.x):
        raise UserError("--attack", attack, "it marks pictures, and these samples are none")
    chosen = torch.arange(len(train)) % 2 == 0
    images = torch.where(chosen.view(-1, 1, 1, 1), triggered(train.x), train.x)
    return replace(train, x=images, labels=torch.where(chosen, TO, train.labels))


def clients_in(uploads: Upload) -> int:
    """How many clients have sent them."""
    return len(tensors[0]) if (tensors := _tensors(uploads)) else 0


def put(uploads: Upload, rows: Tensor, others: Upload) -> Upload:
    """The same uploads with those of some clients exchanged."""
    sets = {}
    for name, found in uploads.prototypes.items():
        slots = max(found.counts.shape[-1], others.prototypes[name].counts.shape[-1])
        wide, other = found.widen(slots), others.prototypes[name].widen(slots)
        sets[name] = Prototypes(*(a.index_copy(0, rows, b) for a, b in zip(wide, other, strict=True)))
    mine, theirs = (uploads.weights, uploads.numbers, uploads.sums), (others.weights, others.numbers, others.sums)
    weights, numbers, sums = (
        {name: tensor.index_copy(0, rows, other[name]) for name, tensor in part.items()}
        for part, other in zip(mine, theirs, strict=True)
    )
    return Upload(weights, sets, numbers, sums)


def _tensors(uploads: Upload) -> list[Tensor]:
    rest = [*uploads.weights.values(), *uploads.numbers.values(), *uploads.sums.values()]
    return [*rest, *(found.vectors for found in uploads.prototypes.values())]


def _device(uploads: Upload) -> torch.device:
    return tensors[0].device if (tensors := _tensors(uploads)) else torch.device("cpu")
