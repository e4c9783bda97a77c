"""Clients elsewhere of whose uploads the server learns the sum alone: five exchanges per round (trust/secagg.py)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from protofed.deploy.connections import LOG, Connections
from protofed.deploy.exchange import Answers
from protofed.deploy.members import MembersFile
from protofed.deploy.remote import Reader, Remote, TrainReply
from protofed.deploy.wire import read_book, spelt
from protofed.errors import RefusedError
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import Clock
from protofed.runs.setup import Setup
from protofed.trust.integer_noise import contributions, released, share_deviation
from protofed.trust.screening import Schema, refusals, tensors_of
from protofed.trust.secagg import (
    PUBLIC,
    SEALED,
    SHARE,
    Layout,
    UnmaskError,
    Words,
    added,
    layout_of,
    length,
    numbers,
    threshold,
    unmask,
    usable,
)
from protofed.trust.signatures import SIGNATURE
from protofed.trust.summation import summed, upload_of

T = TypeVar("T")


def masked_layout(setup: Setup, like: Upload) -> Layout:
    """The form of what one client adds under its masks; `like` is what one might upload, [1, ...]."""
    if not setup.experiment.hides_clients:
        return layout_of(added(like, 0.0, summed(setup.method, "--secure")))
    sent, clip = setup.engine.initial_broadcast(), setup.experiment.clip or 0.0
    return layout_of({name: part[0] for name, part in contributions(like, sent, clip).items()})


class SignedKeys(NamedTuple):
    """What a client sends first."""

    public: bytes
    signature: bytes


class Secure(Remote):
    """One that learns the sum of a round's uploads, and no client's own: five exchanges (trust/secagg.py)."""

    def __init__(self, setup: Setup, clients: Connections, like: Upload) -> None:
        """`like` is what one client might upload, [1, ...]."""
        self.private = setup.experiment if setup.experiment.hides_clients else None
        self.layout, self.like = masked_layout(setup, like), like
        masked = {"numbers/masked": (torch.int64, (length(self.layout),))}
        super().__init__(setup, clients, Schema(masked, {}))

    def declared(self, clock: Clock) -> list[int]:
        """Of the sum, which is all that there is."""
        return [sum(super().declared(clock))]

    def named(self, clock: Clock) -> Tensor | None:  # noqa: ARG002
        """Nobody's own: a sum has the classes of all."""
        return None

    def _needed(self, who: Sequence[int]) -> int:
        return max(super()._needed(who), threshold(len(who)))

    def _played(self, members: Sequence[int], broadcast: Broadcast, needed: int) -> Answers[TrainReply]:
        """The same of every client: the round's sum as one upload, and the mean loss."""
        left_out: dict[int, str] = {}

        def enough(answers: Answers[T], done: str) -> dict[int, T]:
            left_out.update(answers.left_out)
            if len(answers.given) < needed:  # the masks stay on: this sum and that of the next attempt would tell more
                reasons = "; ".join(f"client {member}: {why}" for member, why in sorted(left_out.items()))
                raise UnmaskError(f"{len(answers.given)} clients have {done}, {needed} are needed ({reasons})")
            return answers.given

        signed = enough(self._ask(dict.fromkeys(members, "query.keys"), None, self._read_keys), "sent keys")
        publics = {member: keys.public for member, keys in signed.items()}
        told = {"publics": spelt(publics), "signatures": spelt({k: keys.signature for k, keys in signed.items()})}
        told |= self._certificates(publics)
        read = partial(self._read_book, "sealed", SEALED, lambda member: publics.keys() - {member})
        asked = dict.fromkeys(publics, "query.shares")
        sealed = enough(self._ask(asked, None, read, lambda _: told), "shared their secrets")

        def sealed_for(member: int) -> dict[str, Any]:
            return {"sealed": spelt({other: boxes[member] for other, boxes in sealed.items() if other != member})}

        turns = self._turns("train.masked", list(sealed), broadcast, self._read_masked, sealed_for)
        masked = enough(turns, "sent what they add")
        total = self._unmasked(masked, {member: publics[member] for member in sealed})
        turn = self._summed(total, sorted(masked), broadcast)
        return Answers(dict.fromkeys(masked, turn), left_out, Traffic())

    def _unmasked(self, masked: Mapping[int, Words], publics: Mapping[int, bytes]) -> dict[str, Tensor]:
        """The sum, if enough clients agree to it; who leaves now stays in it."""
        least, there = threshold(len(self.clock.who)), {"there": sorted(masked)}

        def enough(
            kind: str, members: Collection[int], told: dict[str, Any], read: Reader[T], done: str
        ) -> dict[int, T]:
            answers = self._ask(dict.fromkeys(members, kind), None, read, lambda _: told)
            reasons = "; ".join(f"client {member}: {why}" for member, why in sorted(answers.left_out.items()))
            if len(answers.given) < least:
                raise UnmaskError(f"{len(answers.given)} clients have {done}, and {least} are needed ({reasons})")
            if reasons:
                LOG.warning("round %d: not all have %s: %s", self.clock.round + 1, done, reasons)
            return answers.given

        signed = enough("query.agree", masked, there, self._read_signature, "agreed to the sum")
        read = partial(self._read_book, "told", SHARE, lambda _: publics.keys())
        shown = {"signatures": spelt(signed), **self._certificates(signed)}
        told = enough("query.unmask", signed, shown, read, "helped to unmask the sum")
        return numbers(unmask(masked, publics, told, least), self.layout)

    def _certificates(self, members: Collection[int]) -> dict[str, dict[str, str]]:
        """By which clients know each other's keys; the server could not make any."""
        if not self.settings.members:
            return {}
        admitted = MembersFile(Path(self.settings.members)).read()
        return {"certificates": {str(k): admitted[k].certificate for k in members if k in admitted}}

    def _summed(self, total: Mapping[str, Tensor], there: Sequence[int], broadcast: Broadcast) -> TrainReply:
        """What the sum stands for; with differential privacy nobody tells a loss."""
        if self.private is not None:
            deviation = share_deviation(self.private, len(self.clock.who)) * math.sqrt(len(there))
            clip, clients = self.private.clip or 0.0, self.private.number_of_clients
            return TrainReply(released(total, self.like, broadcast, clip, clients, deviation), 0.0)
        upload = upload_of(total, len(there))
        declared = self.declared(self.clock._replace(who=tuple(there)))
        for why in refusals(upload, broadcast, declared).values():
            raise UnmaskError(f"the sum is of no use: {why}")
        return TrainReply(upload, float(total["loss"]) / len(there))

    def _together(self, uploads: Sequence[Upload]) -> Upload:
        return uploads[0]

    def _read_keys(self, member: int, facts: Mapping[str, Any], data: bytes) -> SignedKeys:
        public = read_book({member: facts.get("public")}, PUBLIC)[member]
        if not usable(public):  # or those who try it would be left out, and not who sent it
            raise RefusedError("its keys are none")
        return SignedKeys(public, self._read_signature(member, facts, data))

    def _read_signature(self, member: int, facts: Mapping[str, Any], data: bytes) -> bytes:  # noqa: ARG002
        return read_book({member: facts.get("signature")}, SIGNATURE)[member]

    def _read_book(
        self,
        name: str,
        each: int,
        whom: Callable[[int], Collection[int]],
        member: int,
        facts: Mapping[str, Any],
        data: bytes,  # noqa: ARG002
    ) -> dict[int, bytes]:
        book = read_book(facts.get(name), each)
        if book.keys() != set(whom(member)):
            raise RefusedError("it speaks of other clients than it was asked about")
        return book

    def _read_masked(self, member: int, facts: Mapping[str, Any], data: bytes) -> Words:  # noqa: ARG002
        return self.schema.check(tensors_of(data))["numbers/masked"].numpy().view(np.uint64)
