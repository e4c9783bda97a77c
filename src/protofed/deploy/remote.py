"""Clients that are elsewhere, asked over the network: they come late, fail, and may come back."""

from __future__ import annotations

import dataclasses
import itertools
import json
import logging
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor

from protofed.data import Federation
from protofed.deploy.connections import LOG, REMOVED, Connections
from protofed.deploy.exchange import Answers, Question, exchange
from protofed.deploy.remote_public import RemotePublicClients
from protofed.deploy.wire import LARGEST, Packet, pack, unpack
from protofed.engines.base import Outcome
from protofed.errors import LostError, RefusedError
from protofed.evaluation.accuracy import MODELS, RULES, TESTS, Evaluation, certain_names
from protofed.evaluation.names import asked_metrics, split_name
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import Clock, PublicExchange
from protofed.runs.clients import Clients
from protofed.runs.network_label import with_own_data
from protofed.runs.setup import Setup
from protofed.server.public_exchange import PublicClients
from protofed.trust.screening import Schema, tensors_of
from protofed.trust.secagg import UnmaskError

T = TypeVar("T")
Reader = Callable[[int, Mapping[str, Any], bytes], T]
"""Checks the facts and the encoded message of a client's answer."""

WORST = 1e12
"""A loss that is no usable number."""
TRIES = 3
"""How often a round is played until it counts."""


class TrainReply(NamedTuple):
    """What a client has made in a round."""

    upload: Upload
    loss: float


