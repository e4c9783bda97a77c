"""The batched engine: clients of one architecture train in one step, with a leading client axis.

A loss is written for one client; `vmap` maps it over all of them. The sum of the clients' losses is back-propagated
once: clients are independent, so every stacked parameter receives its own client's gradient.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from protofed.data.augmentation import augmented
from protofed.data.federation import Federation
from protofed.engines.base import Collected
from protofed.engines.batches import Losses, Schedule
from protofed.engines.client_group import Group, Personal, State, Turns
from protofed.engines.lane import Lane, LaneEngine, LaneOutcome, for_all_clients, form, widened
from protofed.internal.cuda_graphs import Recording, shapes
from protofed.methods.base import Clock
from protofed.models.layers import step
from protofed.models.net import Net

EVAL_BATCH = (256, 1024)
"""Most samples of a client in one pass over training images, on a CPU and on a GPU."""
LANES = 8
"""On a GPU so many lanes run beside each other, where a lane takes fewer clients than a round has."""
RECORDINGS = 16
"""So many passes without gradients are kept, each for the shapes of its inputs."""
PICTURES = 5
"""Axes of the pictures of several clients: [clients, B, channels, height, width]."""
FORMS = 4
"""For so many forms of what clients receive lanes are kept: the first round's differs, and more prototypes may come."""


class EmbedPlan(NamedTuple):
    """How all samples of some clients are passed through their models: those with most first, `batch` at a time."""

    rows: list[int]
    order: Tensor
    back: Tensor
    sizes: list[int]
    chosen: Tensor  # [n, m]: rows of the group's images
    real: Tensor  # [n, m, 1]
    labels: Tensor  # [n, m], -1 pads, in the order of `rows`
    width: int
    batch: int


