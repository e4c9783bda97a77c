"""FedSC and FedPCL against their equations in plain loops, their limits, and whole runs in both engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.data import Federation
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Method, Trained, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedsc import FedSC
from protofed.methods.local import Local
from protofed.models import ModelSpec, build, parameter_count
from protofed.models.net import Net
from protofed.prototypes import Prototypes, cluster_contrast, slot_contrast
from protofed.prototypes.relations import (
    Likeness,
    consistent_prototypes,
    discrepancy_weights,
    mean_distances,
    relational_prototypes,
    scaled_contrast,
)
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run
from tests.reference import relations as slow
from tests.support.nets import Noisy, Norm, Part, Plain, assert_same_run, federation, gap, own
from tests.support.prototype_cases import random_features, random_labels, random_prototypes

quick = settings(max_examples=12, deadline=None)
seeds = st.integers(0, 2**16)
LIKENESS: tuple[Likeness, ...] = get_args(Likeness)
CLOCK = Clock(1, 3)
C, D = 4, 6


def start(
    method: Method, engine: str = "sequential", clients: Federation | None = None, model: ModelSpec = Noisy, **more: Any
) -> Run:
    """A run before its first round; three of five unequal clients a round, in float64."""
    given: dict[str, Any] = {"participation": 0.6, "epochs": 2, "batch_size": 8, "lr": 0.02, "weight_decay": 1e-3}
    given |= {"precision": "float64", "device": "cpu", "rounds": 3, "engine": engine} | more
    return Run(Experiment(**given), method=method, federation=clients or federation(), models=[model])


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


# --- the server of FedSC


@quick
@given(clients=st.integers(1, 6), classes=st.integers(1, 5), neighbours=st.integers(0, 6), seed=seeds)
@pytest.mark.parametrize("likeness", LIKENESS)
def test_fedsc_aggregates_by_equations_7_to_12(
    likeness: Likeness, clients: int, classes: int, neighbours: int, seed: int
) -> None:
    means = class_means(clients, seed, classes, 3)
    plain = plain_means(means)
    related = slow.relational(plain, neighbours, likeness)
    for weighting in ("discrepancy", "uniform"):
        method = FedSC(neighbours=neighbours, likeness=likeness, weighting=weighting)
        sent = method.aggregate(Upload({}, {"means": means}), Broadcast(), CLOCK).prototypes
        expected = slow.consistent(plain, related, classes, weighting)
        assert torch.equal(sent["relational"].counts, means.counts)
        assert sent["consistent"].present.tolist() == [c in expected for c in range(classes)]
        for c in range(classes):
            vector = expected.get(c, torch.zeros(3, dtype=torch.float64))
            assert_close(sent["consistent"].vectors[c, 0], vector)
            for k in range(clients):
                vector = related[k].get(c, torch.zeros(3, dtype=torch.float64))
                assert_close(sent["relational"].vectors[k, c, 0], vector)


def test_each_likeness_finds_its_own_neighbours() -> None:
    """Table 5 compares five; none of them is another by a different name."""
    means = random_prototypes(7, 8, 1, 3, seed=1, empty=0)
    found = [relational_prototypes(means, 2, likeness).vectors for likeness in LIKENESS]
    assert len(LIKENESS) == 5
    assert all(float((a - b).abs().max()) > 1e-3 for i, a in enumerate(found) for b in found[:i])


def test_neighbours_have_like_angles_to_the_mean_not_like_places() -> None:
    """Figure 2: two opposite prototypes at one angle to the mean are neighbours; a near one at another is not."""
    vectors = torch.tensor([[1.0, 1.0], [1.0, -1.0], [1.2, 0.9], [1.2, -0.9]], dtype=torch.float64)
    means = Prototypes(vectors.view(4, 1, 1, 2), torch.ones(4, 1, 1, dtype=torch.float64))
    by_angle = relational_prototypes(means, 1, "angle").vectors[0, 0, 0]
    by_place = relational_prototypes(means, 1, "l2").vectors[0, 0, 0]
    assert_close(by_angle, (vectors[0] + vectors[1]) / 2)
    assert_close(by_place, (vectors[0] + vectors[2]) / 2)


@quick
@given(clients=st.integers(1, 6), seed=seeds, likeness=st.sampled_from(LIKENESS))
def test_no_neighbours_keep_the_class_means_and_all_of_them_make_one(
    clients: int, seed: int, likeness: Likeness
) -> None:
    means = class_means(clients, seed)
    assert torch.equal(relational_prototypes(means, 0, likeness).vectors, means.vectors)
    held = means.filled.sum(0, keepdim=True).clamp(min=1).unsqueeze(-1)
    middle = (means.vectors.sum(0, keepdim=True) / held) * means.filled.unsqueeze(-1)
    assert_close(relational_prototypes(means, clients - 1, likeness).vectors, middle)


@quick
@given(clients=st.integers(1, 6), seed=seeds)
def test_discrepancy_weights_sum_to_one_over_holders(clients: int, seed: int) -> None:
    means = class_means(clients, seed)
    e = discrepancy_weights(means.counts)
    assert_close(e.sum(0), means.filled.any(0).double())
    assert torch.equal(e > 0, means.filled)
    raw = slow.discrepancy(plain_means(means), C)
    assert_close(e[:, 0, 0], torch.tensor(raw, dtype=torch.float64) / sum(raw))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("classes", [1, 3, 7, 10])
def test_balanced_clients_are_weighed_by_their_size(classes: int, dtype: torch.dtype) -> None:
    """Every d is 0, and so is d/Σd."""
    counts = torch.tensor([3.0, 3.0, 12.0], dtype=dtype).view(3, 1, 1).expand(3, classes, 1)
    e = discrepancy_weights(counts)
    sizes = torch.sigmoid(torch.tensor([3, 3, 12]) / 18).to(dtype)
    assert_close(e[:, 0, 0], sizes / sizes.sum())
    assert bool(e.isfinite().all())


def test_a_balanced_client_weighs_more_than_a_skewed_one_of_its_size() -> None:
    e = discrepancy_weights(torch.tensor([[5.0, 5.0], [9.0, 1.0]]).unsqueeze(-1))
    assert e[0, 0, 0] > e[1, 0, 0]


# --- losses


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


@quick
@given(
    seed=seeds, batch=st.integers(1, 6), clients=st.integers(1, 4), weights=st.sampled_from([(1, 1), (2, 0), (0, 3)])
)
def test_fedsc_loss_is_the_loop(seed: int, batch: int, clients: int, weights: tuple[float, float]) -> None:
    case = Case(seed, batch, clients)
    case.means = class_means(clients, seed)
    data, labels = random_features(2, 7, D, seed=seed), random_labels(2, 7, classes=C, seed=seed)
    labels[:, 0] = 1
    for u in ("paper", "none"):
        method = FedSC(U=u, rpcl_weight=weights[0], cpdr_weight=weights[1])
        sent = method.aggregate(Upload({}, {"means": case.means}), Broadcast(), CLOCK)
        plain = plain_means(case.means)
        related = slow.relational(plain, 2, "angle")
        target = slow.consistent(plain, related, C, "discrepancy")
        prepared = method.prepare(data, labels, sent)
        for k in range(2):
            mine = {name: value[k] for name, value in prepared.items()}
            scale = None if u == "none" else slow.scales(list(data[k][labels[k] >= 0]), related)
            expected = [
                weights[0] * slow.rpcl(z, y, related, scale, 0.05) + weights[1] * slow.cpdr(z, y, target)
                for z, y in zip(case.features, case.batch.y.tolist(), strict=True)
            ]
            assert_close(case.loss(method, sent, mine), case.ce + torch.stack(expected))


def test_fedsc_looks_at_its_data_only_when_it_needs_u() -> None:
    data, labels = random_features(2, 4, D, seed=0), torch.tensor([[0, 1, 2, -1], [3, -1, -1, -1]])
    means = random_prototypes(3, C, 1, D, seed=0, empty=0)
    sent = FedSC().aggregate(Upload({}, {"means": means}), Broadcast(), CLOCK)
    assert FedSC().prepare(data, labels, Broadcast()) == {}
    assert FedSC(U="none").prepare(data, labels, sent) == {}
    u = FedSC().prepare(data, labels, sent)["U"]
    assert u.shape == (2, 3, C, 1)
    moved = data.clone()
    moved[0, 3], moved[1, 1:] = 99, 99  # padding
    assert_close(FedSC().prepare(moved, labels, sent)["U"], u)
    assert_close(u[1, 2, 1, 0], (data[1, 0] - sent.prototypes["relational"].vectors[2, 1, 0]).norm())


@quick
@given(seed=seeds, batch=st.integers(1, 5), clients=st.integers(1, 4))
def test_one_temperature_for_all_is_the_cluster_contrast(seed: int, batch: int, clients: int) -> None:
    z, y = random_features(batch, D, seed=seed), random_labels(batch, classes=C, seed=seed)
    related = random_prototypes(clients, C, 1, D, seed=seed)
    found = scaled_contrast(z, y, related, 0.05)
    assert_close(found, cluster_contrast(z, y, related.pooled(), 0.05))
    everywhere = torch.full(related.counts.shape, 0.05, dtype=torch.float64)
    assert_close(scaled_contrast(z, y, related, everywhere), found)


@quick
@given(seed=seeds, batch=st.integers(1, 6), clients=st.integers(1, 4))
@pytest.mark.parametrize("reading", ["paper", "code"])
def test_fedpcl_loss_is_the_loop(reading: Any, seed: int, batch: int, clients: int) -> None:
    case = Case(seed, batch, clients)
    method = FedPCL(reading=reading, temperature=0.3)
    sent = method.aggregate(Upload({}, {"sets": case.means}), Broadcast(), CLOCK)
    loop = slow.fedpcl_paper if reading == "paper" else slow.fedpcl_code
    plain = plain_vectors(case.means)
    assert_close(case.loss(method, sent), loop(case.features, case.batch.y.tolist(), plain, 0.3))
    average = slow.global_means(plain)
    assert sent.prototypes["global"].present.tolist() == [c in average for c in range(C)]
    assert not sent.weights
    for c, vector in average.items():
        assert_close(sent.prototypes["global"].vectors[c, 0], vector)


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_padding_of_a_batch_changes_no_loss(reading: Any) -> None:
    case = Case(1)
    case.means = random_prototypes(3, C, 1, D, seed=1, empty=0)
    case.batch = case.batch._replace(y=torch.tensor([0, 0, 1, 1, 0]))
    method = FedPCL(reading=reading)
    sent = method.aggregate(Upload({}, {"sets": case.means}), Broadcast(), CLOCK)
    alone = case.loss(method, sent)
    assert bool((alone > 0).all())
    x, y, mask = case.batch
    case.batch = Batch(torch.cat([x, x[:2]]), torch.cat([y, y[:2]]), torch.cat([mask, torch.zeros(2).bool()]))
    assert_close(case.loss(method, sent)[:5], alone)


def test_fedpcl_with_unit_prototypes_is_twice_the_slot_contrast() -> None:
    """Of one client, L_g = L_p. Prototypes are means of unit vectors: only unit ones make a product a cosine."""
    case = Case(2)
    longer = random_prototypes(1, C, 1, D, seed=2)
    unit = Prototypes(nn.functional.normalize(longer.vectors, dim=-1), longer.counts)
    contrast = 2 * slot_contrast(case.features, case.batch.y, unit, 0.07)
    assert_close(case.loss(FedPCL(), Broadcast({}, {"sets": unit, "global": unit.take(0)})), contrast)
    other = case.loss(FedPCL(), Broadcast({}, {"sets": longer, "global": longer.take(0)}))
    assert float((other - contrast).abs().max()) > 1e-3


def gradients(method: Method, sent: Broadcast, x: Tensor, y: Tensor, prepared: dict[str, Tensor]) -> list[Tensor]:
    module = build(Plain, (1, 3, 3), C, 0).to(x.dtype)
    turn = Turn(method.receive(sent), CLOCK, prepared=prepared)
    loss = method.loss(Net(module), Batch(x, y, torch.ones(len(y), dtype=torch.bool)), turn)
    assert bool(loss.isfinite().all())
    used = [module.get_parameter("hidden.weight"), module.get_parameter("hidden.bias")]
    return list(torch.autograd.grad(loss.mean(), used, allow_unused=True, materialize_grads=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", [FedSC(), FedSC(U="none"), FedPCL(), FedPCL(reading="code")])
@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("empty", [0.0, 0.6, 1.0])
def test_losses_and_gradients_are_finite_at_the_edges(
    method: Method, batch: int, empty: float, dtype: torch.dtype
) -> None:
    """Prototypes at the feature, at 0 and far off; U at its floor; no prototypes at all; a batch of one."""
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(batch, 1, 3, 3, generator=rng, dtype=dtype), torch.arange(batch) % C
    features = build(Plain, (1, 3, 3), C, 0).to(dtype)(x).features.detach()
    drawn = random_prototypes(3, C, 1, D, seed=3, empty=empty)
    sets = Prototypes(drawn.vectors.to(dtype), drawn.counts.to(dtype))
    sets.vectors[0, :, 0] = features[0] * sets.filled[0]
    sets.vectors[1, 1:] = 0
    sets.vectors[2, 1] *= 1e4
    name = "sets" if isinstance(method, FedPCL) else "means"
    sent = method.aggregate(Upload({}, {name: sets}), Broadcast(), CLOCK)
    assert all(bool(found.vectors.isfinite().all()) for found in sent.prototypes.values())
    prepared = {"U": torch.full((3, C, 1), 1e-3, dtype=dtype)} if isinstance(method, FedSC) else {}
    assert all(bool(g.isfinite().all()) for g in gradients(method, sent, x, y, prepared))
    assert all(bool(g.isfinite().all()) for g in gradients(method, sent, x * 0, y, prepared))


def test_a_feature_on_its_prototype_is_kept_from_dividing_by_zero() -> None:
    z = random_features(1, 1, D, seed=0)
    sent = Broadcast({}, {"relational": Prototypes(z.view(1, 1, 1, D), torch.ones(1, 1, 1, dtype=torch.float64))})
    assert float(mean_distances(z, torch.tensor([[0]]), sent.prototypes["relational"])) == 0
    assert float(FedSC().prepare(z, torch.tensor([[0]]), sent)["U"]) == 1e-3


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedSC(temperature=0), "temperature: 0.*above 0"),
        (lambda: FedSC(neighbours=-1), "neighbours: -1.*0 or more"),
        (lambda: FedSC(rpcl_weight=-1.0), "rpcl_weight: -1.0.*0 or more"),
        (lambda: FedSC(cpdr_weight=-0.1), "cpdr_weight: -0.1.*0 or more"),
        (lambda: FedPCL(temperature=-1.0), "temperature: -1.0.*above 0"),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], Method], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_fedpcl_sends_the_means_of_unit_features() -> None:
    features, labels = random_features(2, 6, D, seed=0), random_labels(2, 6, classes=C, seed=0)
    sent = FedPCL().upload(Trained({}, torch.tensor([6, 6]), features, labels, C, torch.tensor([1, 2])))
    assert not sent.weights
    for k in range(2):
        mine = labels[k] >= 0
        unit = torch.stack([z / slow.length(z) for z in features[k][mine]])
        expected = slow.class_means(unit, labels[k][mine].tolist())
        assert sent.prototypes["sets"].present[k].tolist() == [c in expected for c in range(C)]
        for c, (vector, number) in expected.items():
            assert_close(sent.prototypes["sets"].vectors[k, c, 0], vector)
            assert sent.prototypes["sets"].counts[k, c, 0] == number


# --- whole runs

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


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree(variant: str) -> None:
    sequential, stacked = played(variant, "sequential"), played(variant, "stacked")
    if not variant.startswith("nearest"):
        assert len({tuple(line["participants"]) for line in stacked.history}) > 1  # some sit out
    assert_same_run(sequential, stacked)


def test_every_term_and_option_was_at_work() -> None:
    """Each differs from each, so the parity above says something of it."""
    states = {name: own(played(name, "stacked")) for name in VARIANTS}
    for i, a in enumerate(VARIANTS):
        for b in list(VARIANTS)[:i]:
            assert gap(states[a], states[b]) > 1e-6, (a, b)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_without_its_terms_fedsc_is_fedavg(engine: str) -> None:
    plain, run = play(FedAvg(), engine), play(FedSC(rpcl_weight=0.0, cpdr_weight=0.0), engine)
    assert gap(own(run), own(plain)) == 0
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) == 0
    assert gap(own(played("fedsc", engine)), own(plain)) > 1e-4


@pytest.mark.parametrize("method", [FedSC(), FedPCL(), FedPCL(reading="code")])
def test_the_first_round_is_cross_entropy(method: Method) -> None:
    one: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch_size": 64}
    assert play(method, **one).history[0]["loss"] == play(Local(), **one).history[0]["loss"]


EDGES: dict[str, tuple[Sequence[Part], dict[str, Any]]] = {
    "one sample": ([{0: 1}, {0: 9, 1: 10}, {1: 1}], {}),
    "nobody has more": ([{0: 1}, {1: 1}], {}),
    "alone": ([{0: 9, 1: 10}], {}),
    "large batch": ([{0: 5, 1: 6}, {2: 7}], {"batch_size": 64}),
    "batches of one": ([{0: 3, 1: 2}, {1: 4}], {"batch_size": 1, "epochs": 1, "lr": 0.001}),
    "one a round": ([{0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}], {"participation": 0.3, "rounds": 3, "seed": 4}),
}


@pytest.mark.parametrize("method", [FedSC(), FedPCL(), FedPCL(reading="code")])
@pytest.mark.parametrize("edge", EDGES)
def test_engines_agree_at_the_edges(edge: str, method: Method) -> None:
    parts, more = EDGES[edge]
    more = {"participation": 1.0, "rounds": 2, "clients": federation(parts, test=30), **more}
    one, other = play(method, "sequential", **more), play(method, "stacked", **more)
    assert_same_run(one, other)
    assert all(bool(value.isfinite().all()) for value in one.state().values())


def test_only_participants_make_prototypes() -> None:
    run = played("fedsc", "sequential")
    who = run.history[-1]["participants"]
    sent = run.broadcast.prototypes
    held = run.federation.counts[torch.tensor(who)]
    assert torch.equal(sent["relational"].counts.squeeze(-1), held.to(torch.float64))
    assert torch.equal(sent["consistent"].counts.squeeze(-1), held.sum(0).to(torch.float64))
    e = discrepancy_weights(sent["relational"].counts)
    assert_close(sent["consistent"].vectors, (e.unsqueeze(-1) * sent["relational"].vectors).sum(0))
    assert_close(consistent_prototypes(sent["relational"]).vectors, sent["consistent"].vectors)
    pcl = played("fedpcl", "sequential")
    assert pcl.broadcast.prototypes["sets"].counts.shape == (len(pcl.history[-1]["participants"]), 6, 1)


class ByHand:
    """The clients of a run, trained with torch's own optimisers and BatchNorm."""

    def __init__(self, run: Run) -> None:
        self.run, self.group = run, run.engine.groups[0]
        self.models, self.x, self.y = [], [], []
        for k, client in enumerate(run.federation.clients):
            self.models.append(Norm((1, 8, 8), 6).double())
            self.models[k].load_state_dict(self.group.own.initial, strict=False)
            self.x.append((client.train.images.double() / 255 - client.mean[0]) / client.std[0])
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


