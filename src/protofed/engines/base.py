"""What every engine has in common: clients in groups of one architecture, batch schedules, one round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from torch import Tensor, nn

from protofed.data.federation import Federation
from protofed.engines.group import Group, Personal, State, Turns, fit
from protofed.errors import DivergedError, UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Method, Phase, PublicExchange, Trained, Turn
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from protofed.randomness import generator, key, step_keys


class Schedule(NamedTuple):
    """The batches of one client's turn: rows [steps, width] (-1 pads), and how many are real in each step."""

    rows: Tensor
    sizes: list[int]
    epochs: int

    def steps(self, first: int, last: int) -> slice:
        """The steps of some of its epochs."""
        each = len(self.sizes) // self.epochs
        return slice(first * each, last * each)


def schedule(samples: int, batch_size: int, epochs: int, draws: torch.Generator) -> Schedule:
    """Shuffled batches for some epochs; a last batch of one sample joins the one before it."""
    steps = -(-samples // batch_size)
    join = steps > 1 and samples % batch_size == 1
    steps -= join
    rows = torch.full((epochs, steps, batch_size + join), -1)
    orders = torch.stack([torch.randperm(samples, generator=draws) for _ in range(epochs)])
    head = orders[:, : samples - join]
    rows[:, :, :batch_size] = nn.functional.pad(head, (0, steps * batch_size - head.shape[1]), value=-1).view(
        epochs, steps, batch_size
    )
    if join:
        rows[:, -1, -1] = orders[:, -1]
    sizes = (rows >= 0).sum(-1).flatten().tolist()
    return Schedule(rows.flatten(0, 1), sizes, epochs)


class Engine(ABC):
    """Trains the clients of a round and runs models for evaluation."""

    name: ClassVar[str]

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
        self.groups = list(groups)
        self._check_groups()

    @abstractmethod
    def train(self, group: Group, rows: Sequence[int], turns: Turns) -> tuple[Trained, list[Tensor]]:
        """Local training of some clients of a group: what came out, and each client's losses, step by step."""

    @abstractmethod
    def forward(self, group: Group, states: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """Features [n, B, D] and logits [n, B, C] of one batch by n models, in eval mode."""

    @abstractmethod
    def embed(self, group: Group, rows: Sequence[int], states: State) -> tuple[Tensor, Tensor]:
        """Features [n, m, D] of each client's training samples by its model, in eval mode; labels [n, m], -1 pads."""

    @abstractmethod
    def public_step(
        self, group: Group, states: State, x: Tensor, received: Broadcast, keys: Tensor, clock: Clock
    ) -> dict[str, Tensor]:
        """One step of n models on the same public batch, by the method's `public_loss`."""

    def round(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> tuple[Upload, float]:
        """One round of local training: the uploads in client order, and the mean training loss.

        `exchanged` holds the bytes up and down of exchanges within the round.
        """
        self.exchanged = (0, 0)
        received = self._receive(who, broadcast)
        taking_part = set(who)
        parts, order, losses = [], [], []
        played: list[tuple[Group, list[int], Trained]] = []
        for group in self.groups:
            rows = [row for row, member in enumerate(group.members) if member in taking_part]
            if not rows:
                continue
            turns = self._turns(group, rows, [received[group.members[row]] for row in rows], clock)
            trained, loss = self.train(group, rows, turns)
            _check_finite([group.members[row] for row in rows], loss, clock)
            played.append((group, rows, trained))
            losses += [steps.mean() for steps in loss]
        if isinstance(self.method, PublicExchange):
            played = self._public_phase(self.method, played, clock)
        for group, rows, trained in played:
            group.keep(rows, trained.weights)
            parts.append(self.method.upload(trained))
            order += [group.members[row] for row in rows]
        uploads = Upload.join(parts).reorder(torch.tensor(order).argsort().to(self.device))
        return uploads, float(torch.stack(losses).mean())

    def initial_broadcast(self) -> Broadcast:
        """What the server sends first: the common initial weights, as far as the method shares them."""
        own = self.groups[0].own
        return Broadcast({name: value[0].clone() for name, value in own.items() if self.method.shares(name)})

    def schedule(self, group: Group, row: int, clock: Clock) -> Schedule:
        """The batches of one client in one round."""
        draws = generator(self.experiment.seed, "batches", group.members[row], clock.round)
        epochs = sum(phase.epochs for phase in self.method.phases(self.experiment.epochs))
        return schedule(group.sizes[row], self.experiment.batch_size, epochs, draws)

    def keys(self, group: Group, rows: Sequence[int], purpose: str, clock: Clock) -> Tensor:
        """One key per client for hashed draws."""
        keys = [key(self.experiment.seed, purpose, group.members[row], clock.round) for row in rows]
        return torch.tensor(keys, device=self.device)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """The method's loss of each sample of one client's batch."""
        loss = self.method.loss(model, batch, turn)
        if loss.shape != batch.y.shape:  # an average of the method's own would include padding
            why = f"its loss must be one value per sample, not of shape {list(loss.shape)}"
            raise UserError("--method", self.method.name, why)
        return loss

    def optimiser(self, parameters: Iterable[Tensor], clock: Clock) -> torch.optim.Optimizer:
        """The method's optimiser with this round's learning rate."""
        e = self.experiment
        return self.method.optimiser(parameters, e.lr * e.lr_decay**clock.round, e.momentum, e.weight_decay)

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
        """The method's phases, each with its first epoch and the one after its last."""
        first = 0
        for phase in self.method.phases(self.experiment.epochs):
            yield phase, first, first + phase.epochs
            first += phase.epochs

    def trained(
        self,
        group: Group,
        rows: Sequence[int],
        weights: State,
        collected: tuple[Tensor, Tensor] | None,
        losses: Sequence[Tensor],
        clock: Clock,
    ) -> Trained:
        """What the method makes its uploads from."""
        if self.method.collect == "eval-pass":
            collected = self.embed(group, rows, weights)
        features, labels = collected if collected is not None else (torch.empty(0), torch.empty(0))
        samples = torch.tensor([group.sizes[row] for row in rows], device=self.device)
        classes = len(self.federation.classes)
        epochs = sum(phase.epochs for phase in self.method.phases(self.experiment.epochs))
        last = torch.stack([steps[-(len(steps) // epochs) :].mean() for steps in losses])
        keys = self.keys(group, rows, "clustering", clock)
        return Trained(weights, samples, features, labels, classes, keys, last)

    def collecting(self, step: int, batches: Schedule) -> bool:
        """Whether features of this training step become prototypes."""
        if self.method.collect == "last-epoch":
            return step >= len(batches.sizes) - len(batches.sizes) // batches.epochs
        return self.method.collect == "all-epochs"

    def _public_phase(
        self, method: PublicExchange, played: list[tuple[Group, list[int], Trained]], clock: Clock
    ) -> list[tuple[Group, list[int], Trained]]:
        """Every participant steps through the public images, towards what all of them make of each batch."""
        assert self.public is not None  # the runner refuses to start without
        order = torch.randperm(len(self.public), generator=generator(self.experiment.seed, "public", clock.round))
        batches = [rows for rows in torch.split(order, method.public_batch) if len(rows) > 1]
        weights = [dict(trained.weights) for _, _, trained in played]

        def views(batch: Tensor) -> list[Tensor]:
            return [group.pixels(fit(self.public[batch], group.images.shape[1:])) for group, _, _ in played]  # type: ignore[index]  # asserted above

        def exchange(batch: Tensor) -> Broadcast:
            outputs = [
                method.public_upload(*self.forward(group, state, x))
                for (group, _, _), state, x in zip(played, weights, views(batch), strict=True)
            ]
            uploads = Upload.join(outputs)
            answer = method.public_aggregate(uploads)
            up, down = self.exchanged
            sizes = [uploads.client(row).size() for row in range(len(clock.who))]
            self.exchanged = (up + sum(sizes), down + answer.size() * len(sizes))
            return answer

        once = [exchange(batch) for batch in batches] if method.exchange == "round" else []
        for number, batch in enumerate(batches):
            received = once[number] if once else exchange(batch)
            for place, ((group, rows, _), x) in enumerate(zip(played, views(batch), strict=True)):
                keys = step_keys(self.keys(group, rows, "public", clock), 1, number).squeeze(-1)
                weights[place] = self.public_step(group, weights[place], x, received, keys, clock)
        return [
            (group, rows, trained._replace(weights=state))
            for (group, rows, trained), state in zip(played, weights, strict=True)
        ]

    def _receive(self, who: Sequence[int], broadcast: Broadcast) -> dict[int, Broadcast]:
        """What each client makes of what it was sent; the same object for all where the server sends the same."""
        sent = {member: self.method.send(broadcast, member) for member in who}
        made = {id(message): self.method.receive(message) for message in sent.values()}
        return {member: made[id(message)] for member, message in sent.items()}

    def _turns(self, group: Group, rows: Sequence[int], received: Sequence[Broadcast], clock: Clock) -> Turns:
        shared = received[0] if all(message is received[0] for message in received) else None
        weights, prototypes = ({}, {}) if shared is not None else _stack_messages(received)
        own = {name: value[list(rows)] for name, value in group.own.items()} if self.method.keeps_previous else {}
        turns = Turns(clock, shared, Personal(own, {}, group.taken[list(rows)], weights, prototypes))
        if not self.method.prepares:
            return turns
        seen = self.embed(group, rows, group.start(rows, turns))
        prepared = dict(self.method.prepare(*seen, received[0]))
        return turns._replace(personal=turns.personal._replace(prepared=prepared))

    def _check_groups(self) -> None:
        sizes = {cast(int, group.module.feature_size) for group in self.groups}
        if self.method.collect is not None and len(sizes) > 1:
            raise UserError(
                "--model", self.experiment.model, f"prototypes need one feature size, these have {sorted(sizes)}"
            )
        shared = [
            {name: tuple(value.shape[1:]) for name, value in group.own.items() if self.method.shares(name)}
            for group in self.groups
        ]
        if any(layout != shared[0] for layout in shared):
            raise UserError(
                "--model",
                self.experiment.model,
                f"{self.method.name} averages weights, so all clients need one architecture",
            )


def _stack_messages(received: Sequence[Broadcast]) -> tuple[dict[str, Tensor], dict[str, Prototypes]]:
    """Messages of the same form with a leading client axis."""
    first = received[0]
    weights = {name: torch.stack([message.weights[name] for message in received]) for name in first.weights}
    prototypes = {}
    for name in first.prototypes:
        vectors, counts = zip(*(message.prototypes[name] for message in received), strict=True)
        prototypes[name] = Prototypes(torch.stack(vectors), torch.stack(counts))
    return weights, prototypes


def _check_finite(members: Sequence[int], losses: Sequence[Tensor], clock: Clock) -> None:
    if bool(torch.cat(list(losses)).isfinite().all()):
        return
    for member, steps in zip(members, losses, strict=True):
        bad = (~steps.isfinite()).nonzero()
        if len(bad):
            raise DivergedError(
                f"the loss of client {member} became {float(steps[bad[0]])} in round {clock.round + 1}, "
                f"step {int(bad[0]) + 1}; a smaller --lr may help"
            )