class Remote(Clients):
    """Clients that are asked over the network."""

    here: ClassVar[bool] = False
    name = "flower"

    def __init__(self, setup: Setup, clients: Connections, schema: Schema) -> None:
        """`setup` is made of stand-ins for the clients, `schema` the form of an upload."""
        self.method, self.federation, self.engine = setup.method, setup.federation, setup.engine
        self.clients, self.schema, self.settings = clients, schema, clients.settings
        rules = [*RULES, *filter(None, [setup.method.rule])]
        self.known = {"/".join(parts) for parts in itertools.product(MODELS, TESTS, rules)}
        self.metrics = asked_metrics(setup.experiment, setup.federation.classes)
        self.scores = certain_names(setup.method, setup.engine.groups[0], setup.engine.initial_broadcast())
        self.clock = Clock(0, setup.experiment.rounds)
        self._traffic = Traffic()  # of the round or evaluation that is going on
        self._left_out: dict[int, str] = {}  # of the last round, and why
        self._scores: dict[int, Evaluation] | None = None  # what clients say of the models, where a test is due

    def trained_on(self, experiment: Experiment) -> Experiment:
        """Clients bring data of their own, or take parts of the experiment's."""
        return with_own_data(experiment) if self.clients.brings else experiment

    @property
    def tests_late(self) -> bool:
        """With the next turn, which sends the same model; an exchange on public images before it would change it."""
        return not self.method.exchanges_public

    def members(self) -> Sequence[int]:
        """Of the federation as it is now: clients come and go between rounds."""
        return self.clients.members()

    def move(self, federation: Federation) -> None:
        """Data of clients that are elsewhere cannot be moved; `check` refuses drift."""
        raise NotImplementedError

    def public_clients(
        self, method: PublicExchange, who: Sequence[int], broadcast: Broadcast, clock: Clock
    ) -> PublicClients:
        """Those that are connected; who is not, or fails on the way, is left out of the round."""
        self._traffic, self.clock = Traffic(), clock
        there = self.clients.connected()
        members = [member for member in who if member in there]
        group, classes = self.engine.groups[0], len(self.federation.classes)
        public = RemotePublicClients(
            self._ask, method, group, classes, self.schema, members, self._needed(who), broadcast
        )
        public.left_out |= self.clients.absent([member for member in who if member not in there])
        return public

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Outcome:
        """Until the minimum of clients has answered, or they have failed too often."""
        self._traffic, self.clock = Traffic(), clock
        if not who:  # with differential privacy each takes part by itself, and perhaps nobody
            return self.engine.round(who, broadcast, clock)
        needed = self._needed(who)
        for _ in range(TRIES):
            there = self.clients.connected()
            try:
                answers = self._played([member for member in who if member in there], broadcast, needed)
                lack = f"fewer than {needed} answered"
            except UnmaskError as error:
                answers, lack = Answers({}, {}, Traffic()), str(error)
            absent = self.clients.absent([member for member in who if member not in there])
            failed = {member: why for member, why in answers.left_out.items() if member in who}
            left_out = self._told(absent | failed)
            if len(answers.given) >= needed:
                break
            LOG.warning("round %d is played again: %s", clock.round + 1, lack)
            if len(self.clients.wait(needed, self.settings.wait, who)) < needed:
                raise LostError(f"fewer than {needed} of the round's clients are left")
        else:
            raise LostError(f"round {clock.round + 1} failed {TRIES} times: {lack}")
        members = sorted(answers.given)
        losses = [answers.given[member].loss for member in members]
        uploads = self._together([answers.given[member].upload for member in members])
        return Outcome(tuple(members), uploads, losses, left_out, self._traffic)

    def _told(self, left_out: Mapping[int, str]) -> dict[int, str]:
        """Who is left out of the round, and why, after it was logged."""
        left_out = dict(sorted(left_out.items()))
        for member, why in left_out.items():  # a warning once, not in every round
            level = logging.INFO if self._left_out.get(member) == why else logging.WARNING
            LOG.log(level, "round %d: client %d is left out: %s", self.clock.round + 1, member, why)
        self._left_out = left_out
        return left_out

    def test_and_round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> tuple[Evaluation, Outcome]:
        """In one message per client: those of the round test before they train, the others only test."""
        if not who:
            return self.evaluate(broadcast), self.round(who, broadcast, clock)
        self._scores = {}
        try:
            outcome = self.round(who, broadcast, clock)
            return self._evaluation(self._scores, Traffic()), outcome  # its bytes are those of the round
        finally:
            self._scores = None

    def declared(self, clock: Clock) -> list[int]:
        """By what they said when they came."""
        sizes = [self.clients.known[member].samples for member in clock.who]
        return [times * size for times, size in zip(self.engine.counted(sizes, clock), sizes, strict=True)]

    def named(self, clock: Clock) -> Tensor | None:
        """By what they said when they came."""
        names = [set(self.clients.known[member].classes) for member in clock.who]
        return torch.tensor([[name in own for name in self.federation.classes] for own in names])

    def _needed(self, who: Sequence[int]) -> int:
        """How many of a round's clients must answer."""
        return min(self.settings.minimum, len(who))

    def _played(self, members: Sequence[int], broadcast: Broadcast, needed: int) -> Answers[TrainReply]:  # noqa: ARG002
        """What clients have made in a round."""
        return self._turns("train", members, broadcast, self._read_upload)

    def _together(self, uploads: Sequence[Upload]) -> Upload:
        """What a round's clients have sent."""
        return Upload.gather(uploads)

    def evaluate(self, broadcast: Broadcast) -> Evaluation:
        """What the clients that are there say of their models."""
        self._traffic = Traffic()
        return self._tested(self.clients.connected(), broadcast)

    def _tested(self, members: Collection[int], broadcast: Broadcast) -> Evaluation:
        """What some clients say of their models."""
        asked = dict.fromkeys(members, "evaluate")
        answers = self._ask(asked, broadcast, lambda _, facts, __: self._read_scores(facts))
        return self._evaluation(answers.given, self._traffic)

    def _evaluation(self, given: Mapping[int, Evaluation], traffic: Traffic) -> Evaluation:
        """What clients say of their models, as one."""
        tested = sorted(given)
        if not tested:
            raise LostError("no client has answered how good the models are")
        found: list[Evaluation] = [given[member] for member in tested]
        told_by_any = dict.fromkeys(name for one in found for name in one.per_client)  # an owner may keep metrics
        names = [n for n in told_by_any if split_name(n)[1] or all(n in one.per_client for one in found)]
        per_client = {name: [one.per_client[name][0] for one in found if name in one.per_client] for name in names}
        lack = {name: [member for member in tested if name not in given[member].per_client] for name in names}
        told: dict[str, dict[str, list[float]]] = {}
        for one in found:
            for name, domains in one.per_domain.items():
                for domain, value in domains.items():
                    told.setdefault(name, {}).setdefault(domain, []).append(value)
        per_domain = {
            name: {domain: statistics.median(values) for domain, values in domains.items()}
            for name, domains in told.items()
        }
        marked = dict.fromkeys(name for one in found for name in one.diagnostic)
        diagnostic = [name for name in marked if name in per_client]
        everyone = tested == list(range(self.federation.total))
        return Evaluation(
            per_client,
            per_domain,
            diagnostic=diagnostic,
            tested=None if everyone else tested,
            traffic=traffic,
            undefined={name: members for name, members in lack.items() if members},
        )

    def _turns(
        self,
        kind: str,
        members: Sequence[int],
        broadcast: Broadcast,
        read: Reader[T],
        told: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> Answers[T]:
        """A turn of some clients; where a test is due, of every client that is there with it."""
        if self._scores is None:
            return self._ask(dict.fromkeys(members, kind), broadcast, read, told)
        scores, before = self._scores, {"clock": [self.clock.round - 1, self._told_who()]}
        asked = dict.fromkeys(members, kind)
        asked |= dict.fromkeys([member for member in self.clients.connected() if member not in members], "evaluate")

        def read_both(member: int, facts: Mapping[str, Any], data: bytes) -> T | None:
            reply = read(member, facts, data) if asked[member] == kind else None
            if facts.get("scores") is not None:  # an owner may keep them
                scores[member] = self._read_scores(facts)
            return reply

        def tell_both(member: int) -> Mapping[str, Any]:
            return {"test": True, **told(member)} if asked[member] == kind else before

        answers = self._ask(asked, broadcast, read_both, tell_both)
        given = {member: reply for member, reply in answers.given.items() if reply is not None}
        return Answers(given, answers.left_out, answers.traffic)

    def _ask(
        self,
        kinds: Mapping[int, str],
        broadcast: Broadcast | None,
        read: Reader[T],
        told: Callable[[int], Mapping[str, Any]] = lambda _: {},
    ) -> Answers[T]:
        """Each of some clients what is of its kind, with what the server sends and tells it; answers by client."""
        gone = dict.fromkeys(kinds.keys() - self.clients.known.keys(), REMOVED)  # just now
        kinds = {member: kind for member, kind in kinds.items() if member not in gone}
        questions = self._questions(kinds, broadcast, told)
        number = {self.clients.known[member].node: member for member in kinds}

        def checked(node: int, packet: Packet) -> T:
            return self._checked(number[node], packet, read)

        given = exchange(self.clients.grid, questions, str(self.clock.round + 1), self.settings.deadline, checked)
        self._traffic += given.traffic
        return Answers(
            {number[node]: value for node, value in given.given.items()},
            gone | {number[node]: why for node, why in given.left_out.items()},
            given.traffic,
        )

    def _questions(
        self, kinds: Mapping[int, str], broadcast: Broadcast | None, told: Callable[[int], Mapping[str, Any]]
    ) -> dict[int, Question]:
        """What each of some clients is asked, by its node."""
        there = self.clients.known
        federation, tokens = self.federation, self.clients.tokens or 0
        named = {"classes": federation.classes, "domains": self.clients.domains(federation.domains), "tokens": tokens}
        facts = self.clients.facts(clock=[self.clock.round, self._told_who()], **named)
        sent = {member: None if broadcast is None else self.method.send(broadcast, member) for member in kinds}
        same: dict[tuple[int, str], Packet] = {}  # what is sent to several is written once
        questions = {}
        for member, kind in kinds.items():
            more = told(member)
            key = id(sent[member]), json.dumps(more, sort_keys=True)
            if key not in same:
                same[key] = pack({**facts, **more}, sent[member])
            questions[there[member].node] = Question(kind, same[key])
        return questions

    def _checked(self, member: int, packet: Packet, read: Reader[T]) -> T:
        """What a client answers, if it is the one that was asked."""
        facts, data = unpack(packet, LARGEST)
        self.clients.check_protocol(facts)
        if facts.get("id") != member:
            raise RefusedError("it says that it is another client")
        return read(member, facts, data)

    def _told_who(self) -> list[int]:
        """Who takes part, as clients are told; with differential privacy by sampling nobody learns it of others."""
        experiment = self.clients.experiment
        return [] if experiment.hides_clients and not experiment.secure else list(self.clock.who)

    def _read_upload(self, member: int, facts: Mapping[str, Any], data: bytes) -> TrainReply:  # noqa: ARG002
        loss = facts.get("loss")
        if not (isinstance(loss, float) and abs(loss) < WORST):
            raise RefusedError("its loss is no usable number")
        return TrainReply(Upload.from_flat(self.schema.check(tensors_of(data))), loss)

    def _read_scores(self, facts: Mapping[str, Any]) -> Evaluation:
        said = facts.get("scores")
        names = [item.name for item in dataclasses.fields(Evaluation) if item.name != "traffic"]
        try:
            found = Evaluation(**{name: said[name] for name in names})  # type: ignore[index]  # whatever it is
            values = [value for some in found.per_client.values() for value in some]
            values += [value for some in found.per_domain.values() for value in some.values()]
            right = all(isinstance(value, float) and 0 <= value <= 100 for value in values)
            right &= all(len(some) == 1 for some in found.per_client.values()) and bool(values)
            right &= all(found.per_domain.values())
            right &= self.scores <= found.per_client.keys()
            right &= all(map(self._is_known, (*found.per_client, *found.per_domain)))
            named = self.clients.domains(self.federation.domains)
            right &= all(domains.keys() <= set(named) for domains in found.per_domain.values())
            right &= set(found.diagnostic) <= found.per_client.keys() and (
                found.interval,
                found.tested,
                found.undefined,
            ) == ({}, None, {})
        except (KeyError, TypeError, AttributeError):
            right = False
        if not right:
            raise RefusedError("its accuracies are none")
        return found

    def _is_known(self, name: str) -> bool:
        """Whether a score of that name may be told: an accuracy, or a metric that the experiment asks for."""
        base, metric = split_name(name)
        return name in self.known or (base in self.known and metric in self.metrics)
