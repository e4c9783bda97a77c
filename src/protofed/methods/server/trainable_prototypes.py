"""Global prototypes that the server trains (FedTGP): a vector for each class, through two dense layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import linear

from protofed.methods.base import cross_entropy
from protofed.prototypes import Prototypes

Margin = Literal["nearest", "farthest"]
"""Which distances between classes the margin is the largest of."""


def first_layers(classes: int, size: int, draws: torch.Generator) -> dict[str, Tensor]:
    """What is trained, as torch draws an embedding and linear layers at first, in float64."""
    width = size**-0.5
    shapes = {"hidden.weight": (size, size), "hidden.bias": (size,), "out.weight": (size, size), "out.bias": (size,)}
    layers = {"embedding": torch.randn(classes, size, generator=draws, dtype=torch.float64)}
    for name, shape in shapes.items():
        layers[name] = (2 * torch.rand(shape, generator=draws, dtype=torch.float64) - 1) * width
    return layers


def vectors_of(layers: Mapping[str, Tensor]) -> Tensor:
    """The prototype of each class [C, D]."""
    hidden = linear(layers["embedding"], layers["hidden.weight"], layers["hidden.bias"]).relu()
    return linear(hidden, layers["out.weight"], layers["out.bias"])


def margin_of(means: Prototypes, which: Margin, threshold: float) -> float:
    """How much nearer a prototype shall be to its own class, from one mean a class [C, 1, D].

    `nearest` is the largest distance of a class to the class that is nearest to it, `farthest` that of any two.
    """
    held = means.class_mean()[means.present].double()
    if len(held) < 2:
        return threshold
    apart = torch.cdist(held, held, compute_mode="donot_use_mm_for_euclid_dist")
    if which == "nearest":
        apart = (apart + torch.diag(torch.full((len(held),), torch.inf).to(apart))).amin(0)
    return min(float(apart.max()), threshold)


def train(
    layers: Mapping[str, Tensor],
    features: Tensor,
    labels: Tensor,
    margin: float,
    *,
    lr: float,
    epochs: int,
    batch: int,
    draws: torch.Generator,
) -> dict[str, Tensor]:
    """The layers after SGD on −log of e^−(d_c + δ) / (e^−(d_c + δ) + Σ_c' e^−d_c'), d the distances to all classes.

    `features` [P, D] are the clients' prototypes, `labels` [P] their classes.
    """
    layers = {name: tensor.clone().requires_grad_() for name, tensor in layers.items()}
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(labels), generator=draws), batch):
            x, y = features[rows].double(), labels[rows]
            with torch.enable_grad():
                vectors = vectors_of(layers)
                apart = torch.linalg.vector_norm(x.unsqueeze(1) - vectors, dim=-1)  # its slope at 0 is 0
                own = torch.arange(len(vectors), device=y.device) == y.unsqueeze(-1)
                loss = cross_entropy(-(apart + margin * own.to(apart)), y).mean()  # a bool would be float32
                slopes = torch.autograd.grad(loss, list(layers.values()))
            with torch.no_grad():
                for tensor, slope in zip(layers.values(), slopes, strict=True):
                    tensor.sub_(lr * slope)
    return {name: tensor.detach() for name, tensor in layers.items()}
