"""FPL, FedPLVM, FedPLCC and FedProc: losses and servers against plain loops, reductions, engines, messages."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method, Trained, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.methods.fedproc import FedProc
from protofed.methods.fedproto import FedProto
from protofed.methods.fpl import FPL
from protofed.models import ModelSpec, build
from protofed.models.net import Net
from protofed.models.output import Output
from protofed.prototypes import ClusterWeights, Prototypes, cluster_attraction, cluster_contrast
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import Run
from tests.engines.test_sequential_reference import DECAY, PARTS, Federated
from tests.reference import clusters as slow
from tests.reference import methods as plain
from tests.support.nets import Noisy, Norm, Part, Plain, assert_same_run, federation, gap, own
from tests.support.prototype_cases import random_features, random_labels, random_prototypes

quick = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**16)
CLASSES, DIM = 4, 6
CLOCK = Clock(2, 5)
EACH: tuple[type[FedAvg], ...] = (FPL, FedPLVM, FedPLCC, FedProc)
every_method = pytest.mark.parametrize("kind", EACH)

Slow = Callable[[Tensor, int, Tensor, slow.Clusters], Tensor]


def counted_once(clusters: slow.Clusters) -> slow.Clusters:
    """The same, as if each had one sample."""
    return {c: [(vector, 1.0) for vector, _ in members] for c, members in clusters.items()}


# Each variant beside its equations.
VARIANTS: dict[str, tuple[Method, Slow]] = {
    "fpl": (FPL(), lambda z, y, ce, g: slow.fpl(z, y, ce, g, 0.02)),
    "fpl sum": (FPL(pull="sum", temperature=0.5), lambda z, y, ce, g: slow.fpl(z, y, ce, g, 0.5, total=True)),
    "fedplvm": (FedPLVM(), lambda z, y, ce, g: slow.fedplvm(z, y, ce, g, 100, 0.07, 0.25)),
    "fedplvm plain cosine": (
        FedPLVM(lam=2.0, alpha=1.0, temperature=0.3),
        lambda z, y, ce, g: slow.fedplvm(z, y, ce, g, 2, 0.3, 1),
    ),
    "fedplcc": (FedPLCC(), lambda z, y, ce, g: slow.fedplcc(z, y, ce, g, 100, 1000, 0.07, 0.5, Fraction(1, 2), True)),
    "fedplcc all pull": (
        FedPLCC(lambda1=3.0, ratio=2.0, phi=1.0, temperature=0.055),
        lambda z, y, ce, g: slow.fedplcc(z, y, ce, g, 3, 6, 0.055, 0.5, Fraction(1), True),
    ),
    "fedplcc weights 1": (
        FedPLCC(cluster_weights="one"),
        lambda z, y, ce, g: slow.fedplcc(z, y, ce, g, 100, 1000, 0.07, 0.5, Fraction(1, 2), False),
    ),
    "fedplcc equal weights": (
        FedPLCC(cluster_weights="equal"),
        lambda z, y, ce, g: slow.fedplcc(z, y, ce, counted_once(g), 100, 1000, 0.07, 0.5, Fraction(1, 2), True),
    ),
    "fedplcc no contrast": (
        FedPLCC(lambda1=0.0, lambda2=1000.0),
        lambda z, y, ce, g: ce + 1000 * slow.attraction(z, y, g, 0.5, Fraction(1, 2), True),
    ),
    "fedplcc no correction": (
        FedPLCC(ratio=0.0),
        lambda z, y, ce, g: ce + 100 * slow.contrast(z, y, g, 0.07, 0.5, True),
    ),
    "fedplcc neither": (FedPLCC(lambda1=0.0), lambda *given: given[2]),
    "fedproc": (FedProc(), lambda z, y, ce, g: slow.fedproc(z, y, ce, g, 1 - 2 / 5, 1.0)),
    "fedproc port": (FedProc(schedule="port"), lambda z, y, ce, g: slow.fedproc(z, y, ce, g, 1 - 2 / 4, 1.0)),
    "fedproc sharp": (FedProc(temperature=0.1), lambda z, y, ce, g: slow.fedproc(z, y, ce, g, 1 - 2 / 5, 0.1)),
}


def sent(method: Method, prototypes: Prototypes) -> Broadcast:
    """A broadcast with the method's prototypes and no weights."""
    return Broadcast({}, {"global" if isinstance(method, FedProc) else "clusters": prototypes})


