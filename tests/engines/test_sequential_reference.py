"""The sequential engine against plain PyTorch: torch's own BatchNorm, optimiser and a loop over clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.methods.base import Clock
from protofed.prototypes import Prototypes, dbscan, kmeans
from protofed.runs.run import Run
from tests.reference import methods as reference
from tests.reference.methods import Learner, Sets, State, Term
from tests.support.nets import CLASSES, Norm, Part, federation, gap, own, play

# Nobody holds class 5. Batches of 8: 17 leaves one over, 19 leaves three, 12 leaves four.
PARTS: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {1: 2, 4: 10})
SETTINGS: dict[str, Any] = {"model": Norm, "participation": 1.0, "lr": 0.05, "momentum": 0.5, "weight_decay": 1e-3}
DECAY = 0.9


class Federated:
    """The same clients as a run's, trained by hand."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.clients = run.federation.clients
        initial = run.engine.groups[0].own.initial
        self.models = []
        for _ in self.clients:
            model = Norm((1, 8, 8), CLASSES).double()
            missing, unexpected = model.load_state_dict(initial, strict=False)
            assert not unexpected
            assert all("num_batches_tracked" in name for name in missing)
            self.models.append(model)
        self.data = []
        for client in self.clients:
            x = (client.train.x.double() / 255 - client.preparation.mean[0]) / client.preparation.std[0]
            self.data.append(Learner(x, client.train.labels, 0.05, 0.5, 1e-3))

    def state(self, k: int) -> State:
        return {name: value for name, value in self.models[k].state_dict().items() if "num_batches" not in name}

    def train(self, number: int, term: Callable[[], Term | None] = lambda: None) -> None:
        """Every client's turn of a round, in the engine's batches."""
        group = self.run.engine.groups[0]
        for k, (model, learner) in enumerate(zip(self.models, self.data, strict=True)):
            learner.lr = 0.05 * DECAY**number
            plan = self.run.engine.schedule(group, [k], Clock(number, 3)).rows[0]
            learner.train(model, [[int(row) for row in step if row >= 0] for step in plan], term())

    def average(self) -> State:
        """The mean of all models, weighted by samples, which every client then starts from."""
        return reference.weighted_mean(
            [self.state(k) for k in range(len(self.models))], [len(c.train) for c in self.clients]
        )

    def load(self, state: State) -> None:
        for model in self.models:
            model.load_state_dict(state, strict=False)

    def check(self, run: Run) -> None:
        """Every client's own model is the run's."""
        for name, value in run.engine.groups[0].own.take(range(len(self.models))).items():
            for k in range(len(self.models)):
                assert_close(value[k], self.state(k)[name], atol=1e-10, rtol=0, msg=f"{name} of client {k}")


def started(method: str, **params: Any) -> tuple[Run, Federated]:
    run = play(method, params, rounds=0, clients=federation(PARTS, test=30), lr_decay=DECAY, **SETTINGS)
    return run, Federated(run)


def sets(prototypes: Prototypes) -> Sets:
    """One client's prototypes, [C, M, D], as {class: [vectors]}."""
    return {
        c: [prototypes.vectors[c, m] for m in range(prototypes.counts.shape[1]) if prototypes.counts[c, m] > 0]
        for c in range(CLASSES)
        if bool(prototypes.present[c])
    }


def test_fedavg_is_a_plain_loop() -> None:
    run, plain = started("fedavg")
    for number in range(3):
        run.play_round()
        plain.train(number)
        plain.check(run)
        average = plain.average()
        plain.load(average)
        for name, value in run.broadcast.weights.items():
            assert_close(value, average[name], atol=1e-10, rtol=0)


def test_local_is_a_plain_loop_in_which_nobody_meets() -> None:
    run, plain = started("local")
    for number in range(2):
        run.play_round()
        plain.train(number)
    plain.check(run)


@pytest.mark.parametrize("mu", [0.1, 1.0])
def test_fedprox_is_a_plain_loop(mu: float) -> None:
    run, plain = started("fedprox", mu=mu)
    received = plain.average()
    for number in range(2):
        run.play_round()
        plain.train(number, lambda: reference.proximal(received, mu))  # noqa: B023 - called at once
        plain.check(run)
        received = plain.average()
        plain.load(received)


