"""Metrics of one test set, slowly: scikit-learn's, and loops where it has none. Nothing where one is not defined."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.metrics import balanced_accuracy_score, f1_score, recall_score, roc_auc_score


def balanced(labels: Sequence[int], answers: Sequence[int]) -> float:
    """Balanced accuracy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of answers that are no label
        return 100 * float(balanced_accuracy_score(labels, answers))


def f1(labels: Sequence[int], answers: Sequence[int]) -> float:
    """Macro-F1 over the classes that are there."""
    present = sorted(set(labels))
    return 100 * float(f1_score(labels, answers, labels=present, average="macro", zero_division=0))


def recall(labels: Sequence[int], answers: Sequence[int], label: int) -> float | None:
    """Recall of one class."""
    if label not in labels:
        return None
    return 100 * float(recall_score(labels, answers, labels=[label], average="macro"))


def auc(labels: Sequence[int], scores: Any) -> float | None:
    """One class against the rest, by its scores [B, C]: the mean over the classes that are there."""
    present = sorted(set(labels))
    if len(present) < 2:
        return None
    truth = np.array(labels)
    return 100 * float(np.mean([roc_auc_score(truth == c, scores[:, c]) for c in present]))


def shots(labels: Sequence[int], answers: Sequence[int], classes: set[int]) -> float | None:
    """Accuracy on images of some classes."""
    right = [a == b for a, b in zip(answers, labels, strict=True) if b in classes]
    return 100 * sum(right) / len(right) if right else None


def ece(labels: Sequence[int], answers: Sequence[int], logits: Any) -> float:
    """The calibration error over 15 bins, image by image."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(15)]
    for label, answer, row in zip(labels, answers, logits, strict=True):
        powers = [math.exp(value - max(row)) for value in row]
        confidence = max(powers) / sum(powers)
        place = next(number for number in range(15) if confidence <= (number + 1) / 15 or number == 14)
        bins[place].append((confidence, answer == label))
    total = 0.0
    for some in filter(None, bins):
        mean = sum(confidence for confidence, _ in some) / len(some)
        total += len(some) * abs(sum(right for _, right in some) / len(some) - mean)
    return 100 * total / len(labels)
