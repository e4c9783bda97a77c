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
"""Name how FedProto's losses measure the distance between a feature and a prototype.

`mse` is the mean squared difference of coordinates, as in FedProto's code; `l2` the Euclidean distance; `l1` the sum of
absolute differences; `emd` the earth mover's distance between the two sets of coordinates.

Example:
    >>> from typing import get_args
    >>> from protofed.prototypes import Metric
    >>> get_args(Metric)
    ('mse', 'l2', 'l1', 'emd')
"""
ClusterWeights = Literal["samples", "equal", "one"]
"""Name W_g, the weight of a cluster in FedPLCC's losses.

`samples` is its part of its class's samples, `equal` the same part for each of the class's clusters, `one` is 1.

Example:
    >>> from typing import get_args
    >>> from protofed.prototypes import ClusterWeights
    >>> get_args(ClusterWeights)
    ('samples', 'equal', 'one')
"""

_ZERO = 1e-8  # what is no longer than this has no direction
_CHUNK = 2**16  # similarities of a client held at once


def slot_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """Contrast each sample with the classes' prototypes, slot by slot (MP-FedCL Eq. 11).

    For each slot k of each client i the loss is the cross-entropy over classes of the cosines divided by the
    temperature; the positive is the prototype of the sample's own class. The value is the mean over (i, k).

    Args:
        features: one client's batch [B, D].
        labels: its classes [B]; −1 for padding.
        pool: the clients' prototypes, vectors [N, C, K, D] and counts [N, C, K], padded by `pad_with_class_mean`. The
            pool is a constant and gets no gradient. A slot without the sample's class does not count, and empty slots
            are no candidates.
        temperature: τ, which divides the cosines.

    Returns:
        One value per sample [B]; 0 where the class has no prototype.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, slot_contrast
        >>> pool = Prototypes(torch.eye(2).view(1, 2, 1, 2), torch.ones(1, 2, 1))
        >>> slot_contrast(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([0, 0]), pool, 1.0).round(decimals=4)
        tensor([0.3133, 0.6931])
    """
    return _contrast(features, labels, pool, temperature, _slot_log_sums)


def pooled_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """Contrast each sample with the whole pool of prototypes (DP-FedCL).

    The loss is −1/|P(y)| Σ_{p ∈ P(y)} [v·u_p/τ − log Σ_a exp(v·u_a/τ)]: P(y) holds the prototypes of the sample's
    class, a runs over the whole pool, and all vectors are scaled to length 1.

    Args:
        features: one client's batch [B, D].
        labels: its classes [B]; −1 for padding.
        pool: the prototypes, vectors [C, M, D] or [N, C, M, D] with their counts. The pool gets no gradient.
        temperature: τ.

    Returns:
        One value per sample [B]; 0 where the class has no prototype.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, pooled_contrast
        >>> pool = Prototypes(torch.eye(2).view(2, 1, 2), torch.ones(2, 1))
        >>> pooled_contrast(torch.tensor([[5.0, 0.0], [0.0, 5.0]]), torch.tensor([0, 0]), pool, 1.0).round(decimals=4)
        tensor([0.3133, 1.3133])
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
    """Contrast each sample with the clusters of its class and of all classes (FedProc, FPL, FedPLVM, FedPLCC).

    The loss is −log [Σ_{g ∈ G^y} W_g exp(s_α(z, g)/τ) / Σ_{g ∈ G} W_g exp(s_α(z, g)/τ)]: G^c holds the clusters of
    class c, and s_α is the cosine to the power of α.

    Args:
        features: one client's batch [B, D].
        labels: its classes [B]; −1 for padding.
        clusters: vectors [C, M, D] and counts [C, M].
        temperature: τ.
        alpha: α; 1 for FedProc and FPL, below 1 for FedPLVM.
        weights: W_g; `samples` for FedPLCC.

    Returns:
        One value per sample [B]; 0 where the class has no cluster.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, cluster_contrast
        >>> clusters = Prototypes(torch.eye(2).view(2, 1, 2), torch.ones(2, 1))
        >>> features, labels = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1])
        >>> cluster_contrast(features, labels, clusters, temperature=1.0).round(decimals=4)
        tensor([0.3133, 1.3133])
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
    """Pull each sample to the clusters of its class that are most similar to it (FedPLCC's L_corr).

    The loss is − Σ s_α(z, g) W_g over the ⌈φ |G^y|⌉ clusters g of the sample's class with the largest s_α(z, g) W_g.

    Args:
        features: one client's batch [B, D].
        labels: its classes [B]; −1 for padding.
        clusters: vectors [C, M, D] and counts [C, M].
        alpha: α, the power of the cosine.
        phi: φ, the part of the class's clusters that attract.
        weights: W_g.

    Returns:
        One value per sample [B]; 0 where the class has no cluster.

    Raises:
        UserError: `phi` is not above 0 and at most 1.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, cluster_attraction
        >>> clusters = Prototypes(torch.eye(2).view(1, 2, 2), torch.tensor([[1.0, 3.0]]))
        >>> cluster_attraction(torch.tensor([[0.0, 2.0]]), torch.tensor([0]), clusters, alpha=1.0, phi=0.5).tolist()
        [-0.75]
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
    """Measure how far each feature is from its class's prototype, or from the mean of several (FedProto).

    Args:
        features: one client's batch [B, D].
        labels: its classes [B]; −1 for padding.
        prototypes: vectors [C, M, D] and counts [C, M].
        metric: how to measure.

    Returns:
        One value per sample [B]; 0 where the class has no prototype.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, distance
        >>> prototypes = Prototypes(torch.tensor([[[0.0, 0.0]], [[3.0, 0.0]]]), torch.ones(2, 1))
        >>> distance(torch.tensor([[3.0, 4.0], [3.0, 4.0]]), torch.tensor([0, 1]), prototypes, "l2").tolist()
        [5.0, 4.0]
    """
    measure = _METRICS[metric]
    own = labels.clamp(min=0)
    known = prototypes.present[own] & (labels >= 0)
    return measure(features, prototypes.class_mean()[own]) * known


def prototype_distance(
    features: Tensor, labels: Tensor, mask: Tensor, prototypes: Prototypes, metric: Metric
) -> Tensor:
    """Sum the distances between the batch's own class means and the classes' prototypes (FedProto Eq. 8).

    Args:
        features: one client's batch [B, D].
        labels: its classes [B].
        mask: which rows of the batch are samples [B], bool.
        prototypes: vectors [C, M, D] and counts [C, M].
        metric: how to measure.

    Returns:
        A scalar: the sum over the classes that are in the batch and have a prototype.

    Example:
        >>> import torch
        >>> from protofed.prototypes import Prototypes, prototype_distance
        >>> prototypes = Prototypes(torch.tensor([[[0.0]], [[9.0]]]), torch.ones(2, 1))
        >>> features, labels, mask = torch.tensor([[2.0], [4.0], [8.0]]), torch.tensor([0, 0, 1]), torch.ones(3).bool()
        >>> prototype_distance(features, labels, mask, prototypes, "l1").item()
        4.0
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
