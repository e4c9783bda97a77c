"""Clients elsewhere of whose uploads the server learns the sum alone: four exchanges a round (trust/secagg.py)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import torch

from protofed.deploy.connections import LOG, Connections
from protofed.deploy.exchange import Answers
from protofed.deploy.remote import Remote, TrainReply
from protofed.deploy.wire import read_book, spelt
from protofed.errors import RefusedError
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import Clock
from protofed.runs.setup import Setup
from protofed.trust.screening import Schema, refusals, tensors_of
from protofed.trust.secagg import (
    PUBLIC,
    SEALED,
    SHARE,
    Layout,
    UnmaskError,
    Words,
    length,
    numbers,
    threshold,
    unmask,
    usable,
)
from protofed.trust.summation import upload_of

T = TypeVar("T")


class Secure(Remote):
    """One that learns the sum of a round's uploads, and no client's own: four exchanges (trust/secagg.py)."""

    def __init__(self, setup: Setup, clients: Connections, layout: Layout) -> None:
        super().__init__(setup, clients, Schema({"numbers/masked": (torch.int64, (length(layout),))}, {}))
        self.layout = layout

    def declared(self, clock: Clock) -> list[int]:
        """Of the sum, which is all that there is."""
        return [sum(super().declared(clock))]

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

        publics = enough(self._ask(dict.fromkeys(members, "query.keys"), None, self._read_keys), "sent keys")
        told = {"publics": spelt(publics)}
        read = partial(self._read_book, "sealed", SEALED, lambda member: publics.keys() - {member})
        asked = dict.fromkeys(publics, "query.shares")
        sealed = enough(self._ask(asked, None, read, lambda _: told), "shared their secrets")

        def sealed_for(member: int) -> dict[str, Any]:
            return {"sealed": spelt({other: boxes[member] for other, boxes in sealed.items() if other != member})}

        turns = self._turns("train.masked", list(sealed), broadcast, self._read_masked, sealed_for)
        masked = enough(turns, "sent what they add")
        there = {"there": sorted(masked)}
        read = partial(self._read_book, "told", SHARE, lambda _: sealed.keys())
        shares = self._ask(dict.fromkeys(masked, "query.unmask"), None, read, lambda _: there)
        for member, why in shares.left_out.items():
            LOG.warning("round %d: client %d does not help to unmask: %s", self.clock.round + 1, member, why)
        held = {member: publics[member] for member in sealed}
        total = numbers(unmask(masked, held, shares.given, threshold(len(self.clock.who))), self.layout)
        upload = upload_of(total, len(masked))
        declared = self.declared(self.clock._replace(who=tuple(masked)))
        for why in refusals(upload, broadcast, declared).values():
            raise UnmaskError(f"the sum is of no use: {why}")
        turn = TrainReply(upload, float(total["loss"]) / len(masked))
        return Answers(dict.fromkeys(masked, turn), left_out, Traffic())

    def _together(self, uploads: Sequence[Upload]) -> Upload:
        return uploads[0]

    def _read_keys(self, member: int, facts: Mapping[str, Any], data: bytes) -> bytes:  # noqa: ARG002
        public = read_book({member: facts.get("public")}, PUBLIC)[member]
        if not usable(public):  # or those who try it would be left out, and not who sent it
            raise RefusedError("its keys are none")
        return public

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
