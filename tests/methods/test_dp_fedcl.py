"""DP-FedCL: it sends the means of dense regions."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from protofed.methods import build_method
from protofed.methods.base import Trained
from tests.support.turns import turn_of


def test_dp_fedcl_sends_the_means_of_dense_regions_on_the_unit_sphere() -> None:
    """One direction at two lengths is one region; its prototype is the mean of the raw features."""
    x = torch.tensor([[1.0, 0], [3, 0], [1, 0.1], [0, 1], [0, 2], [0.1, 1]], dtype=torch.float64)
    one = Trained({}, torch.tensor([6]), x.unsqueeze(0), torch.zeros(1, 6, dtype=torch.int64), 1, torch.tensor([0]))
    sent = build_method("dp-fedcl", {"eps": 0.3, "min_samples": 2}).upload(one, turn_of(one)).prototypes["local"]
    assert_close(sent.vectors[0, 0], torch.stack([x[:3].mean(0), x[3:].mean(0)]))
    assert sent.counts[0, 0].tolist() == [3, 3]
    noise = build_method("dp-fedcl", {"eps": 0.3, "min_samples": 5}).upload(one, turn_of(one)).prototypes["local"]
    assert_close(noise.vectors[0, 0, 0], x.mean(0))
    # The 4th neighbour of every point lies on the other side, so eps from the data joins the two.
    joined = (
        build_method("dp-fedcl", {"neighbourhood": "quantile", "min_samples": 2})
        .upload(one, turn_of(one))
        .prototypes["local"]
    )
    assert joined.filled.sum() == 1