def loss_of(
    method: Method, features: Tensor, labels: Tensor, prototypes: Prototypes | None, clock: Clock = CLOCK
) -> Tensor:
    """The loss of given features, with all logits 0."""

    def model(x: Tensor) -> Output:
        return Output(x, x.new_zeros(len(x), 9), ())

    received = Broadcast() if prototypes is None else sent(method, prototypes)
    batch = Batch(features, labels, torch.ones(len(labels), dtype=torch.bool))
    return method.loss(cast(Net, model), batch, Turn(received, clock))


@pytest.mark.parametrize("variant", VARIANTS)
@quick
@given(batch=st.integers(1, 5), slots=st.integers(1, 4), seed=seeds)
def test_losses_and_gradients_are_the_equations(variant: str, batch: int, slots: int, seed: int) -> None:
    """With empty slots, classes without prototypes, single samples and cosines of both signs."""
    method, equation = VARIANTS[variant]
    rng = torch.Generator().manual_seed(seed)
    module = build(Plain, (1, 3, 3), CLASSES, seed).double()
    x = torch.randn(batch, 1, 3, 3, generator=rng, dtype=torch.float64)
    y = torch.randint(0, CLASSES, (batch,), generator=rng)
    known = random_prototypes(CLASSES, 1 if isinstance(method, FedProc) else slots, DIM, seed=seed)

    turn = Turn(sent(method, known), CLOCK)
    result = method.loss(Net(module), Batch(x, y, torch.ones(batch, dtype=torch.bool)), turn)
    out, clusters = module(x), slow.as_clusters(known)
    ce = torch.nn.functional.cross_entropy(out.logits, y, reduction="none")
    expected = torch.stack(
        [equation(z, int(label), c, clusters) for z, label, c in zip(out.features, y, ce, strict=True)]
    )
    assert_close(result, expected, rtol=1e-9, atol=1e-9)
    weights = list(module.parameters())
    for a, b in zip(
        torch.autograd.grad(result.sum(), weights), torch.autograd.grad(expected.sum(), weights), strict=True
    ):
        assert_close(a, b, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("variant", VARIANTS)
def test_without_prototypes_the_loss_is_cross_entropy(variant: str) -> None:
    """D22: for FedProc too, whose schedule would give it no weight in round 0."""
    method, _ = VARIANTS[variant]
    z, y = random_features(3, DIM, seed=0), torch.tensor([0, 1, 2])
    ce = torch.full((3,), 9.0, dtype=torch.float64).log()
    for clock in (Clock(0, 5), Clock(3, 5), Clock(0, 1)):
        assert_close(loss_of(method, z, y, None, clock), ce)


@every_method
def test_a_class_without_prototypes_adds_nothing(kind: type[FedAvg]) -> None:
    z, y = random_features(3, DIM, seed=1), torch.tensor([0, 1, 2])
    known = random_prototypes(CLASSES, 1, DIM, seed=1, empty=0)
    counts = known.counts.clone()
    counts[1] = 0
    gone = Prototypes(known.vectors * (counts > 0).unsqueeze(-1), counts)
    method = kind()
    share = 1 - method.share(CLOCK) if isinstance(method, FedProc) else 1.0
    ce = share * torch.tensor(9.0, dtype=torch.float64).log()
    added = loss_of(method, z, y, gone) - ce
    assert (added.abs() > 1e-6).tolist() == [True, False, True]
    nothing = Prototypes(torch.zeros_like(known.vectors), torch.zeros_like(known.counts))
    assert_close(loss_of(method, z, y, nothing), ce.expand(3))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_loss_and_gradient_are_finite_at_every_angle(variant: str, dtype: torch.dtype) -> None:
    """Cosines −1, 0 and 1; a zero feature and prototype, tiny and huge features."""
    method, _ = VARIANTS[variant]
    known = torch.tensor([[[1.0, 0, 0]], [[-3, 0, 0]], [[0, 0, 0]], [[0, 0, 0]]], dtype=dtype)
    counts = torch.tensor([[2.0], [1], [4], [0]], dtype=dtype)  # a zero prototype; an empty class
    z = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 0], [1e-6, 0, 1e-6], [1e4, 1, 0]], dtype=dtype)
    for label in range(4):
        features = z.clone().requires_grad_()
        value = loss_of(method, features, torch.full((5,), label), Prototypes(known, counts))
        (gradient,) = torch.autograd.grad(value.sum(), features, allow_unused=True)
        assert value.dtype == dtype
        assert bool(value.isfinite().all())
        assert gradient is None or bool(gradient.isfinite().all())


