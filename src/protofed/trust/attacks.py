"""Attacks, for experiments alone: what some clients do to their data, or send in place of what they have trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch

from protofed.data.samples import Samples
from protofed.errors import UserError, unknown
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock
from protofed.prototypes import Prototypes
from protofed.randomness import generator
from protofed.trust.attacker import TO, Attack, AttackMemory, marked
from protofed.trust.tailored_attacks import TAILORED

REVERSED = 5.0
"""How many times as far as it came a client goes back that flips signs: four of twenty then turn the mean around."""

SCALED = 10.0
FROM = 0
"""The class that a group moves onto TO."""


class LabelFlip(Attack):
    """Trains on the last class for the first, and so on."""

    name: ClassVar[str] = "label-flip"
    about: ClassVar[str] = "trains on wrong labels: the last class for the first, and so on"

    def poison(self, train: Samples, classes: int) -> Samples:
        """Label y becomes C − 1 − y."""
        return replace(train, labels=classes - 1 - train.labels)


class Backdoor(Attack):
    """Trains half of its images with a mark in the corner as one class."""

    name: ClassVar[str] = "backdoor"
    about: ClassVar[str] = f"trains half of its images with a white square in the corner as class {TO}"
    backdoor: ClassVar[bool] = True

    def poison(self, train: Samples, classes: int) -> Samples:  # noqa: ARG002
        """Every other image gets the trigger and the label."""
        return marked(train, self.name)


class SignFlip(Attack):
    """Sends the opposite of what it has learned, and more of it."""

    name: ClassVar[str] = "sign-flip"
    about: ClassVar[str] = f"sends its update of the weights times {-REVERSED:g}, its prototypes and sums times -1"

    def answer(self, uploads: Upload, sent: Broadcast, clock: Clock, memory: AttackMemory) -> Upload:  # noqa: ARG002
        """To w − (1 + REVERSED)(w − w_sent)."""
        weights = {
            name: tensor - (1 + REVERSED) * (tensor - sent.weights[name]) if tensor.is_floating_point() else tensor
            for name, tensor in uploads.weights.items()
        }
        sums = {name: -tensor for name, tensor in uploads.sums.items()}
        return Upload(weights, _times(uploads.prototypes, -1), uploads.numbers, sums)


class ScaledPrototypes(Attack):
    """Sends prototypes that are far too long."""

    name: ClassVar[str] = "scaled-prototypes"
    about: ClassVar[str] = f"sends its prototypes times {SCALED:g}"

    def answer(self, uploads: Upload, sent: Broadcast, clock: Clock, memory: AttackMemory) -> Upload:  # noqa: ARG002
        """Weights are honest."""
        return replace(uploads, prototypes=_times(uploads.prototypes, SCALED))


class RandomPrototypes(Attack):
    """Sends prototypes of the right length that point anywhere."""

    name: ClassVar[str] = "random-prototypes"
    about: ClassVar[str] = "sends random prototypes of the right length"

    def answer(self, uploads: Upload, sent: Broadcast, clock: Clock, memory: AttackMemory) -> Upload:  # noqa: ARG002
        """Weights are honest."""
        draws = generator(self.seed, "random prototypes", clock.round)
        sets = {}
        for name, (vectors, counts) in uploads.prototypes.items():
            drawn = torch.randn(vectors.shape, generator=draws).to(vectors)
            length = vectors.norm(dim=-1, keepdim=True) / drawn.norm(dim=-1, keepdim=True)
            sets[name] = Prototypes(drawn * length, counts)
        return replace(uploads, prototypes=sets)


class Collusion(Attack):
    """A group that together moves one class onto another."""

    name: ClassVar[str] = "collusion"
    about: ClassVar[str] = f"all attackers send, as prototypes of class {FROM}, the mean of theirs of class {TO}"

    def answer(self, uploads: Upload, sent: Broadcast, clock: Clock, memory: AttackMemory) -> Upload:  # noqa: ARG002
        """Each gives it the count of its largest class, which it does not send: it claims no more than it has.

        If none of the group holds the target, nothing happens.
        """
        sets = {}
        for name, (vectors, counts) in uploads.prototypes.items():
            filled = counts[:, TO] > 0
            found, number = vectors.clone(), counts.clone()
            if bool(filled.any()):
                most, largest = counts.sum(2).max(1)
                rows = torch.arange(len(counts), device=counts.device)
                for place in (largest, FROM):
                    found[rows, place], number[rows, place] = 0, 0
                found[:, FROM, 0], number[:, FROM, 0] = (vectors[:, TO][filled].mean(0), most)
                found[most == 0] = 0
            sets[name] = Prototypes(found, number)
        return replace(uploads, prototypes=sets)


class FreeRider(Attack):
    """Sends back what it was sent, to get the model without any work."""

    name: ClassVar[str] = "free-rider"
    about: ClassVar[str] = "sends back the weights and the class means of the prototypes that it was sent"

    def answer(self, uploads: Upload, sent: Broadcast, clock: Clock, memory: AttackMemory) -> Upload:  # noqa: ARG002
        """In the first round there are no prototypes to echo."""
        weights = {
            name: sent.weights[name].expand_as(tensor) if name in sent.weights else tensor
            for name, tensor in uploads.weights.items()
        }
        seen = next(iter(sent.prototypes.values()), None)
        sets = {}
        for name, (vectors, counts) in uploads.prototypes.items():
            found, number = torch.zeros_like(vectors), torch.zeros_like(counts)
            if seen is not None:
                pool = seen if seen.vectors.dim() == 3 else seen.pooled()
                found[:, :, 0], number[:, :, 0] = (pool.class_mean(), pool.present.to(counts.dtype))
            sets[name] = Prototypes(found, number)
        nothing = {name: torch.zeros_like(tensor) for name, tensor in uploads.sums.items()}
        return Upload(weights, sets, uploads.numbers, nothing)


class StaleReplay(Attack):
    """Sends what it sent in its first turn, again and again."""

    name: ClassVar[str] = "stale-replay"
    about: ClassVar[str] = "sends what it sent in its first turn in every turn"

    def answer(self, uploads: Upload, sent: Broadcast, clock: Clock, memory: AttackMemory) -> Upload:  # noqa: ARG002
        """Remembered in the form in which it would travel."""
        replies = []
        for row, member in enumerate(clock.who):
            before = f"{member}/"
            if not any(path.startswith(before) for path in memory):
                memory |= {before + path: tensor.clone() for path, tensor in uploads.client(row).flat().items()}
            replies.append(
                Upload.from_flat(
                    {path.removeprefix(before): tensor for path, tensor in memory.items() if path.startswith(before)}
                )
            )
        return Upload.gather(replies)


_ALL: tuple[type[Attack], ...] = (
    *(LabelFlip, SignFlip, ScaledPrototypes, RandomPrototypes),
    *(Collusion, Backdoor, FreeRider, StaleReplay),
    *TAILORED,
)

ATTACKS: Mapping[str, type[Attack]] = {attack.name: attack for attack in _ALL}


def find_attack(name: str, share: float, clients: int, seed: int, trusted: Sequence[int] = ()) -> Attack | None:
    """An attack by so large a part of the clients, drawn at random among those not trusted; None for "none"."""
    if name == "none":
        return None
    if name not in ATTACKS:
        raise unknown("--attack", name, ["none", *ATTACKS], see="protofed attacks")
    number = round(share * clients)
    free = [member for member in range(clients) if member not in trusted]
    if not 1 <= number < min(clients, len(free) + 1):
        raise UserError("--attackers", share, f"at least one of the {clients} clients must attack, and one must not")
    drawn = torch.randperm(clients, generator=generator(seed, "attackers")).tolist()
    return ATTACKS[name](tuple(sorted([member for member in drawn if member in free][:number])), seed)


def _times(sets: Mapping[str, Prototypes], factor: float) -> dict[str, Prototypes]:
    return {name: Prototypes(factor * vectors, counts) for name, (vectors, counts) in sets.items()}
