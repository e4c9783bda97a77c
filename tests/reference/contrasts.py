"""The contrasts with a pool, one cosine at a time, left to autograd: slow, obvious, and with gradients."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.prototypes import Prototypes


def cosine(z: Tensor, u: Tensor) -> Tensor:
    """z·u / (|z| |u|), lengths at least 1e-8."""
    return normalize(z, dim=0, eps=1e-8) @ normalize(u, dim=0, eps=1e-8)


def slot_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """MP-FedCL Eq. 11 with P(y) = {y}."""
    clients, classes, slots = pool.counts.shape
    losses = []
    for z, y in zip(features, labels.tolist(), strict=True):
        terms = []
        for i in range(clients):
            for k in range(slots):
                logits = {
                    c: cosine(z, pool.vectors[i, c, k]) / temperature
                    for c in range(classes)
                    if pool.counts[i, c, k] > 0
                }
                if y in logits:
                    terms.append(torch.stack(list(logits.values())).logsumexp(0) - logits[y])
        losses.append(torch.stack(terms).mean() if terms else 0 * z.sum())
    return torch.stack(losses)


def pooled_contrast(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """DP-FedCL: every prototype of the own class against the whole pool."""
    places = (pool.counts > 0).nonzero().tolist()
    losses = []
    for z, y in zip(features, labels.tolist(), strict=True):
        logits = [(c, cosine(z, pool.vectors[i, c, m]) / temperature) for i, c, m in places]
        positives = [logit for c, logit in logits if c == y]
        everyone = torch.stack([logit for _, logit in logits]).logsumexp(0) if logits else z.new_zeros(())
        losses.append(torch.stack([everyone - p for p in positives]).mean() if positives else 0 * z.sum())
    return torch.stack(losses)
