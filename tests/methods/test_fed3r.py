"""Fed3R: its head is ridge regression on all data in one place, however they are dealt out."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.methods.fed3r import Fed3R
from protofed.methods.server.closed_form import ridge
from tests.reference import fed3r as slow
from tests.support import one_shot


@settings(max_examples=15, deadline=None)
@given(
    clients=st.integers(1, 4),
    samples=st.integers(1, 9),
    size=st.integers(1, 5),
    lam=st.sampled_from([0.01, 1.0]),
    intercept=st.booleans(),
    normalise=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_the_head_is_ridge_regression(
    clients: int, samples: int, size: int, lam: float, intercept: bool, normalise: bool, seed: int
) -> None:
    trained = one_shot.clients_of(clients, samples, 3, size, seed)
    method = Fed3R(lam=lam, intercept=intercept, normalise=normalise)
    expected = slow.head(one_shot.data_of(trained), 4, lam, intercept, normalise)
    one_shot.assert_head(one_shot.served(method, trained), expected)


def test_how_samples_are_dealt_out_does_not_matter() -> None:
    trained = one_shot.clients_of(4, 9, 3, 5, seed=7)
    together = trained._replace(
        samples=torch.tensor([36]), features=trained.features.reshape(1, 36, 5), labels=trained.labels.reshape(1, 36)
    )
    one, other = (one_shot.served(Fed3R(), some) for some in (trained, together))
    for name, value in one.weights.items():
        assert float((value - other.weights[name]).abs().max()) < 1e-11, name


@pytest.mark.parametrize("params", [{}, {"intercept": False}])
def test_a_client_counts_once(params: dict[str, bool]) -> None:
    one_shot.assert_a_client_counts_once(Fed3R(**params))


@pytest.mark.parametrize("params", [{}, {"intercept": False, "normalise": False}])
def test_the_sum_is_enough_and_can_be_taken_back(params: dict[str, bool]) -> None:
    one_shot.assert_the_sum_is_enough_and_can_be_taken_back(Fed3R(**params))


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_run_is_that_of_all_data(engine: str) -> None:
    one_shot.assert_a_run_is_that_of_all_data("fed3r", engine, slow.head)


def test_a_matrix_without_an_inverse_does_no_harm() -> None:
    flat, wanted = torch.ones(3, 3).double(), torch.eye(3).double()
    assert float((ridge(flat, wanted) - flat / 9).abs().max()) < 1e-12  # its pseudo-inverse
    assert not ridge(0 * flat, wanted).any()
    noisy = ridge(-flat, wanted, 0.5)  # as noise may leave it
    assert float((noisy - 2 * wanted).abs().max()) < 1e-12
