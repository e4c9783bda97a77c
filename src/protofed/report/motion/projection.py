"""One linear projection of all rounds of several runs: what moves in the plane has moved in the models.

The rule of the nearest prototype knows distances only, and rotating all features of a model changes none. So each round
is moved to the middle, scaled to one size and rotated onto the round after it, and the last round of each run onto that
of the first run, by the same test samples (orthogonal Procrustes). Then one ridge regression, from the last rounds of
all runs, maps features to places on a ring, where each class has its own, similar classes beside each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.float64]
Classes = NDArray[np.int64]

RIDGE = 0.1
"""Of the mean variance of a feature."""
RING = 60
"""Classes up to which the ring is put in the order of likeness; beyond it nobody tells neighbours apart."""


class Cloud(NamedTuple):
    """One round of one run: features of the samples [n, d], and prototypes [p, d]."""

    features: Places
    prototypes: Places


def project(runs: Sequence[Sequence[Cloud]], labels: Classes, classes: int) -> list[list[Cloud]]:
    """Place all rounds of runs, which have seen the same samples, in one plane.

    Args:
        runs: of each run its rounds.
        labels: the classes of the samples [n].
        classes: the number of classes.

    Returns:
        The same with places [n, 2] and [p, 2].
    """
    from threadpoolctl import threadpool_limits

    with threadpool_limits(1):  # of matrices this small each product is done before a second thread has begun
        width = max(cloud.features.shape[1] for run in runs for cloud in run)
        turned: list[list[Cloud]] = []
        for run in runs:
            turned.append(_turned([_scaled(cloud, width) for cloud in run], turned[0][-1].features if turned else None))
        ends = np.concatenate([run[-1].features for run in turned])
        plane = _plane(ends, np.concatenate([labels] * len(turned)), classes)
        return [[Cloud(cloud.features @ plane, cloud.prototypes @ plane) for cloud in run] for run in turned]


def _scaled(cloud: Cloud, width: int) -> Cloud:
    """Around the middle of its features, of size 1, with zeros up to a common number of columns."""
    middle = cloud.features.mean(0)
    size = math.sqrt(((cloud.features - middle) ** 2).sum(1).mean()) or 1.0
    pad = ((0, 0), (0, width - len(middle)))
    features, prototypes = (np.pad((part - middle) / size, pad) for part in cloud)
    return Cloud(features, prototypes)


def _turned(run: Sequence[Cloud], onto: Places | None) -> list[Cloud]:
    """Each round rotated onto the one after it, the last one onto another run's."""
    turned: list[Cloud] = []
    for features, prototypes in reversed(run):
        turn = np.eye(features.shape[1])
        if onto is not None:
            left, _, right = np.linalg.svd(features.T @ onto)
            turn = left @ right
        turned.append(Cloud(features @ turn, prototypes @ turn))
        onto = turned[-1].features
    return turned[::-1]


def _plane(features: Places, labels: Classes, classes: int) -> Places:
    """[d, 2]: the linear map that brings features nearest to the places of their classes on a ring."""
    present = np.unique(labels)
    order = _ring(np.stack([features[labels == one].mean(0) for one in present]))
    places = np.zeros((classes, 2))
    for turn, at in enumerate(order):
        angle = math.tau * turn / len(order)
        places[present[at]] = math.cos(angle), math.sin(angle)
    spread = features.T @ features / len(features)
    ridge = (RIDGE * np.trace(spread) / len(spread) or 1.0) * np.eye(len(spread))
    plane = np.array(np.linalg.solve(spread + ridge, features.T @ places[labels] / len(features)), dtype=np.float64)
    if len(present) < 3:  # they lie on a line: upwards goes what differs most apart from that
        first = plane[:, 0] / (np.linalg.norm(plane[:, 0]) or 1.0)
        rest = features - np.outer(features @ first, first)
        plane[:, 1] = np.linalg.svd(rest, full_matrices=False)[2][0]
    return plane


def _ring(means: Places) -> list[int]:
    """An order of the classes in which neighbours are alike: a short tour of their means, by exchanging two steps."""
    order = list(range(len(means)))
    if not 3 < len(means) <= RING:
        return order
    far = np.linalg.norm(means[:, None] - means[None], axis=-1)
    better = True
    while better:
        better = False
        for i in range(len(order) - 1):
            for j in range(i + 2, len(order) + (i > 0)):
                a, b, c, d = order[i], order[i + 1], order[j - 1], order[j % len(order)]
                if far[a, c] + far[b, d] < far[a, b] + far[c, d] - 1e-9:
                    order[i + 1 : j] = order[i + 1 : j][::-1]
                    better = True
    return order


def clouds(rounds: int, features: Any, vectors: Any, places: Any) -> list[Cloud]:
    """The rounds of a run: features [rounds, n, d], prototypes [p, d] and the round of each."""
    return [Cloud(features[at], vectors[places == at]) for at in range(rounds)]
