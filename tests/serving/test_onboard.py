"""A client that comes later."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.serving.export import Exported, export
from protofed.serving.onboard import folds, newcomer, onboard
from protofed.serving.predictor import Predictor
from tests.support.exported_runs import arrays, plan, play


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """After five rounds of FedProto's CNN; its features have 50 numbers."""
    return export(play(tmp_path_factory.mktemp("run") / "run", plan("fedproto", model="cnn", rounds=5)))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return arrays(tmp_path_factory.mktemp("data") / "new.npz", 200, 400)


def test_a_pretrained_client_begins_where_the_model_is(exported: Exported, data: Path) -> None:
    model = exported.predictor
    made, found = onboard(model, data)
    assert (found.start, found.model, found.epochs) == ("pretrained", "cnn", 2)
    assert found.samples + found.test_samples == 200
    with np.load(data) as content:
        images, labels = content["images"], content["labels"]
    seen = dict.fromkeys(range(10), 0)
    test = []
    for row, label in enumerate(labels.tolist()):  # every fifth of a class
        seen[label] += 1
        test += [row] * (seen[label] % 5 == 0)
    right = model.predict(images[test], "head").top[:, 0] == torch.from_numpy(labels[test])
    assert found.before["head"] == pytest.approx(100 * float(right.double().mean()))
    assert any(not torch.equal(tensor, model.state[name]) for name, tensor in made.predictor.state.items())
    assert found.kept == "after"
    assert found.after["head"] == pytest.approx(made.predictor.card.held_out["head"])
    assert found.after["nearest"] == pytest.approx(made.predictor.card.held_out["nearest"])


@pytest.mark.parametrize("start", ["pretrained", "own", "random"])
def test_the_same_seed_gives_the_same_and_alone_does_not_depend_on_the_model(
    exported: Exported, data: Path, start: Any
) -> None:
    one, other = (onboard(exported.predictor, data, 1, 5, start)[1] for _ in range(2))
    assert one == other
    assert one.samples <= 50
    if start != "own":
        assert one.alone == onboard(exported.predictor, data, 1, 5, "random")[1].alone
    weights = sum(tensor.nbytes for tensor in exported.predictor.state.values())
    assert (one.bytes_down > weights) == (start == "pretrained")


def test_another_architecture_takes_only_prototypes(exported: Exported, data: Path, tmp_path: Path) -> None:
    made, found = onboard(exported.predictor, data, model="cnn-18")
    assert found.start == "random"
    made.write(tmp_path / "model")
    again = protofed.load(tmp_path / "model")
    assert (again.card.model, again.card.whose) == ("cnn-18", "a client that came later")


def test_only_the_prototypes_of_its_classes_come(exported: Exported, tmp_path: Path) -> None:
    path = arrays(tmp_path / "new.npz", 0, 400)
    with np.load(path) as content:
        mine = np.isin(content["labels"], [2, 7])
        np.savez(path, images=content["images"][mine], labels=content["labels"][mine])
    made, found = onboard(exported.predictor, path)
    assert found.classes == ["2", "7"]
    assert found.prototypes == 2
    assert made.predictor.pool.flat()["classes"].tolist() == [2, 7]


@pytest.mark.parametrize("method", ["mp-fedcl", "fednh", "local"])
def test_pools_and_heads_of_other_methods(method: str, data: Path, tmp_path: Path) -> None:
    model = export(play(tmp_path / "run", plan(method))).predictor
    made, found = onboard(model, data, 1)
    assert all(0 <= value <= 100 for part in (found.before, found.after, found.alone) for value in part.values())
    assert made.predictor.card.extended_by == model.card.extended_by == (method if method == "fednh" else None)
    assert made.predictor.state.keys() == model.state.keys()


def test_it_learns(data: Path, tmp_path: Path) -> None:
    model = export(play(tmp_path / "run", plan("fedavg", rounds=10, train_size=None, alpha=1.0))).predictor
    found = onboard(model, data, 5)[1]
    assert found.after["head"] > 80
    assert found.after["head"] >= found.alone["head"]


def reference_folds(labels: list[int]) -> list[list[int]]:
    """Rows that are left out together: of each class the first, sixth … sample, the second, seventh …"""
    seen: dict[int, int] = {}
    folds: list[list[int]] = [[] for _ in range(5)]
    for row, label in enumerate(labels):
        folds[seen.setdefault(label, 0) % 5].append(row)
        seen[label] += 1
    return folds


