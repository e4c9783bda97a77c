"""What the server does with a round's uploads: stages, one after the other, then the method's aggregation.

A stage gets the uploads of the clients in `clock.who`, in that order, and what they were sent; it returns uploads, and
notes on clients. One that rejects uploads returns those of the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from protofed.errors import LostError
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Method, Server
from protofed.prototypes import Prototypes
from protofed.server.round import REFUSED
from protofed.trust.attacker import Attack, AttackMemory, Loss
from protofed.trust.defended import Context, Defence, Defended
from protofed.trust.screening import capped, refusals, without

UNSOUND = "a model of the round's average gives no finite output"


@dataclass(frozen=True)
class Notes:
    """What a stage says of clients."""

    rejected: Mapping[int, str] = field(default_factory=dict)  # the reason, by client
    suspected: Sequence[int] = ()


class Stage(Protocol):
    """A step between the clients and the method's server."""

    def apply(self, uploads: Upload, sent: Broadcast, clock: Clock) -> tuple[Upload, Notes]:
        """The uploads that go on, and what there is to say of clients."""


@dataclass
class Attacking:
    """Clients that attack send something else than what they have trained; for experiments."""

    attack: Attack
    memory: AttackMemory = field(default_factory=dict)
    loss: Loss | None = None

    def send(self, uploads: Upload, sent: Broadcast, clock: Clock, stages: Sequence[Stage]) -> Upload:
        """With the attackers' uploads in place of their own; they may try what they like on the stages first."""

        def attempt(some: Upload) -> Upload:
            who = clock.who
            for stage in stages:
                now = clock._replace(who=who)
                if isinstance(stage, Defending):
                    some = stage.judged(some, sent, now).uploads
                elif isinstance(stage, Screening):
                    try:
                        some, notes = stage.apply(some, sent, now)
                    except LostError:  # everything was refused
                        return Upload()
                    who = tuple(member for member in who if member not in notes.rejected)
            return some

        return self.attack.send(uploads, sent, clock, self.memory, attempt, self.loss)


@dataclass(frozen=True)
class Screening:
    """Uploads that no honest client can have made are rejected, by the same rules for every engine.

    Args:
        declared: the most samples that prototypes of a round's clients may count; None where counts are noisy.
        alone: each upload is judged by itself: one client must not decide whether another counts.
        lengths: what is far longer than the others' is rejected too.
        caps: nobody counts for many times the samples that most have declared.
        named: which classes a round's clients have named [N, C]; None where nobody names any.
    """

    declared: Callable[[Clock], list[int]] | None
    alone: bool = False
    lengths: bool = False
    caps: bool = False
    named: Callable[[Clock], Tensor | None] = lambda _: None

    def apply(self, uploads: Upload, sent: Broadcast, clock: Clock) -> tuple[Upload, Notes]:
        """Without those that are rejected; all of them may be only where each is judged alone."""
        declared = self.declared(clock) if self.declared else None
        rejected = refusals(uploads, sent, declared, self.lengths, self.named(clock))
        if len(rejected) == len(clock.who) and rejected and not self.alone:
            why = "; ".join(dict.fromkeys(rejected.values()))
            raise LostError(f"every upload of round {clock.round + 1} was refused: {why}")
        reasons = {clock.who[row]: f"{REFUSED}{reason}" for row, reason in rejected.items()}
        uploads = without(uploads, rejected) if rejected else uploads
        return capped(uploads) if self.caps else uploads, Notes(rejected=reasons)