@pytest.mark.parametrize("collect", ["last-epoch", "all-epochs", "eval-pass"])
def test_fedproto_is_a_plain_loop(collect: str) -> None:
    run, plain = started("fedproto", lam=2.0, collect=collect)
    known: dict[int, Tensor] = {}
    for number in range(2):
        run.play_round()
        plain.train(number, lambda: reference.pull(known, 2.0) if known else None)  # noqa: B023 - called at once
        plain.check(run)
        means = []
        for model, learner in zip(plain.models, plain.data, strict=True):
            if collect == "eval-pass":
                pairs = list(zip(learner.features(model), learner.y.tolist(), strict=True))
            else:
                steps = learner.seen if collect == "all-epochs" else learner.seen[len(learner.seen) // 2 :]
                pairs = [pair for step in steps for pair in step]
            means.append(reference.class_means(pairs))
        known = reference.mean_over_clients(means)
        sent = run.broadcast.prototypes["global"]
        assert sorted(known) == sent.present.nonzero().flatten().tolist() == [0, 1, 2, 3, 4]
        for label, vector in known.items():
            assert_close(sent.vectors[label, 0], vector, atol=1e-10, rtol=0)
    assert gap(own(run), own(play_local())) > 1e-4  # the term was at work


def play_local() -> Run:
    run, _ = started("local")
    for _ in range(2):
        run.play_round()
    return run


@pytest.mark.parametrize("method", ["mp-fedcl", "sp-fedcl", "dp-fedcl", "mp-fedcl pooled"])
def test_prototype_pools_are_a_plain_loop(method: str) -> None:
    name, _, pooled = method.partition(" ")
    run, plain = started(name, **({"contrast": "pooled"} if pooled else {}))
    pool: list[Sets] = []
    term: Term | None = None
    for number in range(2):
        run.play_round()
        plain.train(number, lambda: term)  # noqa: B023 - called at once
        plain.check(run)
        pool = []
        keys = run.engine.keys(run.engine.groups[0], range(3), "clustering", Clock(number, 3))
        for k, (model, learner) in enumerate(zip(plain.models, plain.data, strict=True)):
            z, y = learner.features(model).unsqueeze(0), learner.y.unsqueeze(0)
            if name == "mp-fedcl":
                pool.append(sets(kmeans(z, y, CLASSES, 2, keys[k : k + 1]).take(0)))
            elif name == "sp-fedcl":
                pool.append(reference.class_means(list(zip(z[0], learner.y.tolist(), strict=True))))
            else:
                unit = z / z.square().sum(-1, keepdim=True).sqrt()
                pool.append(sets(dbscan(z, y, CLASSES, 0.5, 5, space=unit).take(0)))
        slots = 1 if name == "sp-fedcl" else 2
        if pooled or name == "dp-fedcl":
            term = reference.pooled_contrast(pool, 0.07)
        else:
            term = reference.slot_contrast(reference.pad(pool, slots), slots, 0.07)
        average = plain.average()
        plain.load(average)
        for entry, value in run.broadcast.weights.items():
            assert_close(value, average[entry], atol=1e-10, rtol=0)
        sent = [sets(run.broadcast.prototypes["pool"].take(k)) for k in range(3)]
        assert [sorted(client) for client in sent] == [[0, 1], [0, 2, 3], [1, 4]]
        assert_close(sent, [dict(sorted(client.items())) for client in pool], atol=1e-10, rtol=0)
    assert len(pool[0][0]) == slots or name == "dp-fedcl"


def test_the_loss_reported_is_the_mean_over_steps_and_clients() -> None:
    run, plain = started("fedavg")
    line = run.play_round()
    losses = []
    for k, (model, learner) in enumerate(zip(plain.models, plain.data, strict=True)):
        steps: list[float] = []

        def note(module: Any, features: Tensor, labels: Tensor, steps: list[float] = steps) -> Tensor:
            logits = module.head(features.detach())
            steps.append(float(torch.nn.functional.cross_entropy(logits, labels).detach()))
            return torch.zeros((), dtype=torch.float64)

        plan = run.engine.schedule(run.engine.groups[0], [k], Clock(0, 3)).rows[0]
        learner.train(model, [[int(row) for row in step if row >= 0] for step in plan], note)
        losses.append(sum(steps) / len(steps))
    assert line.loss == pytest.approx(sum(losses) / 3, abs=1e-10)
