"""Losses on prototypes, written for one client's batch; `torch.func.vmap` maps them over clients.

Each gives one value per sample, [B]. A sample whose class has no prototype, or whose label is −1, gets 0.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.errors import UserError
from protofed.prototypes.means import class_means
from protofed.prototypes.type import Prototypes

Metric = Literal["mse", "l2", "l1", "emd"]


def slot_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """MP-FedCL Eq. 11: for each slot k of each client i, cross-entropy over the classes; the mean over (i, k).

    The positive is the prototype of the sample's own class, and similarity is the cosine. `pool` is [N, C, K, D],
    padded (`pad_with_class_mean`); a slot without the sample's class does not count, and empty ones are no candidates.
    """
    clients, classes, slots = pool.counts.shape
    logits = torch.unflatten(_cosines(features, pool.vectors), -1, (clients, classes, slots)) / temperature
    logits = logits.masked_fill(~pool.filled, torch.finfo(logits.dtype).min)  # not −∞: ∞ − ∞ is NaN

    own = labels.clamp(min=0)
    positive = logits.gather(2, own.view(-1, 1, 1, 1).expand(-1, clients, 1, slots)).squeeze(2)
    counted = pool.filled.movedim(1, 0)[own] & (labels >= 0).view(-1, 1, 1)  # [B, N, K]
    entropy = torch.where(counted, logits.logsumexp(2) - positive, 0)
    return entropy.sum((1, 2)) / counted.sum((1, 2)).clamp(min=1)


def pooled_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """DP-FedCL: −1/|P(y)| Σ_{p ∈ P(y)} [v·u_p/τ − log Σ_a exp(v·u_a/τ)], a over the whole pool, all of unit length.

    `pool` is [C, M, D] or [N, C, M, D].
    """
    classes, slots = pool.counts.shape[-2:]
    filled = pool.filled.flatten()
    label = (
        torch.arange(classes, device=labels.device).view(-1, 1).expand(classes, slots).expand_as(pool.counts).flatten()
    )

    logits = _cosines(features, pool.vectors) / temperature
    everyone = logits.masked_fill(~filled, torch.finfo(logits.dtype).min).logsumexp(-1)
    positive = (label == labels.unsqueeze(-1)) & filled
    number = positive.sum(-1)
    return torch.where(number > 0, everyone - (logits * positive).sum(-1) / number.clamp(min=1), 0)


def cluster_contrast(
    features: Tensor,
    labels: Tensor,
    clusters: Prototypes,
    temperature: float,
    alpha: float = 1.0,
    weighted: bool = False,
) -> Tensor:
    """−log [Σ_{g ∈ G^y} W_g exp(s_α(z, g)/τ) / Σ_{g ∈ G} W_g exp(s_α(z, g)/τ)], G^c the clusters of class c, [C, M, D].

    FPL and FedSC: alpha 1. FedPLVM: alpha below 1. FedPLCC: `weighted` too, W_g the cluster's share of its class.
    """
    logits = _powers(features, clusters, alpha) / temperature
    if weighted:
        logits = logits + _shares(clusters).log()  # −∞ in an empty slot, masked next
    by_class = logits.masked_fill(~clusters.filled, torch.finfo(logits.dtype).min).logsumexp(-1)
    own = labels.clamp(min=0)
    known = clusters.present[own] & (labels >= 0)
    return torch.where(known, by_class.logsumexp(-1) - by_class.gather(-1, own.unsqueeze(-1)).squeeze(-1), 0)


def cluster_attraction(
    features: Tensor, labels: Tensor, clusters: Prototypes, alpha: float, phi: float, weighted: bool = True
) -> Tensor:
    """FedPLCC's L_corr: − Σ of the ⌈φ |G^y|⌉ largest s_α(z, g) W_g, g in the clusters G^y of the sample's class.

    `clusters` is [C, M, D]. W_g is the cluster's share of its class; 1 if not `weighted`.
    """
    if not 0 < phi <= 1:
        raise UserError("phi", phi, "the part of the clusters that attract is above 0 and at most 1")
    own = labels.clamp(min=0)
    filled = clusters.filled[own] & (labels >= 0).unsqueeze(-1)  # [B, M]
    pull = _powers(features, clusters, alpha)
    if weighted:
        pull = pull * _shares(clusters)
    pull = pull.gather(1, own.view(-1, 1, 1).expand(-1, 1, pull.shape[-1])).squeeze(1)
    pull = pull.masked_fill(~filled, torch.finfo(pull.dtype).min).sort(-1, descending=True).values

    attract = torch.ceil(phi * filled.sum(-1, keepdim=True).double() - 1e-9)  # 0.07 · 100 is a little more than 7
    rank = torch.arange(pull.shape[-1], device=pull.device)
    return -torch.where(rank < attract, pull, 0).sum(-1)


def distance(features: Tensor, labels: Tensor, prototypes: Prototypes, metric: Metric) -> Tensor:
    """FedProto: how far each feature is from the prototype of its class, [C, 1, D]."""
    measure = _METRICS[metric]
    own = labels.clamp(min=0)
    known = prototypes.present[own] & (labels >= 0)
    return torch.where(known, measure(features, prototypes.class_mean()[own]), 0)


def prototype_distance(
    features: Tensor, labels: Tensor, mask: Tensor, prototypes: Prototypes, metric: Metric
) -> Tensor:
    """FedProto Eq. 8: Σ_c d(the batch's own mean of class c, its prototype), over the classes that have both; a scalar.

    `mask`, [B], says which rows of the batch are samples.
    """
    measure = _METRICS[metric]
    own = class_means(features, torch.where(mask, labels, -1), prototypes.counts.shape[-2])
    return torch.where(own.present & prototypes.present, measure(own.class_mean(), prototypes.class_mean()), 0).sum()


def _mse(a: Tensor, b: Tensor) -> Tensor:
    """The mean over coordinates of the squared difference, as in FedProto's code."""
    return (a - b).square().mean(-1)


def _l2(a: Tensor, b: Tensor) -> Tensor:
    """The Euclidean distance; its gradient at 0 is 0."""
    length: Tensor = torch.linalg.vector_norm(a - b, dim=-1)
    return length


def _l1(a: Tensor, b: Tensor) -> Tensor:
    """The sum of absolute differences."""
    return (a - b).abs().sum(-1)


def _emd(a: Tensor, b: Tensor) -> Tensor:
    """The earth mover's distance between the coordinates of a and of b, each taken as a sample on the line."""
    return (a.sort(-1).values - b.sort(-1).values).abs().mean(-1)


_METRICS = {"mse": _mse, "l2": _l2, "l1": _l1, "emd": _emd}


def _powers(features: Tensor, clusters: Prototypes, alpha: float) -> Tensor:
    """[B, C, M]: s_α, the cosine to the power of alpha; of at least 1e-4, where the power and its slope are finite."""
    cosines = torch.unflatten(_cosines(features, clusters.vectors), -1, clusters.counts.shape)
    return cosines if alpha == 1 else cosines.clamp(1e-4, 1) ** alpha


def _shares(clusters: Prototypes) -> Tensor:
    """[C, M]: each cluster's part of its class's count; 0 for an empty slot."""
    total = clusters.counts.sum(-1, keepdim=True)
    return clusters.counts / torch.where(total > 0, total, 1)


def _cosines(features: Tensor, vectors: Tensor) -> Tensor:
    """[B, P]: the cosine of each feature with each of the P prototypes; 0 for a zero vector."""
    return normalize(features, dim=-1, eps=1e-8) @ normalize(vectors, dim=-1, eps=1e-8).flatten(0, -2).T
