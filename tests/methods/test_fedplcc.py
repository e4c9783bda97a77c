"""FedPLCC: weights of clusters matter as they should, a whole run is a plain loop, and engines agree in float64."""

from __future__ import annotations

from fractions import Fraction
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.prototypes import ClusterWeights, Prototypes, cluster_attraction
from tests.reference.fedplcc import fedplcc
from tests.support import cluster_runs
from tests.support.cluster_runs import CLASSES, DIM, loss_of
from tests.support.prototype_cases import random_features, random_labels, random_prototypes

quick = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**16)
# λ is smaller than the paper's: 100 in a net of eight features amplifies rounding from step to step.
RUNS = {
    "fedplcc": FedPLCC(lambda1=0.5),
    "fedplcc weights 1": FedPLCC(lambda1=0.5, cluster_weights="one"),
    "fedplcc equal weights": FedPLCC(lambda1=0.5, cluster_weights="equal"),
    "fedplcc all pull": FedPLCC(lambda1=0.5, phi=1.0),
    "fedplcc weighted centroids": FedPLCC(lambda1=0.5, centroids="weighted"),
    "fedplcc no contrast": FedPLCC(lambda1=0.0, lambda2=5.0),
    "fedplcc no correction": FedPLCC(lambda1=0.5, ratio=0.0),
}


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


def test_without_its_terms_fedplcc_trains_exactly_as_fedavg() -> None:
    cluster_runs.assert_trains_exactly_as_fedavg(FedPLCC(lambda1=0.0))


@pytest.mark.parametrize("name", RUNS)
def test_engines_agree_to_rounding(name: str) -> None:
    cluster_runs.assert_engines_agree_to_rounding(RUNS[name], RUNS["fedplcc"])


def test_the_whole_run_is_a_plain_loop() -> None:
    cluster_runs.assert_the_whole_run_is_a_plain_loop(
        FedPLCC(lambda1=0.2),
        lambda z, y, ce, g, _: fedplcc(z, y, ce, g, 0.2, 2, 0.07, 0.5, Fraction(1, 2), True),
        cluster_runs.clusters_of_the_data,
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_term_was_at_work_in_these_runs(name: str) -> None:
    method = RUNS[name]
    z, y, known = cluster_runs.at_work(method)
    pulls = [cluster_attraction(z, y, known, method.alpha, phi, method.cluster_weights).mean() for phi in (0.5, 1.0)]
    assert pulls[1] < pulls[0] < -0.1