# Reductions


@quick
@given(seed=seeds, tau=st.sampled_from([0.02, 0.5, 1.0]))
def test_fpl_with_one_cluster_a_class_contrasts_as_fedproc(seed: int, tau: float) -> None:
    """At α_t = 1, where FedProc is nothing but its contrast."""
    z, y = random_features(5, DIM, seed=seed), random_labels(5, classes=CLASSES, seed=seed).clamp(min=0)
    known = random_prototypes(CLASSES, 1, DIM, seed=seed, empty=0)
    ce = torch.tensor(9.0, dtype=torch.float64).log()
    fpl = loss_of(FPL(temperature=tau, pull_weight=0.0), z, y, known) - ce
    assert_close(loss_of(FedProc(temperature=tau), z, y, known, Clock(0, 5)), fpl)
    assert tau < 0.5 or bool((fpl > 0.01).all())


@quick
@given(seed=seeds, slots=st.integers(1, 4), alpha=st.sampled_from([0.25, 0.5, 1.0]), tau=st.sampled_from([0.07, 0.5]))
def test_fedplcc_with_equal_weights_contrasts_as_fedplvm(seed: int, slots: int, alpha: float, tau: float) -> None:
    """W uniform in each class and as many clusters in every class; and with weights of 1 in any case."""
    z, y = random_features(5, DIM, seed=seed), random_labels(5, classes=CLASSES, seed=seed).clamp(min=0)
    known = random_prototypes(CLASSES, slots, DIM, seed=seed, empty=0)
    equal = Prototypes(known.vectors, torch.tensor([3.0, 1, 8, 2]).double().view(-1, 1).expand(-1, slots))

    def contrasts(clusters: Prototypes, weights: ClusterWeights) -> tuple[Tensor, Tensor]:
        cosine = torch.cosine_similarity(z, clusters.class_mean()[y], dim=-1)
        fedplvm = loss_of(FedPLVM(lam=1.0, alpha=alpha, temperature=tau), z, y, clusters) - 2 * (1 - cosine) ** 2
        fedplcc = FedPLCC(lambda1=1.0, ratio=0.0, alpha=alpha, temperature=tau, cluster_weights=weights)
        return loss_of(fedplcc, z, y, clusters), fedplvm

    assert_close(*contrasts(equal, "samples"))
    assert_close(*contrasts(known, "equal"))
    assert_close(*contrasts(known, "one"))


def test_unequal_weights_and_numbers_of_clusters_do_matter() -> None:
    z, y = random_features(5, DIM, seed=0), torch.arange(5) % CLASSES
    known = random_prototypes(CLASSES, 3, DIM, seed=0, empty=0)
    weighted, plain_sum = (loss_of(FedPLCC(ratio=0.0, cluster_weights=w), z, y, known) for w in ("samples", "one"))
    assert float((weighted - plain_sum).abs().min()) > 1e-6


