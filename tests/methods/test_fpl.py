"""FPL: it equals FedProc, FedProto or FedAvg where it should, a whole run is a plain loop, and engines agree."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.methods.base import Clock
from protofed.methods.fedproc import FedProc
from protofed.methods.fedproto import FedProto
from protofed.methods.fpl import FPL
from tests.engines.test_sequential_reference import PARTS
from tests.reference.fpl import fpl
from tests.support import cluster_runs
from tests.support.cluster_runs import CLASSES, DIM, loss_of
from tests.support.nets import gap, own
from tests.support.prototype_cases import random_features, random_labels, random_prototypes

quick = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**16)
RUNS = {
    "fpl": FPL(),
    "fpl sum": FPL(pull="sum", averaging="uniform"),
    "fpl eval-pass": FPL(collect="eval-pass"),
}


@quick
@given(seed=seeds, tau=st.sampled_from([0.02, 0.5, 1.0]))
def test_fpl_with_one_cluster_a_class_contrasts_as_fedproc(seed: int, tau: float) -> None:
    """At α_t = 1, where FedProc is nothing but its contrast."""
    z, y = random_features(5, DIM, seed=seed), random_labels(5, classes=CLASSES, seed=seed).clamp(min=0)
    known = random_prototypes(CLASSES, 1, DIM, seed=seed, empty=0)
    ce = torch.tensor(9.0, dtype=torch.float64).log()
    fpl = loss_of(FPL(temperature=tau, contrast_weight=1.0, pull_weight=0.0), z, y, known) - ce
    assert_close(loss_of(FedProc(temperature=tau), z, y, known, Clock(0, 5)), fpl)
    assert tau < 0.5 or bool((fpl > 0.01).all())


def test_fpl_of_three_clients_without_contrast_is_fedproto_with_shared_weights() -> None:
    """FINCH joins three means or fewer, so the unbiased prototype is FedProto's mean."""
    run, other = (
        cluster_runs.start(method, parts=PARTS, participation=1.0)
        for method in (FPL(contrast_weight=0.0), FedProto(share_weights=True))
    )
    for _ in range(3):
        run.play_round()
        other.play_round()
    assert gap(own(run), own(other)) < 1e-12
    assert gap(own(run), own(cluster_runs.played(FPL(), "stacked")[0])) > 1e-3


def test_without_its_terms_fpl_trains_exactly_as_fedavg() -> None:
    cluster_runs.assert_trains_exactly_as_fedavg(FPL(contrast_weight=0.0, pull_weight=0.0))


@pytest.mark.parametrize("name", RUNS)
def test_engines_agree_to_rounding(name: str) -> None:
    cluster_runs.assert_engines_agree_to_rounding(RUNS[name], RUNS["fpl"])


def test_the_whole_run_is_a_plain_loop() -> None:
    cluster_runs.assert_the_whole_run_is_a_plain_loop(
        FPL(contrast_weight=1.0), lambda z, y, ce, g, _: fpl(z, y, ce, g, 0.02), cluster_runs.means_of_the_last_epoch
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_term_was_at_work_in_these_runs(name: str) -> None:
    z, y, known = cluster_runs.at_work(RUNS[name])
    assert float((z - known.class_mean()[y]).square().mean()) > 1e-3
