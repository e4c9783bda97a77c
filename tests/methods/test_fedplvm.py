"""FedPLVM: it is FedAvg without its terms, a whole run is a plain loop, and engines agree in float64."""

from __future__ import annotations

import pytest
import torch

from protofed.methods.fedplvm import FedPLVM
from tests.reference.fedplvm import fedplvm
from tests.support import cluster_runs

# λ is smaller than the paper's: 100 in a net of eight features amplifies rounding from step to step.
RUNS = {"fedplvm": FedPLVM(lam=1.0), "fedplvm uniform": FedPLVM(lam=1.0, averaging="uniform", alpha=1.0)}


def test_without_its_terms_fedplvm_trains_exactly_as_fedavg() -> None:
    cluster_runs.assert_trains_exactly_as_fedavg(FedPLVM(lam=0.0))


@pytest.mark.parametrize("name", RUNS)
def test_engines_agree_to_rounding(name: str) -> None:
    cluster_runs.assert_engines_agree_to_rounding(RUNS[name], RUNS["fedplvm"])


def test_the_whole_run_is_a_plain_loop() -> None:
    cluster_runs.assert_the_whole_run_is_a_plain_loop(
        FedPLVM(lam=0.5),
        lambda z, y, ce, g, _: fedplvm(z, y, ce, g, 0.5, 0.07, 0.25),
        cluster_runs.clusters_of_the_data,
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_term_was_at_work_in_these_runs(name: str) -> None:
    z, y, known = cluster_runs.at_work(RUNS[name])
    assert float((1 - torch.cosine_similarity(z, known.class_mean()[y], dim=-1)).square().mean()) > 1e-3
