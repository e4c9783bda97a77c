"""Choosing K: from numbers worked out by hand, and from features whose clusters are known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from protofed.engines.sequential import Sequential
from protofed.experiment import Experiment
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.runs.run import new_run
from protofed.studies.choose_k import Candidate, Choice, _silhouette, best_of, certainty, silhouettes
from protofed.studies.spread import Spread
from protofed.studies.sweeps import Sweep


def test_the_lead_is_paired_over_seeds() -> None:
    # Seeds differ by 30, but K = 2 is ahead of K = 3 by 1, 2 and 3 with each of them.
    accuracy = {1: Spread.of([0.0, 0.0, 0.0]), 2: Spread.of([50.0, 65.0, 80.0]), 3: Spread.of([49.0, 63.0, 77.0])}
    k, next_k, lead = best_of(accuracy)
    assert (k, next_k) == (2, 3)
    assert lead == Spread.of([1.0, 2.0, 3.0])
    assert certainty(lead) == "clear"


def test_of_equals_the_smaller_k_is_taken() -> None:
    same = Spread.of([70.0, 71.0])
    assert best_of({1: Spread.of([1.0, 1.0]), 4: same, 2: same})[:2] == (2, 4)


@pytest.mark.parametrize(
    ("lead", "expected"),
    [
        ([1.0, 2.0, 3.0], "clear"),  # mean 2, std 1
        ([0.0, 1.0, 4.0, 1.0], "slight"),  # mean 1.5, std 1.73, standard error 0.87
        ([-2.0, 1.0, 2.0], "none"),  # mean 0.33, standard error 1.2
        ([0.0, 0.0], "none"),
        ([5.0], "none"),  # a single seed has no spread
        ([1.0, 1.0], "clear"),
    ],
)
def test_how_sure_it_is(lead: list[float], expected: str) -> None:
    assert certainty(Spread.of(lead)) == expected


def choice(silhouette_k: int | None) -> Choice:
    """The second of three."""
    spread = Spread.of([1.0, 2.0])
    candidates = [Candidate(1, spread, None), Candidate(2, spread, spread), Candidate(3, spread, spread)]
    return Choice("mp-fedcl", "digits", 2, 1, spread, "clear", silhouette_k, candidates, Sweep({}, None, [], []))


@pytest.mark.parametrize(
    ("silhouette_k", "words"),
    [
        (2, "silhouette: K = 2: it agrees"),
        (3, "silhouette: K = 3: it does not agree"),
        (1, "silhouette: no K above 0.25, no clusters within classes, so K = 1: it does not agree"),
        (None, "silhouette: no class of a client has more samples than the largest K"),
    ],
)
def test_it_says_whether_the_criteria_agree(silhouette_k: int | None, words: str) -> None:
    first, second = choice(silhouette_k).notes()
    assert first == "validation accuracy: K = 2, 1.50 above K = 1 ± 0.71 over 2 seeds: a clear lead"
    assert second == words


def test_it_warns_where_the_best_is_the_largest() -> None:
    found = choice(2)
    last = replace(found, candidates=found.candidates[:2]).notes()[-1]
    assert last == "K = 2 is the largest that was tried; a larger one may be better"


def by_definition(points: Tensor, cluster: list[int]) -> float:
    """The mean of (b − a) / max(a, b) over points; 0 for one that is alone in its cluster."""
    rows, scores = points.double().numpy(), []
    for i, mine in enumerate(cluster):
        means = {}
        for other in set(cluster):
            members = [j for j, label in enumerate(cluster) if label == other and j != i]
            means[other] = np.mean([np.linalg.norm(rows[i] - rows[j]) for j in members]) if members else np.nan
        a, b = means.pop(mine), min(means.values())
        scores.append(0.0 if np.isnan(a) else (b - a) / max(a, b))
    return float(np.mean(scores))


def test_a_silhouette_is_that_of_the_definition() -> None:
    for seed in range(5):
        points = torch.randn(25, 4, generator=torch.Generator().manual_seed(seed))
        centres = points[: 2 + seed]
        nearest = torch.cdist(points, centres).argmin(-1).tolist()
        assert _silhouette(points, centres) == pytest.approx(by_definition(points, nearest), abs=1e-5)
    assert _silhouette(torch.ones(5, 2), torch.ones(1, 2)) == 0.0


def trained(path: Path, **options: Any) -> Result:
    """A run with K = 1, of which only the folder is needed."""
    small = {"model": "cnn", "device": "cpu", "engine": "sequential", "train_size": 150, "clients": 2, "rounds": 1}
    run = new_run(Experiment.from_mapping({**small, "params": {"k": 1}, **options}))
    return run.play(RunFolder.create(path, run.experiment), Progress())


def test_features_in_three_groups_a_class_speak_for_three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained(tmp_path / "run", seed=3)
    made: list[tuple[Tensor, list[int], list[int]]] = []

    def embed(self: Sequential, group: object, rows: list[int], states: object) -> tuple[Tensor, Tensor]:  # noqa: ARG001
        """Each client: class 0 in three clear groups, class 1 in three looser ones, class 2 too small, padding."""
        rng = torch.Generator().manual_seed(rows[0])
        labels = torch.tensor([0] * 30 + [1] * 30 + [2] * 4 + [-1] * 3)
        groups = torch.arange(len(labels)) % 3
        width = torch.where(labels == 0, 0.1, 1.0).unsqueeze(-1)
        features = 10 * torch.eye(3)[groups] + width * torch.randn(len(labels), 3, generator=rng)
        made.append((features, labels.tolist(), groups.tolist()))
        return features.unsqueeze(0), labels.unsqueeze(0)

    monkeypatch.setattr(Sequential, "embed", embed)
    found = silhouettes(result, 4)
    assert sorted(found) == [2, 3, 4]
    assert max(found, key=found.__getitem__) == 3
    expected = []
    for features, labels, groups in made:
        for c in (0, 1):
            rows = [i for i, label in enumerate(labels) if label == c]
            expected.append(by_definition(features[rows], [groups[i] for i in rows]))
    assert len(expected) == 4
    assert found[3] == pytest.approx(np.mean(expected), abs=1e-5)


def test_it_looks_at_the_models_that_were_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained(tmp_path / "run", alpha=100.0)
    opened = RunFolder.open(tmp_path / "run")
    before = new_run(opened.experiment())
    initial = next(iter(before.engine.groups[0].own.take([0]).values())).clone()
    seen = []
    embed = Sequential.embed

    def watch(self: Sequential, group: Any, rows: Any, states: Any) -> tuple[Tensor, Tensor]:
        seen.append(next(iter(states.values())).clone())
        return embed(self, group, rows, states)

    monkeypatch.setattr(Sequential, "embed", watch)
    silhouettes(result, 2)
    assert len(seen) == 2
    assert not torch.equal(seen[0], initial)


def test_it_looks_at_the_data_that_the_run_ended_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = trained(tmp_path / "run", alpha=100.0, drift="sudden", rounds=4)
    drift = new_run(RunFolder.open(tmp_path / "run").experiment()).drift
    assert drift is not None
    seen = []
    embed = Sequential.embed

    def watch(self: Sequential, group: Any, rows: Any, states: Any) -> tuple[Tensor, Tensor]:
        features, labels = embed(self, group, rows, states)
        seen.append(labels[0])
        return features, labels

    monkeypatch.setattr(Sequential, "embed", watch)
    silhouettes(result, 2)
    for labels, client in zip(seen, drift.at(3).clients, strict=True):
        assert torch.equal(labels, client.train.labels)


def test_without_a_large_class_there_is_nothing(tmp_path: Path) -> None:
    assert silhouettes(trained(tmp_path / "run"), 200) == {}
