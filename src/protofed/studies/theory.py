"""The constants of the papers' convergence conditions, estimated along a run, and the bounds that methods make of them.

Constants are the largest that some batches and directions show, so they tend to be too small, and bounds too wide.
docs/theory.md says how the papers were read.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.data.augmentation import augmented
from protofed.engines.client_group import Group, Turns
from protofed.engines.sequential import Sequential
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method
from protofed.methods.convergence import Bound, Constants, Estimates, Used
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.randomness import for_draws, generator, step_keys
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import Run, new_run
from protofed.server.participation import participants
from protofed.server.round import Round

BATCHES = 20
"""Of each client, at most: what its objective and the spread of its gradients are taken from."""

TURNS = 10
"""Directions tried for a Lipschitz constant, each better than the one before."""

REACH = 1e-3
"""How far is gone in a direction, as a part of the length of all weights."""


@dataclass(frozen=True)
class Point:
    """A point of the run: the constants at the weights from which the next round starts, and what follows."""

    round: int  # after which
    estimates: Estimates
    bounds: list[Bound]
    clients: list[Constants]


@dataclass(frozen=True)
class Trend:
    """Whether a client's loss fell from each of its turns to the next."""

    client: int
    turns: int  # that have one before them
    rose: list[int]  # the rounds in which it did not fall

    @property
    def fell(self) -> int:
        """The turns in which it fell."""
        return self.turns - len(self.rose)


@dataclass(frozen=True)
class Report:
    """What `protofed theory` says of a run."""

    method: str
    points: list[Point]
    trends: list[Trend]
    notes: list[str]

    def to_json(self) -> str:
        """All of it; infinite bounds are null."""
        values = dataclasses.asdict(self)
        for point, told in zip(self.points, values["points"], strict=True):
            for entry, bound in zip(told["bounds"], point.bounds, strict=True):
                entry |= {"bound": bound.bound if math.isfinite(bound.bound) else None, "holds": bound.holds}
        return json.dumps({"estimates_only": True, **values}, indent=2) + "\n"


def bounds_of(method: Method, found: Estimates, used: Used) -> list[Bound]:
    """What the method's own class says; what a class inherits is of another objective than its own."""
    return list(method.bounds(found, used)) if "bounds" in vars(type(method)) else []


def examine(folder: RunFolder, points: int, progress: Progress | None = None) -> Report:
    """At the last checkpoint and, for more than one point, at as many rounds before it, evenly spaced.

    The rounds up to the last of those are played again, since a run keeps its last models alone. Nothing is written.
    """
    if points < 1:
        raise UserError("--points", points, "it must be 1 or more")
    experiment = folder.experiment()
    if experiment.engine == "flower-sim" or folder.over_network:
        raise UserError("DIR", str(folder.path), "its clients are elsewhere, and so are their models")
    played = folder.checkpoint.rounds()
    if played is None:
        raise UserError("DIR", str(folder.path), "it has no checkpoint yet")
    run = new_run(_plain(experiment))
    history = folder.played()[:played]
    if len(history) < played or any(played.losses is None for played in history):
        raise UserError("DIR", str(folder.path), f"rounds.jsonl does not have the losses of {played} rounds")
    where = sorted({round(played * number / max(1, points - 1)) for number in range(points - 1)} - {played})
    progress = progress or Progress()
    progress.tell(run.standing())
    found = []
    for upto in where:
        while len(run.history) < upto:
            progress.tell(run.standing(run.play_round()))
        found.append(_point(run, upto, history))
    run.restore(folder)
    found.append(_point(run, played, history))
    return Report(run.method.name, found, trends(history), _notes(run.method, experiment, found[-1].bounds))


def _point(run: Run, played: int, history: Sequence[Round]) -> Point:
    """Where the run is now."""
    experiment = run.experiment
    now = min(played, experiment.rounds - 1)  # the round that follows; of a complete run, the last once more
    if run.drift:
        run.engine.move(run.drift.at(now))
    who = participants(experiment, run.federation.total, now)
    clock = Clock(now, experiment.rounds, tuple(who), run.federation.total, experiment.seed)
    engine = run.engine
    probe = Probe(experiment, run.method, engine.federation, engine.groups, run.device, engine.public)
    clients, totals = [], dict[int, Tensor]()
    for found, gradient in probe.measure(who, run.broadcast, clock):
        clients.append(found)
        totals[len(gradient)] = totals.get(len(gradient), 0) + gradient
    mean = _square(next(iter(totals.values())) / len(clients)) if len(totals) == 1 else None
    estimates = Estimates.of(clients, mean)
    used = Used(probe.rate(clock), played, history[0].loss, len(run.federation.classes))
    bounds = bounds_of(run.method, estimates, used)
    if played < len(history):  # how many rounds the run has is known at its end
        bounds = [bound for bound in bounds if bound.quantity != "rounds"]
    return Point(played, estimates, bounds, clients)


def trends(history: Iterable[Round]) -> list[Trend]:
    """Of every client that has taken part twice; its loss is the mean over its steps of a round."""
    turns: dict[int, list[tuple[int, float]]] = {}
    for now in history:
        for client, loss in zip(now.participants, now.losses or (), strict=True):
            turns.setdefault(client, []).append((now.round, loss))
    return [
        Trend(client, len(taken) - 1, [number for (_, old), (number, new) in pairwise(taken) if new >= old])
        for client, taken in sorted(turns.items())
        if len(taken) > 1
    ]


