"""A few numbers about prototype sets, against loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.prototypes import Prototypes
from protofed.prototypes.describe import counted, describe


def drawn(shape: tuple[int, ...], seed: int) -> Prototypes:
    draws = torch.Generator().manual_seed(seed)
    counts = torch.randint(0, 3, shape[:-1], generator=draws).double()
    vectors = torch.randn(shape, generator=draws, dtype=torch.float64) * (counts > 0).unsqueeze(-1)
    return Prototypes(vectors, counts)


def by_class(found: Prototypes) -> dict[int, list[torch.Tensor]]:
    """Each class's prototypes, whoever's they are."""
    classes, slots, size = found.vectors.shape[-3:]
    flat = found.vectors.reshape(-1, classes, slots, size)
    filled = found.counts.reshape(-1, classes, slots) > 0
    return {
        c: [flat[n, c, m] for n in range(len(flat)) for m in range(slots) if filled[n, c, m]] for c in range(classes)
    }


@settings(max_examples=60, deadline=None)
@given(
    lead=st.sampled_from([(), (1,), (3,)]),
    classes=st.integers(1, 4),
    slots=st.integers(1, 3),
    seed=st.integers(0, 999),
    known=st.booleans(),
)
def test_numbers_are_those_of_a_loop(lead: tuple[int, ...], classes: int, slots: int, seed: int, known: bool) -> None:
    now, then = drawn((*lead, classes, slots, 2), seed), drawn((*lead, classes, slots, 2), seed + 1)
    told = describe({"set": now}, {"set": then} if known else {})["set"]
    mine, before = by_class(now), by_class(then)
    each = [len(mine[c]) for c in range(classes)]
    assert told["each"] == each == counted({"set": now})["set"]
    grid = classes * max(each)
    assert told["padded"] == pytest.approx(1 - sum(each) / grid if grid else 0)
    moved = [
        float((torch.stack(mine[c]).mean(0) - torch.stack(before[c]).mean(0)).norm())
        for c in range(classes)
        if mine[c] and before[c]
    ]
    if known and moved:
        assert told["drift"] == pytest.approx(math.fsum(moved) / len(moved))
    else:
        assert told["drift"] is None


@given(st.lists(st.floats(width=32), min_size=4, max_size=4))
def test_what_is_no_number_is_not_said_of_a_model_that_diverges(values: list[float]) -> None:
    now = Prototypes(torch.tensor(values).view(2, 1, 2), torch.ones(2, 1))
    then = Prototypes(torch.zeros(2, 1, 2), torch.ones(2, 1))
    drift = describe({"set": now}, {"set": then})["set"]["drift"]
    assert drift is None or math.isfinite(drift)
    assert (drift is None) == (not bool(now.vectors[:, 0].norm(dim=-1).double().sum().isfinite()))


def test_nothing_is_said_of_no_sets() -> None:
    assert describe({}, {}) == {}
    assert counted({}) == {}
