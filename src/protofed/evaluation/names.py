"""Names of scores: model/test/rule is an accuracy, model/test/rule:metric another measure of the same answers.

All are in percent. Higher is better, but for the calibration error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Sequence
from typing import Any

from protofed.errors import UserError, unknown
from protofed.experiment import Experiment

ACCURACY, NONE = "accuracy", "none"
"""What --val-metric and --metrics say where nothing else is asked for."""
SHOTS = ("many", "medium", "few")
"""Accuracy on classes with more than 100, 20 to 100 and fewer than 20 training samples in the federation."""
OF_ANSWERS = ("balanced", "f1", "auc", "ece", *SHOTS)
"""What a client's answers are needed for."""
OF_CLIENTS = ("worst", "worst10")
"""What follows from the clients' accuracies: the lowest, and the mean of the lowest tenth."""
CLASS = "class"
"""The recall of every class; with =NAME of one."""


def split_name(score: str) -> tuple[str, str]:
    """A score as model/test/rule and the metric; an accuracy has none."""
    base, _, metric = score.partition(":")
    return base, metric


def with_metric(base: str, metric: str) -> str:
    """The name of a metric of model/test/rule; accuracy is the name itself."""
    return base if metric in ("", ACCURACY) else f"{base}:{metric}"


def lower_is_better(score: str) -> bool:
    """Whether the best is the lowest, as of errors."""
    return split_name(score)[1] == "ece"


def best_of(score: str) -> Callable[..., Any]:
    """`min` or `max`, whichever finds the best value of a score."""
    return min if lower_is_better(score) else max


def worst_of(score: str) -> Callable[..., Any]:
    """`max` or `min`, whichever finds the worst value of a score."""
    return max if lower_is_better(score) else min


def asked_metrics(experiment: Experiment, classes: Sequence[str] | None) -> tuple[str, ...]:
    """The metrics that are computed beside accuracies: those of --metrics and --val-metric, each class by its name.

    Args:
        experiment: what is run.
        classes: the names of the classes; None where they are not known yet, and not checked.

    Raises:
        UserError: one is unknown, or names no class.
    """
    words = [] if experiment.metrics == NONE else experiment.metrics.split(",")
    for word in words:
        check_metric("--metrics", word, classes)
    if experiment.val_metric != ACCURACY:
        check_metric("--val-metric", experiment.val_metric, classes, single=True)
        words = [*words, experiment.val_metric]
    named = [[f"{CLASS}={name}" for name in classes or ()] if word == CLASS else [word] for word in words]
    return tuple(dict.fromkeys(word for some in named for word in some))


def check_metric(flag: str, word: str, classes: Collection[str] | None = None, single: bool = False) -> None:
    """Refuse what is no metric, or several where one is wanted; classes that are not known yet are not checked."""
    kind, is_class, name = word.partition("=")
    if is_class and kind == CLASS:
        if classes is not None and name not in classes:
            raise unknown(flag, word, [f"{CLASS}={one}" for one in classes])
    elif word == CLASS and single:
        raise UserError(flag, word, f"it must be of one class, as in {CLASS}=NAME")
    elif word not in (*OF_ANSWERS, *OF_CLIENTS, CLASS):
        raise unknown(flag, word, (*OF_ANSWERS, *OF_CLIENTS, CLASS, f"{CLASS}=NAME"))


def asking_for(experiment: Experiment, score: str) -> Experiment:
    """The experiment with a score's metric among those that it computes."""
    metric = split_name(score)[1]
    words = [] if experiment.metrics == NONE else experiment.metrics.split(",")
    if not metric or metric in words:
        return experiment
    return dataclasses.replace(experiment, metrics=",".join([*words, metric]))
