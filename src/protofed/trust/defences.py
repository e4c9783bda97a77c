"""Robust aggregation, composed with any method: uploads go in, and uploads that the method may believe come out.

A defence looks at a round's uploads and at what was sent to the clients, and gives as many uploads back, so that every
method aggregates them as ever: a median of weights, for example, becomes everybody's weights. Each sees weights or
prototypes alone, so defences for prototypes also serve federations of mixed architectures, which share nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.errors import unknown
from protofed.messages import Broadcast, Upload
from protofed.prototypes import Prototypes
from protofed.trust.default_defence import default
from protofed.trust.defended import NOTHING, Context, Defence, Defended, coordinate_median
from protofed.trust.screening import FAR, MOST

FEARED = 0.25
"""The part of the clients that may be hostile, for Krum and trimmed means."""

STEPS = 200
"""Of Weiszfeld's algorithm, which leaves an update that it begins at slowly: 50 were too few for one of three."""

LENGTHS = "lengths"
"""The defence that rejects what is far longer than the rest of the round; `Screening` does it, first of all."""

ANGLE_OF_UPDATES, ANGLE_OF_PROTOTYPES, LENGTH = 0.3, 0.1, 3.0
"""Differences in the cosine with the median, and in length, that are no offence: honest clients differ too."""

SPREAD = 1.4826
"""A median of absolute deviations times this is a standard deviation, if the deviations are Gaussian."""


def find_defences(names: str) -> list[Defence]:
    """Those named, in their order, comma-separated; none for "none". LENGTHS is a matter of screening."""
    wanted = [] if names == "none" else _named(names)
    for name in wanted:
        if name not in (*DEFENCES, LENGTHS):
            raise unknown("--defence", name, ["none", *DEFENCES, LENGTHS], see="protofed defences")
    return [DEFENCES[name] for name in wanted if name != LENGTHS]


def asks_for_lengths(names: str) -> bool:
    """Whether the check of lengths is among the defences that are named."""
    return LENGTHS in _named(names)


def _named(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]


# Weights: rows are clients, columns are what their training has changed.


