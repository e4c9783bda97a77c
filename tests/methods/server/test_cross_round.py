"""The selection among models of several rounds is the best of all combinations."""

from __future__ import annotations

import torch

from protofed.methods.server.cross_round import Cache, select
from tests.reference import fedcda as slow
from tests.support.server_runs import models, rows


def test_the_selection_is_the_best_of_all_when_there_is_one_group() -> None:
    stacked = [models(3, seed) for seed in range(3)]
    losses = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everyone = torch.arange(3)
    cache_ = Cache.empty(stacked[0], losses[0], 3, 3)
    for state, loss in zip(stacked, losses, strict=True):
        cache_ = cache_.add(everyone, state, loss)
    choice = select(cache_, everyone, [everyone], 1.0, rows(stacked[0])[0]).chosen.tolist()
    values = {}
    for slots in torch.cartesian_prod(everyone, everyone, everyone).tolist():
        picks = [(rows(stacked[slot])[client], float(losses[slot, client])) for client, slot in enumerate(slots)]
        values[tuple(slots)] = slow.objective(picks, 1.0)
    assert len(values) == 27
    assert tuple(choice) == min(values, key=lambda slots: values[slots])
    # far from zero, where squares of lengths would lose all digits
    far = cache_._replace(models={name: tensor + 1e6 for name, tensor in cache_.models.items() if name != "b"})
    near = cache_._replace(models={name: tensor for name, tensor in cache_.models.items() if name != "b"})
    centre = {name: tensor + 1e6 for name, tensor in rows(stacked[0])[0].items()}
    expected = select(near, everyone, [everyone], 1.0, rows(stacked[0])[0]).chosen
    assert torch.equal(select(far, everyone, [everyone], 1.0, centre).chosen, expected)
