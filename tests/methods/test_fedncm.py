"""FedNCM: its head is that of all data in one place, however they are dealt out, and nobody counts twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

import protofed
from protofed.errors import UserError
from protofed.methods.fedncm import FedNCM
from tests.reference import fedncm as slow
from tests.support import one_shot


@settings(max_examples=15, deadline=None)
@given(clients=st.integers(1, 4), samples=st.integers(1, 9), size=st.integers(1, 5), seed=st.integers(0, 2**16))
def test_the_head_is_that_of_all_data(clients: int, samples: int, size: int, seed: int) -> None:
    trained = one_shot.clients_of(clients, samples, 3, size, seed)
    sent = one_shot.served(FedNCM(), trained)
    one_shot.assert_head(sent, slow.head(one_shot.data_of(trained), 4))
    assert not sent.weights["head.weight"][3].any()  # nobody has it
    counts = torch.stack([(trained.labels == c).sum() for c in range(4)])
    assert_close(sent.kept["counts"], counts.double())


def test_a_client_counts_once() -> None:
    one_shot.assert_a_client_counts_once(FedNCM())


def test_the_sum_is_enough_and_can_be_taken_back() -> None:
    one_shot.assert_the_sum_is_enough_and_can_be_taken_back(FedNCM())


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_run_is_that_of_all_data(engine: str) -> None:
    one_shot.assert_a_run_is_that_of_all_data("fedncm", engine, slow.head)


def test_sums_are_not_noised_by_the_sample() -> None:
    with pytest.raises(UserError, match="its clients also send: counts, features"):
        protofed.run("fedncm", privacy="example", clip=1.0, noise=1.0, model="cnn", train_size=120, clients=2)