def test_fedsc_is_a_plain_loop() -> None:
    clients = federation(PARTS, test=30)
    run = start(FedSC(collect="eval-pass"), clients=clients, participation=1.0, model=Norm, momentum=0.9, lr_decay=1.0)
    hand = ByHand(run)
    related: list[slow.Vectors] = []
    target: slow.Vectors = {}
    scale: list[list[dict[int, float]]] = []

    def loss(k: int, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:
        total = torch.nn.functional.cross_entropy(logits, labels)
        if not related:
            return total
        terms = [
            slow.rpcl(z, y, related, scale[k], 0.05) + slow.cpdr(z, y, target)
            for z, y in zip(features, labels.tolist(), strict=True)
        ]
        return total + sum(terms, slow.ZERO) / len(terms)

    for number in range(2):
        run.play_round()
        hand.train(number, lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, weight_decay=1e-3), loss)
        hand.check()
        means = [slow.class_means(hand.features(k), hand.y[k].tolist()) for k in range(4)]
        related = slow.relational(means, 2, "angle")
        target = slow.consistent(means, related, 6, "discrepancy")
        share = torch.tensor([float(len(y)) for y in hand.y], dtype=torch.float64) / sum(len(y) for y in hand.y)
        states = [model.state_dict() for model in hand.models]
        names = [name for name in states[0] if "num_batches" not in name]
        average = {n: sum(w * state[n] for w, state in zip(share, states, strict=True)) for n in names}
        for model in hand.models:
            model.load_state_dict(average, strict=False)
        scale = [slow.scales(list(hand.features(k)), related) for k in range(4)]
        for c, vector in target.items():
            assert_close(run.broadcast.prototypes["consistent"].vectors[c, 0], vector, atol=1e-9, rtol=0)


