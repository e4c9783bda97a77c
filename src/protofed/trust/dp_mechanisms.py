"""Differential privacy: clipping and noise for what leaves a client or is summed by the server.

Client-level hides whether a client takes part at all: the server clips what each client adds and noises the sum.
Example-level hides any one training sample: what a client sends is noised before it leaves. What a run may promise,
and when its budget is spent, is in engines/private.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.prototypes import Prototypes
from protofed.randomness import noise

SURE = 3
"""A class is there if its noisy count is above so many deviations of the noise; by chance, 1 in 700 is."""
SAYING = 0.5
"""The part of the clip that it takes a client to say that it holds every class."""


def enough(upload: Upload, least: Sequence[int]) -> Upload:
    """The same without prototypes that stand for fewer samples than each client's least number."""
    sets = {}
    for name, (vectors, counts) in upload.prototypes.items():
        keeps = counts >= torch.tensor(least, device=counts.device).view(-1, 1, 1)
        sets[name] = Prototypes(vectors.where(keeps.unsqueeze(-1), 0), counts.where(keeps, 0))
    return replace(upload, prototypes=sets)


def gaussian(like: Tensor, deviation: float, draws: np.random.Generator) -> Tensor:
    """Noise in the form of a tensor; drawn on the host, so that every device gets the same."""
    return deviation * torch.from_numpy(draws.standard_normal(tuple(like.shape))).to(like)


def factors(norms: Tensor, clip: float | None) -> Tensor:
    """What vectors of these lengths are multiplied by to be no longer than `clip`."""
    if clip is None:
        return torch.ones_like(norms)
    return (clip / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)


def flag(uploads: Upload, clip: float | None) -> float:
    """The entry of a client's contribution that says that it holds a class; all of them together are SAYING · clip."""
    slots = sum(found.counts.shape[1:].numel() for found in uploads.prototypes.values())
    return 0.0 if clip is None else SAYING * clip / math.sqrt(slots)


def lengths(uploads: Upload, sent: Broadcast, clip: float | None) -> Tensor:
    """[N]: of what each client adds: its change of the weights, its prototypes, and a flag for each of them."""
    parts = [change.double().square().sum(1) for change in uploads.changes(sent).values()]
    for vectors, counts in uploads.prototypes.values():
        held = (counts > 0).double()
        parts.append((vectors.double().square().sum(-1) * held).flatten(1).sum(1))
        parts.append(flag(uploads, clip) ** 2 * held.flatten(1).sum(1))
    parts += [tensor.double().unsqueeze(-1).flatten(1).square().sum(1) for tensor in uploads.sums.values()]
    return torch.stack(parts).sum(0).sqrt()


def private_sum(uploads: Upload, sent: Broadcast, expected: float, experiment: Experiment, round: int) -> Upload:
    """One client's upload that stands for all: the noisy sum of what each adds, clipped.

    Weights are w + (Σ_k s_k (w_k − w) + noise) / expected, where s_k ≤ 1 clips client k; prototypes are noisy sums over
    the noisy number of holders, and sums Σ_k s_k S_k + noise, rounded if they are whole. All clients weigh the same.
    Without clip and noise it is the plain mean, or the plain sum, to the bit.
    """
    clip, draws = experiment.clip, noise(experiment.seed, "privacy", round)
    norms = lengths(uploads, sent, clip)
    finite = norms.isfinite().nonzero().squeeze(1)  # what is not finite would be clipped to what is none either
    uploads, scale = uploads.reorder(finite), factors(norms[finite], clip)
    deviation = 0.0 if clip is None else experiment.noise * clip
    share, rest = scale / expected, float((expected - scale.sum()) / expected)
    weights = {}
    for name, tensor in uploads.weights.items():
        old = sent.weights[name]
        if tensor.is_floating_point():
            mean = torch.tensordot(share.to(tensor.dtype), tensor, dims=1) + rest * old
            old = mean + gaussian(mean, deviation / expected, draws)
        weights[name] = old.unsqueeze(0)  # what is counted in whole numbers is not released
    sets = {}
    for name, (vectors, counts) in uploads.prototypes.items():
        added = scale.to(vectors.dtype).view(-1, 1, 1) * (counts > 0)
        spread = deviation / flag(uploads, clip) if deviation else 0.0
        holders = added.sum(0) + gaussian(added.sum(0), spread, draws)
        present = holders > SURE * spread
        holders = holders.where(present, 1)
        means = (added / holders).unsqueeze(-1).mul(vectors).sum(0)
        means = means + gaussian(means, deviation, draws) / holders.unsqueeze(-1)
        number = holders.round().clamp(min=1).where(present, 0)
        sets[name] = Prototypes(means.where(present.unsqueeze(-1), 0).unsqueeze(0), number.unsqueeze(0))
    sums = {}
    for name, tensor in uploads.sums.items():
        total = _scaled(tensor, scale).sum(0, keepdim=True)
        sums[name] = _like(total + gaussian(total, deviation, draws), tensor)
    return Upload(weights, sets, {"samples": torch.ones(1, device=scale.device)} if weights else {}, sums)


