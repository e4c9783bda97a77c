"""Measures of answers beside accuracy, for many clients at once: see docs/metrics.md.

Values are in percent, nan where a measure is not defined. Means over classes are over those that the test set has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.data.federation import Federation
from protofed.evaluation.names import CLASS, OF_CLIENTS, SHOTS
from protofed.prototypes import Prototypes, class_distances, nearest_class

BINS = 15
"""Of equal width, in which confidence is held against accuracy."""
MANY, FEW = 100, 20
"""A class with more training samples in the federation has many; one with fewer has few."""


class Choices(NamedTuple):
    """What a rule says of images; what only metrics need is there where they are asked for."""

    hits: Tensor  # [models, images]
    classes: Tensor | None = None  # that were chosen [models, images], -1 for none
    scores: Tensor | None = None  # of each class, by which images can be ordered [models, images, C]
    confidence: Tensor | None = None  # the probability of the chosen class [models, images]

    @staticmethod
    def joined(parts: Sequence[Choices]) -> Choices:
        """Of more images, one after the other."""
        fields = [None if some[0] is None else torch.cat(some, 1) for some in zip(*parts, strict=True)]
        return Choices(*fields)  # type: ignore[arg-type]  # hits are always there


class Metrics:
    """The measures that a run asks for, beside accuracies."""

    def __init__(self, names: Sequence[str], federation: Federation) -> None:
        """`names` are those of `asked_metrics`."""
        self.names = tuple(name for name in names if name not in OF_CLIENTS)  # those need no answers
        self.classes = federation.classes
        self.sizes = federation.class_sizes

    def by_logits(self, logits: Tensor, labels: Tensor) -> Choices:
        """What logits [models, B, C] answer."""
        chosen = logits.argmax(-1)
        if not self.names:
            return Choices(chosen == labels)
        scores = logits.log_softmax(-1) if "auc" in self.names else None
        confidence = logits.softmax(-1).amax(-1) if "ece" in self.names else None
        return Choices(chosen == labels, chosen, scores, confidence)

    def by_distance(self, features: Tensor, prototypes: Prototypes, allowed: Tensor | None, labels: Tensor) -> Choices:
        """What the nearest of the allowed prototypes answers for features [models, B, D]."""
        chosen = nearest_class(features, prototypes, allowed)
        if not self.names:
            return Choices(chosen == labels)
        scores = -class_distances(features, prototypes, allowed) if "auc" in self.names else None
        return Choices(chosen == labels, chosen, scores)

    def values(self, answers: Choices, labels: Tensor, tests: Tensor) -> dict[str, Tensor]:
        """Each metric on some test sets.

        Args:
            answers: of one model for all sets, or of one for each.
            labels: of the images [B].
            tests: which images are in each set [sets, B], bool.

        Returns:
            [sets] in percent by the metric's name, nan where it is not defined; without those that the rule lacks.
        """
        if not self.names:
            return {}
        assert answers.classes is not None
        number = len(self.classes)
        present = counts_of(labels.expand(tests.shape), tests, number)
        right = counts_of(labels.expand(tests.shape), tests & answers.hits, number)
        chosen = counts_of(answers.classes.expand(tests.shape), tests & (answers.classes >= 0), number)
        found: dict[str, Tensor] = {}
        for name in self.names:
            if name == "balanced":
                found[name] = mean_over(right / present, present > 0)
            elif name == "f1":
                found[name] = mean_over(2 * right / (present + chosen), present > 0)
            elif name == "auc" and answers.scores is not None:
                found[name] = auc(answers.scores, labels, tests)
            elif name == "ece" and answers.confidence is not None:
                found[name] = calibration_error(answers.confidence, answers.hits, tests)
            elif name in SHOTS:
                some = self._of_size(name, present)
                found[name] = (right * some).sum(-1) / (present * some).sum(-1)
            elif name.startswith(f"{CLASS}="):
                of = self.classes.index(name.partition("=")[2])
                found[name] = right[:, of] / present[:, of]
        return {name: 100 * values for name, values in found.items()}

    def _of_size(self, name: str, like: Tensor) -> Tensor:
        """Which classes have so many training samples [C], as numbers; none where that is not known."""
        if self.sizes is None:
            return torch.zeros(len(self.classes), dtype=like.dtype, device=like.device)
        holds: dict[str, Callable[[Tensor], Tensor]] = {
            "many": lambda sizes: sizes > MANY,
            "medium": lambda sizes: (sizes >= FEW) & (sizes <= MANY),
            "few": lambda sizes: sizes < FEW,
        }
        return holds[name](self.sizes).to(like)


def counts_of(classes: Tensor, counted: Tensor, number: int) -> Tensor:
    """How many of each class there are among those that count: [sets, C] of [sets, B], as float64."""
    begins = torch.arange(len(classes), device=classes.device).unsqueeze(-1) * (number + 1)
    places = begins + torch.where(counted, classes, number)
    found = torch.bincount(places.flatten(), minlength=len(classes) * (number + 1))
    return found.view(-1, number + 1)[:, :number].double()


def mean_over(values: Tensor, counted: Tensor) -> Tensor:
    """The mean over the last axis of what counts; nan where nothing does."""
    return values.masked_fill(~counted, 0.0).sum(-1) / counted.sum(-1)


def auc(scores: Tensor, labels: Tensor, tests: Tensor) -> Tensor:
    """Area under the ROC curve, each class against the rest: the mean over classes that a test set has.

    Args:
        scores: of each class [models, B, C]; one model for all sets, or one for each.
        labels: [B].
        tests: which images are in each set [sets, B], bool.

    Returns:
        [sets] from 0 to 1; nan for a set of one class.

    Example:
        >>> scores = torch.tensor([[[0.9, 0.1], [0.6, 0.4], [0.6, 0.4], [0.2, 0.8]]])
        >>> auc(scores, torch.tensor([0, 0, 1, 1]), torch.ones(1, 4, dtype=torch.bool)).tolist()
        [0.875]
    """
    areas, defined = [], []
    for label in labels.bincount().nonzero().flatten().tolist():
        values = scores[..., label].expand(tests.shape).contiguous()
        of, rest = tests & (labels == label), tests & (labels != label)
        others = values.masked_fill(~rest, torch.inf).sort(-1).values
        # How many of the rest have a lower score, ties by half: the probability that an image of the class comes first.
        below = torch.searchsorted(others, values) + torch.searchsorted(others, values, right=True)
        pairs = of.sum(-1).double() * rest.sum(-1)
        areas.append((below * of).sum(-1) / (2 * pairs))
        defined.append(pairs > 0)
    return mean_over(torch.stack(areas, -1), torch.stack(defined, -1))


def calibration_error(confidence: Tensor, hits: Tensor, tests: Tensor) -> Tensor:
    """Expected calibration error: how far confidence is from accuracy, over bins of confidence.

    Args:
        confidence: the probability of the answer [models, B]; one model for all sets, or one for each.
        hits: whether the answer is right [models, B].
        tests: which images are in each set [sets, B], bool.

    Returns:
        [sets] from 0 to 1.

    Example:
        >>> sure, right = torch.tensor([[0.9, 0.9, 0.6]]), torch.tensor([[True, False, True]])
        >>> round(calibration_error(sure, right, torch.ones(1, 3, dtype=torch.bool)).item(), 3)
        0.4
    """
    excess = hits.double() - confidence.double()
    bins = (confidence.double() * BINS).ceil().clamp(1, BINS)  # (0, 1/15], (1/15, 2/15], …
    gaps = [(excess * (tests & (bins == number))).sum(-1).abs() for number in range(1, BINS + 1)]
    return torch.stack(gaps).sum(0) / tests.sum(-1)