@pytest.mark.parametrize("reading", ["paper", "code"])
def test_fedpcl_is_a_plain_loop_with_adam(reading: Any) -> None:
    clients = federation(PARTS, test=30)
    run = start(FedPCL(reading=reading), clients=clients, participation=1.0, model=Norm, lr=1e-3, lr_decay=1.0)
    hand = ByHand(run)
    sets: list[slow.Vectors] = []
    loop = slow.fedpcl_paper if reading == "paper" else slow.fedpcl_code

    def loss(k: int, features: Tensor, logits: Tensor, labels: Tensor) -> Tensor:  # noqa: ARG001
        if not sets:
            return torch.nn.functional.cross_entropy(logits, labels)
        return loop(features, labels.tolist(), sets, 0.07).mean()

    for number in range(2):
        run.play_round()
        hand.train(number, lambda p: torch.optim.Adam(p, lr=1e-3, weight_decay=1e-3), loss)
        hand.check()
        sets = []
        for k in range(4):
            unit = torch.stack([z / slow.length(z) for z in hand.features(k)])
            sets.append({c: v for c, (v, _) in slow.class_means(unit, hand.y[k].tolist()).items()})


def test_fedpcl_is_scored_by_the_nearest_mean_of_the_clients_own_data() -> None:
    run = played("fedpcl", "sequential")
    assert FedPCL().references(run.broadcast) is None
    assert FedPCL.score in run.history[-1]["diagnostic"]
    assert not any(name.startswith("global/") for name in run.history[-1]["accuracy"])
    assert FedSC.score in played("fedsc", "sequential").history[-1]["accuracy"]