class Stacked(LaneEngine):
    """Every client at once, or `width` of them at a time; the same numbers as the sequential engine."""

    name: ClassVar[str] = "stacked"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.width = self.experiment.width
        self._kept: dict[Hashable, list[Lane]] = {}
        self._plans: dict[int, EmbedPlan] = {}
        self._recorded: dict[Hashable, Recording] = {}
        self.captures = self.device.type == "cuda"

    def move(self, federation: Federation) -> None:
        """Go on with other data of the same clients: what was recorded reads the old one."""
        super().move(federation)
        for kept in (self._kept, self._plans, self._recorded):
            kept.clear()

    def train(
        self, group: Group, rows: Sequence[int], turns: Turns, batches: Schedule
    ) -> tuple[dict[str, Tensor], Collected, Losses]:
        """In chunks of `width` clients, those with most batches first; a lane trains one chunk after the other."""
        order = batches.steps.argsort(descending=True, stable=True).tolist()
        width = min(self.width or len(rows), len(rows))
        chunks = [order[first : first + width] for first in range(0, len(order), width)]
        turns = widened(turns) if self.captures else turns
        lanes = self._lanes(group, turns, width, len(chunks))
        start = group.start(rows, turns)
        weights = {name: torch.empty_like(value) for name, value in start.items()}
        seen: list[LaneOutcome] = []
        for first in range(0, len(chunks), len(lanes)):
            some = [
                (lane, chunk, self.send(torch.tensor(chunk)))
                for lane, chunk in zip(lanes, chunks[first:], strict=False)
            ]
            given = []  # until the lanes have ended: a lane's stream may read it long after the host has passed here
            for lane, chunk, places in some:
                own = {name: value[places] for name, value in start.items()}
                mine = turns._replace(personal=turns.personal.rows(places))
                given.append((own, mine))
                lane.wait()
                with lane.running():
                    lane.begin([rows[place] for place in chunk], own, mine, batches.of(chunk))
            self._train_lanes([lane for lane, _, _ in some])
            seen += [lane.end(weights, places) for lane, _, places in some]
            del given

        back = self.send(torch.tensor(order).argsort())
        losses, taken = (_join(column)[back] for column in zip(*((s.losses, s.taken) for s in seen), strict=True))
        features = [s.features for s in seen if s.features is not None]
        labels = [s.labels for s in seen if s.labels is not None]
        collected = (_join(features)[back], _join(labels, -1)[back]) if features else None
        return weights, collected, Losses(losses, taken)

    def _train_lanes(self, lanes: Sequence[Lane]) -> None:
        """Lanes beside each other: on a GPU on a stream each, on a CPU on a thread each."""
        if self.device.type == "cuda" or len(lanes) == 1:
            self._train_in_turn(lanes)
            return
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # of each lane's own operations
        try:
            with ThreadPoolExecutor(len(lanes)) as pool:
                list(pool.map(lambda lane: self._train_in_turn([lane]), lanes))
        finally:
            torch.set_num_threads(threads)

    def _train_in_turn(self, lanes: Sequence[Lane]) -> None:
        """Phase by phase, all lanes step by step."""
        for number, (phase, first, last) in enumerate(self.phases()):
            steps = []
            for lane in lanes:
                with lane.running():
                    steps.append(lane.plan(number, phase, first, last))
            for now in range(max(steps)):
                for lane, length in zip(lanes, steps, strict=True):
                    if now < length:
                        with lane.running():
                            lane.play(now)
            for lane in lanes:
                with lane.running():
                    lane.finish()

    def _lanes(self, group: Group, turns: Turns, width: int, chunks: int) -> list[Lane]:
        """Lanes of so many clients for turns of this form; those of the forms last used are kept."""
        most = LANES if self.device.type == "cuda" else torch.get_num_threads()
        waves = -(-chunks // most)
        number = -(-chunks // waves)
        needed = (id(group), width, form(turns))
        lanes = self._kept.pop(needed, [])
        while len(lanes) < number:
            lanes.append(Lane(self, group, width, turns, alone=number == 1))
        self._kept[needed] = lanes  # at the end: the one used last
        for old in list(self._kept)[: -FORMS * len(self.groups)]:
            del self._kept[old]
        return lanes[:number]

    def cannot_capture(self, what: str, error: RuntimeError) -> None:
        """Say once that a recording failed."""
        why = str(error).splitlines()[0]
        warnings.warn(f"{what} cannot be captured ({why}); it runs uncaptured, slower", stacklevel=3)

    def inputs(self, group: Group, chosen: Tensor, keys: Tensor | None = None) -> Tensor:
        """What models see of the group's samples `chosen`, [clients, B], in the layout that convolutions are fast in.

        With the keys of a training step pictures are augmented.
        """
        x = group.x[chosen]
        rows = group.owners[chosen[:, 0]]
        if keys is not None:
            x = augmented(x, keys, self.experiment.augment)
        if x.dim() != PICTURES:
            return group.inputs(x, rows)
        if len(chosen) == 1:  # one client: channels last
            return group.inputs(x[0].contiguous(memory_format=torch.channels_last).unsqueeze(0), rows)
        if self.device.type == "cuda":
            return group.inputs(x, rows)
        # Clients and channels side by side in memory: a grouped convolution on a CPU is 2 to 3 times as fast so.
        return group.inputs(x.permute(1, 3, 4, 0, 2).contiguous().permute(3, 0, 4, 1, 2), rows)

    def step_on(
        self, group: Group, states: State, loss: Callable[[Net], Tensor], keys: Tensor, clock: Clock
    ) -> dict[str, Tensor]:
        """All clients at once."""
        state = {name: value.clone() for name, value in states.items()}
        parameters = {name: state[name].requires_grad_() for name, _ in group.module.named_parameters()}
        fixed = {name: value for name, value in state.items() if name not in parameters}

        def one_client(parameters: State, fixed: State, key: Tensor) -> Tensor:
            with step(key):
                return loss(self.net(group, {**parameters, **fixed}))

        optimiser = self.optimiser(parameters.values(), self.rate(clock))
        torch.autograd.backward(for_all_clients(one_client, parameters, fixed, keys).sum())
        optimiser.step()
        return {name: value.detach() for name, value in state.items()}

    @torch.no_grad()
    def forward(self, group: Group, states: State, x: Tensor) -> tuple[Tensor, Tensor]:
        """All models on the same batch."""

        def one_client(state: State, x: Tensor) -> tuple[Tensor, Tensor]:
            out = self.net(group, state)(x, train=False)
            return out.features, out.logits

        clients = len(next(iter(states.values())))
        parts = []
        for first in range(0, clients, self.width or clients):
            some = slice(first, first + (self.width or clients))
            mine = {name: value[some] for name, value in states.items()}
            if group.personal:
                parts.append(self._replayed("forward", group, partial(for_all_clients, one_client), mine, x[some]))
                continue
            parts.append(
                self._replayed("forward", group, lambda s, x: for_all_clients(one_client, s, shared=(x,)), mine, x)
            )
        features, logits = (torch.cat(column) for column in zip(*parts, strict=True))
        return features, logits

    @torch.no_grad()
    def answers(self, group: Group, states: State, turns: Turns, x: Tensor) -> Tensor:
        """All models on the same batch."""
        key = torch.tensor(0, device=self.device)

        def one_client(state: State, personal: Personal, x: Tensor) -> Tensor:
            return self.method.answer(self.net(group, state)(x, train=False), turns.turn(personal, key))

        seen = (x,) if group.personal else ()
        made: Tensor = for_all_clients(one_client, states, turns.personal, *seen, shared=() if seen else (x,))
        return made

    @torch.no_grad()
    def embed(self, group: Group, rows: Sequence[int], states: State) -> tuple[Tensor, Tensor]:
        """Clients with most samples first, `width` at a time, and a slice of their samples at a time."""
        plan = self._plan(group, rows)
        ordered = {name: value[plan.order] for name, value in states.items()}

        def one_client(state: State, x: Tensor) -> Tensor:
            return self.net(group, state)(x, train=False).features

        def features_of(state: State, chosen: Tensor) -> Tensor:
            made: Tensor = for_all_clients(one_client, state, self.inputs(group, chosen))
            return made

        size = cast(int, group.module.feature_size)
        features = torch.zeros(*plan.chosen.shape, size, dtype=group.dtype, device=self.device)
        for first in range(0, len(rows), plan.width):
            for begin in range(0, plan.sizes[first], plan.batch):
                left = sum(size > begin for size in plan.sizes[first : first + plan.width])
                active = plan.width if self.captures else left  # a recording is for one number of clients
                there = (slice(first, first + active), slice(begin, begin + plan.batch))
                mine = {name: value[there[0]] for name, value in ordered.items()}
                features[there] = self._replayed("embed", group, features_of, mine, plan.chosen[there])
        return features.where(plan.real, 0)[plan.back, : plan.labels.shape[1]], plan.labels

    def _plan(self, group: Group, rows: Sequence[int]) -> EmbedPlan:
        """The plan for some clients; it is kept, for they often embed the same samples again."""
        if id(group) in self._plans and self._plans[id(group)].rows == list(rows):
            return self._plans[id(group)]
        order = sorted(range(len(rows)), key=lambda position: -group.sizes[rows[position]])
        sizes = [group.sizes[rows[position]] for position in order]
        begins = torch.tensor([group.begins[rows[position]] for position in order]).unsqueeze(-1)
        width = min(self.width or len(rows), len(rows))
        batch = min(EVAL_BATCH[self.device.type == "cuda"], group.images_at_once(width), max(group.sizes))
        longest = -(-sizes[0] // batch) * batch if self.captures else sizes[0]
        position = torch.arange(longest).expand(len(rows), -1)
        real = self.send(position < torch.tensor(sizes).unsqueeze(-1))
        index = self.send(position.where(position < torch.tensor(sizes).unsqueeze(-1), 0) + begins)
        back = self.send(torch.tensor(order).argsort())
        labels = group.labels[index].where(real, -1)[back, : sizes[0]]
        order_there = self.send(torch.tensor(order))
        self._plans[id(group)] = EmbedPlan(
            list(rows), order_there, back, sizes, index, real.unsqueeze(-1), labels, width, batch
        )
        return self._plans[id(group)]

    def _replayed(self, name: str, group: Group, work: Callable[..., Any], *inputs: Any) -> Any:
        """What `work` makes of tensors; on a GPU it is recorded for their shapes."""
        if not self.captures:
            return work(*inputs)
        needed = (name, id(group), shapes(inputs))
        if needed not in self._recorded:
            try:
                self._recorded[needed] = Recording(work, inputs, self.device)
                for old in list(self._recorded)[:-RECORDINGS]:
                    del self._recorded[old]
            except RuntimeError as error:
                self.captures = False
                self.cannot_capture("evaluation", error)
                return work(*inputs)
        return self._recorded[needed](*inputs)


def _join(parts: Sequence[Tensor], fill: float = 0) -> Tensor:
    """Tensors [n, m, ...] of several chunks as one, with the longest m."""
    longest = max(part.shape[1] for part in parts)
    wide = [pad(part, (*(0,) * (2 * (part.dim() - 2)), 0, longest - part.shape[1]), value=fill) for part in parts]
    return torch.cat(wide)
