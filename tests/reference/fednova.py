"""A slow, obvious version of FedNova: one client, one tensor and one step at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor


def norm(steps: int, momentum: float) -> float:
    """How much the gradients of all steps count together: each is in the velocity of its step and of all later ones."""
    weights = [0.0] * steps
    for now in range(steps):
        for earlier in range(now + 1):
            weights[earlier] += momentum ** (now - earlier)
    return sum(weights)


def server(
    old: Mapping[str, Tensor],
    models: Sequence[Mapping[str, Tensor]],
    share: Sequence[float],
    norms: Sequence[float],
    statistics: Sequence[str] = (),
) -> dict[str, Tensor]:
    """Return w − τ_eff Σ p_i d_i, where d_i is a client's update for a unit of its norm; statistics are means."""
    p = [one / sum(share) for one in share]
    effective = sum(part * one for part, one in zip(p, norms, strict=True))
    new = {}
    for name, before in old.items():
        if name in statistics:
            new[name] = sum((part * model[name] for part, model in zip(p, models, strict=True)), before * 0)
            continue
        moved = before.clone()
        for part, model, one in zip(p, models, norms, strict=True):
            direction = (before - model[name]) / one
            moved = moved - effective * part * direction
        new[name] = moved
    return new
