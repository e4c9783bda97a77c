"""Distances between models are the loop's and leave out statistics."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.methods.server.model_distances import parameters, squared_distances
from tests.reference.model_distances import squared_distance
from tests.support.server_runs import models, rows

quick = settings(max_examples=12, deadline=None)
numbers = st.integers(0, 2**16)


@quick
@given(clients=st.integers(1, 5), others=st.integers(1, 4), seed=numbers)
def test_distances_are_the_loop_and_leave_out_statistics(clients: int, others: int, seed: int) -> None:
    a, b = models(clients, seed), models(others, seed + 1)
    expected = [[squared_distance(x, y) for y in rows(b)] for x in rows(a)]
    assert_close(squared_distances(a, b), torch.tensor(expected, dtype=torch.float64))
    assert list(parameters(a)) == ["w", "b", "s"]