def clipped_and_noised(
    upload: Upload, sent: Broadcast, clip: float, noise: float, gaussian: Callable[[Tensor, float], Tensor]
) -> Upload:
    """What one client sends where its owner asks for it: its change of the weights, its prototypes and its sums,
    s (w_k − w), s p and s S, where s ≤ 1 scales them together to the norm `clip`, each number with Gaussian noise of
    `noise` · `clip` from `gaussian`, which takes a tensor of the form and a deviation.

    Numbers of samples, and what a BatchNorm counts, are sent as they are.
    """
    changes = upload.changes(sent)
    vectors = [(found.vectors * (found.counts > 0).unsqueeze(-1)).flatten(1) for found in upload.prototypes.values()]
    sums = [tensor.unsqueeze(-1).flatten(1) for tensor in upload.sums.values()]
    squares = [part.double().square().sum(1) for part in (*changes.values(), *vectors, *sums)]
    if not squares:
        return upload
    scale, deviation = factors(torch.stack(squares).sum(0).sqrt(), clip), noise * clip
    weights = dict(upload.weights)
    for name, change in changes.items():
        tensor = upload.weights[name]
        moved = (scale.to(change.dtype).view(-1, 1) * change).view_as(tensor)
        moved = moved + gaussian(moved, deviation)
        weights[name] = moved + sent.weights[name] if name in sent.weights else moved
    sets = {}
    for name, (found, counts) in upload.prototypes.items():
        moved = scale.to(found.dtype).view(-1, 1, 1, 1) * found
        moved = moved + gaussian(moved, deviation)
        sets[name] = Prototypes(moved.where((counts > 0).unsqueeze(-1), 0), counts)
    noised = {}
    for name, total in upload.sums.items():
        moved = _scaled(total, scale)
        noised[name] = _like(moved + gaussian(moved, deviation), total)
    return Upload(weights, sets, upload.numbers, noised)


def _scaled(tensor: Tensor, scale: Tensor) -> Tensor:
    """Each client's tensor, [N, ...], times a factor [N]; a fraction of a whole number is none."""
    tensor = tensor if tensor.is_floating_point() else tensor.double()
    return scale.to(tensor.dtype).view(-1, *(1,) * (tensor.dim() - 1)) * tensor


def _like(tensor: Tensor, other: Tensor) -> Tensor:
    """With the other's type, which a message promises."""
    return tensor if other.is_floating_point() else tensor.round().to(other.dtype)


def private_means(
    features: Tensor, labels: Tensor, classes: int, experiment: Experiment, draws: np.random.Generator
) -> Prototypes:
    """Class means [1, C, 1, D] of one client's features [1, n, D], each clipped: noisy sums over noisy counts.

    A sample moves one class's sum by up to `clip` and its count by 1. In units in which both weigh the same that is
    √2 · clip together, of which the noise is `noise` times. Too small a noisy count is not sent.
    """
    clip, deviation = experiment.clip, experiment.noise * math.sqrt(2)
    norms = features.double().norm(dim=-1, keepdim=True)
    features = features * factors(norms, clip).to(features.dtype)
    member = (labels.unsqueeze(-1) == torch.arange(classes, device=labels.device)).to(features.dtype)
    sums, counts = member.mT @ features, member.sum(-2)
    sums = sums + gaussian(sums, deviation * (clip or 0.0), draws)
    counts = counts + gaussian(counts, deviation, draws)
    present = (counts > SURE * deviation) & (counts >= experiment.min_count)
    means = (sums / counts.where(present, 1).unsqueeze(-1)).where(present.unsqueeze(-1), 0)
    return Prototypes(means.unsqueeze(-2), counts.round().clamp(min=1).where(present, 0).unsqueeze(-1))


def private_gradient(
    each: Mapping[str, Tensor], size: float, experiment: Experiment, draws: np.random.Generator
) -> dict[str, Tensor]:
    """(Σ_i clipped g_i + noise) / size from the gradients of single samples, [B, ...]."""
    squares = [gradient.unsqueeze(-1).flatten(1).double().square().sum(1) for gradient in each.values()]
    scale = factors(torch.stack(squares).sum(0).sqrt(), experiment.clip)
    deviation = experiment.noise * (experiment.clip or 0.0)
    sums = {name: torch.tensordot(scale.to(gradient.dtype), gradient, dims=1) for name, gradient in each.items()}
    return {name: (total + gaussian(total, deviation, draws)) / size for name, total in sums.items()}


def sampling_rate(experiment: Experiment, size: int) -> float:
    """With what probability a client's sample is in a batch of DP-SGD."""
    return min(1.0, experiment.batch_size / size)
