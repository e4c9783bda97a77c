"""A Gaussian of each class's features, from sums over clients' samples, and a head trained on draws from it (CCVR)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from protofed.methods.server.head_training import train_head

Weights = Mapping[str, Tensor]
Draws = Callable[[str], torch.Generator]
"""Generators by what they are for."""


@runtime_checkable
class Calibrating(Protocol):
    """A method whose server trains a head anew."""

    def calibrated(self, weights: Weights, total: Weights, draws: Draws) -> dict[str, Tensor]:
        """The head of a model, from what `moments` of all clients add up to."""


def moments(features: Tensor, labels: Tensor, classes: int) -> dict[str, Tensor]:
    """Each client's numbers, sums and sums of products of each class [N, C], [N, C, D] and [N, C, D, D], in float64."""
    z, member = features.double(), (labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)).double()
    products = [(z * member[..., c : c + 1]).mT @ z for c in range(classes)]  # at once they would fill n·C·D numbers
    return {"counts": member.sum(-2), "features": member.mT @ z, "products": torch.stack(products, -3)}


def gaussians(total: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Means [C, D] and covariances [C, D, D] from sums over clients; 0 of what nobody holds, or only one sample of."""
    number = total["counts"].view(-1, 1)
    means = total["features"] / number.clamp(min=1)
    scatter = total["products"] - number.unsqueeze(-1) * torch.einsum("cd,ce->cde", means, means)
    several = (number > 1).unsqueeze(-1)
    return means, torch.where(several, scatter / (number - 1).clamp(min=1).unsqueeze(-1), 0)


def draw(mean: Tensor, covariance: Tensor, gamma: float, number: int, draws: torch.Generator) -> Tensor:
    """Features [number, D] of N(mean, covariance + γI); an eigenvalue that rounding made negative counts as 0."""
    values, vectors = torch.linalg.eigh((covariance + covariance.mT) / 2)
    root = vectors * (values.clamp(min=0) + gamma).sqrt()
    noise = torch.randn(number, len(mean), generator=draws, dtype=torch.float64).to(mean.device)
    drawn: Tensor = mean + noise @ root.mT
    return drawn


def calibrated_head(
    weights: Mapping[str, Tensor],
    total: Mapping[str, Tensor],
    *,
    virtual: int,
    gamma: float,
    lr: float,
    epochs: int,
    batch: int,
    draws: torch.Generator,
    order: torch.Generator,
) -> dict[str, Tensor]:
    """The head of a model, trained on so many features of each class that `draws` gives, in an order that is drawn.

    Args:
        weights: those of the model, by name.
        total: what `moments` of all clients add up to.
        virtual: features drawn of each class.
        gamma: added to each variance.
        lr: the rate of the head's training.
        epochs: passes over the features.
        batch: features in a step.
        draws: of features.
        order: of batches.
    """
    means, covariances = gaussians(total)
    held = (total["counts"] > 0).nonzero().squeeze(-1)
    features = [draw(means[c], covariances[c], gamma, virtual, draws) for c in held.tolist()]
    labels = held.repeat_interleave(virtual)
    return train_head(
        weights, torch.cat([*features, means[:0]]), labels, lr=lr, epochs=epochs, batch=batch, draws=order
    )
