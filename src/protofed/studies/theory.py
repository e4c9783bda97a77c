"""The constants of the papers' convergence conditions, estimated along a run, and the bounds they give.

FedProto Eqs. 16-18, MP-FedCL Eqs. 21-22 and A17, FedSC Eqs. 18-20. Constants are the largest that some batches and
directions show, so they tend to be too small, and bounds too wide. docs/theory.md says how the papers were read.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.data.augmentation import augmented
from protofed.engines.client_group import Group
from protofed.engines.sequential import Sequential
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method, Turn
from protofed.methods.fedproto import FedProto
from protofed.methods.fedsc import FedSC
from protofed.methods.mp_fedcl import MPFedCL
from protofed.methods.sp_fedcl import SPFedCL
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.randomness import generator, step_keys
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
class Constants:
    """What the papers' assumptions bound, for one client."""

    client: int
    L1: float  # of the gradient: smoothness
    L2: float  # of the encoder's features, with respect to its weights
    variance: float  # σ², of a batch's gradient
    G: float  # mean norm of a batch's gradient; FedSC's B
    gradient: float  # ‖∇L‖², squared norm of the mean gradient
    steps: int  # E, local steps in a round


@dataclass(frozen=True)
class Estimates:
    """The same for all clients: the largest of each constant, since an assumption holds for every client."""

    L1: float
    L2: float
    variance: float
    G: float
    steps: int
    least_gradient: float  # the smallest ‖∇L‖² of a client
    mean_gradient: float  # the mean of ‖∇L‖² over clients
    global_gradient: float | None  # ‖∇L‖² of the mean over clients; none if their architectures differ

    @classmethod
    def of(cls, clients: Sequence[Constants], global_gradient: float | None) -> Estimates:
        """From those of each client."""
        gradients = [found.gradient for found in clients]
        return cls(
            L1=max(found.L1 for found in clients),
            L2=max(found.L2 for found in clients),
            variance=max(found.variance for found in clients),
            G=max(found.G for found in clients),
            steps=max(found.steps for found in clients),
            least_gradient=min(gradients),
            mean_gradient=statistics.fmean(gradients),
            global_gradient=global_gradient,
        )


@dataclass(frozen=True)
class Used:
    """What a run was played with."""

    rate: float  # learning rate of the round that the constants are of
    rounds: int  # played
    first_loss: float  # L_0 − L*, with L* = 0: no loss here is below that
    classes: int


@dataclass(frozen=True)
class Bound:
    """One condition: `used` stands in `relation` to `bound`, if it holds."""

    quantity: str
    equation: str
    relation: str  # "<", "≤", ">" or "≥"
    bound: float  # infinite: any λ will do, or no number of rounds
    used: float

    @property
    def holds(self) -> bool:
        """Whether the value used satisfies it."""
        if self.relation in ("<", "≤"):
            return self.used < self.bound or (self.relation == "≤" and self.used == self.bound)
        return self.used > self.bound or (self.relation == "≥" and self.used == self.bound)


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


def fedproto(found: Estimates, used: Used, lam: float) -> list[Bound]:
    """Corollary 1 and Theorem 2, where ε is the squared gradient norm that the run has reached."""
    L1, L2, G, E, eta, epsilon = found.L1, found.L2, found.G, found.steps, used.rate, found.mean_gradient
    # Eq. 16 for e' = 1/2: the sum grows with e', and the bound with the sum, so the first step has the least.
    first = 2 * (found.least_gradient - lam * L2 * E * G) / (L1 * (found.least_gradient + E * found.variance))
    denominator = E * epsilon * (2 * eta - L1 * eta**2) - E * eta * (L1 * eta * found.variance + 2 * lam * L2 * G)
    any_time = 2 * (epsilon - lam * L2 * G) / (L1 * (epsilon + found.variance))
    return [
        Bound("learning rate", "Eq. 16", "<", first, eta),
        Bound("lambda", "Eq. 17", "<", _over(found.least_gradient, L2 * E * G), lam),
        Bound("rounds", "Eq. 18", "≥", _over(2 * used.first_loss, denominator), used.rounds),
        Bound("learning rate", "Theorem 2", "<", any_time, eta),
        Bound("lambda", "Theorem 2", "<", _over(epsilon, L2 * G), lam),
    ]