@dataclass
class Defending:
    """A robust aggregation before the method's own.

    Args:
        defence: which.
        trusted: clients that the operator answers for.
        memory: what it has said of earlier rounds.
    """

    defence: Defence
    trusted: Sequence[int] = ()
    memory: Mapping[str, Tensor] = field(default_factory=dict)

    def judged(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Defended:
        """What it would make of uploads, with nothing remembered of it."""
        return self.defence(uploads, sent, Context(clock.who, self.trusted, self.memory))

    def apply(self, uploads: Upload, sent: Broadcast, clock: Clock) -> tuple[Upload, Notes]:
        """As the defence leaves them."""
        uploads, suspected, self.memory = self.judged(uploads, sent, clock)
        return uploads, Notes(suspected=[clock.who[row] for row in suspected])


@dataclass(frozen=True)
class Releasing:
    """Noise, by a server that is trusted to add it."""

    release: Callable[[Upload, Broadcast, Clock], Upload]

    def apply(self, uploads: Upload, sent: Broadcast, clock: Clock) -> tuple[Upload, Notes]:
        """What the method's server may see."""
        return self.release(uploads, sent, clock), Notes()


@dataclass
class Pooling:
    """The last prototypes of every client, in place of those of the clients in a round."""

    latest: dict[int, Mapping[str, Prototypes]] = field(default_factory=dict)  # by client, [C, M, D]

    def apply(self, uploads: Upload, sent: Broadcast, clock: Clock) -> tuple[Upload, Notes]:  # noqa: ARG002
        """With prototypes of all clients that ever sent some, in client order; weights stay those of the round."""
        if not uploads.prototypes:
            return uploads, Notes()
        for row, member in enumerate(clock.who):
            found = uploads.client(row).prototypes.items()
            self.latest[member] = {name: Prototypes(*(part.clone() for part in one)) for name, one in found}
        everyone = Upload.gather([Upload(prototypes=self.latest[member]) for member in sorted(self.latest)])
        return replace(uploads, prototypes=everyone.prototypes), Notes()

    def state(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return {
            f"pool/{member}/{part}/{name}": tensor
            for member, sets in self.latest.items()
            for name, found in sets.items()
            for part, tensor in found._asdict().items()
        }

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """From what `state` has said."""
        self.latest = {}
        for path in state:
            of, _, rest = path.partition("/")
            if of == "pool" and (member := rest.partition("/")[0]) and "/vectors/" in path:
                name = path.partition("/vectors/")[2]
                found = Prototypes(state[path], state[f"pool/{member}/counts/{name}"])
                self.latest.setdefault(int(member), {})
                self.latest[int(member)] = {**self.latest[int(member)], name: found}


@dataclass(frozen=True)
class Processed:
    """What came out of a round's uploads."""

    broadcast: Broadcast  # what is sent next
    arrived: Upload  # what clients sent, attackers' uploads in place of what they trained
    who: tuple[int, ...]  # the clients whose uploads were aggregated
    rejected: dict[int, str]
    suspected: list[int]


@dataclass(frozen=True)
class Pipeline:
    """The server of a run."""

    method: Method
    stages: Sequence[Stage]
    attacking: Attacking | None = None
    pooling: Pooling | None = None  # in asynchronous rounds, the last of the stages
    server: Callable[[Broadcast, Clock], Server] = Server  # what the server knows of a round
    sound: Callable[[Broadcast], bool] | None = (
        None  # whether what it made of a round may be sent; None: whatever it is
    )

    def state(self) -> dict[str, Tensor]:
        """What stages remember from round to round, for a checkpoint."""
        state = {} if self.pooling is None else self.pooling.state()
        for number, stage in enumerate(self._defending()):
            state |= {f"defence/{number}/{name}": tensor for name, tensor in stage.memory.items()}
        return state

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """From what `state` has said."""
        if self.pooling is not None:
            self.pooling.restore(state)
        for number, stage in enumerate(self._defending()):
            before = f"defence/{number}/"
            stage.memory = {name.removeprefix(before): state[name] for name in state if name.startswith(before)}

    def _defending(self) -> list[Defending]:
        return [stage for stage in self.stages if isinstance(stage, Defending)]

    def process(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Processed:
        """A round's uploads, of the clients in `clock.who`, through all stages and the aggregation."""
        if self.attacking is not None:
            uploads = self.attacking.send(uploads, sent, clock, self.stages)
        arrived, rejected, suspected = uploads, dict[int, str](), set[int]()
        for stage in self.stages:
            uploads, notes = stage.apply(uploads, sent, clock)
            rejected |= notes.rejected
            suspected |= set(notes.suspected)
            clock = clock._replace(who=tuple(member for member in clock.who if member not in notes.rejected))
        broadcast = self.method.aggregate(uploads, self.server(sent, clock))
        if self.sound is not None and not self.sound(broadcast):  # nothing of this round counts
            rejected |= dict.fromkeys(clock.who, f"{REFUSED}{UNSOUND}")
            return Processed(sent, arrived, (), rejected, sorted(suspected))
        return Processed(broadcast, arrived, clock.who, rejected, sorted(suspected))
