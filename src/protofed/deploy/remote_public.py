"""Clients elsewhere that look at public images before a round; the server sees what they send about each batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import torch

from protofed.deploy.exchange import Answers
from protofed.deploy.wire import numbered, part_of
from protofed.engines.client_group import Group
from protofed.errors import LostError, RefusedError
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import PublicExchange
from protofed.trust.screening import Schema, tensors_of

T = TypeVar("T")
Said = tuple[int, str]
"""How many public images a client has, and their digest."""


def batch_sizes(method: PublicExchange, images: int) -> list[int]:
    """Of the batches that so many public images make."""
    return [len(rows) for rows in torch.split(torch.arange(images), method.public_batch) if len(rows) > 1]


def made_up_outputs(method: PublicExchange, group: Group, classes: int, sizes: Mapping[int, int]) -> Upload:
    """The form of what a client sends about some batches, of so many images each."""
    parts = {}
    for number, size in sizes.items():
        features = torch.zeros(1, size, group.feature_size, dtype=group.dtype)
        logits = torch.zeros(1, size, classes, dtype=group.dtype)
        parts[number] = method.public_upload(features, logits).client(0).numbers
    return Upload(numbers=numbered(parts))


class Ask(Protocol):
    """Asks clients over the network."""

    def __call__(
        self,
        kinds: Mapping[int, str],
        broadcast: Broadcast | None,
        read: Callable[[int, Mapping[str, Any], bytes], T],
        told: Callable[[int], Mapping[str, Any]] = ...,
    ) -> Answers[T]:
        """Answers, and why others have none, by client."""


class RemotePublicClients:
    """The clients of a round; one that fails on the way is left out of it."""

    def __init__(
        self,
        ask: Ask,
        method: PublicExchange,
        group: Group,
        classes: int,
        models: Schema,
        who: Sequence[int],
        needed: int,
        sent: Broadcast,
    ) -> None:
        """`group` stands for the clients, `models` is the form of their weights, `needed` is how many must stay."""
        self.who, self.left_out, self.traffic = list(who), dict[int, str](), Traffic()
        self._ask, self._method, self._group, self._classes = ask, method, group, classes
        self._models, self._needed, self._sent = models, needed, sent
        self._answers: dict[int, Broadcast] = {}  # that were not sent yet
        self._made: dict[int, dict[int, Upload]] = {}  # by batch and client
        self._begun = False
        self._sizes = batch_sizes(method, self._images())

    @property
    def number_of_batches(self) -> int:
        """How many batches the public images make."""
        return len(self._sizes)

    def outputs(self, number: int) -> Upload:
        """What the clients send about a batch; about all of them at once, if they learn nothing in between."""
        if number not in self._made:
            wanted = list(range(number, len(self._sizes))) if self._method.exchange == "round" else [number]
            given = self._part(wanted, self._form(wanted))
            for batch in wanted:
                parts = {member: part_of(upload.numbers, batch) for member, upload in given.items()}
                self._made[batch] = {member: Upload(numbers=part) for member, part in parts.items()}
        return Upload.gather([self._made[number][member] for member in self.who])

    def learn(self, number: int, answer: Broadcast) -> None:
        """The answer is sent with the next question."""
        self._answers[number] = answer

    def weights(self) -> Upload:
        """The models after the public images, as far as the method shares them."""
        given = self._part([], self._models)
        return Upload.gather([given[member] for member in self.who])

    def _images(self) -> int:
        """How many public images all have; who has others than most is left out."""
        answers = self._asked("query.public", None, self._read_images, {})
        said, _ = Counter(answers.values()).most_common(1)[0]
        others = [member for member, found in answers.items() if found != said]
        self._leave_out(dict.fromkeys(others, "refused: its public images are others"))
        return said[0]

    def _part(self, wanted: Sequence[int], form: Schema) -> dict[int, Upload]:
        """What clients send after they have learned from the answers so far."""
        told = {"first": not self._begun, "learned": sorted(self._answers), "wanted": list(wanted)}
        message = self._sent
        if self._begun:
            message = Broadcast(numbers=numbered({number: found.numbers for number, found in self._answers.items()}))
        self._begun, self._answers = True, {}

        def read(member: int, facts: Mapping[str, Any], data: bytes) -> Upload:  # noqa: ARG001
            return Upload.from_flat(form.check(tensors_of(data)))

        return self._asked("train.public", message, read, told)

    def _asked(
        self,
        kind: str,
        message: Broadcast | None,
        read: Callable[[int, Mapping[str, Any], bytes], T],
        told: Mapping[str, Any],
    ) -> dict[int, T]:
        answers = self._ask(dict.fromkeys(self.who, kind), message, read, lambda _: told)
        self.traffic += answers.traffic
        self._leave_out(answers.left_out)
        return answers.given

    def _leave_out(self, reasons: Mapping[int, str]) -> None:
        self.left_out |= reasons
        self.who = [member for member in self.who if member not in reasons]
        if len(self.who) < self._needed:
            why = "; ".join(f"client {member}: {reason}" for member, reason in sorted(self.left_out.items()))
            raise LostError(f"fewer than {self._needed} of the round's clients are left: {why}")

    def _form(self, batches: Sequence[int]) -> Schema:
        """That of an upload about some batches."""
        sizes = {number: self._sizes[number] for number in batches}
        return Schema.of(made_up_outputs(self._method, self._group, self._classes, sizes))

    def _read_images(self, member: int, facts: Mapping[str, Any], data: bytes) -> Said:  # noqa: ARG002
        images, digest = facts.get("images"), facts.get("digest")
        if not (isinstance(images, int) and 2 <= images <= self._method.public_images and isinstance(digest, str)):
            raise RefusedError("it does not say which public images it has")
        return images, digest
