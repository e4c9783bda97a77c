"""Few-shot episodes: classes that nobody has trained on, told apart by a few examples of each."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from protofed.data.samples import Samples
from protofed.errors import UserError
from protofed.randomness import generator

QUERIES = 15
"""Images of each class that are told apart in an episode."""
AT_ONCE = 50
"""Episodes in one batch."""


class Episodes:
    """n-way k-shot: n classes, k examples of each, and the nearest mean of examples is the answer."""

    def __init__(self, novel: Samples, ways: int, shots: int, number: int, seed: int) -> None:
        """The same seed draws the same episodes, for every model and after every round."""
        self.x, self.shots = novel.x, shots
        self.rule = f"{ways}-way-{shots}-shot"
        self.rows = draw(novel.labels, ways, shots, number, generator(seed, "episodes"))

    def play(self, features: Tensor) -> Tensor:
        """The accuracy in each episode, in percent, with features [images, D]."""
        truth = torch.arange(self.rows.shape[1], device=features.device).repeat_interleave(QUERIES)
        scores = []
        for rows in torch.split(self.rows.to(features.device), AT_ONCE):
            drawn = features[rows]  # [episodes, ways, shots + queries, D]
            means = drawn[:, :, : self.shots].mean(2)
            queries = drawn[:, :, self.shots :].flatten(1, 2)
            distances = torch.cdist(queries, means, compute_mode="donot_use_mm_for_euclid_dist")
            scores.append(100 * (distances.argmin(-1) == truth).double().mean(1))
        return torch.cat(scores)


def draw(labels: Tensor, ways: int, shots: int, number: int, rng: torch.Generator) -> Tensor:
    """Rows of images, [episodes, ways, shots + queries]: classes, and images of each, without replacement."""
    counts = labels.bincount()
    classes = counts.nonzero().flatten()
    sizes = counts[classes]
    each = shots + QUERIES
    if len(classes) < ways:
        raise UserError("--episode-ways", ways, f"there are {len(classes)} novel classes with test images")
    if int(sizes.min()) < each:
        why = f"with {QUERIES} more to tell apart, a novel class that has {int(sizes.min())} test images is too small"
        raise UserError("--episode-shots", shots, why)
    grid = torch.full((len(classes), int(sizes.max())), -1)
    for row, label in enumerate(classes):
        found = (labels == label).nonzero().flatten()
        grid[row, : len(found)] = found
    parts = []
    for begin in range(0, number, AT_ONCE):
        size = min(AT_ONCE, number - begin)
        chosen = grid[torch.rand(size, len(classes), generator=rng).argsort(1)[:, :ways]]
        order = torch.rand(chosen.shape, generator=rng).masked_fill(chosen < 0, 2).argsort(-1)
        parts.append(chosen.gather(-1, order[..., :each]))
    return torch.cat(parts)


def interval(scores: Tensor) -> float:
    """Half the width of the 95 % confidence interval of a mean over episodes; scores [models, episodes]."""
    mean = scores.mean(0)
    return 1.96 * float(mean.std()) / math.sqrt(len(mean))