def trimmed_mean(updates: Tensor) -> Tensor:
    """The mean of every coordinate without the largest and the smallest values (Yin et al., ICML 2018)."""
    cut = min(math.ceil(FEARED * len(updates)), (len(updates) - 1) // 2)
    return updates.sort(0).values[cut : len(updates) - cut].mean(0)


def geometric_median(updates: Tensor) -> Tensor:
    """The point with the least sum of distances (Pillutla et al., IEEE TSP 2022), by Weiszfeld's algorithm."""
    middle = coordinate_median(updates)
    for _ in range(STEPS):
        distances = (updates - middle).norm(dim=1)
        nearest = (1e-6 * distances.median()).clamp(min=torch.finfo(updates.dtype).tiny)  # none is at no distance
        share = nearest / distances.clamp(min=nearest)
        middle = (share / share.sum()) @ updates
    return middle


def krum_scores(updates: Tensor) -> Tensor:
    """[N]: the sum of squared distances to the n − f − 2 nearest others (Blanchard et al., NeurIPS 2017)."""
    near = max(1, len(updates) - math.ceil(FEARED * len(updates)) - 2)
    distances = torch.cdist(updates, updates, compute_mode="donot_use_mm_for_euclid_dist").square()
    return distances.sort(1).values[:, 1 : near + 1].sum(1)  # the first is the distance to itself


def krum(updates: Tensor) -> Tensor:
    """The update that has the nearest others."""
    return updates[krum_scores(updates).argmin()]


def multi_krum(updates: Tensor) -> Tensor:
    """The mean of the n − f updates that have the nearest others."""
    best = krum_scores(updates).argsort(stable=True)[: len(updates) - math.ceil(FEARED * len(updates))]
    return updates[best].mean(0)


def norm_clip(updates: Tensor, times: float = 1.0) -> Tensor:
    """Each update, made no longer than the median of all (Sun et al., 2019), or `times` that."""
    norms = updates.norm(dim=1, keepdim=True)
    return updates * torch.clamp(times * norms.median() / norms.clamp(min=torch.finfo(updates.dtype).tiny), max=1)


def of_weights(rule: Callable[[Tensor], Tensor]) -> Defence:
    """A rule for updates, as a defence; where the rule gives one, it is everybody's."""

    def defence(uploads: Upload, sent: Broadcast, known: Context = NOTHING) -> Defended:  # noqa: ARG001
        if not uploads.weights:
            return Defended(uploads)
        updates = _updates(uploads, sent)
        return Defended(_updated(uploads, sent, rule(updates).expand_as(updates)))

    return defence


# Prototypes, class by class.


def of_prototypes(rule: Callable[[Tensor], Tensor]) -> Defence:
    """A rule for the prototypes of a class, [n, D] → [D], as a defence: all of the class's become that one.

    A client's mean of the class is its vote: who sends more prototypes has no more of it.
    """

    def defence(uploads: Upload, sent: Broadcast, known: Context = NOTHING) -> Defended:  # noqa: ARG001
        sets = {}
        for name, held in uploads.prototypes.items():
            votes, found = held.class_mean(), held.vectors.clone()
            for label in held.present.any(0).nonzero().squeeze(1).tolist():
                found[:, label][held.counts[:, label] > 0] = rule(votes[held.present[:, label], label])
            sets[name] = Prototypes(found, held.counts)
        return Defended(replace(uploads, prototypes=sets))

    return defence


def outlying_prototypes(sets: Prototypes) -> Tensor:
    """[N, C]: whose prototypes of a class point elsewhere than the others', or are much longer or shorter.

    A client's mean of the class is compared with the coordinate median over the clients that hold the class. Of two
    holders nobody can say which is right.
    """
    means, present = sets.class_mean(), sets.present
    out = torch.zeros_like(present)
    for label in range(present.shape[1]):
        holders = present[:, label].nonzero().squeeze(1)
        if len(holders) > 2:
            out[holders, label] = _unlike(means[holders, label], angle=ANGLE_OF_PROTOTYPES)
    return out


def angular_filter(uploads: Upload, sent: Broadcast, known: Context = NOTHING) -> Defended:  # noqa: ARG001
    """Prototypes that are outliers among those of their class are taken out."""
    sets = {name: _without(found, outlying_prototypes(found)) for name, found in uploads.prototypes.items()}
    return Defended(replace(uploads, prototypes=sets))


# Both.


def outliers(uploads: Upload, sent: Broadcast, known: Context = NOTHING) -> Defended:  # noqa: ARG001
    """A client whose update is an outlier, or half of whose classes have outlying prototypes, is taken out wholly.

    Outlying prototypes of the others are taken out too. An excluded client's weights become the mean of the others',
    so that they count for nothing, and its sums become 0. Of the others, no update is longer than LENGTH times the
    median: where honest clients differ much, nobody can be blamed for length, but nobody should outweigh the rest.
    """
    outlying = {name: outlying_prototypes(found) for name, found in uploads.prototypes.items()}
    verdicts = [
        2 * out.sum(1) >= uploads.prototypes[name].present.sum(1).clamp(min=1) for name, out in outlying.items()
    ]
    if uploads.weights:
        updates = _updates(uploads, sent)
        verdicts.append(_unlike(updates, angle=ANGLE_OF_UPDATES))
    if not verdicts:
        return Defended(uploads)
    out = torch.stack(verdicts).any(0)
    if 2 * int(out.sum()) >= len(out):  # where most are unlike the rest, nobody can be blamed
        out = torch.zeros_like(out)
    sets = {name: _without(found, outlying[name] | out.unsqueeze(1)) for name, found in uploads.prototypes.items()}
    kept = (~out).nonzero().squeeze(1)
    sums = {name: torch.zeros_like(t).index_copy(0, kept, t[kept]) for name, t in uploads.sums.items()}
    defended = replace(uploads, prototypes=sets, sums=sums)
    if uploads.weights:
        bounded = norm_clip(updates, LENGTH)
        defended = _updated(defended, sent, torch.where(out.unsqueeze(1), bounded[~out].mean(0), bounded))
    return Defended(defended, out.nonzero().squeeze(1).tolist())


def _unlike(rows: Tensor, angle: float) -> Tensor:
    """[n]: which vectors lie further from the coordinate median's direction, or differ more in length, than others do.

    By three standard deviations, estimated from the median of absolute deviations, but no less than `angle` in the
    cosine and a factor of LENGTH: where all are nearly the same, a little more is no offence.
    """
    tiny = torch.finfo(rows.dtype).tiny
    cosines = normalize(rows, dim=1, eps=tiny) @ normalize(coordinate_median(rows), dim=0, eps=tiny)
    lengths = rows.norm(dim=1).clamp(min=tiny).log()
    turned, stretched = cosines.median() - cosines, (lengths - lengths.median()).abs()
    return (turned > _limit(turned.abs(), angle)).logical_or(stretched > _limit(stretched, math.log(LENGTH)))


def _limit(deviations: Tensor, least: float) -> float:
    return max(least, 3 * SPREAD * float(deviations.median()))


def _without(found: Prototypes, out: Tensor) -> Prototypes:
    """The same without some clients' prototypes of some classes, [N, C]."""
    keeps = ~out.unsqueeze(-1)
    return Prototypes(found.vectors * keeps.unsqueeze(-1), found.counts * keeps)


def _updates(uploads: Upload, sent: Broadcast) -> Tensor:
    """[N, P]: what clients have changed of the weights they were sent, side by side."""
    return torch.cat(list(uploads.changes(sent).values()), 1)


def _updated(uploads: Upload, sent: Broadcast, updates: Tensor) -> Upload:
    """The same uploads with other updates of the weights."""
    weights, begin = dict(uploads.weights), 0
    for name, tensor in uploads.weights.items():
        if tensor.is_floating_point():
            end = begin + tensor[0].numel()
            change = updates[:, begin:end].view_as(tensor)
            weights[name] = change + sent.weights[name] if name in sent.weights else change.clone()
            begin = end
    return replace(uploads, weights=weights)


_OF_WEIGHTS = {
    "median": coordinate_median,
    "trimmed-mean": trimmed_mean,
    "geometric-median": geometric_median,
    "krum": krum,
    "multi-krum": multi_krum,
    "norm-clip": norm_clip,
}
_OF_PROTOTYPES = {"prototype-median": coordinate_median, "prototype-trimmed-mean": trimmed_mean}

DEFENCES: Mapping[str, Defence] = {
    "default": default,
    "outliers": outliers,
    **{name: of_weights(rule) for name, rule in _OF_WEIGHTS.items()},
    **{name: of_prototypes(rule) for name, rule in _OF_PROTOTYPES.items()},
    "prototype-angle": angular_filter,
}
"""The first is the one that docs/security.md recommends."""


def describe() -> list[dict[str, str]]:
    """Every defence: its name, what it looks at, and its description."""
    both = {"default": default, "outliers": outliers}
    rules = {**_OF_WEIGHTS, **_OF_PROTOTYPES, **both, "prototype-angle": angular_filter}
    kinds = {**dict.fromkeys(both, "weights, prototypes"), **dict.fromkeys(_OF_WEIGHTS, "weights")}
    rows = [(name, kinds.get(name, "prototypes"), (rules[name].__doc__ or "").splitlines()[0]) for name in DEFENCES]
    about = f"Reject what is {FAR:g} times as long as the median, and cap declared samples at {MOST} medians."
    rows.append((LENGTHS, "weights, prototypes", about))
    return [dict(zip(("name", "of", "description"), row, strict=True)) for row in rows]
