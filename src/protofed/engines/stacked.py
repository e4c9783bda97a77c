"""The batched engine: all clients of one architecture train in one step, with a leading client axis.

A loss is written for one client; `vmap` maps it over all of them. The sum of the clients' losses is back-propagated
once: clients are independent, so every stacked parameter receives its own client's gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import vmap

from protofed.engines.base import Engine, Schedule
from protofed.engines.group import Group, Personal, State, Turns
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Phase, PublicExchange, Trained
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.randomness import step_keys

EVAL_BATCH = 256


class _Seen:
    """What is gathered along the steps: losses, and features for prototypes, for all clients of a turn."""

    def __init__(self, clients: int, width: int) -> None:
        self.clients, self.width = clients, width
        self.losses: list[list[Tensor]] = []  # for each phase, for each client, step by step
        self.features: list[Tensor] = []
        self.labels: list[Tensor] = []

    def collect(self, features: Tensor, labels: Tensor) -> None:
        """Features of the active clients' batches; labels are -1 for what is not wanted."""
        self.features.append(_pad(features, self.clients, self.width))
        self.labels.append(_pad(labels, self.clients, self.width, fill=-1))

    def collected(self, order: Tensor) -> tuple[Tensor, Tensor] | None:
        """All of it, [clients, samples, D] and [clients, samples]."""
        if not self.features:
            return None
        return torch.cat(self.features, 1)[order], torch.cat(self.labels, 1)[order]


