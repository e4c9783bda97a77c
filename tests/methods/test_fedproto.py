"""FedProto: its loss and its server are plain loops, and its clients share a start but no model."""

from __future__ import annotations

from typing import get_args

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods import build_method
from protofed.methods.base import Clock, Server
from protofed.prototypes import Metric, Prototypes
from protofed.runs.run import Run
from tests.reference import methods as slow
from tests.reference import prototypes as reference
from tests.support.loss_cases import CLASSES, DIM, Case
from tests.support.nets import UNEQUAL, own, play
from tests.support.prototype_cases import random_prototypes
from tests.support.trained_clients import assert_class_means, client, states, trained
from tests.support.turns import turn_of
from tests.support.whole_runs import assert_exactly_the_same

quick = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**16)
CLOCK = Clock(1, 3)
METRICS: tuple[Metric, ...] = get_args(Metric)


@quick
@given(seed=seeds, lam=st.sampled_from([0.0, 0.1, 1.0, 5.0]))
def test_fedproto_adds_lambda_times_the_distance_to_the_own_class(seed: int, lam: float) -> None:
    case, known = Case(seed), random_prototypes(CLASSES, 1, DIM, seed=seed)
    z, y, sets = case.features.numpy(), case.batch.y.numpy(), reference.as_sets(known)
    for metric in METRICS:
        method = build_method("fedproto", {"lam": lam, "metric": metric})
        expected = lam * torch.tensor(reference.distance(z, y, sets, metric), dtype=torch.float64)
        assert_close(case.added(method, Broadcast({}, {"global": known})), expected)
        method = build_method("fedproto", {"lam": lam, "metric": metric, "per": "prototype"})
        total = lam * reference.prototype_distance(z, y, sets, metric)
        mean = case.added(method, Broadcast({}, {"global": known})).mean()
        assert_close(mean, torch.tensor(total, dtype=torch.float64))


def test_fedproto_says_nothing_of_a_class_nobody_sent_and_keeps_it_in_the_mean() -> None:
    case, known = Case(1), random_prototypes(CLASSES, 1, DIM, seed=1, empty=0)
    gone = case.batch.y == case.batch.y[0]
    without = known.counts.clone()
    without[case.batch.y[0]] = 0
    method = build_method("fedproto", {})
    full = case.added(method, Broadcast({}, {"global": known}))
    part = case.added(method, Broadcast({}, {"global": Prototypes(known.vectors, without)}))
    assert bool((full > 1e-3).all())
    assert_close(part, torch.where(gone, 0, full))


@quick
@given(clients=st.integers(1, 4), weighting=st.sampled_from(["uniform", "samples", "literal"]), seed=seeds)
def test_fedproto_aggregates_by_equation_6(clients: int, weighting: str, seed: int) -> None:
    means, old = random_prototypes(clients, 5, 1, 3, seed=seed), random_prototypes(5, 1, 3, seed=seed + 1)
    plain = [
        {c: (means.vectors[k, c, 0].numpy(), int(means.counts[k, c, 0])) for c in range(5) if means.counts[k, c, 0] > 0}
        for k in range(clients)
    ]
    fresh = reference.mean_over_holders(plain, weighting)
    kept = {c: vectors[0] for c, vectors in reference.as_sets(old).items()}
    for absent, expected in (("drop", fresh), ("keep", kept | fresh)):
        method = build_method("fedproto", {"weighting": weighting, "absent": absent})
        sent = method.aggregate(Upload({}, {"means": means}), Server(Broadcast({}, {"global": old}), CLOCK))
        assert not sent.weights
        result = sent.prototypes["global"]
        assert result.present.nonzero().flatten().tolist() == sorted(expected)
        for c in range(5):
            vector = torch.tensor(expected[c]) if c in expected else torch.zeros(3, dtype=torch.float64)
            assert_close(result.vectors[c, 0], vector)
        assert method.references(sent) is result


def test_fedproto_keeps_nothing_in_its_first_round() -> None:
    means = random_prototypes(2, 4, 1, 3, seed=5)
    kept, dropped = (
        build_method("fedproto", {"absent": absent}).aggregate(Upload({}, {"means": means}), Server(Broadcast(), CLOCK))
        for absent in ("keep", "drop")
    )
    assert_close(kept.prototypes["global"], dropped.prototypes["global"])
    assert build_method("fedproto", {}).references(Broadcast()) is None


def test_uniform_and_samples_coincide_when_all_counts_are_equal() -> None:
    means = random_prototypes(3, 4, 1, 3, seed=2)
    equal = Upload({}, {"means": Prototypes(means.vectors, 6 * means.filled.double())})
    uniform, samples = (
        build_method("fedproto", {"weighting": w}).aggregate(equal, Server(Broadcast(), CLOCK))
        for w in ("uniform", "samples")
    )
    assert_close(uniform.prototypes["global"], samples.prototypes["global"])
    unequal = Upload({}, {"means": means})
    uniform, samples = (
        build_method("fedproto", {"weighting": w}).aggregate(unequal, Server(Broadcast(), CLOCK))
        for w in ("uniform", "samples")
    )
    assert float((uniform.prototypes["global"].vectors - samples.prototypes["global"].vectors).abs().max()) > 1e-3


def test_shared_weights_are_averaged_beside_the_prototypes() -> None:
    stacked, samples = states(3, 0), torch.tensor([5, 1, 2])
    upload = Upload(stacked, {"means": random_prototypes(3, 4, 1, 3, seed=2)}, {"samples": samples})
    sent = build_method("fedproto", {"share_weights": True}).aggregate(upload, Server(Broadcast(), CLOCK))
    assert_close(dict(sent.weights), slow.weighted_mean([client(stacked, k) for k in range(3)], [5, 1, 2]))
    assert "global" in sent.prototypes


def test_class_means_are_the_loop() -> None:
    clients = trained(4)
    assert_class_means(build_method("fedproto", {}).upload(clients, turn_of(clients)).prototypes["means"], clients)


def test_fedproto_clients_agree_on_the_start_and_then_differ() -> None:
    run = play("fedproto", participation=1.0, rounds=0)
    assert all(bool((tensor == tensor[:1]).all()) for tensor in own(run).values())
    run.play_round()
    assert all(gap_between(run, 0, other) > 1e-4 for other in range(1, len(UNEQUAL)))


def gap_between(run: Run, one: int, other: int) -> float:
    return max(float((tensor[one] - tensor[other]).abs().max()) for tensor in own(run).values())


def test_with_shared_weights_and_without_its_term_fedproto_trains_exactly_as_fedavg() -> None:
    assert_exactly_the_same(play("fedproto", {"lam": 0, "share_weights": True}), play("fedavg"))
