"""Attacks by opponents who know the honest uploads of the round and the defence, as a family.

Every one makes the attackers' updates of the weights, layer by layer, and their prototypes, class by class, from those
of the honest clients: a mean, how much they scatter, and a harmful direction. What `Cones`, `Inside` and their
descendants need to know of the defence they find out by trying uploads on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from protofed.data.samples import Samples
from protofed.messages import Upload
from protofed.prototypes import Prototypes
from protofed.randomness import generator
from protofed.trust.attacker import Attack, Scene, clients_in, marked
from protofed.trust.defended import STATISTICS

EPSILON = 0.5
"""How much of the honest mean inner-product manipulation takes back."""

CLAIM = 10**6
"""Samples that a client says it has, of which nobody can count one."""

DRIFT = 25.0
"""Degrees by which a slow drift leaves what is honest: within what honest clients differ by."""

ANGLES = (180.0, 120.0, 95.0, 80.0, 65.0, 50.0, 35.0, 20.0, 10.0)
LENGTHS = (0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 90.0)
"""What a search tries first, in degrees off the honest mean and as multiples of the honest median's length."""

FULLY = 5

# What honest clients sent, and what harms.


class Scatter(NamedTuple):
    """The mean of honest vectors, their deviations, and the largest multiple of a direction that attackers may add."""

    mean: Tensor  # [P]
    std: Tensor  # [P]


def scatter(rows: Tensor) -> Scatter:
    """Of vectors [n, P]."""
    return Scatter(rows.mean(0), rows.std(0, correction=0))


def alie(rows: Tensor, attackers: int) -> Tensor:
    """The mean − z · std, z so that a majority seems to stand beyond it (Baruch et al., NeurIPS 2019)."""
    mean, std = scatter(rows)
    total = len(rows) + attackers
    supporters = total // 2 + 1 - attackers
    share = min(max((total - attackers - supporters) / (total - attackers), 0.5), 0.99)
    return mean - NormalDist().inv_cdf(share) * std


def min_max(rows: Tensor) -> Tensor:
    """The mean − γ · std, no further from any honest vector than two of them are (Shejwalkar et al., NDSS 2021)."""
    bound = torch.cdist(rows, rows).max()
    return _furthest(rows, lambda found: (rows - found).norm(dim=1).max() <= bound)


def min_sum(rows: Tensor) -> Tensor:
    """The same with the sum of squared distances to all honest vectors, no more than that of any of them."""
    bound = torch.cdist(rows, rows).square().sum(1).max()
    return _furthest(rows, lambda found: (rows - found).square().sum() <= bound)


def _furthest(rows: Tensor, passes: Callable[[Tensor], Tensor]) -> Tensor:
    """The mean − γ · std with the largest γ that passes, by bisection."""
    mean, std = scatter(rows)
    low, high = 0.0, 50.0
    for _ in range(24):
        middle = (low + high) / 2
        low, high = (middle, high) if bool(passes(mean - middle * std)) else (low, middle)
    return mean - low * std


def turned(mean: Tensor, towards: Tensor, degrees: float, length: float | Tensor) -> Tensor:
    """[..., P]: a vector of this length so many degrees from `mean`, in the plane of both."""
    along = normalize(mean, dim=-1, eps=torch.finfo(mean.dtype).tiny)
    across = towards - (towards * along).sum(-1, keepdim=True) * along
    across = normalize(across, dim=-1, eps=torch.finfo(mean.dtype).tiny)
    angle = math.radians(degrees)
    return length * (math.cos(angle) * along + math.sin(angle) * across)


class Bent(NamedTuple):
    """How far from what is honest attackers go."""

    degrees: float
    length: float


Directions = Mapping[str, Tensor]
"""What harms, by the name of a layer; where it is 0 or not there, a direction that stays the same."""


def bent(scene: Scene, how: Bent, directions: Directions | None = None) -> Upload:
    """Updates and prototypes turned from the honest mean towards what harms, longer than the honest median.

    Updates turn, layer by layer, in `directions`: unless given, towards undoing all that training has done; prototypes
    turn towards the next class.
    """
    towards = _undoing(scene) if directions is None else directions

    def of_weights(name: str, rows: Tensor) -> Tensor:
        harms = towards.get(name)
        if harms is None or not bool(harms.any()):
            harms = _drawn(scene, name, rows[0])
        return turned(rows.mean(0), harms.reshape(-1).to(rows), how.degrees, how.length * rows.norm(dim=1).median())

    def of_prototypes(means: Tensor) -> Tensor:  # [n, C, D] with nan for what is not held
        mean, present = _mean_of_held(means)
        length = torch.nan_to_num(means.norm(dim=-1).nanmedian(0).values).unsqueeze(-1)
        following = mean[_next(present)]
        return turned(mean, following - mean, how.degrees, how.length * length)

    return crafted(scene, of_weights, of_prototypes)