class Stacked(Engine):
    """Every client at once; the same numbers as the sequential engine."""

    name: ClassVar[str] = "stacked"

    def train(self, group: Group, rows: Sequence[int], turns: Turns) -> tuple[Trained, list[Tensor]]:
        """Phase by phase, all clients step by step, those with most batches first."""
        schedules = [self.schedule(group, row, turns.clock) for row in rows]
        order = sorted(range(len(rows)), key=lambda position: -len(schedules[position].sizes))
        schedules = [schedules[position] for position in order]
        by_steps = [rows[position] for position in order]
        turns = turns._replace(personal=turns.personal.rows(torch.tensor(order, device=self.device)))
        seen = _Seen(len(rows), max(schedule.rows.shape[1] for schedule in schedules))
        state = group.start(by_steps, turns)
        for phase, first, last in self.phases():
            self._train_phase(group, by_steps, state, turns, schedules, (phase, first, last), seen)

        back = torch.tensor(order, device=self.device).argsort()
        weights = {name: value.detach()[back] for name, value in state.items()}
        by_client = [torch.cat(parts) for parts in zip(*seen.losses, strict=True)]
        losses = [by_client[position] for position in back.tolist()]
        return self.trained(group, rows, weights, seen.collected(back), losses, turns.clock), losses

    def _train_phase(
        self,
        group: Group,
        rows: Sequence[int],
        state: State,
        turns: Turns,
        schedules: Sequence[Schedule],
        which: tuple[Phase, int, int],
        seen: _Seen,
    ) -> None:
        """Clients with batches left are a shrinking prefix, so nobody idles or drifts; `state` is trained in place."""
        phase, first, last = which
        spans = [schedule.steps(first, last) for schedule in schedules]
        lengths = [span.stop - span.start for span in spans]
        index, mask = _stack([schedule.rows[span] for schedule, span in zip(schedules, spans, strict=True)])
        index = (index + group.starts[rows].cpu().view(-1, 1, 1)).to(self.device)
        mask = mask.to(self.device)
        before = torch.tensor([span.start for span in spans], device=self.device)
        keys = step_keys(self.keys(group, rows, "dropout", turns.clock), lengths[0], before)

        trainable = [name for name, _ in group.module.named_parameters() if phase.trains(name)]
        parameters = {name: state[name].detach().requires_grad_() for name in trainable}
        fixed = {name: value.detach() for name, value in state.items() if name not in parameters}
        optimiser = self.optimiser(parameters.values(), turns.clock)
        active, losses = len(rows), []
        for now in range(lengths[0]):
            remaining = sum(length > now for length in lengths)
            if remaining < active:
                active = remaining
                parameters, fixed = _narrow(optimiser, parameters, fixed, active)
                turns = turns._replace(personal=turns.personal.rows(slice(active)))
            sizes = [schedule.sizes[span][now] for schedule, span in zip(schedules[:active], spans, strict=False)]
            width, full = max(sizes), min(sizes) == max(sizes)
            chosen, real = index[:active, now, :width], mask[:active, now, :width]
            batch = Batch(group.pixels(_channels_last(group.images, chosen)), group.labels[chosen], real)
            loss, features = self._step(group.module, parameters, fixed, batch, keys[:active, now], full, turns)
            optimiser.zero_grad()
            torch.autograd.backward(loss.sum())
            self.clip(parameter.grad for parameter in parameters.values())
            collecting = [
                self.collecting(span.start + now, schedule)
                for schedule, span in zip(schedules[:active], spans, strict=False)
            ]
            if features is not None and any(collecting):
                wanted = real & torch.tensor(collecting, device=self.device).view(-1, 1)
                seen.collect(features.detach(), batch.y.where(wanted, -1))
            optimiser.step()
            losses.append(_pad(loss.detach(), len(rows)))
        table = torch.stack(losses, 1)
        seen.losses.append([table[position, :length] for position, length in enumerate(lengths)])

    def _step(
        self, module: nn.Module, parameters: State, fixed: State, batch: Batch, keys: Tensor, full: bool, turns: Turns
    ) -> tuple[Tensor, Tensor | None]:
        """Every client's loss [clients] and, when prototypes are taken while training, its features."""
        collect = self.method.collect in ("last-epoch", "all-epochs")

        def one_client(
            parameters: State, fixed: State, batch: Batch, key: Tensor, personal: Personal
        ) -> tuple[Tensor, Tensor] | tuple[Tensor]:
            model = Net(module, {**parameters, **fixed})
            with step(key, None if full else batch.mask, stacked=True):
                loss = self.loss(model, batch, turns.turn(personal)).where(batch.mask, 0).sum() / batch.mask.sum()
            return (loss, model.features) if collect and model.features is not None else (loss,)

        loss, *features = vmap(one_client)(parameters, fixed, batch, keys, turns.personal)
        return loss, features[0] if features else None

    def public_step(
        self, group: Group, states: State, x: Tensor, received: Broadcast, keys: Tensor, clock: Clock
    ) -> dict[str, Tensor]:
        """All clients on the same batch."""
        method = self.method
        assert isinstance(method, PublicExchange)
        state = {name: value.clone() for name, value in states.items()}
        parameters = {name: state[name].requires_grad_() for name, _ in group.module.named_parameters()}
        fixed = {name: value for name, value in state.items() if name not in parameters}

        def one_client(parameters: State, fixed: State, key: Tensor) -> Tensor:
            with step(key, stacked=True):
                return method.public_loss(Net(group.module, {**parameters, **fixed}), x, received)

        optimiser = self.optimiser(parameters.values(), clock)
        torch.autograd.backward(vmap(one_client)(parameters, fixed, keys).sum())
        optimiser.step()
        return {name: value.detach() for name, value in state.items()}

    @torch.no_grad()
    def forward(self, group: Group, states: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """All models on the same batch."""
        return self._outputs(group, states, x, shared=True)

    @torch.no_grad()
    def embed(self, group: Group, rows: Sequence[int], states: State) -> tuple[Tensor, Tensor]:
        """All clients, a slice of their samples at a time; those with samples left are a prefix."""
        order = sorted(range(len(rows)), key=lambda position: -group.sizes[rows[position]])
        sizes = torch.tensor([group.sizes[rows[position]] for position in order])
        longest = int(sizes[0])
        position = torch.arange(longest).expand(len(rows), longest)
        real = (position < sizes.view(-1, 1)).to(self.device)
        index = position.where(real.cpu(), 0).to(self.device) + group.starts[[rows[p] for p in order]].view(-1, 1)
        ordered = {name: value[order] for name, value in states.items()}
        chunks = []
        for begin in range(0, longest, EVAL_BATCH):
            active = int((sizes > begin).sum())
            mine = {name: value[:active] for name, value in ordered.items()}
            x = group.pixels(group.images[index[:active, begin : begin + EVAL_BATCH]])
            chunks.append(_pad(self._outputs(group, mine, x, shared=False)[0], len(rows)))
        back = torch.tensor(order).argsort().to(self.device)
        features = torch.cat(chunks, 1) * real.unsqueeze(-1)
        return features[back], group.labels[index].where(real, -1)[back]

    def _outputs(self, group: Group, states: State, x: Tensor, shared: bool) -> tuple[Tensor, Tensor]:
        def one_client(state: State, x: Tensor) -> tuple[Tensor, Tensor]:
            out = Net(group.module, state)(x, train=False)
            return out.features, out.logits

        features, logits = vmap(one_client, in_dims=(0, None if shared else 0))(dict(states), x)
        return features, logits


def _stack(batches: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Batches side by side: rows [clients, steps, width], 0 where there is no sample, and which are real."""
    steps = max(len(found) for found in batches)
    width = max(found.shape[1] for found in batches)
    rows = torch.full((len(batches), steps, width), -1)
    for position, found in enumerate(batches):
        rows[position, : len(found), : found.shape[1]] = found
    return rows.clamp(min=0), rows >= 0


def _narrow(
    optimiser: torch.optim.Optimizer, parameters: State, fixed: State, active: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Go on with the first clients only: views of the same tensors and optimiser state."""
    narrow = {name: value.detach()[:active].requires_grad_() for name, value in parameters.items()}
    for name, value in parameters.items():
        optimiser.state[narrow[name]] = {
            item: entry[:active] if isinstance(entry, Tensor) and entry.dim() else entry
            for item, entry in optimiser.state.pop(value, {}).items()
        }
    optimiser.param_groups[0]["params"] = list(narrow.values())
    return narrow, {name: value[:active] for name, value in fixed.items()}


def _channels_last(images: Tensor, chosen: Tensor) -> Tensor:
    """images[chosen], [clients, B, c, h, w], with clients and channels side by side in memory.

    A vmapped convolution is a grouped one over clients × channels, which on a CPU is 2 to 3 times as fast so.
    """
    rows = images.movedim(1, -1)[chosen.T]  # [B, clients, h, w, c]
    return rows.permute(0, 2, 3, 1, 4).contiguous().permute(3, 0, 4, 1, 2)


def _pad(tensor: Tensor, clients: int, width: int | None = None, fill: float = 0) -> Tensor:
    """A tensor of the active clients as one of all clients (and of full batch width)."""
    wide = () if width is None else (0, width - tensor.shape[1])
    after = (0,) * (2 * (tensor.dim() - 1 - len(wide) // 2))
    return nn.functional.pad(tensor, (*after, *wide, 0, clients - len(tensor)), value=fill)
