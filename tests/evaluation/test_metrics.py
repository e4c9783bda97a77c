"""Metrics against scikit-learn and slow loops: of single sets, and of the clients of a run in every engine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from protofed.data import Client, Federation
from protofed.errors import UserError
from protofed.evaluation.accuracy import Evaluation
from protofed.evaluation.metrics import Metrics
from protofed.evaluation.names import asked_metrics, asking_for, lower_is_better
from protofed.experiment import Experiment
from protofed.prototypes import Prototypes
from protofed.runs.run import Run
from tests.evaluation.test_accuracy import CLASSES, Answered, played, slow_answers, two_domains
from tests.reference import metrics as reference
from tests.support.nets import images

ALL = ("balanced", "f1", "auc", "ece", "many", "medium", "few", "class")
NAMES = asked_metrics(Experiment(metrics=",".join(ALL)), [str(c) for c in range(CLASSES)])
SIZES = [101, 100, 20, 19, 0]
"""Training samples of each class: many, medium, medium, few, few."""


def sized() -> Federation:
    """A client that holds so many samples of each class."""
    samples = images(sum(SIZES), (1, 8, 8), CLASSES, 0)
    labels = torch.arange(CLASSES).repeat_interleave(torch.tensor(SIZES))
    client = Client.of(replace(samples, labels=labels), samples)
    return Federation((client,), tuple(str(c) for c in range(CLASSES)))


def expected(labels: Sequence[int], answers: Sequence[int], scores: Tensor, logits: Tensor | None) -> dict[str, Any]:
    """Every metric of one set, by the slow reference, with the sizes above."""
    found: dict[str, Any] = {
        "balanced": reference.balanced(labels, answers),
        "f1": reference.f1(labels, answers),
        "auc": reference.auc(labels, scores.numpy()),
        "many": reference.shots(labels, answers, {0}),
        "medium": reference.shots(labels, answers, {1, 2}),
        "few": reference.shots(labels, answers, {3, 4}),
    }
    found |= {f"class={c}": reference.recall(labels, answers, c) for c in range(CLASSES)}
    return found if logits is None else found | {"ece": reference.ece(labels, answers, logits.tolist())}


def assert_equal(found: dict[str, Tensor], place: int, wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        mine = found[name][place].item()
        assert math.isnan(mine) if value is None else mine == pytest.approx(value, abs=1e-9), name


def sets() -> tuple[Tensor, Tensor]:
    """Labels without class 4, and test sets: everything, some, one class only, a single image, two images."""
    rng = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (60,), generator=rng)
    single, two = torch.zeros(2, 60, dtype=torch.bool)
    single[7] = two[0] = True
    two[int((labels != labels[0]).nonzero()[0])] = True
    some = torch.rand(60, generator=rng) < 0.4
    return labels, torch.stack([torch.ones(60, dtype=torch.bool), some, labels == 2, single, two])


@pytest.mark.parametrize("digits", [0, 1, 12])  # few digits make ties
@pytest.mark.parametrize("models", [1, 5])
@pytest.mark.parametrize("scale", [0.5, 30.0])  # unsure, and sure to the last bit
def test_metrics_of_logits_are_scikit_learns(models: int, digits: int, scale: float) -> None:
    labels, tests = sets()
    rng = torch.Generator().manual_seed(digits)
    logits = scale * torch.randn(models, 60, CLASSES, generator=rng, dtype=torch.float64).round(decimals=digits)
    metrics = Metrics(NAMES, sized())
    found = metrics.values(metrics.by_logits(logits, labels), labels, tests)
    for place, mask in enumerate(tests):
        mine = logits[place % models][mask]
        answers = mine.argmax(-1).tolist()
        assert_equal(found, place, expected(labels[mask].tolist(), answers, mine.log_softmax(-1), mine))


@pytest.mark.parametrize("models", [1, 5])
def test_metrics_of_the_nearest_prototype_are_scikit_learns(models: int) -> None:
    """Class 3 has no prototype, and one client may choose nothing at all."""
    labels, tests = sets()
    rng = torch.Generator().manual_seed(1)
    features = torch.randn(models, 60, 3, generator=rng, dtype=torch.float64)
    vectors = torch.randn(CLASSES, 2, 3, generator=rng, dtype=torch.float64)
    counts = torch.tensor([[1, 1], [1, 0], [1, 1], [0, 0], [1, 1]])
    allowed = torch.rand(5, CLASSES, generator=rng) < 0.7
    allowed[4] = False
    metrics = Metrics(NAMES, sized())
    answers = metrics.by_distance(features, Prototypes(vectors, counts), allowed, labels)
    found = metrics.values(answers, labels, tests)
    for place, mask in enumerate(tests):
        distances = torch.full((60, CLASSES), 1e9, dtype=torch.float64)
        for c in range(CLASSES):
            for slot in range(2):
                if counts[c, slot] and allowed[place, c]:
                    away = (features[place % models] - vectors[c, slot]).square().sum(-1)
                    distances[:, c] = torch.minimum(distances[:, c], away)
        mine = distances[mask]
        chosen = mine.argmin(-1) if bool((allowed[place] & (counts.sum(1) > 0)).any()) else torch.full((len(mine),), -1)
        assert_equal(found, place, expected(labels[mask].tolist(), chosen.tolist(), -mine, None))


def slow_metrics(one: Answered, sizes: Tensor) -> dict[str, float | None]:
    """Every metric of what a client's model says."""
    head = one.name.endswith("head")
    scores = one.logits.log_softmax(-1)
    if not head:
        scores = torch.full_like(one.logits, -1e9)
        for c, some in one.prototypes.items():
            away = torch.cdist(one.features, torch.stack([torch.as_tensor(p) for p in some]).double()).amin(-1)
            scores[:, c] = -away
    found = expected(one.labels, one.answers, scores, one.logits if head else None)
    for name, holds in (("many", sizes > 100), ("medium", (sizes >= 20) & (sizes <= 100)), ("few", sizes < 20)):
        found[name] = reference.shots(one.labels, one.answers, set(holds.nonzero().flatten().tolist()))
    return found


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_metrics_of_a_run_are_the_slow_loops(method: str, engine: str) -> None:
    run = played(method, engine, ",".join(ALL))
    last, sizes = run.history[-1], run.federation.counts.sum(0)
    wanted: dict[str, list[float | None]] = {}
    for model in ("own", "global") if method == "fedavg" else ("own",):
        for one in slow_answers(run, model):
            for metric, value in slow_metrics(one, sizes).items():
                wanted.setdefault(f"{one.name}:{metric}", []).append(value)
    defined = {name: [v for v in values if v is not None] for name, values in wanted.items()}
    assert {name for name in last.per_client if ":" in name} == {name for name, values in defined.items() if values}
    for name, values in wanted.items():
        if defined[name]:
            assert last.per_client[name] == pytest.approx(defined[name], abs=1e-9), name
            assert last.undefined.get(name, []) == [k for k, value in enumerate(values) if value is None]
            if name not in last.per_domain:
                assert last.accuracy[name] == pytest.approx(sum(defined[name]) / len(defined[name]))
    assert last.undefined  # a client lacks a class
    assert {name: v for name, v in last.per_client.items() if ":" not in name} == played(method, engine).history[
        -1
    ].per_client  # and accuracies are as before