def _undoing(scene: Scene) -> Directions:
    """From the weights that were sent to those that were sent first, which attackers remember."""
    for name, tensor in scene.sent.weights.items():
        scene.memory.setdefault(f"first/{name}", tensor.clone())
    return {name: scene.memory[f"first/{name}"] - tensor for name, tensor in scene.sent.weights.items()}


def ascent(scene: Scene) -> Directions:
    """The gradient of the attackers' loss at what was sent; nothing where there is no loss of their own."""
    if scene.loss is None:
        return {}
    with torch.enable_grad():
        weights = {
            name: tensor.detach().clone().requires_grad_()
            for name, tensor in scene.sent.weights.items()
            if tensor.is_floating_point() and not name.endswith(STATISTICS)
        }
        if not weights:
            return {}
        found = torch.autograd.grad(
            scene.loss({**scene.sent.weights, **weights}), [*weights.values()], allow_unused=True
        )
    return {name: slope for name, slope in zip(weights, found, strict=True) if slope is not None}


def _drawn(scene: Scene, name: str, like: Tensor) -> Tensor:
    """A direction that stays the same in all rounds."""
    return torch.randn(like.shape, generator=generator(scene.clock.seed, "direction", name)).to(like)


def _mean_of_held(means: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of each class's holders [C, D], and which classes somebody holds [C]."""
    held = ~means.isnan().any(-1)
    return torch.nan_to_num(means.nanmean(0)), held.any(0)


def _next(present: Tensor) -> Tensor:
    """[C]: for each class the next one that somebody holds."""
    classes = len(present)
    held = present.nonzero().squeeze(1)
    if not len(held):
        return torch.arange(classes, device=present.device)
    return held[torch.searchsorted(held, torch.arange(classes, device=present.device), right=True) % len(held)]


def crafted(
    scene: Scene, of_weights: Callable[[str, Tensor], Tensor], of_prototypes: Callable[[Tensor], Tensor]
) -> Upload:
    """The attackers' uploads with other updates and class means; what a state cannot hold they do not send.

    `of_weights` makes one update [P] of a layer's name and the honest ones [n, P]; `of_prototypes` a vector for each
    class [C, D] of the honest class means [n, C, D], nan where a client does not hold the class. Each attacker keeps
    the classes that it has, and sends one prototype of each.
    """
    own, others = scene.own, scene.others
    changes, weights = others.changes(scene.sent), dict(own.weights)
    for name, rows in changes.items():
        if name.endswith(STATISTICS):
            continue
        found = of_weights(name, rows).expand(len(scene.rows), -1).view_as(own.weights[name])
        weights[name] = found + scene.sent.weights[name] if name in scene.sent.weights else found.clone()
    sets = {}
    for name, (vectors, counts) in own.prototypes.items():
        honest = others.prototypes[name]
        means = honest.class_mean().masked_fill(~honest.present.unsqueeze(-1), math.nan)
        found, number = torch.zeros_like(vectors), torch.zeros_like(counts)
        found[:, :, 0], number[:, :, 0] = of_prototypes(means), counts.sum(-1)
        sets[name] = Prototypes(found * (number > 0).unsqueeze(-1), number)
    return replace(own, weights=weights, prototypes=sets)


# How much an upload would harm.


def harm(scene: Scene, left: Upload) -> float:
    """How far what the server is about to average lies from the honest mean, and how much of its way it takes back.

    The mean of the weights by the samples that clients name, and of every class's prototypes over its holders. Beside
    that, by how much the loss on the attackers' own data is above that of the honest mean, in parts of the latter.
    """
    if not all(bool(tensor.isfinite().all()) for tensor in left.flat().values()):
        return math.inf
    if any(bool((_mean(left, tensor) < 0).any()) for name, tensor in left.weights.items() if _is_variance(name)):
        return math.inf
    total = 0.0
    honest, found = (_mean_update(uploads, scene) for uploads in (scene.others, left))
    if honest is not None and found is not None:
        length = honest.square().sum().clamp(min=torch.finfo(honest.dtype).tiny)
        total += float(1 - (found * honest).sum() / length + 0.5 * (found - honest).norm() / length.sqrt())
        total += _lost(scene, left)
    for name, sets in left.prototypes.items():
        (right, held), (wrong, kept) = (_held_mean(scene.others.prototypes[name]), _held_mean(sets))
        shift = (wrong - right).norm(dim=-1) / right.norm(dim=-1).clamp(min=torch.finfo(right.dtype).tiny)
        total += float(shift[held & kept].mean()) if bool((held & kept).any()) else 0.0
    return total


def _lost(scene: Scene, left: Upload) -> float:
    if scene.loss is None:
        return 0.0
    with torch.no_grad():
        found, honest = (float(scene.loss(_mean_weights(uploads, scene))) for uploads in (left, scene.others))
    return (found - honest) / max(honest, 0.1) if math.isfinite(found) else math.inf


def _mean_weights(uploads: Upload, scene: Scene) -> dict[str, Tensor]:
    """The model that the server would make of uploads by their mean; what is no number stays as it was sent."""
    floats = [name for name, tensor in uploads.weights.items() if tensor.is_floating_point()]
    found = {name: _mean(uploads, uploads.weights[name]).view(uploads.weights[name].shape[1:]) for name in floats}
    return {**scene.sent.weights, **found}


def _mean_update(uploads: Upload, scene: Scene) -> Tensor | None:
    rows = [rows for name, rows in uploads.changes(scene.sent).items() if not name.endswith(STATISTICS)]
    return torch.cat([_mean(uploads, some) for some in rows]) if rows and len(rows[0]) else None


def _mean(uploads: Upload, rows: Tensor) -> Tensor:
    """The mean of what clients sent, by the samples that they name."""
    share = uploads.numbers.get("samples", torch.ones(len(rows), device=rows.device)).to(rows)
    return (share / share.sum()) @ rows.flatten(1)


def _is_variance(name: str) -> bool:
    return name.endswith("running_var")


def _held_mean(sets: Prototypes) -> tuple[Tensor, Tensor]:
    held = sets.present.unsqueeze(-1)
    return (sets.class_mean() * held).sum(0) / held.sum(0).clamp(min=1), sets.present.any(0)


# The family.


class Absent(Attack):
    """Adds nothing: what is left then is what a defence that finds out every attacker at once would leave."""

    name: ClassVar[str] = "absent"
    about: ClassVar[str] = "sends the honest clients' mean: no defence can leave more than what is left then"

    def chosen(self, scene: Scene) -> Upload:
        """Weights by the samples that clients name, and each class's mean over its holders."""
        share = scene.others.numbers.get("samples")

        def of_weights(name: str, rows: Tensor) -> Tensor:  # noqa: ARG001
            return rows.mean(0) if share is None else share.to(rows) @ rows / share.sum().to(rows)

        return crafted(scene, of_weights, lambda means: _mean_of_held(means)[0])


class Alie(Attack):
    """A little is enough."""

    name: ClassVar[str] = "alie"
    about: ClassVar[str] = "sends the honest mean less as many standard deviations as a majority lies within (ALIE)"

    def chosen(self, scene: Scene) -> Upload:
        """Per layer and per class."""
        return _of_rows(scene, lambda rows: alie(rows, len(scene.rows)))


class MinMax(Attack):
    """As far as two honest clients are from each other."""

    name: ClassVar[str] = "min-max"
    about: ClassVar[str] = "goes back along the standard deviation, no further from anybody than honest clients are"

    def chosen(self, scene: Scene) -> Upload:
        """Per layer and per class."""
        return _of_rows(scene, min_max)


class MinSum(Attack):
    """The same with the sum of squared distances."""

    name: ClassVar[str] = "min-sum"
    about: ClassVar[str] = "the same with the sum of squared distances to all honest clients"

    def chosen(self, scene: Scene) -> Upload:
        """Per layer and per class."""
        return _of_rows(scene, min_sum)


class InnerProduct(Attack):
    """Takes a part of the honest mean back (IPM)."""

    name: ClassVar[str] = "ipm"
    about: ClassVar[str] = f"sends {-EPSILON:g} times the honest mean (IPM)"

    def chosen(self, scene: Scene) -> Upload:
        """Per layer and per class."""
        return _of_rows(scene, lambda rows: -EPSILON * rows.mean(0))


def _of_rows(scene: Scene, rule: Callable[[Tensor], Tensor]) -> Upload:
    """A rule for honest vectors [n, P], for every layer and every class."""

    def of_prototypes(means: Tensor) -> Tensor:
        held = ~means.isnan().any(-1)
        found = torch.zeros_like(means[0])
        for label in held.any(0).nonzero().squeeze(1).tolist():
            found[label] = rule(means[held[:, label], label])
        return found

    return crafted(scene, lambda _, rows: rule(rows), of_prototypes)


class Cones(Attack):
    """At the widest angle and the greatest length that do harm through the defence."""

    name: ClassVar[str] = "cones"
    about: ClassVar[str] = "turns updates and prototypes as far, and makes them as long, as does most harm: by search"

    def chosen(self, scene: Scene) -> Upload:
        """The search is for one angle and one length, for all layers and classes."""
        return bent(scene, searched(scene))


class LossGradient(Attack):
    """The same towards where the attackers' own loss rises."""

    name: ClassVar[str] = "loss-gradient"
    about: ClassVar[str] = "the same as cones, towards where the loss on the attackers' own data rises fastest"

    def chosen(self, scene: Scene) -> Upload:
        """Where there is no such loss, in directions that stay the same."""
        slope = ascent(scene)
        return bent(scene, searched(scene, slope, "slope"), slope)


def searched(scene: Scene, directions: Directions | None = None, remembered: str = "cone") -> Bent:
    """The angle and the length that do most harm through the defence: a grid, then halves of its steps.

    What was found is `remembered` by this name. Between two searches of the whole grid, every FULLY rounds, it goes on
    from the round before, while that does harm.
    """
    tried: dict[Bent, float] = {}

    def best(angles: Iterable[float], lengths: Sequence[float]) -> Bent:
        for how in (Bent(degrees, length) for degrees in angles for length in lengths):
            if how not in tried and 0 < how.degrees <= 180:
                tried[how] = harm(scene, scene.tried(bent(scene, how, directions)))
        return max(tried, key=lambda how: tried[how])

    def near(found: Bent) -> Bent:
        best((found.degrees, found.degrees - 7, found.degrees + 7), (found.length,))
        return best((found.degrees,), (0.7 * found.length, 1.4 * found.length))

    found, before = None, scene.memory.get(remembered)
    if scene.clock.round % FULLY and before is not None:
        degrees, length, harmed = before.tolist()
        found = near(Bent(degrees, length))
    if found is None or tried[found] < 0.7 * harmed:  # what passed before does so no longer
        found = near(best(best(ANGLES, (1.0, 2.9))[:1], LENGTHS))
    scene.memory[remembered] = torch.tensor([*found, tried[found]], dtype=torch.float64)
    return found


class Inside(Cones):
    """Prototypes alone, inside the filter."""

    name: ClassVar[str] = "inside"
    about: ClassVar[str] = "the same with prototypes alone; its weights are honest"

    def chosen(self, scene: Scene) -> Upload:
        """Each turns towards the next class."""
        return replace(super().chosen(scene), weights=scene.own.weights)


class SplitPrototypes(Attack):
    """Two prototypes of a class far from it, whose mean is that of the honest clients."""

    name: ClassVar[str] = "split"
    about: ClassVar[str] = "sends two prototypes of a class, 3 times as long, with the honest class mean"

    def chosen(self, scene: Scene) -> Upload:
        """Where a method sends one prototype of a class, they cannot be split."""
        own = scene.own
        sets = {}
        for name, (vectors, counts) in own.prototypes.items():
            if counts.shape[-1] < 2:
                sets[name] = Prototypes(vectors, counts)
                continue
            honest = scene.others.prototypes[name]
            mean, present = _mean_of_held(honest.class_mean().masked_fill(~honest.present.unsqueeze(-1), math.nan))
            away = 3 * mean.norm(dim=-1, keepdim=True) * normalize(mean[_next(present)] - mean, dim=-1)
            found, number = torch.zeros_like(vectors), torch.zeros_like(counts)
            total = counts.sum(-1)
            for slot, sign in enumerate((1, -1)):
                found[:, :, slot] = mean + sign * away
                number[:, :, slot] = torch.where(total > 1, (total - slot + 1) // 2, total * (1 - slot))
            sets[name] = Prototypes(found * (number > 0).unsqueeze(-1), number)
        return replace(own, prototypes=sets)


class Declared(Cones):
    """The same as `Cones`, by who says that it has a million samples."""

    name: ClassVar[str] = "declared"
    about: ClassVar[str] = f"cones of who declares {CLAIM:,} training samples"

    def declares(self, samples: int) -> int:  # noqa: ARG002
        """As many as nobody has."""
        return CLAIM

    def chosen(self, scene: Scene) -> Upload:
        """What it declares is in its upload too."""
        return super().chosen(_claiming(scene))


def _claiming(scene: Scene) -> Scene:
    """The same with attackers that say they have trained on as many samples as they declare."""
    numbers = dict(scene.uploads.numbers)
    if "samples" in numbers:
        numbers["samples"] = numbers["samples"].index_fill(0, scene.rows, CLAIM)
    return scene._replace(uploads=replace(scene.uploads, numbers=numbers))


class Sybils(Attack):
    """One opponent with many clients, which all send the same."""

    name: ClassVar[str] = "sybils"
    about: ClassVar[str] = "all train on wrong labels, and send the mean of what they have learned, three times as far"

    def poison(self, train: Samples, classes: int) -> Samples:
        """Label y becomes y + 1."""
        return replace(train, labels=(train.labels + 1) % classes)

    def chosen(self, scene: Scene) -> Upload:
        """Each has prototypes of its own data."""
        weights = dict(scene.own.weights)
        for name, rows in scene.own.changes(scene.sent).items():
            if not name.endswith(STATISTICS):
                common = (3 * rows.mean(0)).expand_as(rows).view_as(weights[name])
                weights[name] = common + scene.sent.weights[name] if name in scene.sent.weights else common.clone()
        return replace(scene.own, weights=weights)


class SlowDrift(Attack):
    """A little in the same direction in every round."""

    name: ClassVar[str] = "slow-drift"
    about: ClassVar[str] = f"turns all it sends by {DRIFT:g} degrees towards the same harm in every round"

    def chosen(self, scene: Scene) -> Upload:
        """As long as honest ones are."""
        return bent(scene, Bent(DRIFT, 1.0))


class QuietBackdoor(Attack):
    """A backdoor within the lengths of the others."""

    name: ClassVar[str] = "quiet-backdoor"
    backdoor: ClassVar[bool] = True
    about: ClassVar[str] = "trains half of its images with the mark of `backdoor`; its update is no longer than others'"

    def poison(self, train: Samples, classes: int) -> Samples:  # noqa: ARG002
        """Every other image gets the trigger and the label."""
        return marked(train, self.name)

    def chosen(self, scene: Scene) -> Upload:
        """Three times what the backdoor adds to the honest mean, but no longer than the honest median."""
        weights, honest = dict(scene.own.weights), scene.others.changes(scene.sent)
        for name, rows in scene.own.changes(scene.sent).items():
            if name.endswith(STATISTICS):
                continue
            wanted = honest[name].mean(0) + 3 * (rows - honest[name].mean(0))
            bound = honest[name].norm(dim=1).median()
            length = wanted.norm(dim=1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
            short = (wanted * (bound / length).clamp(max=1)).view_as(weights[name])
            weights[name] = short + scene.sent.weights[name] if name in scene.sent.weights else short.clone()
        return replace(scene.own, weights=weights)


class ImpossibleState(Attack):
    """A statistic of BatchNorm that no data has."""

    name: ClassVar[str] = "impossible-state"
    about: ClassVar[str] = "sends one running variance of every layer so far below zero that the mean of all is, too"

    def chosen(self, scene: Scene) -> Upload:
        """The smallest variance, as that takes the shortest update."""
        share = scene.uploads.numbers.get("samples", scene.rows.new_ones(clients_in(scene.uploads)))
        outweighed = float(share.sum() / share[scene.rows].sum())
        weights = dict(scene.own.weights)
        for name, tensor in weights.items():
            if _is_variance(name):
                mean = scene.others.weights[name].mean(0)
                found = tensor.clone()
                found[:, mean.argmin()] = -1.5 * outweighed * mean.min()
                weights[name] = found
        return replace(scene.own, weights=weights)


class Adaptive(Declared):
    """The worst of the family for the defence at hand."""

    name: ClassVar[str] = "adaptive"
    about: ClassVar[str] = "tries the others of the family on the defence in every round, and sends what harms most"

    def chosen(self, scene: Scene) -> Upload:
        """Those that need no poisoned data; all declare a million samples."""
        scene, one = _claiming(scene), (self.who, self.seed)
        family = (
            *(Cones, LossGradient, Inside, Alie, MinMax, MinSum, InnerProduct),
            *(SplitPrototypes, SlowDrift, ImpossibleState),
        )
        answers = [attack(*one).chosen(scene) for attack in family]
        return max(answers, key=lambda answer: harm(scene, scene.tried(answer)))


TAILORED: tuple[type[Attack], ...] = (
    *(Absent, Alie, MinMax, MinSum, InnerProduct, Cones, LossGradient, Inside, SplitPrototypes),
    *(Declared, Sybils, SlowDrift, QuietBackdoor, ImpossibleState, Adaptive),
)