def mp_fedcl(found: Estimates, used: Used, temperature: float) -> list[Bound]:
    """Corollary 1 and Theorem 2; ε as for FedProto, but of the mean gradient over clients."""
    assert found.global_gradient is not None  # the method averages weights, so architectures are the same
    L1, eta, epsilon = found.L1, used.rate, found.global_gradient
    pull = (used.classes - 1) * found.L2 * found.G / temperature  # A_p L2 G v_i / τ, ‖v_i‖ = 1
    dissimilarity = found.mean_gradient / epsilon  # δ², the smallest that Assumption 2 allows
    denominator = (eta - L1 * eta**2 / 2) * dissimilarity * epsilon - eta * pull
    return [
        Bound("learning rate", "Eq. 21", "≤", 2 / L1 - 2 * pull / (L1 * found.mean_gradient), eta),
        Bound("learning rate", "Eq. 22", "≤", 2 / L1 - 2 * pull / (L1 * dissimilarity * epsilon), eta),
        Bound("rounds", "Eq. A17", "≥", _over(used.first_loss, denominator), used.rounds),
    ]


def fedsc(found: Estimates, used: Used, neighbours: int) -> list[Bound]:
    """Theorems 2 and 3; ξ as FedProto's ε."""
    L1, B, E, M, eta, xi = found.L1, found.G, found.steps, neighbours, used.rate, found.mean_gradient
    drift = 2 * (M + 2) * found.L2 * used.classes * B
    omega = (M + 1) * L1 * E * eta**2 * found.variance + drift * E * eta  # Ω1 + Ω2
    denominator = xi * E * eta * (M + 1) * (2 - L1 * eta) - omega
    first = (2 * (M + 1) * B**2 - drift) / (L1 * (M + 1) * (found.variance + B**2))
    any_time = (2 * xi * (M + 1) - drift) / (L1 * (M + 1) * (xi + found.variance))
    return [
        Bound("learning rate", "Eq. 18", "<", first, eta),
        Bound("rounds", "Eq. 19", ">", _over(2 * (M + 1) * used.first_loss, denominator), used.rounds),
        Bound("learning rate", "Eq. 20", "<", any_time, eta),
    ]


def bounds_of(method: Method, found: Estimates, used: Used) -> list[Bound]:
    """What the method's paper states; nothing for another objective than the paper's, so subclasses do not count."""
    if type(method) is FedProto and not method.share_weights:
        return fedproto(found, used, method.lam)
    if type(method) in (MPFedCL, SPFedCL):
        assert isinstance(method, MPFedCL | SPFedCL)
        if method.contrast == "slots" and method.ce_weight == method.contrast_weight == 1:
            return mp_fedcl(found, used, method.temperature)
    if type(method) is FedSC and method.rpcl_weight == method.cpdr_weight == 1:
        return fedsc(found, used, method.neighbours)
    return []


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
                    turns = self._turns(group, [row], [received[member]], clock)
                    turns = self._prepared(group, [row], turns, received[member])
                    state = {name: value[0] for name, value in group.start([row], turns).items()}
                    yield self._client(group, row, state, turns.turn(turns.personal.rows(0)))

    def _client(self, group: Group, row: int, state: Mapping[str, Tensor], turn: Turn) -> tuple[Constants, Tensor]:
        """Of one client: its objective is the mean loss of its next batches, with the dropout masks they will have."""
        batches = self.schedule(group, [row], turn.clock)
        keys = step_keys(self.keys(group, [row], "dropout", turn.clock)[0], int(batches.steps))
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
                x = group.pixels(augmented(group.images[chosen], keys[number], self.experiment.augment))
                with step(keys[number]):
                    batch = Batch(x, group.labels[chosen], torch.ones_like(chosen).bool())
                    loss = self.loss(model(weights), batch, turn).mean()
                yield torch.autograd.grad(loss, weights)[0]

        def features(weights: Tensor) -> Tensor:
            found = model(weights)(group.pixels(group.images[rows[0]]), train=False).features
            return normalize(found) if isinstance(self.method, MPFedCL | SPFedCL) else found  # as their loss sees it

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


def _over(part: float, whole: float) -> float:
    """Infinite where the condition asks for the impossible, or for nothing."""
    return part / whole if whole > 0 else math.inf


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
    names = ", ".join(f"{name} {value:g}" for name, value in unlike.items() if value)
    return [f"the theory is of plain SGD with all clients; this run has {names}"] if names else []
