"""FedCOF: its head is the plain loops', its covariances are unbiased, and with identity covariances it is FedNCM."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import protofed
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock, Server
from protofed.methods.fedcof import FedCOF
from protofed.methods.fedncm import FedNCM
from protofed.prototypes import Prototypes
from tests.reference import fedcof as slow
from tests.reference import fedncm
from tests.support import one_shot
from tests.support.trained_clients import assert_class_means, trained
from tests.support.turns import turn_of


@settings(max_examples=15, deadline=None)
@given(
    clients=st.integers(1, 5),
    samples=st.integers(1, 9),
    size=st.integers(1, 4),
    gamma=st.sampled_from([0.1, 1.0]),
    seed=st.integers(0, 2**16),
)
def test_the_head_is_the_loop(clients: int, samples: int, size: int, gamma: float, seed: int) -> None:
    made = one_shot.clients_of(clients, samples, 3, size, seed)
    sent = one_shot.served(FedCOF(gamma=gamma), made)
    one_shot.assert_head(sent, slow.head(one_shot.data_of(made), 4, gamma))


def test_class_means_are_the_loop() -> None:
    clients = trained(4)
    upload = FedCOF().upload(clients, turn_of(clients))
    assert_class_means(upload.prototypes["means"], clients)
    assert not upload.weights
    assert not upload.sums


def test_single_samples_have_finite_heads() -> None:
    made = one_shot.clients_of(3, 1, 3, 4, seed=1)
    for gamma in (0.0, 1.0):
        sent = one_shot.served(FedCOF(gamma=gamma), made)
        assert all(bool(value.isfinite().all()) for value in sent.weights.values())


def test_with_identity_covariances_and_mean_zero_it_is_fedncm() -> None:
    """All holders of a class have the same mean, so that Σ_c = γI; opposite classes, so that the overall mean is 0."""
    half = torch.randn(2, 3, generator=torch.Generator().manual_seed(0)).double()
    means = torch.cat([half, -half]).view(1, 4, 1, 3).expand(5, -1, -1, -1)
    uploads = Upload({}, {"means": Prototypes(means, torch.full((5, 4, 1), 6.0).double())})
    head = {"head.weight": torch.zeros(4, 3).double(), "head.bias": torch.zeros(4).double()}
    sent = FedCOF(gamma=2.0).aggregate(uploads, Server(Broadcast(head), Clock(0, 1, (0, 1, 2, 3, 4), 5)))
    data = [(means[k, :, 0].numpy(), np.arange(4)) for k in range(5)]
    one_shot.assert_head(sent, fedncm.head(data, 4), 1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_as_the_shrinkage_grows_it_becomes_fedncm(seed: int) -> None:
    """γI drowns the scatter and the overall mean."""
    made = one_shot.clients_of(4, 9, 3, 5, seed)
    ours, theirs = one_shot.served(FedCOF(gamma=1e12), made), one_shot.served(FedNCM(), made)
    assert_close(dict(ours.weights), dict(theirs.weights), atol=1e-9, rtol=0)
    near = one_shot.served(FedCOF(gamma=0.1), made).weights["head.weight"]
    assert float((near - theirs.weights["head.weight"]).abs().max()) > 1e-2


def test_covariances_are_those_of_the_samples_on_average() -> None:
    """The reference's estimate, over many clients with few samples each."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(3, 3))
    numbers = rng.integers(1, 5, size=20_000).tolist()
    means = [(rng.normal(size=(n, 3)) @ root.T).mean(0) for n in numbers]
    estimate = slow.covariance(means, numbers, 0.0)
    assert np.abs(estimate - root @ root.T).max() < 0.05 * np.abs(root @ root.T).max()


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_run_is_that_of_all_clients_so_far(engine: str) -> None:
    one_shot.assert_a_run_is_that_of_all_data("fedcof", engine, slow.head)


def test_a_client_without_its_row_is_forgotten() -> None:
    made = one_shot.clients_of(3, 9, 3, 4, seed=5)
    whole = one_shot.served(FedCOF(), made)
    none = Upload({}, {"means": Prototypes(torch.zeros(1, 4, 1, 4).double(), torch.zeros(1, 4, 1).double())})
    left = FedCOF().aggregate(none, Server(whole, Clock(1, 2, (1,), 3)))
    data = one_shot.data_of(made)
    one_shot.assert_head(left, slow.head([data[0], data[2]], 4))


def test_with_noise_on_samples_the_same_means_are_released_once() -> None:
    """Nobody trains, so that a second round says nothing new, and costs nothing."""
    tiny: dict[str, Any] = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 2, "device": "cpu"}
    result = protofed.run("fedcof", privacy="example", clip=1.0, noise=1.0, **tiny)
    assert result.history[0].epsilon == result.history[1].epsilon
    assert result.history[0].accuracy["global/all/head"] == result.history[1].accuracy["global/all/head"]