def test_each_training_sample_is_left_out_once_with_its_class(exported: Exported, data: Path) -> None:
    client = newcomer(exported.predictor, data, 7, 0)
    found = list(folds(client))
    expected = reference_folds(client.train.labels.tolist())
    assert [len(fold.pool) for fold in found] == list(map(len, expected))
    for fold, rows in zip(found, expected, strict=True):
        assert torch.equal(fold.pool.x, client.train.x[rows])
        assert len(fold.train) + len(rows) == len(client.train)
    single = replace(client, train=client.train.take(torch.tensor([0])))
    assert list(folds(single)) == []


def test_a_model_that_training_makes_worse_is_kept_as_it_was(tmp_path: Path) -> None:
    learned = export(play(tmp_path / "run", plan("fedproto", model="cnn", rounds=15, train_size=None, alpha=5.0)))
    model = learned.predictor
    wild = replace(model.card, training={**model.card.training, "lr": 0.9})
    spoiled = Predictor(wild, model.state, model.pool, model.encoder, "cnn", model.method)
    path = arrays(tmp_path / "new.npz", 0, 150)
    made, found = onboard(spoiled, path, 2)
    assert found.checked["after"] < found.checked["before"]
    assert found.kept == "before"
    assert all(torch.equal(tensor, model.state[name]) for name, tensor in made.predictor.state.items())
    assert made.predictor.card.held_out["nearest"] == pytest.approx(found.before["nearest"])
    assert onboard(spoiled, path, 2, start="random")[1].checked == {}


def test_with_a_sample_of_a_class_it_says_that_nothing_could_be_checked(exported: Exported, data: Path) -> None:
    _, found = onboard(exported.predictor, data, 1, shots=1)
    assert (found.checked, found.kept) == ({}, "after")
    assert found.notes()[0].startswith("whether training made it worse could not be checked: no class has a second")
    _, found = onboard(exported.predictor, data, 1, start="random")
    assert found.notes()[0] == "whether training made it worse was not checked: it began with random weights"


@pytest.mark.parametrize("kept", ["before", "after"])
def test_it_says_when_training_alone_is_better(exported: Exported, data: Path, kept: Any) -> None:
    _, found = onboard(exported.predictor, data, 1)
    better = {"head": 12.0, "nearest": 87.25}
    other = {"before": "after", "after": "before"}[kept]
    scores: dict[str, Any] = {kept: {"head": 12.0, "nearest": 10.25}, other: {"head": 99.0, "nearest": 99.0}}
    found = replace(found, alone=better, kept=kept, **scores)
    (_, said) = found.notes()
    of = f"on the {found.test_samples} test samples"
    alone = "training alone, from random weights and without prototypes"
    assert said == f"{alone}, is better {of}: nearest 87.25 % against 10.25 %"
    assert json.loads(found.to_json())["notes"] == found.notes()
    assert len(replace(found, alone={"head": 12.0, "nearest": 10.25}).notes()) == 1


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"model": "mlp"}, "its features have 256 numbers, the prototypes 50"),
        ({"model": "cnn-18", "start": "pretrained"}, "cannot take the weights"),
        ({"start": "pretraned"}, "did you mean 'pretrained'"),
        ({"shots": 0}, "'0' for --shots"),
        ({"epochs": 0}, "'0' for --epochs"),
        ({"model": "cmn"}, "did you mean"),
    ],
)
def test_wrong_options_are_named(exported: Exported, data: Path, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        onboard(exported.predictor, data, **cast(Any, options))


def test_data_that_does_not_fit(exported: Exported, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no"):
        onboard(exported.predictor, tmp_path / "missing.npz")
    images = np.zeros((20, 8, 8), np.uint8)
    np.savez(tmp_path / "other.npz", images=images, labels=np.array(["cat", "dog"] * 10))
    with pytest.raises(UserError, match=r"'cat' for class in --data"):
        onboard(exported.predictor, tmp_path / "other.npz")
    np.savez(tmp_path / "evil.npz", images=np.array([{}]), labels=np.zeros(1, np.int64))
    with pytest.raises(UserError, match="pickled"):
        onboard(exported.predictor, tmp_path / "evil.npz")