class Probe(Sequential):
    """The reference engine, which measures at the weights from which it would train."""

    def measure(self, who: Sequence[int], broadcast: Broadcast, clock: Clock) -> Iterator[tuple[Constants, Tensor]]:
        """The constants of each client, with the gradient of its objective, as its turn begins."""
        received = self.receive(who, broadcast)
        for group in self.groups:
            for row, member in enumerate(group.members):
                if member in received:
                    steps = self.schedule(group, [row], clock).steps
                    turns = self._turns(group, [row], [received[member]], clock, steps)
                    turns = self._prepared(group, [row], turns, received[member])
                    state = {name: value[0] for name, value in group.start([row], turns).items()}
                    yield self._client(group, row, state, turns._replace(personal=turns.personal.rows(0)))

    def _client(self, group: Group, row: int, state: Mapping[str, Tensor], turns: Turns) -> tuple[Constants, Tensor]:
        """Of one client: its objective is the mean loss of its next batches, with the dropout masks they will have."""
        batches = self.schedule(group, [row], turns.clock)
        keys = step_keys(self.keys(group, [row], "dropout", turns.clock)[0], int(batches.steps))
        taken = range(min(BATCHES, int(batches.each)))
        rows = [batches.rows[0, now][batches.rows[0, now] >= 0].to(self.device) + group.begins[row] for now in taken]
        trained = [name for name, value in group.module.named_parameters() if value.requires_grad]
        at = torch.cat([state[name].reshape(-1) for name in trained])

        def model(weights: Tensor) -> Net:
            parts = torch.split(weights, [state[name].numel() for name in trained])
            own = {name: part.view_as(state[name]) for name, part in zip(trained, parts, strict=True)}
            return Net(group.module, {name: value.clone() for name, value in state.items()} | own)

        def gradients(weights: Tensor) -> Iterator[Tensor]:
            weights = weights.detach().requires_grad_()
            for number, chosen in enumerate(rows):
                x = group.inputs(augmented(group.x[chosen], keys[number], self.experiment.augment), row)
                with step(keys[number]):
                    batch = Batch(x, group.labels[chosen], torch.ones_like(chosen).bool())
                    turn = turns.turn(turns.personal, for_draws(keys[number]))
                    loss = self.loss(model(weights), batch, turn).mean()
                yield torch.autograd.grad(loss, weights)[0]

        def features(weights: Tensor) -> Tensor:
            found = model(weights)(group.inputs(group.x[rows[0]], row), train=False).features
            return normalize(found) if self.method.unit_features else found

        gradient, variance, G = spread(gradients(at))
        draws = generator(self.experiment.seed, "theory", group.members[row])
        direction = torch.randn(len(at), generator=draws).to(at)
        found = Constants(
            client=group.members[row],
            L1=smoothness(lambda weights: spread(gradients(weights))[0], at, direction),
            L2=lipschitz(features, at, direction),
            variance=variance,
            G=G,
            gradient=_square(gradient),
            steps=int(batches.steps),
        )
        return found, gradient


def spread(gradients: Iterable[Tensor]) -> tuple[Tensor, float, float]:
    """The mean of batches' gradients, their variance σ² around it, and their mean norm."""
    total, squares, norms, number = torch.tensor(0.0), 0.0, 0.0, 0
    for gradient in gradients:
        square = _square(gradient)
        total, squares, norms, number = total + gradient, squares + square, norms + math.sqrt(square), number + 1
    mean = total / number
    return mean, max(0.0, squares / number - _square(mean)), norms / number


def smoothness(gradient: Callable[[Tensor], Tensor], at: Tensor, direction: Tensor) -> float:
    """L1: the largest ‖∇L(ω + h d) − ∇L(ω)‖ / h found; the change in one direction is the next direction."""
    base, reach, largest = gradient(at), _reach(at), 0.0
    for _ in range(TURNS):
        direction = (gradient(at + reach * normalize(direction, dim=0)) - base) / reach
        largest = max(largest, float(direction.norm()))
    return largest


def lipschitz(features: Callable[[Tensor], Tensor], at: Tensor, direction: Tensor) -> float:
    """L2: the largest ‖f(φ + h d; x) − f(φ; x)‖ / h found; the next direction is where the x that changed most goes."""
    base, reach, largest = features(at).detach(), _reach(at), 0.0
    for _ in range(TURNS):
        moved = (at + reach * normalize(direction, dim=0)).detach().requires_grad_()
        change = (features(moved) - base) / reach
        sizes = change.detach().norm(dim=1)
        largest = max(largest, float(sizes.max()))
        (direction,) = torch.autograd.grad(change[sizes.argmax()].square().sum(), moved)
    return largest


def _reach(at: Tensor) -> float:
    return REACH * (float(at.norm()) or 1.0)


def _square(vector: Tensor) -> float:
    return float(vector.double().square().sum())


def _plain(experiment: Experiment) -> Experiment:
    """The same run in whole precision, played without looking at accuracies or at the time."""
    plain = dataclasses.replace(experiment, eval_every=experiment.rounds, time_budget=None)
    return plain if plain.precision == "float64" else dataclasses.replace(plain, precision="float32")


def _notes(method: Method, experiment: Experiment, bounds: Sequence[Bound]) -> list[str]:
    """What stands between the bounds and the run."""
    if not bounds:
        return [f"no convergence bound is stated for {method.name} as it was run"]
    unlike: dict[str, Any] = {"momentum": experiment.momentum, "weight decay": experiment.weight_decay}
    unlike |= {"participation": experiment.participation} if experiment.participation < 1 else {}
    if experiment.optimiser != "sgd":
        unlike |= {"momentum": 0, "optimiser": experiment.optimiser}
    names = ", ".join(f"{name} {value}" for name, value in unlike.items() if value)
    known = dict.fromkeys(bound.note for bound in bounds if bound.note)
    return [*known, *([f"the theory is of plain SGD with all clients; this run has {names}"] if names else [])]
