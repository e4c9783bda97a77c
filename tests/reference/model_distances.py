"""Distances between models, number by number. A model is a {name: tensor}."""

from __future__ import annotations

from tests.reference.methods import State


def counted(state: State) -> list[str]:
    """What a distance between models is about."""
    return [n for n, value in state.items() if value.is_floating_point() and not n.endswith(("_mean", "_var"))]


def squared_distance(a: State, b: State) -> float:
    """Σ (a − b)², number by number."""
    total = 0.0
    for name in counted(a):
        for x, y in zip(a[name].flatten().tolist(), b[name].flatten().tolist(), strict=True):
            total += (x - y) ** 2
    return total
