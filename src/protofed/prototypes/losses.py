"""Losses on prototypes, written for one client's batch; `torch.func.vmap` maps them over clients.

Each gives one value per sample, [B]. A sample whose class has no prototype, or whose label is −1, gets 0.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import mse_loss, normalize

from protofed.errors import UserError
from protofed.prototypes.means import class_means
from protofed.prototypes.type import Prototypes

Metric = Literal["mse", "l2", "l1", "emd"]
ClusterWeights = Literal["samples", "equal", "one"]
"""W_g of a cluster: its part of its class's samples, the same part for each of the class's clusters, or 1."""

_ZERO = 1e-8  # what is no longer than this has no direction
_CHUNK = 2**16  # similarities of a client held at once


def slot_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """MP-FedCL Eq. 11: for each slot k of each client i, cross-entropy over the classes; the mean over (i, k).

    The positive is the prototype of the sample's own class, and similarity is the cosine. `pool` is [N, C, K, D],
    padded (`pad_with_class_mean`); a slot without the sample's class does not count, and empty ones are no candidates.
    The pool is a constant: it gets no gradient.
    """
    return _contrast(features, labels, pool, temperature, _slot_log_sums)


def pooled_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """DP-FedCL: −1/|P(y)| Σ_{p ∈ P(y)} [v·u_p/τ − log Σ_a exp(v·u_a/τ)], a over the whole pool, all of unit length.

    `pool` is [C, M, D] or [N, C, M, D], a constant.
    """
    if pool.counts.dim() == 2:
        pool = Prototypes(pool.vectors.unsqueeze(0), pool.counts.unsqueeze(0))
    return _contrast(features, labels, pool, temperature, _pooled_log_sum)


def cluster_contrast(
    features: Tensor,
    labels: Tensor,
    clusters: Prototypes,
    temperature: float,
    alpha: float = 1.0,
    weights: ClusterWeights = "one",
) -> Tensor:
    """−log [Σ_{g ∈ G^y} W_g exp(s_α(z, g)/τ) / Σ_{g ∈ G} W_g exp(s_α(z, g)/τ)], G^c the clusters of class c, [C, M, D].

    FedProc and FPL: alpha 1. FedPLVM: alpha below 1. FedPLCC: weighted by samples too.
    """
    logits = _powers(features, clusters, alpha) / temperature
    if weights != "one":
        logits = logits + _parts(clusters, weights).log()  # −∞ in an empty slot, masked next
    by_class = logits.masked_fill(~clusters.filled, torch.finfo(logits.dtype).min).logsumexp(-1)
    own = labels.clamp(min=0)
    known = clusters.present[own] & (labels >= 0)
    return torch.where(known, by_class.logsumexp(-1) - by_class.gather(-1, own.unsqueeze(-1)).squeeze(-1), 0)


def cluster_attraction(
    features: Tensor,
    labels: Tensor,
    clusters: Prototypes,
    alpha: float,
    phi: float,
    weights: ClusterWeights = "samples",
) -> Tensor:
    """FedPLCC's L_corr: − Σ of the ⌈φ |G^y|⌉ largest s_α(z, g) W_g, g in the clusters G^y of the sample's class.

    `clusters` is [C, M, D].
    """
    if not 0 < phi <= 1:
        raise UserError("phi", phi, "the part of the clusters that attract is above 0 and at most 1")
    own = labels.clamp(min=0)
    filled = clusters.filled[own] & (labels >= 0).unsqueeze(-1)  # [B, M]
    pull = _powers(features, clusters, alpha)
    if weights != "one":
        pull = pull * _parts(clusters, weights)
    pull = pull.gather(1, own.view(-1, 1, 1).expand(-1, 1, pull.shape[-1])).squeeze(1)
    pull = pull.masked_fill(~filled, torch.finfo(pull.dtype).min).sort(-1, descending=True).values

    attract = torch.ceil(phi * filled.sum(-1, keepdim=True).double() - 1e-9)  # 0.07 · 100 is a little more than 7
    rank = torch.arange(pull.shape[-1], device=pull.device)
    return -torch.where(rank < attract, pull, 0).sum(-1)


def distance(features: Tensor, labels: Tensor, prototypes: Prototypes, metric: Metric) -> Tensor:
    """FedProto: how far each feature is from the prototype of its class, or from the mean of several."""
    measure = _METRICS[metric]
    own = labels.clamp(min=0)
    known = prototypes.present[own] & (labels >= 0)
    return measure(features, prototypes.class_mean()[own]) * known


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
    return mse_loss(a, b, reduction="none").mean(-1)


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


def _parts(clusters: Prototypes, weights: ClusterWeights) -> Tensor:
    """[C, M]: each cluster's part of its class; 0 for an empty slot."""
    counts = clusters.counts if weights == "samples" else clusters.filled.to(clusters.counts.dtype)
    total = counts.sum(-1, keepdim=True)
    return counts / torch.where(total > 0, total, 1)


