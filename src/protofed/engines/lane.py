"""A lane: some clients that train side by side, step by step, in tensors that stay where they are.

On a GPU every kind of step is recorded once as a CUDA graph and from then on replayed. A step finds its batch in a
table by a counter on the device, so nothing is asked of the host while clients train.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import vmap
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map

from protofed.engines.base import Engine
from protofed.engines.batches import Schedule, steps_in_epoch
from protofed.engines.client_group import Group, Personal, State, Turns
from protofed.internal.cuda_graphs import pool, record, stream
from protofed.internal.profiling import section
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Phase
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.models.stacking import stacking
from protofed.prototypes import Prototypes
from protofed.randomness import for_draws, step_keys

BUCKETS = 8
"""On a GPU clients leave in so many groups at most: each number of active clients is a recording of its own."""


class Kind(NamedTuple):
    """What makes two steps of a lane the same recording."""

    phase: int
    active: int  # the first so many clients train
    width: int  # samples in a batch
    full: bool  # no batch has padding
    collecting: bool  # features become prototypes


class Learner(NamedTuple):
    """The first clients of a lane: what is trained, what is not, and the optimiser."""

    parameters: dict[str, Tensor]
    fixed: dict[str, Tensor]
    optimiser: torch.optim.Optimizer


class LaneOutcome(NamedTuple):
    """What was seen of clients while they trained: losses and which count [n, steps], features [n, m, D] and labels."""

    losses: Tensor
    taken: Tensor
    features: Tensor | None
    labels: Tensor | None


class LaneEngine(Engine):
    """What lanes need of the engine that owns them."""

    captures: bool  # whether steps are recorded as CUDA graphs

    @abstractmethod
    def inputs(self, group: Group, chosen: Tensor, keys: Tensor | None = None) -> Tensor:
        """What models see of the group's samples `chosen`, [clients, B]; augmented with the keys of a training step."""

    @abstractmethod
    def cannot_capture(self, what: str, error: RuntimeError) -> None:
        """Say once that a recording failed."""


