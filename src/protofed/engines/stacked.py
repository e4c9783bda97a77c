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

from protofed.engines.base import Engine, Group, Schedule, State
from protofed.methods.base import Batch, Trained, Turn
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.randomness import step_keys

EVAL_BATCH = 256


class Stacked(Engine):
    """Every client at once; the same numbers as the sequential engine."""

    name: ClassVar[str] = "stacked"

    def train(self, group: Group, rows: Sequence[int], turn: Turn) -> tuple[Trained, list[Tensor]]:
        """All clients step by step; those with batches left are a shrinking prefix, so nobody idles or drifts."""
        schedules = [self.schedule(group, row, turn.clock) for row in rows]
        order = sorted(range(len(rows)), key=lambda position: -len(schedules[position].sizes))
        schedules = [schedules[position] for position in order]
        by_steps = [rows[position] for position in order]
        lengths = [len(schedule.sizes) for schedule in schedules]

        index, mask = _stack(schedules)
        index = (index + group.starts[by_steps].cpu().view(-1, 1, 1)).to(self.device)
        mask = mask.to(self.device)
        keys = step_keys(self.keys(group, by_steps, "dropout", turn.clock), lengths[0])

        state = group.start(by_steps, turn.received)
        trainable = [name for name, _ in group.module.named_parameters()]
        parameters = {name: state[name].requires_grad_() for name in trainable}
        buffers = {name: value for name, value in state.items() if name not in parameters}
        optimiser = self.optimiser(parameters.values(), turn.clock)
        active = len(rows)
        losses, features, labels = [], [], []
        for now in range(lengths[0]):
            remaining = sum(length > now for length in lengths)
            if remaining < active:
                active = remaining
                parameters, buffers = _narrow(optimiser, parameters, buffers, active)
            sizes = [schedule.sizes[now] for schedule in schedules[:active]]
            width, full = max(sizes), min(sizes) == max(sizes)
            chosen, real = index[:active, now, :width], mask[:active, now, :width]
            batch = Batch(group.pixels(_channels_last(group.images, chosen)), group.labels[chosen], real)
            loss, seen = self._step(group.module, parameters, buffers, batch, keys[:active, now], full, turn)
            optimiser.zero_grad()
            torch.autograd.backward(loss.sum())
            collecting = torch.tensor([self.collecting(now, length) for length in lengths[:active]])
            if seen is not None and bool(collecting.any()):
                wanted = real & collecting.to(self.device).view(-1, 1)
                features.append(_pad(seen.detach(), len(rows), index.shape[2]))
                labels.append(_pad(batch.y.where(wanted, -1), len(rows), index.shape[2], fill=-1))
            optimiser.step()
            losses.append(_pad(loss.detach(), len(rows)))

        back = torch.tensor(order).argsort().to(self.device)
        weights = {name: value.detach()[back] for name, value in state.items()}
        collected = (torch.cat(features, 1)[back], torch.cat(labels, 1)[back]) if features else None
        table = torch.stack(losses, 1)
        per_client = [table[position, : lengths[position]] for position in back.tolist()]
        return self.trained(group, rows, weights, collected, turn.clock), per_client

    def _step(
        self, module: nn.Module, parameters: State, buffers: State, batch: Batch, keys: Tensor, full: bool, turn: Turn
    ) -> tuple[Tensor, Tensor | None]:
        """Every client's loss [clients] and, when prototypes are taken while training, its features."""
        collect = self.method.collect in ("last-epoch", "all-epochs")

        def one_client(
            parameters: State, buffers: State, batch: Batch, key: Tensor
        ) -> tuple[Tensor, Tensor] | tuple[Tensor]:
            model = Net(module, {**parameters, **buffers})
            with step(key, None if full else batch.mask, stacked=True):
                loss = self.loss(model, batch, turn).where(batch.mask, 0).sum() / batch.mask.sum()
            return (loss, model.features) if collect and model.features is not None else (loss,)

        loss, *features = vmap(one_client)(parameters, buffers, batch, keys)
        return loss, features[0] if features else None

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


def _stack(schedules: Sequence[Schedule]) -> tuple[Tensor, Tensor]:
    """Schedules side by side: rows [clients, steps, width], 0 where there is no sample, and which are real."""
    steps = max(len(schedule.rows) for schedule in schedules)
    width = max(schedule.rows.shape[1] for schedule in schedules)
    rows = torch.full((len(schedules), steps, width), -1)
    for position, schedule in enumerate(schedules):
        rows[position, : len(schedule.rows), : schedule.rows.shape[1]] = schedule.rows
    return rows.clamp(min=0), rows >= 0


def _narrow(
    optimiser: torch.optim.Optimizer, parameters: State, buffers: State, active: int
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Go on with the first clients only: views of the same weights, buffers and optimiser state."""
    narrow = {name: value.detach()[:active].requires_grad_() for name, value in parameters.items()}
    for name, value in parameters.items():
        optimiser.state[narrow[name]] = {
            item: entry[:active] if isinstance(entry, Tensor) and entry.dim() else entry
            for item, entry in optimiser.state.pop(value, {}).items()
        }
    optimiser.param_groups[0]["params"] = list(narrow.values())
    return narrow, {name: value[:active] for name, value in buffers.items()}


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