@pytest.mark.parametrize("method", [FedSC(), FedPCL(), FedPCL(reading="code")])
def test_methods_learn(method: Method) -> None:
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    lr = 0.01 if isinstance(method, FedPCL) else 0.05
    run = play(method, "stacked", 12, clients=clients, participation=1.0, model=Norm, lr=lr, eval_every=12)
    assert run.history[-1]["accuracy"][type(method).score] > 75


@pytest.mark.parametrize("method", [FedSC(), FedPCL()])
def test_a_resumed_run_goes_on_to_the_same_state(tmp_path: Path, method: Method) -> None:
    whole, cut = start(method), start(method)
    folder = RunFolder.create(tmp_path / "run", cut.experiment)
    for _ in range(2):
        folder.append_round(cut.play_round())
    folder.checkpoint.save(cut.broadcast, cut.engine.groups, 2)
    again = start(method)
    again.restore(folder)
    again.play_round()
    for _ in range(3):
        whole.play_round()
    assert gap(again.state(), whole.state()) == 0
    assert len(again.history) == 3


def floats(flat: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in flat.values() if tensor.is_floating_point())


def test_as_many_scalars_are_sent_as_section_8_counts() -> None:
    """FedSC: |w| + C_k d up, |w| + Σ_k C_k d + C d down; FedPCL the same without weights. Counts are integers."""
    parts: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {4: 10})
    held, present, dim = [2, 3, 1], 5, 6
    for method in (FedSC(), FedPCL()):
        run = play(method, rounds=1, clients=federation(parts, test=30), model=Plain, participation=1.0)
        w = parameter_count(run.engine.groups[0].module) if isinstance(method, FedSC) else 0
        upload, _ = run.engine.round([0, 1, 2], run.broadcast, Clock(1, 2))
        assert [floats(upload.client(k).flat()) for k in range(3)] == [w + c * dim for c in held]
        assert floats(run.broadcast.flat()) == w + (sum(held) + present) * dim
        name = "means" if isinstance(method, FedSC) else "sets"
        assert upload.client(1).flat()[f"prototypes/{name}/index"].shape == (3, 2)