def test_metrics_of_the_averaged_model_are_also_known_by_domain() -> None:
    last = played("fedavg", "stacked", ",".join(ALL)).history[-1]
    pool, found = two_domains().clients[0].pool, last.per_domain["global/domain/head:f1"]
    assert found.keys() == {"plain", "negative"}
    assert last.accuracy["global/domain/head:f1"] == pytest.approx(sum(found.values()) / 2)
    run: Run = played("fedavg", "stacked", ",".join(ALL))
    answers = {one.name: one for k, one in enumerate(slow_answers(run, "global")) if one.name == "global/all/head"}
    one = answers["global/all/head"]
    for number, domain in enumerate(("plain", "negative")):
        rows = (pool.domains == number).nonzero().flatten().tolist()
        labels, chosen = ([some[row] for row in rows] for some in (one.labels, one.answers))
        assert found[domain] == pytest.approx(reference.f1(labels, chosen))


def test_nothing_is_computed_that_nobody_asks_for() -> None:
    logits, labels = torch.randn(2, 4, CLASSES), torch.zeros(4, dtype=torch.int64)
    quiet = Metrics(asked_metrics(Experiment(metrics="worst"), ()), sized()).by_logits(logits, labels)
    assert quiet[1:] == (None, None, None)
    asked = Metrics(["f1"], sized()).by_logits(logits, labels)
    assert asked.classes is not None
    assert asked[2:] == (None, None)


def test_the_worst_clients_follow_from_accuracies() -> None:
    values = [float(value) for value in range(25, 0, -1)]
    found = Evaluation({"own/own/head": values, "own/own/head:f1": values})
    assert found.worst(("worst", "worst10")) == {"own/own/head:worst": 1.0, "own/own/head:worst10": 2.0}
    assert found.worst(("worst10",), without=[24]) == {"own/own/head:worst10": 3.0}
    assert Evaluation({"own/own/head": [7.0]}).worst(("worst", "worst10")) == {
        "own/own/head:worst": 7.0,
        "own/own/head:worst10": 7.0,
    }


def test_means_leave_out_whom_a_metric_is_not_defined_for() -> None:
    found = Evaluation({"a:auc": [10.0, 30.0], "b:auc": [50.0]}, undefined={"a:auc": [1], "b:auc": [0, 1]})
    assert found.means() == {"a:auc": 20.0, "b:auc": 50.0}
    assert found.means(without=[2]) == {"a:auc": 10.0}
    told = replace(found, tested=[3, 5, 8], undefined={"a:auc": [5], "b:auc": [3, 5]})
    assert told.means(without=[8]) == {"a:auc": 10.0}


def test_names_of_metrics() -> None:
    classes = ["cat", "dog"]
    assert asked_metrics(Experiment(metrics="f1,class,f1", val_metric="ece"), classes) == (
        *("f1", "class=cat", "class=dog"),
        "ece",
    )
    assert asked_metrics(Experiment(), classes) == ()
    assert lower_is_better("own/own/head:ece")
    assert not lower_is_better("own/own/head")
    assert asking_for(Experiment(metrics="f1"), "own/own/head:auc").metrics == "f1,auc"
    assert asking_for(Experiment(), "own/own/head").metrics == "none"
    for metrics, hint in (("acu", "auc"), ("class=cta", "class=cat"), ("f1,", None), ("worst1", "worst10")):
        with pytest.raises(UserError, match="for --metrics") as refused:
            asked_metrics(Experiment(metrics=metrics), classes)
        assert refused.value.hint == (hint and f"did you mean {hint!r}?")
    with pytest.raises(UserError, match="'class' for --val-metric: it must be of one class"):
        asked_metrics(Experiment(val_metric="class"), classes)
