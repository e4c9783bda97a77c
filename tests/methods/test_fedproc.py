"""FedProc: it goes from contrast to cross-entropy, a whole run is a plain loop, and engines agree in float64."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from protofed.methods.base import Clock
from protofed.methods.fedproc import FedProc
from tests.reference.fedproc import fedproc, mean_over_clients
from tests.support import cluster_runs
from tests.support.cluster_runs import CLASSES, DIM, loss_of
from tests.support.prototype_cases import random_features, random_prototypes

RUNS = {
    "fedproc": FedProc(),
    "fedproc port": FedProc(schedule="port", temperature=0.1),
    "fedproc samples": FedProc(weighting="samples"),
}


def test_fedproc_goes_from_contrast_to_cross_entropy() -> None:
    assert [FedProc().share(Clock(t, 4)) for t in range(4)] == [1.0, 0.75, 0.5, 0.25]
    assert [FedProc(schedule="port").share(Clock(t, 5)) for t in range(5)] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert FedProc(schedule="port").share(Clock(0, 1)) == 1.0
    z, y, known = random_features(3, DIM, seed=0), torch.arange(3), random_prototypes(CLASSES, 1, DIM, seed=0, empty=0)
    last = loss_of(FedProc(schedule="port"), z, y, known, Clock(4, 5))
    assert_close(last, torch.full((3,), 9.0, dtype=torch.float64).log())


@pytest.mark.parametrize("name", RUNS)
def test_engines_agree_to_rounding(name: str) -> None:
    cluster_runs.assert_engines_agree_to_rounding(RUNS[name], RUNS["fedproc"])


def test_the_whole_run_is_a_plain_loop() -> None:
    cluster_runs.assert_the_whole_run_is_a_plain_loop(
        FedProc(),
        lambda z, y, ce, g, number: fedproc(z, y, ce, g, 1 - number / 3, 1.0),
        cluster_runs.means_of_the_last_epoch,
        lambda clients: mean_over_clients(clients, weighted=False),
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_term_was_at_work_in_these_runs(name: str) -> None:
    method = RUNS[name]
    cluster_runs.at_work(method, one_each=True)
    assert 0 <= method.share(Clock(2, 3)) < method.share(Clock(1, 3)) < 1
