"""What every engine has in common: clients in groups of one architecture, batch schedules, one round."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from protofed.data.build import preparation_of
from protofed.data.federation import Federation
from protofed.data.images import fit_bytes
from protofed.data.preparation import Preparation
from protofed.data.samples import is_picture
from protofed.engines.batches import Losses, Samples, Schedule, schedule, steps_in_epoch
from protofed.engines.client_group import Group, Personal, State, Turns
from protofed.engines.distributed import ALONE, Ranks
from protofed.errors import DivergedError, UserError
from protofed.experiment import Experiment
from protofed.internal.profiling import section
from protofed.messages import Broadcast, Traffic, Upload
from protofed.methods.base import Batch, Clock, Method, Phase, Server, Trained, Turn
from protofed.methods.optimisers import OPTIMISERS
from protofed.models.linear_head import is_linear
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from protofed.randomness import generator, key
from protofed.trust.dp_mechanisms import enough

Collected = tuple[Tensor, Tensor] | None
"""Features [n, m, D] and labels [n, m], -1 for padding; None where a method collects none while training."""
Present = Sequence[tuple[Group, list[int]]]
"""The groups with a participant in a round, and the rows of theirs."""


class Share(NamedTuple):
    """What some clients of a group have made in a round, as a tree of tensors with a leading client axis."""

    group: int
    rows: list[int]
    upload: tuple[dict[str, Tensor], dict[str, Prototypes], dict[str, Tensor], dict[str, Tensor]]  # see Upload
    weights: dict[str, Tensor]
    memory: dict[str, Tensor]
    losses: Tensor  # [clients]: mean training losses


@dataclass(frozen=True)
class Outcome:
    """What a round of local training has made."""

    who: tuple[int, ...]  # the clients that made it to the end, in client order
    uploads: Upload  # of each of them; their sum as that of one, where the engine learns no more
    losses: list[float]  # mean training loss of each of them
    left_out: Mapping[int, str]  # the reason, by client
    traffic: Traffic  # all that was sent for it
    clock: float | None = None  # virtual seconds since the beginning, where there is such a clock
    staleness: tuple[int, ...] | None = None  # of each of `who`: aggregations since its turn began, if asynchronous


class Engine(ABC):
    """Trains clients in this process, and runs their models for evaluation."""

    name: ClassVar[str]
    width: int | None = None  # clients in one batched step
    tested_at_once: ClassVar[int] = 100  # clients whose models are tested side by side, or fewer if those are large
    ranks: Ranks = ALONE  # the processes that clients are shared out among

    def __init__(
        self,
        experiment: Experiment,
        method: Method,
        federation: Federation,
        groups: Sequence[Group],
        device: torch.device,
        public: Tensor | None = None,
    ) -> None:
        self.experiment, self.method, self.federation, self.device = experiment, method, federation, device
        self.public = public  # unlabelled images, for methods that exchange what they make of them
        self.low = torch.bfloat16 if experiment.precision == "bf16" else None
        self.groups = list(groups)
        self._check_groups()

    def move(self, federation: Federation) -> None:
        """Go on with other data of the same clients."""
        self.federation = federation
        for group in self.groups:
            group.hold([federation.members[member] for member in group.members])

    @abstractmethod
    def train(
        self, group: Group, rows: Sequence[int], turns: Turns, batches: Schedule
    ) -> tuple[dict[str, Tensor], Collected, Losses]:
        """Local training of some clients of a group: their weights, the features collected on the way, their losses."""

    @abstractmethod
    def forward(self, group: Group, states: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features [n, B, D] and logits [n, B, C] of one batch by n models, in eval mode."""

    @abstractmethod
    def answers(self, group: Group, states: State, turns: Turns, x: Tensor) -> Tensor:
        """Logits [n, B, C] of one batch by n models and the method's own rule, in eval mode."""

    @abstractmethod
    def embed(self, group: Group, rows: Sequence[int], states: State) -> tuple[Tensor, Tensor]:
        """Features [n, m, D] of each client's training samples by its model, in eval mode; labels [n, m], -1 pads."""

    @abstractmethod
    def step_on(
        self, group: Group, states: State, loss: Callable[[Net], Tensor], keys: Tensor, clock: Clock
    ) -> dict[str, Tensor]:
        """One step of n models by a loss of a model, a single number, with a fresh optimiser."""

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Outcome:
        """One round of local training of the clients in `who`, which are in client order."""
        if not who:
            return Outcome((), self._nothing(), [], {}, Traffic())
        received = self.receive(who, broadcast)
        shares = self.ranks.gather(self._play(self.present(received), received, clock), self.device)
        for share in shares:
            self.groups[share.group].keep(share.rows, share.weights, share.memory)
        by_member = zip(self._members(shares), torch.cat([share.losses for share in shares]).tolist(), strict=True)
        uploads = self._uploads(shares)
        traffic = Traffic(sum(uploads.sizes()), sent_bytes(self.method, broadcast, who))
        return Outcome(tuple(who), uploads, [loss for _, loss in sorted(by_member)], {}, traffic)

    def _play(self, present: Present, received: Mapping[int, Broadcast], clock: Clock) -> list[Share]:
        """Train the clients of each group, then make their uploads: by then a GPU has work queued for all of them."""
        losses = []
        played: list[tuple[Group, list[int], Trained, Turns]] = []
        for group, rows in present:
            sent = [received[group.members[row]] for row in rows]
            with section("data"):
                batches = self.schedule(group, rows, clock)
            turns = self._prepared(group, rows, self._turns(group, rows, sent, clock, batches.steps), sent[0])
            with section("forward/backward"):
                trains = self.train if batches.epochs else self._as_it_came
                weights, collected, lost = trains(group, rows, turns, batches)
            trained = self._trained(group, rows, weights, collected, lost.last(batches.each).means(), clock)
            played.append((group, rows, trained, turns))
            losses.append((lost, lost.means()))
        shares = []
        for (group, rows, trained, turns), (_, means) in zip(played, losses, strict=True):
            with section("prototypes"):
                made, memory = self.upload(trained, turns, self.keys(group, rows, "upload", clock))
                upload = self.guarded(made, group, rows, trained, clock)
            shares.append(self._share(group, rows, upload, trained.weights, memory, means))
        for (group, rows, _, _), (lost, means) in zip(played, losses, strict=True):
            self._check_finite([group.members[row] for row in rows], lost, means, clock)  # here a GPU is waited for
        return shares

    def _as_it_came(
        self,
        group: Group,
        rows: Sequence[int],
        turns: Turns,
        batches: Schedule,  # noqa: ARG002
    ) -> tuple[dict[str, Tensor], Collected, Losses]:
        """What `train` gives for a method without phases, whose clients do not train."""
        none = torch.zeros(len(rows), 1, dtype=group.dtype, device=self.device)
        weights = {name: value.clone() for name, value in group.start(rows, turns).items()}
        return weights, None, Losses(none, torch.ones_like(none, dtype=torch.bool))

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> dict[str, Tensor]:
        """What clients make of their data before they train."""
        return dict(self.method.prepare(features, labels, received))

    def upload(self, trained: Trained, turns: Turns, keys: Tensor) -> tuple[Upload, dict[str, Tensor]]:
        """What clients send, and what they remember."""
        turn = turns.turn(turns.personal, keys)
        upload, memory = self.method.upload(trained, turn), dict(self.method.remember(trained, turn))
        begun, kept = ({n: (v.dtype, v.shape) for n, v in part.items()} for part in (turn.memory, memory))
        if kept != begun:
            why = (
                f"what it remembers must have the names, types and shapes that its memory begins with: {sorted(begun)}"
            )
            raise UserError("--method", self.method.name, why)
        return upload, memory

    def guarded(self, upload: Upload, group: Group, rows: Sequence[int], trained: Trained, clock: Clock) -> Upload:  # noqa: ARG002
        """What of it leaves the clients: no prototype that stands for too few samples."""
        least = self.experiment.min_count
        mine = clock._replace(who=tuple(group.members[row] for row in rows))
        times = self.counted([group.sizes[row] for row in rows], mine)
        return enough(upload, [least * number for number in times]) if least else upload

    def counted(self, sizes: Sequence[int], clock: Clock) -> list[int]:
        """How often at most prototypes of the round's clients, with so many samples each, count one of them."""
        if self.method.collect not in ("last-epoch", "all-epochs") or not self._epochs():
            return [1] * len(sizes)
        batches, _ = steps_in_epoch(np.array(sizes), self.experiment.batch_size)
        each = np.array([self._effort(*one, clock)[0] for one in zip(sizes, clock.who, strict=True)])
        ends = each * self._epochs()
        begins = ends - each if self.method.collect == "last-epoch" else np.zeros_like(ends)
        passes: list[int] = (-(-ends // batches) - begins // batches).tolist()  # over the samples, that steps touch
        return passes

    def declared(self, clock: Clock) -> list[int]:
        """The most samples that prototypes of the round's clients may count: what they have said they train on."""
        sizes = [len(self.federation.members[member].train) for member in clock.who]
        return [times * size for times, size in zip(self.counted(sizes, clock), sizes, strict=True)]

    def trial(self, group: Group, rows: Sequence[int], steps: int) -> float:
        """Seconds that the first steps of some clients take, for each of them and each step; nothing is kept."""
        members = [group.members[row] for row in rows]
        clock = Clock(0, self.experiment.rounds, tuple(members), self.federation.total, self.experiment.seed)
        received = self.receive(members, self.initial_broadcast())
        sent = [received[member] for member in members]
        batches = self.schedule(group, rows, clock).head(steps)
        turns = self._prepared(group, rows, self._turns(group, rows, sent, clock, batches.steps), sent[0])
        began = time.perf_counter()
        _, _, losses = self.train(group, rows, turns, batches)
        float(losses.means().sum())  # a GPU is waited for
        return (time.perf_counter() - began) / int(batches.steps.sum())

    def initial_broadcast(self) -> Broadcast:
        """What the server sends first: the common initial weights, as far as the method shares them."""
        initial = self.groups[0].own.initial
        shared = self.method.shared(initial)
        return Broadcast({name: value.clone() for name, value in initial.items() if name in shared})

    def sound(self, broadcast: Broadcast) -> bool:
        """Whether what the server would send is finite, and so is what a model with these weights makes of samples."""
        flat = [*broadcast.weights.values(), *(found.vectors for found in broadcast.prototypes.values())]
        if not all(bool(tensor.isfinite().all()) for tensor in (*flat, *broadcast.numbers.values())):
            return False
        if not broadcast.weights:
            return True
        group = self.groups[0]
        x = group.inputs(group.test.x[:2], [0])
        own = {name: broadcast.weights.get(name, value[0]) for name, value in group.own.take([0]).items()}
        return bool(
            self.forward(group, {name: value.unsqueeze(0) for name, value in own.items()}, x)[1].isfinite().all()
        )

    def server(self, previous: Broadcast, clock: Clock) -> Server:
        """What the server knows when it aggregates."""
        group = self.groups[0]
        model = self.net(group, {**group.own.initial, **previous.weights})
        return Server(previous, clock, model, self._servers_public())

    def _servers_public(self) -> Tensor | None:
        """Public images as the server's model sees them: by their own statistics, as nobody tells it a client's."""
        if self.public is None or not self.method.uses_public:
            return None
        group = self.groups[0]
        if not is_picture(self.public):  # features of an encoder
            return self.public.to(self.device, group.dtype)
        x, preparation = self._fitted_public
        seen = x.to(self.device, group.dtype)
        if preparation.kind == "none":
            return seen
        middle, scale = (part.to(seen) for part in preparation.affine(len(group.shape)))
        return (seen - middle) * scale

    @cached_property
    def _fitted_public(self) -> tuple[Tensor, Preparation]:
        """Public images in the shape that the first clients' models take, and what happens to them."""
        assert self.public is not None
        x = fit_bytes(self.public, self.groups[0].shape)
        return x, preparation_of(self.experiment, x)

    def schedule(self, group: Group, rows: Sequence[int], clock: Clock) -> Schedule:
        """The batches of some clients in one round."""
        draws = [generator(self.experiment.seed, "batches", group.members[row], clock.round) for row in rows]
        sizes = [group.sizes[row] for row in rows]
        each = [self._effort(size, group.members[row], clock)[0] for size, row in zip(sizes, rows, strict=True)]
        return schedule(sizes, self.experiment.batch_size, self._epochs(), draws, each)

    def _effort(self, size: int, member: int, clock: Clock) -> tuple[int, float]:
        """Steps of a client with so many samples in place of an epoch, and the factor on its learning rate."""
        steps, factor = self.method.effort(int(self._each([size])[0]), member, clock)
        if steps < 1 or not factor > 0:
            why = f"a client must take 1 step or more, at a rate above 0, not {steps} at {factor:g} times the rate"
            raise UserError("--method", self.method.name, why)
        return steps, factor

    @property
    def paced(self) -> bool:
        """Whether clients may differ in their learning rates."""
        return type(self.method).effort is not Method.effort

    def _each(self, sizes: Sequence[int]) -> Samples:
        """[clients]: steps in an epoch, or in place of one."""
        each, _ = steps_in_epoch(np.array(sizes), self.experiment.batch_size)
        return each if self.experiment.steps is None else np.full_like(each, self.experiment.steps)

    def steps(self, sizes: Sequence[int]) -> Samples:
        """[clients]: steps of a turn of clients with so many samples."""
        return self._each(sizes) * self._epochs()

    def takes_every_batch(self, samples: int) -> bool:
        """Whether a client with so many samples may take a step on each of its batches in a turn."""
        batches, _ = steps_in_epoch(np.array([samples]), self.experiment.batch_size)
        steps = self.steps([samples])
        return bool(steps > 0) and (self.paced or bool(steps >= batches))

    def _epochs(self) -> int:
        """Of a turn."""
        return sum(phase.epochs for phase in self.method.phases(self.experiment.epochs))

    def keys(self, group: Group, rows: Sequence[int], purpose: str, clock: Clock) -> Tensor:
        """One key per client for hashed draws."""
        return self.send(
            torch.tensor([key(self.experiment.seed, purpose, group.members[row], clock.round) for row in rows])
        )

    def send(self, tensor: Tensor) -> Tensor:
        """A tensor of the host on the device, without waiting for it."""
        return (tensor.pin_memory() if self.device.type == "cuda" else tensor).to(self.device, non_blocking=True)

    def net(self, group: Group, state: State | None = None) -> Net:
        """A client's model, with `state` in place of the module's own, in the run's arithmetic."""
        return Net(group.module, state, self.low)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """The method's loss of each sample of one client's batch."""
        loss = self.method.loss(model, batch, turn)
        if loss.shape != batch.y.shape:  # an average of the method's own would include padding
            why = f"its loss must be one value per sample, not of shape {list(loss.shape)}"
            raise UserError("--method", self.method.name, why)
        return loss

    def rate(self, clock: Clock) -> float:
        """This round's learning rate."""
        return self.experiment.lr * self.experiment.lr_decay**clock.round

    def rate_of(self, group: Group, row: int, clock: Clock) -> float:
        """That of a client."""
        return self.rate(clock) * (self._effort(group.sizes[row], group.members[row], clock)[1] if self.paced else 1)

    def optimiser(self, parameters: Iterable[Tensor], rate: float) -> torch.optim.Optimizer:
        """The method's optimiser, unless the experiment names another than SGD."""
        if self.experiment.optimiser in OPTIMISERS:
            kind = OPTIMISERS[self.experiment.optimiser]
            return kind(parameters, lr=rate, weight_decay=self.experiment.weight_decay, fused=True)
        return self.method.optimiser(parameters, rate, self.experiment.momentum, self.experiment.weight_decay)

    def clip(self, gradients: Iterable[Tensor | None]) -> None:
        """Scale each client's gradient, [clients, ...], down to the largest norm the method allows."""
        found = [gradient for gradient in gradients if gradient is not None]
        if self.method.clip is None or not found:
            return
        norm = torch.stack([gradient.reshape(len(gradient), -1).square().sum(1) for gradient in found]).sum(0).sqrt()
        scale = (self.method.clip / (norm + 1e-6)).clamp(max=1)
        for gradient in found:
            gradient.mul_(scale.view(-1, *(1,) * (gradient.dim() - 1)))

    def phases(self) -> Iterator[tuple[Phase, int, int]]:
        """The method's phases, each with its first epoch and the one after its last. --steps are an epoch."""
        first = 0
        for phase in self.method.phases(self.experiment.epochs):
            yield phase, first, first + phase.epochs
            first += phase.epochs

    def _trained(
        self, group: Group, rows: Sequence[int], weights: State, collected: Collected, losses: Tensor, clock: Clock
    ) -> Trained:
        """What the method makes its uploads from."""
        # each sample once: where that is promised, or nobody trains
        alone = self.method.collect is not None and (self.experiment.hides_examples or not self._epochs())
        if alone or self.method.collect == "eval-pass":
            with section("prototypes"):
                collected = self.embed(group, rows, weights)
        features, labels = collected if collected is not None else (torch.empty(0), torch.empty(0))
        samples = self.send(torch.tensor([group.sizes[row] for row in rows]))
        keys = self.keys(group, rows, "clustering", clock)
        return Trained(weights, samples, features, labels, len(self.federation.classes), keys, losses)

    def collecting(self, batches: Schedule) -> Tensor:
        """[clients, steps]: whether features of a training step become prototypes."""
        if self.method.collect == "last-epoch":
            return batches.taken & (torch.arange(batches.rows.shape[1]) >= (batches.steps - batches.each).unsqueeze(-1))
        return batches.taken & (self.method.collect == "all-epochs")

    def gathered(self, present: Present, made: Sequence[Upload]) -> Upload:
        """What the clients of each group have made, of all processes, in client order."""
        shares = [
            self._share(group, rows, upload, {}, {}, torch.empty(0))
            for (group, rows), upload in zip(present, made, strict=True)
        ]
        return self._uploads(self.ranks.gather(shares, self.device))

    def latest(
        self, group: Group, rows: Sequence[int], received: Mapping[int, Broadcast], clock: Clock
    ) -> dict[str, Tensor]:
        """The models as clients trained them last; what was received, for those that had no turn yet."""
        sent = [received[group.members[row]] for row in rows]
        begin = group.start(rows, self._turns(group, rows, sent, clock, torch.zeros(len(rows), dtype=torch.int64)))
        own = group.own.take(rows)
        had = group.taken[self.send(torch.tensor(rows))] > 0
        return {name: torch.where(had.view(-1, *(1,) * (own[name].dim() - 1)), own[name], begin[name]) for name in own}

    def present(self, received: Container[int]) -> Present:
        """The groups with one of these clients, and the rows of theirs."""
        rows = [[row for row, member in enumerate(group.members) if member in received] for group in self.groups]
        return [(group, some) for group, some in zip(self.groups, rows, strict=True) if some]

    def _mine(self, who: Sequence[int]) -> list[int]:
        """Whom of a round's participants this process trains."""
        steps = self.steps([len(self.federation.members[member].train) for member in who])
        return [who[place] for place in self.ranks.share(steps.tolist())]

    def _share(
        self, group: Group, rows: list[int], upload: Upload, weights: State, memory: State, losses: Tensor
    ) -> Share:
        parts = dict(upload.weights), dict(upload.prototypes), dict(upload.numbers), dict(upload.sums)
        return Share(self.groups.index(group), rows, parts, dict(weights), dict(memory), losses)

    def _members(self, shares: Sequence[Share]) -> list[int]:
        return [self.groups[share.group].members[row] for share in shares for row in share.rows]

    def _nothing(self) -> Upload:
        """What no clients send: the form of an upload, with nobody in it."""
        group = self.groups[0]
        weights = {name: value.new_empty(0, *value.shape) for name, value in group.own.initial.items()}
        nobody = torch.empty(0, dtype=torch.int64, device=self.device)
        features = torch.empty(0, 0, group.feature_size, dtype=group.dtype, device=self.device)
        trained = Trained(weights, nobody, features, nobody.view(0, 0), len(self.federation.classes), nobody, nobody)
        first = self.initial_broadcast()
        return self.method.upload(trained, nobodys_turn(self.method, first, trained, group.own.first_memory))

    def _uploads(self, shares: Sequence[Share]) -> Upload:
        """In client order."""
        members = self._members(shares)
        joined = Upload.join([Upload(*share.upload) for share in shares])
        return joined if members == sorted(members) else joined.reorder(self.send(torch.tensor(members).argsort()))

    def receive(self, who: Sequence[int], broadcast: Broadcast) -> dict[int, Broadcast]:
        """What each client that this process trains makes of what it was sent; the same object for all that get it."""
        sent = {member: self.method.send(broadcast, member) for member in self._mine(who)}
        distinct = {id(message): message for message in sent.values()}
        made = {number: self.method.receive(message) for number, message in distinct.items()}
        return {member: made[id(message)] for member, message in sent.items()}

    def _turns(
        self, group: Group, rows: Sequence[int], received: Sequence[Broadcast], clock: Clock, steps: Tensor
    ) -> Turns:
        shared = received[0] if all(message is received[0] for message in received) else None
        personal = Broadcast() if shared is not None else stacked_messages(received)
        where = self.send(torch.tensor(rows))
        rates = [self.rate_of(group, row, clock) for row in rows]
        return Turns(
            clock,
            shared,
            Personal(
                previous=group.own.take(rows) if self.method.keeps_previous else {},
                prepared={},
                memory=group.own.memory(rows),
                taken=group.taken[where],
                counts=group.counts[where],
                steps=self.send(steps),
                lr=self.send(torch.tensor(rates, dtype=group.dtype)),
                weights=dict(personal.weights),
                prototypes=dict(personal.prototypes),
                numbers=dict(personal.numbers),
            ),
            momentum=0.0 if self.experiment.optimiser in OPTIMISERS else self.experiment.momentum,
        )

    def turns_after(self, group: Group, rows: Sequence[int], broadcast: Broadcast) -> Turns:
        """The turns of some clients as they are after training, for their predictions."""
        members = [group.members[row] for row in rows]
        sent = {member: self.method.send(broadcast, member) for member in members}
        made = {id(message): self.method.receive(message) for message in sent.values()}
        clock = Clock(0, self.experiment.rounds, tuple(members), self.federation.total, self.experiment.seed)
        received = [made[id(sent[member])] for member in members]
        return self._turns(group, rows, received, clock, torch.zeros(len(rows), dtype=torch.int64))

    def _prepared(self, group: Group, rows: Sequence[int], turns: Turns, received: Broadcast) -> Turns:
        """The same turns, with what clients make of their data before they train."""
        if not self.method.prepares:
            return turns
        with section("prototypes"):
            seen = self.embed(group, rows, group.start(rows, turns))
            prepared = self.prepare(*seen, received)
        return turns._replace(personal=turns.personal._replace(prepared=prepared))

    def _check_groups(self) -> None:
        for group in self.groups:
            if self.method.linear_head and not is_linear(group.module):
                kind = type(getattr(group.module, "head", None)).__name__
                found = "shares its weights with another layer" if kind == "Linear" else f"is {kind}"
                why = f"{self.method.name} needs a linear head, an nn.Linear of its own, and this model's {found}"
                raise UserError("--model", self.experiment.model, why)
        sizes = {group.feature_size for group in self.groups}
        if self.method.collect is not None and len(sizes) > 1:
            raise UserError(
                "--model", self.experiment.model, f"prototypes need one feature size, these have {sorted(sizes)}"
            )
        shared = [
            {name: tuple(group.own.initial[name].shape) for name in sorted(self.method.shared(group.own.initial))}
            for group in self.groups
        ]
        if any(layout != shared[0] for layout in shared):
            why = f"{self.method.name} averages weights, so all clients need one architecture"
            if all(layout.keys() == shared[0].keys() for layout in shared):  # such as the head alone
                name = next(name for name, shape in shared[0].items() if any(one[name] != shape for one in shared))
                shapes = " and ".join(dict.fromkeys(str(layout[name]) for layout in shared))
                why = (
                    f"{self.method.name} averages {name}, so all clients need one architecture; its shapes are {shapes}"
                )
            raise UserError("--model", self.experiment.model, why)

    def _check_finite(self, members: Sequence[int], losses: Losses, means: Tensor, clock: Clock) -> None:
        if bool(means.isfinite().all()):  # a mean is finite only if all of its terms are
            return
        for member, values, taken in zip(members, losses.values, losses.taken, strict=True):
            steps = values[taken]
            bad = (~steps.isfinite()).nonzero()
            if len(bad):
                who = f"{self.method.name} with seed {self.experiment.seed}"
                loss, step = float(steps[bad[0]]), int(bad[0]) + 1
                raise DivergedError.at(who, member, clock.round + 1, step, loss, self.method.advice)


def sent_bytes(method: Method, broadcast: Broadcast, who: Sequence[int]) -> int:
    """Bytes that these clients receive; a message that several get is encoded once."""
    messages = [method.send(broadcast, member) for member in who]
    sizes = {id(message): message.size() for message in {id(message): message for message in messages}.values()}
    return sum(sizes[id(message)] for message in messages)


def nobodys_turn(method: Method, received: Broadcast, trained: Trained, memory: State) -> Turn:
    """The first turn of clients that are not there, or made up, after so little training."""
    number, like = len(trained.samples), trained.samples
    prepared = method.prepare(trained.features, trained.labels, received) if method.prepares else {}
    return Turn(
        received,
        Clock(0, 1, tuple(range(number)), number),
        previous=trained.weights,
        prepared=prepared,
        taken=torch.zeros_like(like),
        memory={name: value.expand(number, *value.shape) for name, value in memory.items()},
        counts=torch.stack([(trained.labels == c).sum(-1) for c in range(trained.classes)], -1),
        steps=torch.ones_like(like),
        lr=torch.ones_like(like, dtype=trained.features.dtype),
        key=trained.keys,
    )


def stacked_messages(received: Sequence[Broadcast]) -> Broadcast:
    """Messages of the same form as one, with a leading client axis."""
    first = received[0]
    weights = {name: torch.stack([message.weights[name] for message in received]) for name in first.weights}
    numbers = {name: torch.stack([message.numbers[name] for message in received]) for name in first.numbers}
    prototypes = {}
    for name in first.prototypes:
        vectors, counts = zip(*(message.prototypes[name] for message in received), strict=True)
        prototypes[name] = Prototypes(torch.stack(vectors), torch.stack(counts))
    return Broadcast(weights, prototypes, numbers)