@quick
@given(seed=seeds, weights=st.sampled_from(get_args(ClusterWeights)))
def test_all_clusters_pull_with_phi_1(seed: int, weights: ClusterWeights) -> None:
    """The full weighted sum; W sums to 1 in each class, so it is bounded by 1."""
    z, y = random_features(5, DIM, seed=seed), random_labels(5, classes=CLASSES, seed=seed).clamp(min=0)
    known = random_prototypes(CLASSES, 4, DIM, seed=seed, empty=0)
    method = FedPLCC(lambda1=0.0, lambda2=1.0, phi=1.0, cluster_weights=weights)
    cosines = torch.cosine_similarity(z.unsqueeze(1), known.vectors[y], dim=-1).clamp(1e-4, 1)
    share = known.counts / known.counts.sum(-1, keepdim=True)
    if weights != "samples":
        share = torch.full_like(share, 1.0 if weights == "one" else 0.25)
    assert_close(share.sum(-1), torch.full((CLASSES,), 4.0 if weights == "one" else 1.0, dtype=torch.float64))
    pull = torch.tensor(9.0, dtype=torch.float64).log() - loss_of(method, z, y, known)
    assert_close(pull, (cosines.sqrt() * share[y]).sum(-1))
    assert weights == "one" or bool((pull <= 1).all())


def test_lambda2_is_ten_times_lambda1_unless_said() -> None:
    z, y, known = random_features(3, DIM, seed=0), torch.arange(3), random_prototypes(CLASSES, 3, DIM, seed=0, empty=0)
    assert_close(loss_of(FedPLCC(lambda1=7.0), z, y, known), loss_of(FedPLCC(lambda1=7.0, lambda2=70.0), z, y, known))


