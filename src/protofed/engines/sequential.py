"""The reference engine: one client after the other, in a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.func import grad_and_value, vmap
from torch.nn.utils.rnn import pad_sequence

from protofed.data.augmentation import augmented
from protofed.engines.base import Collected, Engine
from protofed.engines.batches import Losses, Schedule
from protofed.engines.client_group import Group, State, Turns
from protofed.engines.private import is_frozen, trains_privately
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Trained, Turn
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from protofed.randomness import for_draws, generator, noise, step_keys
from protofed.trust.dp_mechanisms import private_gradient, private_means, sampling_rate

EVAL_BATCH = 1000


class Sequential(Engine):
    """Slow and obvious; every faster engine is tested against it."""

    name: ClassVar[str] = "sequential"
    tested_at_once: ClassVar[int] = 1

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.private = trains_privately(self.experiment, self.method, self.groups)
        """Whether steps are those of DP-SGD."""

    def schedule(self, group: Group, rows: Sequence[int], clock: Clock) -> Schedule:
        """The batches of some clients; with noise each sample is in each by chance, which its accounting assumes."""
        usual = super().schedule(group, rows, clock)
        if not (self.private and self.experiment.noise):
            return usual
        batches, steps = [], usual.steps.tolist()
        for row, number in zip(rows, steps, strict=True):
            draws = generator(self.experiment.seed, "batches", group.members[row], clock.round)
            size, rate = group.sizes[row], sampling_rate(self.experiment, group.sizes[row])
            batches += [torch.rand(size, generator=draws).lt(rate).nonzero().squeeze(1) for _ in range(number)]
        each = torch.split(pad_sequence(batches, batch_first=True, padding_value=-1), steps)
        return usual._replace(rows=pad_sequence(list(each), batch_first=True, padding_value=-1))

    def train(
        self, group: Group, rows: Sequence[int], turns: Turns, batches: Schedule
    ) -> tuple[dict[str, Tensor], Collected, Losses]:
        """Each client in turn."""
        start = group.start(rows, turns)
        keys = self.keys(group, rows, "dropout", turns.clock)
        weights = {name: value.new_empty(value.shape) for name, value in start.items()}
        collected, losses = [], []
        for position, row in enumerate(rows):
            group.module.load_state_dict({name: value[position] for name, value in start.items()})
            mine = turns._replace(personal=turns.personal.rows(position))
            loss, features, labels = self._train_client(group, row, keys[position], mine, batches.of([position]))
            for name, value in group.module.state_dict().items():
                weights[name][position] = value
            collected.append((features, labels))
            losses.append(loss)
        lost = Losses.of(pad_sequence(losses, batch_first=True), batches)
        seen = None
        if self.method.collect in ("last-epoch", "all-epochs"):
            features = pad_sequence([features for features, _ in collected], batch_first=True)
            seen = features, pad_sequence([labels for _, labels in collected], batch_first=True, padding_value=-1)
        return weights, seen, lost

    def _train_client(
        self, group: Group, row: int, key: Tensor, turns: Turns, batches: Schedule
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Phase by phase, batch by batch: the loss of each step, and the features and labels for prototypes."""
        model = self.net(group)
        draws = noise(self.experiment.seed, "privacy", group.members[row], "steps", turns.clock.round)
        keys = step_keys(key, int(batches.steps))
        collecting = self.collecting(batches)[0].tolist()
        losses, features, labels = [], [], []
        for number, (phase, first, last) in enumerate(self.phases()):
            for name, parameter in group.module.named_parameters():
                parameter.requires_grad_(phase.trains(name))
            trainable = [parameter for parameter in group.module.parameters() if parameter.requires_grad]
            optimiser = self.optimiser(trainable, self.rate_of(group, row, turns.clock))
            for now in range(int(batches.each) * first, int(batches.each) * last):
                chosen = batches.rows[0, now]
                chosen = (chosen[chosen >= 0] + group.begins[row]).to(self.device)
                x = group.inputs(augmented(group.x[chosen], keys[now], self.experiment.augment), row)
                batch = Batch(x, group.labels[chosen], torch.ones_like(chosen).bool())
                turn = turns.turn(turns.personal, for_draws(keys[now]), number)
                optimiser.zero_grad()
                if self.private:
                    loss = self._private_step(group, row, batch, keys[now], turn, draws)
                else:
                    with step(keys[now]):
                        loss = self.loss(model, batch, turn).mean()
                    torch.autograd.backward(loss)
                self.clip(None if parameter.grad is None else parameter.grad.unsqueeze(0) for parameter in trainable)
                if collecting[now] and model.features is not None:
                    features.append(model.features.detach())
                    labels.append(batch.y)
                optimiser.step()
                losses.append(loss.detach())
        empty = torch.empty(0)
        return torch.stack(losses), torch.cat(features or [empty]), torch.cat(labels or [empty])

    def _private_step(
        self, group: Group, row: int, batch: Batch, key: Tensor, turn: Turn, draws: np.random.Generator
    ) -> Tensor:
        """DP-SGD: every trained parameter gets its noisy gradient; what the batch lost on average, 0 if it is empty."""
        parameters = dict(group.module.named_parameters())
        trained = {name: value.detach() for name, value in parameters.items() if value.requires_grad}
        each, losses = self.gradients(group, trained, batch, key, turn)
        size: float = len(batch.y)
        if self.experiment.noise:  # how many were drawn is nobody's business
            size = sampling_rate(self.experiment, group.sizes[row]) * group.sizes[row]
        for name, gradient in private_gradient(each, size, self.experiment, draws).items():
            parameters[name].grad = gradient
        return losses.sum() / max(1, len(losses))

    def gradients(
        self, group: Group, trained: Mapping[str, Tensor], batch: Batch, key: Tensor, turn: Turn
    ) -> tuple[dict[str, Tensor], Tensor]:
        """The gradient of every sample by itself, [B, ...], and what each lost."""
        if not len(batch.y):
            return {name: value.new_zeros(0, *value.shape) for name, value in trained.items()}, next(
                iter(trained.values())
            ).new_zeros(0)
        fixed = {name: value for name, value in group.module.state_dict().items() if name not in trained}

        def lost(trained: Mapping[str, Tensor], x: Tensor, y: Tensor, key: Tensor) -> Tensor:
            one = Batch(x.unsqueeze(0), y.unsqueeze(0), torch.ones_like(y.unsqueeze(0)).bool())
            with step(key):
                return self.loss(self.net(group, {**fixed, **trained}), one, turn).squeeze(0)

        keys = step_keys(key, len(batch.y))  # each its own dropout
        return vmap(grad_and_value(lost), in_dims=(None, 0, 0, 0))(trained, batch.x, batch.y, keys)

    def step_on(
        self, group: Group, states: State, loss: Callable[[Net], Tensor], keys: Tensor, clock: Clock
    ) -> dict[str, Tensor]:
        """One client after the other."""
        after = []
        for position in range(len(keys)):
            group.module.load_state_dict({name: value[position] for name, value in states.items()})
            parameters = [parameter.requires_grad_() for parameter in group.module.parameters()]
            optimiser = self.optimiser(parameters, self.rate(clock))
            with step(keys[position]):
                lost = loss(self.net(group))
            optimiser.zero_grad()
            torch.autograd.backward(lost)
            optimiser.step()
            after.append({name: value.clone() for name, value in group.module.state_dict().items()})
        return {name: torch.stack([state[name] for state in after]) for name in states}

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> dict[str, Tensor]:
        """One client after the other: what a client computes does not depend, by a bit, on who else is there."""
        made = [self.method.prepare(*_only(features, labels, row), received) for row in range(len(labels))]
        return {name: torch.cat([one[name] for one in made]) for name in made[0]}

    def upload(self, trained: Trained, turns: Turns, keys: Tensor) -> tuple[Upload, dict[str, Tensor]]:
        """One client after the other, for the same reason."""
        uploads, memories = [], []
        for row in range(len(trained.samples)):
            mine = slice(row, row + 1)
            features, labels = _only(trained.features, trained.labels, row)
            one = Trained(
                {name: value[mine] for name, value in trained.weights.items()},
                trained.samples[mine],
                features,
                labels,
                trained.classes,
                trained.keys[mine],
                None if trained.losses is None else trained.losses[mine],
            )
            upload, memory = super().upload(one, turns._replace(personal=turns.personal.rows(mine)), keys[mine])
            uploads.append(upload)
            memories.append(memory)
        return Upload.join(uploads), {name: torch.cat([one[name] for one in memories]) for name in memories[0]}

    def guarded(self, upload: Upload, group: Group, rows: Sequence[int], trained: Trained, clock: Clock) -> Upload:
        """With example-level privacy class means are noised, and how many samples there are is not said."""
        if not self.experiment.hides_examples:
            return super().guarded(upload, group, rows, trained, clock)
        numbers = {name: torch.ones_like(value) for name, value in upload.numbers.items()}
        if not upload.prototypes:
            return Upload(upload.weights, {}, numbers)  # what has sums was refused
        # Where nothing changes, the same noise gives the same means again, which costs no more than once.
        when = () if is_frozen(self.experiment, self.method, self.groups) else (clock.round,)
        found = []
        for place, row in enumerate(rows):
            draws = noise(self.experiment.seed, "privacy", group.members[row], "means", *when)
            seen = _only(trained.features, trained.labels, place)
            found.append(private_means(*seen, trained.classes, self.experiment, draws))
        vectors, counts = (torch.cat(part) for part in zip(*found, strict=True))
        return Upload(upload.weights, dict.fromkeys(upload.prototypes, Prototypes(vectors, counts)), numbers)

    @torch.no_grad()
    def forward(self, group: Group, states: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """One model after the other."""
        outputs = [
            self.net(group, {name: value[position] for name, value in states.items()})(
                of_model(group, x, position), train=False
            )
            for position in range(len(next(iter(states.values()))))
        ]
        return torch.stack([out.features for out in outputs]), torch.stack([out.logits for out in outputs])

    @torch.no_grad()
    def answers(self, group: Group, states: State, turns: Turns, x: Tensor) -> Tensor:
        """One client after the other."""
        found = []
        for position in range(len(turns.personal.taken)):
            mine = {name: value[position] for name, value in states.items()}
            out = self.net(group, mine)(of_model(group, x, position), train=False)
            turn = turns.turn(turns.personal.rows(position), torch.tensor(0, device=self.device))
            found.append(self.method.answer(out, turn))
        return torch.stack(found)

    @torch.no_grad()
    def embed(self, group: Group, rows: Sequence[int], states: State) -> tuple[Tensor, Tensor]:
        """One client after the other."""
        features, labels = [], []
        for position, row in enumerate(rows):
            model = self.net(group, {name: value[position] for name, value in states.items()})
            mine = slice(group.begins[row], group.begins[row] + group.sizes[row])
            chunks = torch.split(group.x[mine], EVAL_BATCH)
            features.append(torch.cat([model(group.inputs(chunk, row), train=False).features for chunk in chunks]))
            labels.append(group.labels[mine])
        return pad_sequence(features, batch_first=True), pad_sequence(labels, batch_first=True, padding_value=-1)


def of_model(group: Group, x: Tensor, position: int) -> Tensor:
    """What one of several models sees: samples [B, ...] that all see alike, or its own of [models, B, ...]."""
    return x[position] if group.personal else x


def _only(features: Tensor, labels: Tensor, row: int) -> tuple[Tensor, Tensor]:
    """One client's features and labels, without padding; what is empty stays so."""
    if labels.dim() < 2:
        return features, labels
    size = int((labels[row] >= 0).sum())
    return features[row : row + 1, :size], labels[row : row + 1, :size]