class Lane:
    """Trains up to so many clients of a group at once."""

    def __init__(self, engine: LaneEngine, group: Group, clients: int, turns: Turns, alone: bool) -> None:
        """A lane that is not `alone` works beside others: on a stream of its own, or on a thread."""
        self.engine, self.group, self.clients = engine, group, clients
        device = engine.device
        self.captures = engine.captures
        self.stream = stream(device) if self.captures else None  # each has its own: libraries keep memory for each
        self.alone = alone
        self.pool = pool() if self.captures else None
        self.module = group.module if alone else deepcopy(group.module)  # a call puts weights into it for a while
        self.rate = 0.0
        self.learners: dict[tuple[int, int], Learner] = {}
        self.recordings: dict[Kind, torch.cuda.CUDAGraph] = {}

        model = group.module.state_dict()
        self.state = {name: _room(value, clients) for name, value in model.items()}
        self.final = {name: torch.zeros_like(value) for name, value in self.state.items()}
        self.turns = self._frozen(turns)
        experiment = engine.experiment
        each, joins = steps_in_epoch(np.array(group.sizes), experiment.batch_size)
        longest = experiment.steps or int(each.max())
        self.epochs = max(last - first for _, first, last in engine.phases())  # of the longest phase
        self.samples = experiment.batch_size + int(joins.any())  # of the largest batch
        self.now = torch.zeros(1, dtype=torch.int64, device=device)
        self._make_room(longest * self.epochs)

    def _make_room(self, steps: int) -> None:
        """For phases of so many steps: a method may have clients take more than others, or than in the last round."""
        steps += 3  # recording takes as many
        device, dtype = self.engine.device, self.group.dtype
        self.table = torch.zeros(steps, self.clients, self.samples + 1, dtype=torch.int64, device=device)
        """For each step and client the rows of its batch among the group's images, -1 for none; and its dropout key."""
        self.losses = torch.zeros(steps, self.clients, dtype=dtype, device=device)
        collects = self.engine.method.collect in ("last-epoch", "all-epochs")
        shape = (steps, self.clients, self.samples, cast(int, self.group.module.feature_size)) if collects else (0,)
        self.features = torch.zeros(shape, dtype=dtype, device=device)
        self.recordings.clear()  # they read and write the old ones

    def running(self) -> AbstractContextManager[Any]:
        """Inside, work is queued beside that of other lanes."""
        return nullcontext() if self.alone or self.stream is None else torch.cuda.stream(self.stream)

    def wait(self) -> None:
        """What is queued next may use what was made outside."""
        if self.stream is not None and not self.alone:
            self.stream.wait_stream(torch.cuda.current_stream(self.engine.device))

    def begin(self, rows: Sequence[int], start: State, turns: Turns, batches: Schedule) -> None:
        """Take clients in, those with most steps first: their weights, what they received, their batches."""
        self.rows, self.batches, self.seen = list(rows), batches, list[LaneOutcome]()
        rate = self.engine.rate(turns.clock)
        if rate != self.rate and self.group.dtype != torch.float32:
            self.recordings.clear()  # the old rate is in them
        self.rate = rate
        if len(self.table) < (longest := int(batches.each.max()) * self.epochs) + 3:
            self._make_room(longest)
        self.keys = self.engine.keys(self.group, rows, "dropout", turns.clock)
        self.begins = np.array([self.group.begins[row] for row in rows])[:, None, None]
        present = slice(len(rows))
        torch._foreach_copy_([self.final[name][present] for name in start], list(start.values()))
        torch._foreach_copy_(self._kept(present), [*tree_leaves(_shared(turns)), *tree_leaves(_personal(turns))])
        if self.captures:
            cast(Tensor, self.turns.clock.round).fill_(turns.clock.round)
        else:
            self.turns = self.turns._replace(clock=turns.clock)

    def plan(self, number: int, phase: Phase, first: int, last: int) -> int:
        """Get ready for a phase, from one epoch to another: how many steps it has."""
        self.phase = (number, phase)
        self.part = self.batches.between(first, last)
        rows, each = self.part.rows.numpy(), self.part.each.numpy()  # numpy is faster than torch on small arrays
        steps, width = rows.shape[1:]
        real, going = rows >= 0, np.arange(steps) < (each * (last - first))[:, None]
        # Who is done is saved, and trains on, on anything, until the others of its bucket are done too.
        index = np.where(going[..., None], np.where(real, rows + self.begins, -1), self.begins)
        table = self.table[:steps, : len(self.rows)].transpose(0, 1)
        table[..., :width] = self.engine.send(torch.from_numpy(index))
        table[..., -1] = step_keys(self.keys, steps, self.engine.send(self.part.each * first))
        wanted = self.engine.collecting(self.batches).numpy()
        place = np.minimum((each * first)[:, None] + np.arange(steps), wanted.shape[1] - 1)
        self.wanted: NDArray[np.bool_] = np.take_along_axis(wanted, place, 1) & going

        sizes = real.sum(-1)
        widest = sizes.max(0)
        full = ((sizes == widest) | ~going).all(0)
        self.remaining = [*going.sum(0).tolist(), 0]
        bucket = -(-self.clients // BUCKETS) if self.captures else 1
        active = [min(-(-left // bucket) * bucket, len(self.rows)) for left in self.remaining[:-1]]
        columns = zip(active, widest.tolist(), full.tolist(), np.logical_or.reduce(self.wanted).tolist(), strict=True)
        self.kinds = [Kind(number, *kind) for kind in columns]
        with section("forward/backward"):  # not data
            if self.captures:
                for kind in dict.fromkeys(self.kinds):
                    self._record(kind)
            self._restart()
        return len(self.kinds)

    def play(self, number: int) -> None:
        """One step; clients for whom it is the last are saved."""
        kind = self.kinds[number]
        if kind in self.recordings:
            self.recordings[kind].replay()
        else:
            self._step(kind)
        done = slice(self.remaining[number + 1], self.remaining[number])
        if done.start < done.stop:
            torch._foreach_copy_(
                [self.final[name][done] for name in self.state], [v[done] for v in self.state.values()]
            )

    def finish(self) -> None:
        """Remember what was seen in a phase."""
        steps, clients, width = len(self.kinds), len(self.rows), self.part.rows.shape[2]
        features = labels = None
        if len(self.features) and self.wanted.any():
            kept = [number for number, kind in enumerate(self.kinds) if kind.collecting]
            span = slice(kept[0], kept[-1] + 1)
            features = self.features[span, :clients, :width].transpose(0, 1).flatten(1, 2)
            rows = np.where(self.wanted[:, span, None], self.part.rows[:, span], -1)
            rows = np.where(rows < 0, rows, rows + self.begins).reshape(clients, -1)
            chosen = self.engine.send(torch.from_numpy(rows))
            labels = self.group.labels[chosen.clamp(min=0)].where(chosen >= 0, -1)
        taken = self.engine.send(self.part.taken)
        self.seen.append(LaneOutcome(self.losses[:steps, :clients].T.clone(), taken, features, labels))

    def end(self, weights: Mapping[str, Tensor], places: Tensor) -> LaneOutcome:
        """Put the clients' weights at their places among all of a round's, and say what was seen."""
        if self.stream is not None and not self.alone:
            torch.cuda.current_stream(self.engine.device).wait_stream(self.stream)
        for name, value in self.final.items():
            weights[name][places] = value[: len(self.rows)]
        losses, taken = (torch.cat(column, 1) for column in zip(*((s.losses, s.taken) for s in self.seen), strict=True))
        features = [s.features for s in self.seen if s.features is not None]
        labels = [s.labels for s in self.seen if s.labels is not None]
        return LaneOutcome(
            losses, taken, *((torch.cat(features, 1), torch.cat(labels, 1)) if features else (None, None))
        )

    def _step(self, kind: Kind) -> None:
        """All clients one batch further."""
        learner = self._learner(kind.active)
        row = self.table.index_select(0, self.now)[0, : kind.active]
        index, keys = row[:, : kind.width], row[:, -1]
        real = index >= 0
        chosen = index if kind.full else index.clamp(min=0)
        batch = Batch(self.engine.inputs(self.group, chosen, keys), self.group.labels[chosen], real)
        loss, features = self._loss(learner, batch, keys, kind)
        torch.autograd.backward(loss.sum())  # given ones, torch would import sympy to compare their shape
        self.engine.clip(parameter.grad for parameter in learner.parameters.values())
        if features is not None and kind.collecting:
            self.features[:, : kind.active, : kind.width].index_copy_(0, self.now, features.detach().unsqueeze(0))
        self._move(learner, kind.active)
        learner.optimiser.zero_grad()  # recordings share the gradients' memory
        self.losses[:, : kind.active].index_copy_(0, self.now, loss.detach().unsqueeze(0))
        self.now += 1

    def _move(self, learner: Learner, active: int) -> None:
        """The optimiser's step; of clients with rates of their own so much of it, for it is linear in the rate."""
        if not self.engine.paced:
            learner.optimiser.step()
            return
        before = {name: value.detach().clone() for name, value in learner.parameters.items()}
        learner.optimiser.step()
        part = self.turns.personal.lr[:active] / self.rate
        with torch.no_grad():
            for name, value in learner.parameters.items():
                value.copy_(before[name] + part.view(-1, *(1,) * (value.dim() - 1)) * (value - before[name]))

    def _loss(self, learner: Learner, batch: Batch, keys: Tensor, kind: Kind) -> tuple[Tensor, Tensor | None]:
        """Every client's loss [clients] and, when prototypes are taken while training, its features."""
        engine, turns, collects = self.engine, self.turns, len(self.features) > 0

        def one_client(
            parameters: State, fixed: State, batch: Batch, key: Tensor, personal: Personal
        ) -> tuple[Tensor, Tensor] | tuple[Tensor]:
            model = Net(self.module, {**parameters, **fixed}, engine.low)
            with step(key, None if kind.full else batch.mask):
                loss = engine.loss(model, batch, turns.turn(personal, for_draws(key), kind.phase))
            mean = loss.mean() if kind.full else loss.where(batch.mask, 0).sum() / batch.mask.sum()
            return (mean, model.features) if collects and model.features is not None else (mean,)

        mine = (learner.parameters, learner.fixed, batch, keys, turns.personal.rows(slice(kind.active)))
        loss, *features = for_all_clients(one_client, *mine)
        return loss, features[0] if features else None

    def _learner(self, active: int) -> Learner:
        number, phase = self.phase
        if (number, active) not in self.learners:
            if active == self.clients:
                self.learners[number, active] = self._all_learn(phase)
            else:
                self.learners[number, active] = self._narrow(self._learner(self.clients), active)
        return self.learners[number, active]

    def _all_learn(self, phase: Phase) -> Learner:
        names = [name for name, _ in self.group.module.named_parameters() if phase.trains(name)]
        parameters = {name: self.state[name].detach().requires_grad_() for name in names}
        fixed = {name: value for name, value in self.state.items() if name not in parameters}
        optimiser = self.engine.optimiser(parameters.values(), self.rate)
        for group in optimiser.param_groups:
            if self.captures and self.engine.experiment.lr_decay != 1 and self.group.dtype == torch.float32:
                group["lr"] = torch.zeros((), device=self.engine.device)  # a number would be recorded for good
            if "capturable" in group and self.engine.device.type == "cuda":
                group["capturable"] = True
        for parameter in parameters.values():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()  # its state is there from now on, and a fresh one is all zeros
        optimiser.zero_grad()
        return Learner(parameters, fixed, optimiser)

    def _narrow(self, whole: Learner, active: int) -> Learner:
        """The first clients only: views of the same tensors and optimiser state."""
        parameters = {name: value.detach()[:active].requires_grad_() for name, value in whole.parameters.items()}
        optimiser = self.engine.optimiser(parameters.values(), self.rate)
        for group, old in zip(optimiser.param_groups, whole.optimiser.param_groups, strict=True):
            group.update({item: value for item, value in old.items() if item != "params"})
        for name, value in whole.parameters.items():
            optimiser.state[parameters[name]] = {
                item: entry[:active] if isinstance(entry, Tensor) and entry.dim() else entry
                for item, entry in whole.optimiser.state[value].items()
            }
        return Learner(parameters, {name: value[:active] for name, value in whole.fixed.items()}, optimiser)

    def _restart(self) -> None:
        """Weights as they were, the optimiser fresh, the counter at the first step."""
        optimiser = self._learner(self.clients).optimiser
        self.now.zero_()
        torch._foreach_copy_(list(self.state.values()), list(self.final.values()))
        kept = [entry for state in optimiser.state.values() for entry in state.values() if isinstance(entry, Tensor)]
        if kept:
            torch._foreach_zero_(kept)
        for (number, _), learner in self.learners.items():
            for group in learner.optimiser.param_groups if number == self.phase[0] else ():
                if isinstance(group["lr"], Tensor):  # of float32: torch's kernel takes no other
                    group["lr"].fill_(self.rate)
                else:
                    group["lr"] = self.rate

    def _record(self, kind: Kind) -> None:
        """Record a step, once; what that does to weights and counters is undone by `_restart`."""
        if kind in self.recordings or not self.captures:
            return
        self.now.zero_()
        try:
            self.recordings[kind], _ = record(lambda: self._step(kind), self.engine.device, self.stream, self.pool)
        except RuntimeError as error:
            self.captures = False
            self.recordings.clear()
            self.engine.cannot_capture("the training step", error)

    def _frozen(self, turns: Turns) -> Turns:
        """Tensors of the lane's own in place of those of the first turns."""
        shared = tree_map(torch.clone, _shared(turns))
        personal = tree_map(lambda value: value.new_zeros(self.clients, *value.shape[1:]), _personal(turns))
        clock = turns.clock
        if self.captures:  # a loss that reads it is recorded reading this tensor
            number = torch.zeros((), dtype=torch.float64, device=self.engine.device)
            clock = Clock(cast(int, number), clock.rounds, (), clock.clients, clock.seed)
        return turns._replace(clock=clock, shared=Broadcast(*shared) if shared else None, personal=personal)

    def _kept(self, present: slice) -> list[Tensor]:
        """The lane's own tensors, as `_frozen` has put them there."""
        return [*tree_leaves(_shared(self.turns)), *(v[present] for v in tree_leaves(_personal(self.turns)))]


# For developers of torch: layers, such as attention, that vmap runs client by client. Nobody else can mend it.
warnings.filterwarnings("ignore", "There is a performance drop because we have not yet implemented the batching rule")


def for_all_clients(one_client: Any, *mapped: Any, shared: Sequence[Any] = ()) -> Any:
    """`one_client` of every client, [clients, ...]; a single client needs no vmap, which knows fewer kernels."""
    if all(len(value) == 1 for value in tree_leaves(mapped)):
        # Squeezed, not indexed: the gradient of an index is zeros that a copy is put into, for every weight.
        made = one_client(*tree_map(lambda value: value.squeeze(0), mapped), *shared)
        return tree_map(lambda value: value.unsqueeze(0), made)
    in_dims = (*(0 for _ in mapped), *(None for _ in shared))

    def together(*given: Any) -> Any:
        with stacking():
            return one_client(*given)

    return vmap(together, in_dims=in_dims)(*mapped, *shared)


def _room(value: Tensor, clients: int) -> Tensor:
    """Zeros for so many clients; a single one's convolutions on a GPU have their channels last, as its images do."""
    if value.is_cuda and clients == 1 and value.dim() == 4:
        return torch.zeros_like(value, memory_format=torch.channels_last).unsqueeze(0)
    return value.new_zeros(clients, *value.shape)


def widened(turns: Turns) -> Turns:
    """Prototypes with a power of two of slots, so that what is recorded serves many rounds."""
    shared = turns.shared
    if shared is not None:
        shared = Broadcast(shared.weights, _wide(shared.prototypes), shared.numbers)
    personal = turns.personal._replace(prototypes=_wide(turns.personal.prototypes))
    return turns._replace(shared=shared, personal=personal)


def _wide(sets: Mapping[str, Prototypes]) -> dict[str, Prototypes]:
    return {name: found.widen(1 << (found.counts.shape[-1] - 1).bit_length()) for name, found in sets.items()}


def _shared(turns: Turns) -> tuple[dict[str, Any], ...]:
    """What all clients received, as a tree of tensors."""
    message = turns.shared
    return () if message is None else tuple(map(_sorted, (message.weights, message.prototypes, message.numbers)))


def _personal(turns: Turns) -> Personal:
    """What each client has of its own, as a tree of tensors."""
    parts: list[Any] = [_sorted(part) if isinstance(part, dict) else part for part in turns.personal]
    return Personal(*parts)


def _sorted(part: Mapping[str, Any]) -> dict[str, Any]:
    return dict(sorted(part.items()))  # a checkpoint gives names back in its own order


def form(turns: Turns) -> Hashable:
    """Names and shapes, without the number of clients."""
    shared, personal = (tree_flatten_with_path(part)[0] for part in (_shared(turns), _personal(turns)))
    named = [(path, tuple(value.shape)) for path, value in shared]
    return tuple(named + [(path, tuple(value.shape[1:])) for path, value in personal])
