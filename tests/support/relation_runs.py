"""Cases and whole runs of FedSC and FedPCL, whose clients receive every client's class means."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, get_args

import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.data import Federation
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method, Turn
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedsc import FedSC
from protofed.models import ModelSpec, build
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from protofed.prototypes.relations import Likeness
from protofed.runs.run import Run, new_run
from tests.reference import class_vectors as slow
from tests.support.nets import Noisy, Norm, Part, Plain, assert_same_run, federation
from tests.support.prototype_cases import random_features, random_prototypes

LIKENESS: tuple[Likeness, ...] = get_args(Likeness)
CLOCK = Clock(1, 3)
C, D = 4, 6


def start(
    method: Method, engine: str = "sequential", clients: Federation | None = None, model: ModelSpec = Noisy, **more: Any
) -> Run:
    """A run before its first round; three of five unequal clients a round, in float64."""
    given: dict[str, Any] = {"participation": 0.6, "epochs": 2, "batch_size": 8, "lr": 0.02, "weight_decay": 1e-3}
    given |= {"precision": "float64", "device": "cpu", "rounds": 3, "engine": engine} | more
    return new_run(Experiment(**given), method=method, federation=clients or federation(), models=[model])


def play(method: Method, engine: str = "sequential", rounds: int = 3, **more: Any) -> Run:
    """A run after some rounds."""
    run = start(method, engine, **more)
    for _ in range(rounds):
        run.play_round()
    return run


def plain_means(means: Prototypes) -> list[slow.Means]:
    """Dense class means, [N, C, 1, D], as the reference has them."""
    clients, classes, _ = means.counts.shape
    return [
        {c: (means.vectors[k, c, 0], int(means.counts[k, c, 0])) for c in range(classes) if means.counts[k, c, 0] > 0}
        for k in range(clients)
    ]


def plain_vectors(means: Prototypes) -> list[slow.Vectors]:
    """The same without the numbers."""
    return [{c: vector for c, (vector, _) in client.items()} for client in plain_means(means)]


def every_client_has_something(means: Prototypes) -> Prototypes:
    """With class 0 at every client: one without samples takes part in no round."""
    counts = means.counts.clone()
    counts[:, 0] = counts[:, 0].clamp(min=2)
    fill = random_features(*means.vectors.shape, seed=9)
    return Prototypes(torch.where(means.filled.unsqueeze(-1), means.vectors, fill) * (counts > 0).unsqueeze(-1), counts)


def class_means(clients: int, seed: int, classes: int = C, dim: int = D) -> Prototypes:
    return every_client_has_something(random_prototypes(clients, classes, 1, dim, seed=seed))


class Case:
    """A network, a batch, and what some clients sent."""

    def __init__(self, seed: int, batch: int = 5, clients: int = 3) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.module = build(Plain, (1, 3, 3), C, seed).double()
        x = torch.randn(batch, 1, 3, 3, generator=rng, dtype=torch.float64)
        self.batch = Batch(x, torch.randint(0, C, (batch,), generator=rng), torch.ones(batch, dtype=torch.bool))
        out = self.module(x)
        self.features = out.features.detach()
        self.ce = torch.nn.functional.cross_entropy(out.logits, self.batch.y, reduction="none").detach()
        self.means = random_prototypes(clients, C, 1, D, seed=seed)

    def loss(self, method: Method, sent: Broadcast, prepared: dict[str, Tensor] | None = None) -> Tensor:
        turn = Turn(method.receive(sent), CLOCK, prepared=prepared or {})
        return method.loss(Net(self.module), self.batch, turn).detach()


VARIANTS: dict[str, Method] = {
    "fedsc": FedSC(),
    "fedsc U none": FedSC(U="none"),
    "fedsc unmerged": FedSC(neighbours=0),
    "fedsc uniform": FedSC(neighbours=0, weighting="uniform"),
    "fedsc eval-pass": FedSC(collect="eval-pass"),
    **{f"nearest by {likeness}": FedSC(neighbours=1, likeness=likeness) for likeness in LIKENESS},
    "fedsc without rpcl": FedSC(rpcl_weight=0.0),
    "fedsc without cpdr": FedSC(cpdr_weight=0.0),
    "fedpcl": FedPCL(),
    "fedpcl code": FedPCL(reading="code"),
    "fedpcl last-epoch": FedPCL(collect="last-epoch"),
}


# Enough holders of a class for one neighbour to be a choice.
COMMON: tuple[Part, ...] = (
    {0: 8, 1: 8, 2: 5},
    {0: 9, 1: 5, 2: 3},
    {0: 4, 1: 9},
    {0: 6, 1: 7, 2: 3},
    {0: 5, 1: 3, 2: 9},
)


@cache
def played(variant: str, engine: str) -> Run:
    """Three rounds; all take part where neighbours matter, else three of five."""
    if variant.startswith("nearest"):
        return play(VARIANTS[variant], engine, clients=federation(COMMON), participation=1.0, epochs=1)
    return play(VARIANTS[variant], engine)


def assert_engines_agree(variant: str) -> None:
    """Also where some sit out."""
    sequential, stacked = played(variant, "sequential"), played(variant, "stacked")
    if not variant.startswith("nearest"):
        assert len({tuple(line.participants) for line in stacked.history}) > 1  # some sit out
    assert_same_run(sequential, stacked)


def assert_learns(method: Method, lr: float) -> None:
    """After 12 rounds on three clients that know all four classes."""
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = play(method, "stacked", 12, clients=clients, participation=1.0, model=Norm, lr=lr, eval_every=12)
    assert run.history[-1].accuracy[type(method).score] > 75


class ByHand:
    """The clients of a run, trained with torch's own optimisers and BatchNorm."""

    def __init__(self, run: Run) -> None:
        self.run, self.group = run, run.engine.groups[0]
        self.models, self.x, self.y = [], [], []
        for k, client in enumerate(run.federation.clients):
            self.models.append(Norm((1, 8, 8), 6).double())
            self.models[k].load_state_dict(self.group.own.initial, strict=False)
            self.x.append((client.train.x.double() / 255 - client.preparation.mean[0]) / client.preparation.std[0])
            self.y.append(client.train.labels)

    def train(self, number: int, optimiser: Callable[..., torch.optim.Optimizer], loss: Callable[..., Tensor]) -> None:
        """Every client's turn; `loss` is of (client, features, logits, labels)."""
        for k, model in enumerate(self.models):
            model.train()
            steps = optimiser(model.parameters())
            for rows in self.run.engine.schedule(self.group, [k], Clock(number, 3)).rows[0]:
                chosen = rows[rows >= 0]
                steps.zero_grad()
                loss(k, *model(self.x[k][chosen]), self.y[k][chosen]).backward()  # type: ignore[no-untyped-call]
                steps.step()

    @torch.no_grad()
    def features(self, k: int) -> Tensor:
        self.models[k].eval()
        return self.models[k](self.x[k])[0]  # type: ignore[no-any-return]

    def check(self) -> None:
        for name, value in self.group.own.take(range(len(self.models))).items():
            for k, model in enumerate(self.models):
                assert_close(value[k], model.state_dict()[name], atol=1e-9, rtol=0, msg=f"{name} of client {k}")


PARTS: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 1: 4}, {0: 2, 1: 2, 3: 8}, {1: 3, 0: 5})
