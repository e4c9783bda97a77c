"""FedSC's prototypes and its contrast with them.  Wang et al., KDD 2025.

Relational prototypes merge a client's class mean with those of like-minded clients; consistent ones are their mean over
clients, weighed by size and balance. What goes in are the class means of a round's participants, [N, C, 1, D], whose
counts are n_{k,c}; only the holders of a class take part in it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity, log_softmax, normalize

from protofed.prototypes.segments import exact_distances
from protofed.prototypes.type import Prototypes

Likeness = Literal["angle", "cosine", "l1", "l2", "kl"]
"""What makes neighbours (Table 5): equal angles to the global mean (Eqs. 7-8), or nearness to each other."""


def relational_prototypes(means: Prototypes, neighbours: int, likeness: Likeness = "angle") -> Prototypes:
    """Eqs. 7-9: r_k = the mean of c_k and its min(M, |H_c| − 1) nearest among the other holders of the class."""
    vectors, held = means.vectors.squeeze(-2).movedim(1, 0), means.filled.squeeze(-1).T  # [C, N, D], [C, N]
    itself = torch.eye(held.shape[-1], dtype=torch.bool, device=held.device)
    others = held.unsqueeze(-1) & held.unsqueeze(-2) & ~itself  # [C, N, N]
    gaps = _GAPS[likeness](vectors, held).masked_fill(~others, torch.inf)
    rank = gaps.argsort(dim=-1, stable=True).argsort(-1)  # of equally near ones, the first client
    merged = ((others & (rank < neighbours)) | (itself & held.unsqueeze(-1))).to(vectors.dtype)  # Eq. 8
    related = merged @ vectors / merged.sum(-1, keepdim=True).clamp(min=1)
    return Prototypes(related.movedim(0, 1).unsqueeze(-2), means.counts)


def discrepancy_weights(counts: Tensor) -> Tensor:
    """Eqs. 10-11: e_k = σ(n_k/N − d_k/Σd), d_k the distance of a client's label distribution from the uniform one.

    From n_{k,c}, [N, C, 1]; the weights of a class's holders, [N, C, 1], sum to 1. Where all d are 0, so is d/Σd.
    """
    number = counts.double()  # 1/C and n_{k,c}/n_k are to be equal where they are
    samples = number.sum((1, 2), keepdim=True).clamp(min=1)
    d = (0.5 * (number / samples - 1 / counts.shape[1]).square().sum((1, 2), keepdim=True)).sqrt()
    total = d.sum()
    e = torch.sigmoid(samples / samples.sum() - d / torch.where(total > 0, total, 1)) * (counts > 0)
    share = e.sum(0)
    return (e / torch.where(share > 0, share, 1)).to(counts.dtype)


def consistent_prototypes(related: Prototypes) -> Prototypes:
    """Eq. 12: o^c = Σ_k e_k r_k, over the holders of the class; [N, C, 1, D] becomes [C, 1, D]."""
    weight = discrepancy_weights(related.counts).unsqueeze(-1)
    return Prototypes((weight * related.vectors).sum(0), related.counts.sum(0))


def mean_distances(features: Tensor, labels: Tensor, prototypes: Prototypes) -> Tensor:
    """Eq. 13's U: for each r, [P, C, 1, D], the mean over a client's samples of |z_q − r|; [N, P, C, 1].

    `features` is [N, n, D]; a row labelled −1 is padding.
    """
    real = (labels >= 0).to(features.dtype)
    found = exact_distances(features, prototypes.vectors.flatten(0, -2))  # [N, n, P·C]
    mean = (real.unsqueeze(-2) @ found).squeeze(-2) / real.sum(-1, keepdim=True).clamp(min=1)
    return torch.unflatten(mean, -1, prototypes.counts.shape)


def scaled_contrast(features: Tensor, labels: Tensor, related: Prototypes, temperature: Tensor | float) -> Tensor:
    """Eq. 14: −log [Σ_{r ∈ R^y} exp(cos(z, r)/t_r) / Σ_{r ∈ R} exp(cos(z, r)/t_r)], one value per sample, [B].

    `related` is [P, C, 1, D], and so is `temperature` without D, or one number. A class without prototypes gives 0.
    """
    unit = normalize(related.vectors, dim=-1, eps=1e-8).flatten(0, -2)
    cosines = torch.unflatten(normalize(features, dim=-1, eps=1e-8) @ unit.T, -1, related.counts.shape)
    logits = (cosines / temperature).masked_fill(~related.filled, torch.finfo(cosines.dtype).min)  # not −∞: ∞ − ∞
    by_class = logits.logsumexp((1, 3))
    own = labels.clamp(min=0)
    known = related.present.any(0)[own] & (labels >= 0)
    return torch.where(known, by_class.logsumexp(-1) - by_class.gather(-1, own.unsqueeze(-1)).squeeze(-1), 0)


def _angle(vectors: Tensor, held: Tensor) -> Tensor:
    """Eqs. 7-8: |φ_k − φ_j|, φ_k the cosine of c_k with the mean over holders."""
    middle = vectors.sum(1, keepdim=True) / held.sum(-1).clamp(min=1).view(-1, 1, 1)
    phi = cosine_similarity(vectors, middle, dim=-1)
    return (phi.unsqueeze(-1) - phi.unsqueeze(-2)).abs()


def _cosine(vectors: Tensor, held: Tensor) -> Tensor:  # noqa: ARG001
    """1 − cos(c_k, c_j)."""
    unit = normalize(vectors, dim=-1, eps=1e-8)
    return 1 - unit @ unit.mT


def _l1(vectors: Tensor, held: Tensor) -> Tensor:  # noqa: ARG001
    return torch.cdist(vectors, vectors, p=1)


def _l2(vectors: Tensor, held: Tensor) -> Tensor:  # noqa: ARG001
    return exact_distances(vectors, vectors)


def _kl(vectors: Tensor, held: Tensor) -> Tensor:  # noqa: ARG001
    """KL(softmax c_k ‖ softmax c_j): prototypes are no distributions, so they are made ones."""
    log = log_softmax(vectors, dim=-1)
    return (log.exp() * log).sum(-1, keepdim=True) - log.exp() @ log.mT


_GAPS: dict[Likeness, Callable[[Tensor, Tensor], Tensor]] = {
    "angle": _angle,
    "cosine": _cosine,
    "l1": _l1,
    "l2": _l2,
    "kl": _kl,
}