def _contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float, log_sums: _LogSums) -> Tensor:
    """The mean over positives p of log Σ_a exp(v·u_a/τ) − v·u_p/τ, v = z/|z|; the sums are those of `log_sums`.

    Its gradient in z, [B, D], is found on the way, chunk by chunk of the pool, so that no similarities are kept for
    backward: those of 1,000 clients × 32 samples to 20,000 prototypes would fill 2.6 GB, several times over.
    """
    u, filled = _unit(pool.vectors), pool.filled
    z = features.detach().to(u.dtype)
    length: Tensor = torch.linalg.vector_norm(z, dim=-1, keepdim=True)
    scale = length.clamp(min=_ZERO) * temperature
    v = z / scale  # of length 1/τ
    own = labels.clamp(min=0)
    number = filled.sum((0, 2), dtype=z.dtype)  # [C]: how many positives a class has
    known = ((number[own] > 0) & (labels >= 0)).unsqueeze(-1)
    number = number.clamp(min=1)
    positive = (u.sum((0, 2)) / number.unsqueeze(-1))[own]  # their mean: the mean of v·u_p is v·positive

    log_sum, slope = log_sums(v, u, filled, own, number)
    value = (log_sum - (v * positive).sum(-1, keepdim=True)) * known
    slope = slope - positive
    growth = temperature**2 * (v * slope).sum(-1, keepdim=True) * (length > _ZERO)  # v turns, but does not grow
    slope = (slope - growth * v) * (known / scale)
    return value.squeeze(-1) + ((features - z) * slope).sum(-1)  # Taylor's expansion at z


def _slot_log_sums(v: Tensor, u: Tensor, filled: Tensor, own: Tensor, number: Tensor) -> tuple[Tensor, Tensor]:
    """The mean over slots with the own class of log Σ_c exp(v·u_c), [B, 1], and its gradient in v, [B, D]."""
    u, filled = u.movedim(1, 0).flatten(1, 2), filled.movedim(1, 0).flatten(1)  # [C, N·K, D]: slots side by side
    weight = filled / number.unsqueeze(-1)

    def of(some: slice) -> tuple[Tensor, Tensor]:
        rows = u[:, some].flatten(0, 1)
        log_sum, softmax = _log_sum(torch.unflatten(v @ rows.T, -1, filled[:, some].shape), filled[:, some])
        share = weight[:, some][own].unsqueeze(1)  # [B, 1, n]
        return (share * log_sum).sum(-1), (share * softmax).flatten(1) @ rows

    def together(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return a[0] + b[0], a[1] + b[1]

    return reduce(together, map(of, _chunks(u.shape[1], len(v) * len(u))))


def _pooled_log_sum(v: Tensor, u: Tensor, filled: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of Σ_a exp(v·u_a), a over the whole pool, [B, 1], and its gradient in v, [B, D]."""
    u, filled = u.flatten(0, -2), filled.flatten()

    def of(some: slice) -> tuple[Tensor, Tensor]:
        log_sum, softmax = _log_sum(v @ u[some].T, filled[some])
        return log_sum, softmax @ u[some]

    def together(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        log_sum = torch.logaddexp(a[0], b[0])
        return log_sum, (a[0] - log_sum).exp() * a[1] + (b[0] - log_sum).exp() * b[1]

    return reduce(together, map(of, _chunks(len(u), len(v))))


_LogSums = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def _log_sum(logits: Tensor, filled: Tensor) -> tuple[Tensor, Tensor]:
    """The logarithm of Σ exp over what is filled along axis 1, which stays, and the softmax."""
    logits.masked_fill_(~filled, torch.finfo(logits.dtype).min)  # not −∞: ∞ − ∞ is NaN
    softmax = logits.softmax(1)
    return logits.amax(1, keepdim=True) - softmax.amax(1, keepdim=True).log(), softmax


def _chunks(rows: int, each: int) -> list[slice]:
    """Slices of so many rows, of `each` similarities, that one holds at most 2^16 (or a single row).

    These are one client's: under vmap, 1,000 clients hold 250 MB of them in float32.
    """
    size = max(1, _CHUNK // each)
    return [slice(first, first + size) for first in range(0, rows, size)]


def _unit(vectors: Tensor) -> Tensor:
    """Scaled to length 1; a zero vector stays."""
    return normalize(vectors, dim=-1, eps=_ZERO)


def _cosines(features: Tensor, vectors: Tensor) -> Tensor:
    """[B, P]: the cosine of each feature with each of the P prototypes; 0 for a zero vector."""
    return _unit(features) @ _unit(vectors).flatten(0, -2).T