def test_fedproc_goes_from_contrast_to_cross_entropy() -> None:
    assert [FedProc().share(Clock(t, 4)) for t in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert [FedProc(schedule="port").share(Clock(t, 5)) for t in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert FedProc(schedule="port").share(Clock(0, 1)) == 1.0
    z, y, known = random_features(3, DIM, seed=0), torch.arange(3), random_prototypes(CLASSES, 1, DIM, seed=0, empty=0)
    last = loss_of(FedProc(schedule="port"), z, y, known, Clock(4, 5))
    assert_close(last, torch.full((3,), 9.0, dtype=torch.float64).log())


# Server


def trained(seed: int, rows: int = 24, clients: int = 5) -> Trained:
    """Clients with features in two directions a class, so that there are clusters to find."""
    rng = torch.Generator().manual_seed(seed)
    labels = random_labels(clients, rows, classes=3, seed=seed)
    middle = torch.randn(CLASSES, 2, DIM, generator=rng, dtype=torch.float64)
    side = torch.randint(0, 2, labels.shape, generator=rng)
    features = middle[labels, side] + 0.5 * random_features(clients, rows, DIM, seed=seed + 1)
    samples = torch.randint(1, 50, (clients,), generator=rng)
    weights = {"w": torch.randn(clients, 3, 2, generator=rng, dtype=torch.float64), "batches": torch.arange(clients)}
    return Trained(weights, samples, features, labels, CLASSES, torch.arange(clients))


def assert_clusters(found: Prototypes, expected: slow.Clusters) -> None:
    """The same classes with the same clusters, in the same order."""
    got = slow.as_clusters(found)
    assert sorted(got) == sorted(expected)
    for c, members in expected.items():
        assert [number for _, number in got[c]] == [number for _, number in members]
        assert_close(torch.stack([g for g, _ in got[c]]), torch.stack([g for g, _ in members]))


@quick
@given(seed=seeds, clients=st.integers(1, 8), rows=st.integers(1, 24), weighted=st.booleans())
def test_what_is_sent_and_what_the_server_makes_of_it(seed: int, clients: int, rows: int, weighted: bool) -> None:
    data = trained(seed, rows, clients)
    means = [slow.class_means(data.features[k], data.labels[k]) for k in range(clients)]
    local = [slow.local_clusters(data.features[k], data.labels[k]) for k in range(clients)]
    cases: list[tuple[Method, list[slow.Clusters], slow.Clusters]] = [
        (FPL(), means, slow.pool_clusters(means, weighted=False)),
        (FedPLVM(), local, slow.pool_clusters(local, weighted=False)),
        (
            FedPLCC(centroids="weighted" if weighted else "unweighted"),
            local,
            slow.pool_clusters(local, weighted=weighted),
        ),
        (
            FedProc(weighting="samples" if weighted else "uniform"),
            means,
            slow.mean_over_clients(means, weighted=weighted),
        ),
    ]
    for method, each, together in cases:
        upload = method.upload(data)
        (prototypes,) = upload.prototypes.values()
        for k in range(clients):
            assert_clusters(prototypes.take(k), each[k])
        broadcast = method.aggregate(upload, Broadcast(), CLOCK)
        (result,) = broadcast.prototypes.values()
        assert_clusters(result, together)
        assert method.references(broadcast) is result
        assert method.references(Broadcast(broadcast.weights)) is None
        assert result.counts.sum() == (data.labels >= 0).sum()  # every sample is in one cluster


def test_there_were_several_clusters_and_weighted_centroids_differ() -> None:
    data = trained(3)
    local, fpl = FedPLVM().upload(data), FPL().upload(data)
    assert int(local.prototypes["local"].filled.sum(-1).max()) > 1
    assert int(FPL().aggregate(fpl, Broadcast(), CLOCK).prototypes["clusters"].filled.sum(-1).max()) > 1
    found = [
        FedPLCC(centroids=c).aggregate(local, Broadcast(), CLOCK).prototypes["clusters"]
        for c in ("unweighted", "weighted")
    ]
    assert int(found[0].filled.sum(-1).max()) > 1
    assert_close(found[0].counts, found[1].counts)
    assert float((found[0].vectors - found[1].vectors).abs().max()) > 1e-3


@every_method
@pytest.mark.parametrize("averaging", ["samples", "uniform"])
def test_weights_are_averaged_as_in_fedavg(kind: type[FedAvg], averaging: Any) -> None:
    data = trained(2)
    upload = kind(averaging=averaging).upload(data)
    result = kind(averaging=averaging).aggregate(upload, Broadcast(), CLOCK).weights
    states = [{name: value[k] for name, value in data.weights.items()} for k in range(5)]
    importance = data.samples.tolist() if averaging == "samples" else [1.0] * 5
    assert_close(dict(result), plain.weighted_mean(states, importance))


# Runs

# Every client holds classes 0 to 2, so that there are enough means for two clusters; nobody holds class 5.
CLIENTS: tuple[Part, ...] = (
    {0: 9, 1: 8, 2: 4},
    {0: 7, 1: 2, 2: 8, 3: 6},
    {0: 3, 1: 9, 2: 7},
    {0: 8, 1: 4, 2: 5, 4: 9},
    {0: 4, 1: 5, 2: 8},
    {0: 1, 1: 7, 2: 9},
    {0: 6, 1: 3, 2: 3},
    {0: 2, 1: 6, 2: 2},
    {0: 5, 1: 3, 2: 4},
)

# λ is smaller than the papers': 100 in a net of eight features amplifies rounding from step to step.
RUNS: dict[str, FedAvg] = {
    "fpl": FPL(),
    "fpl sum": FPL(pull="sum", averaging="uniform"),
    "fpl eval-pass": FPL(collect="eval-pass"),
    "fedplvm": FedPLVM(lam=1.0),
    "fedplvm uniform": FedPLVM(lam=1.0, averaging="uniform", alpha=1.0),
    "fedplcc": FedPLCC(lambda1=0.5),
    "fedplcc weights 1": FedPLCC(lambda1=0.5, cluster_weights="one"),
    "fedplcc equal weights": FedPLCC(lambda1=0.5, cluster_weights="equal"),
    "fedplcc all pull": FedPLCC(lambda1=0.5, phi=1.0),
    "fedplcc weighted centroids": FedPLCC(lambda1=0.5, centroids="weighted"),
    "fedplcc no contrast": FedPLCC(lambda1=0.0, lambda2=5.0),
    "fedplcc no correction": FedPLCC(lambda1=0.5, ratio=0.0),
    "fedproc": FedProc(),
    "fedproc port": FedProc(schedule="port", temperature=0.1),
    "fedproc samples": FedProc(weighting="samples"),
}


def start(
    method: Method, engine: str = "stacked", parts: tuple[Part, ...] = CLIENTS, model: ModelSpec = Noisy, **given: Any
) -> Run:
    """A run that has not begun."""
    values: dict[str, Any] = {"participation": 0.8, "epochs": 2, "batch_size": 8, "lr": 0.02, "lr_decay": DECAY}
    values |= {"weight_decay": 1e-3, "precision": "float64", "device": "cpu", "rounds": 3, "engine": engine} | given
    return Run(Experiment(**values), method=method, federation=federation(parts, test=30), models=[model])


@cache
def played(name: str, engine: str) -> tuple[Run, list[Broadcast]]:
    """Three rounds, and what was received in the second and third."""
    run, received = start(RUNS[name], engine), []
    for _ in range(3):
        run.play_round()
        received.append(run.broadcast)
    return run, received[:2]


@pytest.mark.parametrize("name", RUNS)
def test_engines_agree_to_rounding(name: str) -> None:
    sequential, stacked = played(name, "sequential")[0], played(name, "stacked")[0]
    assert (sequential.engine.name, stacked.engine.name) == ("sequential", "stacked")
    assert len({tuple(line["participants"]) for line in stacked.history}) > 1
    assert_same_run(sequential, stacked)
    default, _, option = name.partition(" ")
    if option:  # one that changes nothing would make the parity empty
        assert gap(own(stacked), own(played(default, "stacked")[0])) > 1e-6


@pytest.mark.parametrize("name", RUNS)
def test_every_term_was_at_work_in_these_runs(name: str) -> None:
    run, received = played(name, "stacked")
    method, group = run.method, run.engine.groups[0]
    each = [known for broadcast in received for known in broadcast.prototypes.values()]
    several = max(int(known.filled.sum(-1).max()) for known in each)
    known = each[-1]
    assert known.present.tolist()[:3] == [True] * 3
    assert not known.present[5]
    assert several == 1 if isinstance(method, FedProc) else several > 1
    own = group.own.take(range(len(CLIENTS)))
    z, y = (part.flatten(0, 1) for part in run.engine.embed(group, range(len(CLIENTS)), own))
    z, y = z[y >= 0], y[y >= 0]
    assert float(cluster_contrast(z, y, known, 0.07).mean()) > 0.01
    if isinstance(method, FPL):
        assert float((z - known.class_mean()[y]).square().mean()) > 1e-3
    if isinstance(method, FedPLVM):
        assert float((1 - torch.cosine_similarity(z, known.class_mean()[y], dim=-1)).square().mean()) > 1e-3
    if isinstance(method, FedPLCC):
        pulls = [
            cluster_attraction(z, y, known, method.alpha, phi, method.cluster_weights).mean() for phi in (0.5, 1.0)
        ]
        assert pulls[1] < pulls[0] < -0.1
    if isinstance(method, FedProc):
        assert 0 <= method.share(Clock(2, 3)) < method.share(Clock(1, 3)) < 1


@pytest.mark.parametrize(
    "method", [FPL(contrast_weight=0.0, pull_weight=0.0), FedPLVM(lam=0.0), FedPLCC(lambda1=0.0)], ids=lambda m: m.name
)
def test_without_its_terms_a_method_trains_exactly_as_fedavg(method: Method) -> None:
    """Table V, first row."""
    run, other = start(method), start(FedAvg())
    for _ in range(2):
        run.play_round()
        other.play_round()
    assert gap(own(run), own(other)) == 0


def test_fpl_of_three_clients_without_contrast_is_fedproto_with_shared_weights() -> None:
    """FINCH joins three means or fewer, so the unbiased prototype is FedProto's mean."""
    run, other = (
        start(method, parts=PARTS, participation=1.0)
        for method in (FPL(contrast_weight=0.0), FedProto(share_weights=True))
    )
    for _ in range(3):
        run.play_round()
        other.play_round()
    assert gap(own(run), own(other)) < 1e-12
    assert gap(own(run), own(played("fpl", "stacked")[0])) > 1e-3


@every_method
def test_the_whole_run_is_a_plain_loop(kind: type[FedAvg]) -> None:
    """Plain PyTorch, client by client and sample by sample, over three rounds."""
    method = {FedPLVM: FedPLVM(lam=0.5), FedPLCC: FedPLCC(lambda1=0.2)}.get(kind, kind())
    run = start(method, "sequential", model=Norm, participation=1.0, lr=0.05, momentum=0.5)
    hand, clusters = Federated(run), cast(slow.Clusters, {})
    for number in range(3):

        def term(
            module: Any, features: Tensor, labels: Tensor, number: int = number, g: slow.Clusters = clusters
        ) -> Tensor:
            """What is added to the mean cross-entropy."""
            ce = torch.nn.functional.cross_entropy(module.head(features), labels, reduction="none")
            total = torch.zeros((), dtype=torch.float64)
            for z, y, c in zip(features, labels.tolist(), ce, strict=True):
                if kind is FPL:
                    total = total + slow.fpl(z, y, c, g, 0.02) - c
                elif kind is FedPLVM:
                    total = total + slow.fedplvm(z, y, c, g, 0.5, 0.07, 0.25) - c
                elif kind is FedPLCC:
                    total = total + slow.fedplcc(z, y, c, g, 0.2, 2, 0.07, 0.5, Fraction(1, 2), True) - c
                else:
                    total = total + slow.fedproc(z, y, c, g, 1 - number / 3, 1.0) - c
            return total / len(labels)

        run.play_round()
        hand.train(number, (lambda: term) if number else (lambda: None))
        hand.check(run)
        clients = []
        for model, learner in zip(hand.models, hand.data, strict=True):
            if kind in (FPL, FedProc):  # while training, in the last epoch
                pairs = [pair for step in learner.seen[len(learner.seen) // 2 :] for pair in step]
                clients.append(
                    slow.class_means(torch.stack([z for z, _ in pairs]), torch.tensor([y for _, y in pairs]))
                )
            else:
                clients.append(slow.local_clusters(learner.features(model), learner.y))
        if kind is FedProc:
            clusters = slow.mean_over_clients(clients, weighted=False)
        else:
            clusters = slow.pool_clusters(clients, weighted=False)
        (broadcast,) = run.broadcast.prototypes.values()
        assert_clusters(broadcast, clusters)
        hand.load(hand.average())


@every_method
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_edges(kind: type[FedAvg], engine: str) -> None:
    """A quarter of the clients a round, single samples, classes that nobody in the round holds; the paper's λ."""
    run = start(kind(), engine, ({0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}, {2: 1}), participation=0.25, rounds=4, lr=1e-3)
    for _ in range(4):
        line = run.play_round()
        assert bool(torch.tensor(line["loss"]).isfinite())
        held = (run.federation.counts[torch.tensor(line["participants"])] > 0).any(0)
        (broadcast,) = run.broadcast.prototypes.values()
        assert broadcast.present.tolist() == held.tolist()
    assert len({client for line in run.history for client in line["participants"]}) > 1
    assert all(bool(value.isfinite().all()) for value in own(run).values())


@pytest.mark.parametrize("edge", [({0: 1}, {1: 1}), ({0: 9, 1: 10},), ({0: 1}, {0: 9, 1: 10}, {1: 1})])
@every_method
def test_engines_agree_at_the_edges(kind: type[FedAvg], edge: tuple[Part, ...]) -> None:
    one, other = (start(kind(), engine, edge, participation=1.0, lr=1e-4) for engine in ("sequential", "stacked"))
    for run in (one, other):
        run.play_round()
        run.play_round()
    assert_same_run(one, other)


@pytest.mark.parametrize("name", ["fedplcc", "fedproc"])
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """The clusters' weights come back from the checkpoint, and the schedule goes on where it was."""
    whole, cut = start(RUNS[name]), start(RUNS[name])
    whole.play(None, Progress())
    folder = RunFolder.create(tmp_path / "run", cut.experiment)
    for _ in range(2):
        folder.append_round(cut.play_round())
    folder.checkpoint.save(cut.broadcast, cut.engine.groups, 2)
    resumed = start(RUNS[name])
    resumed.restore(folder)
    assert len(resumed.history) == 2
    resumed.play(folder, Progress())
    assert gap(resumed.state(), whole.state()) == 0
    assert [line["loss"] for line in resumed.history] == [line["loss"] for line in whole.history]


@pytest.mark.parametrize("name", ["fpl", "fedplvm", "fedplcc", "fedproc"])
def test_what_crosses_the_line(name: str) -> None:
    """|w| and d numbers a prototype; each travels with its slot and its number of samples."""
    run, (_, received) = played(name, "stacked")
    model = sum(value.numel() for value in run.engine.groups[0].own.initial.values())
    (known,) = received.prototypes.values()
    (key,) = received.prototypes
    flat = received.flat()
    assert sum(value.numel() for part, value in flat.items() if part.startswith("weights/")) == model
    assert flat[f"prototypes/{key}/vectors"].numel() == int(known.filled.sum()) * 8
    assert flat[f"prototypes/{key}/index"].shape == (int(known.filled.sum()), 2)
    payload = 8 * (model + int(known.filled.sum()) * 8) + 4 * (2 * int(known.filled.sum()) + 3)
    last = run.history[-1]
    assert last["bytes_down"] == len(last["participants"]) * received.size()
    assert 0 < received.size() - payload < 2500  # names and shapes

    upload = run.method.upload(trained(3))
    (local,) = upload.prototypes.values()
    one = upload.client(1).flat()
    held = len({y for y in trained(3).labels[1].tolist() if y >= 0})
    number = int(local.filled[1].sum())
    assert number == held if name in ("fpl", "fedproc") else number > held
    (vectors,) = (value for part, value in one.items() if part.endswith("/vectors"))
    assert vectors.shape == (number, DIM)
    assert set(upload.numbers) == {"samples"}


WRONG: list[tuple[type[FedAvg], dict[str, Any]]] = [
    *((kind, {"temperature": value}) for kind in EACH for value in (0.0, -1.0)),
    (FPL, {"contrast_weight": -1.0}),
    (FPL, {"pull_weight": -1.0}),
    (FedPLVM, {"lam": -1.0}),
    (FedPLVM, {"alpha": 0.0}),
    (FedPLCC, {"alpha": 0.0}),
    (FedPLCC, {"lambda1": -1.0}),
    (FedPLCC, {"lambda2": -1.0}),
    (FedPLCC, {"ratio": -1.0}),
    (FedPLCC, {"phi": 0.0}),
    (FedPLCC, {"phi": 1.1}),
]


@pytest.mark.parametrize(("kind", "values"), WRONG)
def test_a_wrong_value_is_named(kind: type[FedAvg], values: dict[str, Any]) -> None:
    (name,) = values
    with pytest.raises(UserError, match=name):
        kind(**values)


@every_method
def test_the_engine_may_map_the_loss_over_clients(kind: type[FedAvg]) -> None:
    """No value decides what is computed."""
    z, y = random_features(3, 5, DIM, seed=0), torch.randint(0, CLASSES, (3, 5))
    known = random_prototypes(CLASSES, 1, DIM, seed=3)
    mapped = torch.func.vmap(lambda a, b: loss_of(kind(), a, b, known))(z, y)
    assert_close(mapped, torch.stack([loss_of(kind(), z[k], y[k], known) for k in range(3)]))
