"""Asking an exported model in Python."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.serving.export import export
from protofed.serving.predictor import Predictor
from tests.support.exported_runs import digits, plan, play


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    """After five rounds on eight digits; the last two are unknown."""
    path = tmp_path_factory.mktemp("model")
    settings: dict[str, Any] = {"train_size": None, "alpha": 1.0, "novel": 2, "episode_ways": 2}
    export(play(path / "run", plan(rounds=5, **settings))).write(path / "model")
    return protofed.load(path / "model")


def test_arrays_and_tensors_with_and_without_channels(model: Predictor) -> None:
    images, _ = digits()
    expected = model.predict(images).rows()
    for given in (images.numpy(), images[:, 0], images[:, 0].numpy(), images.numpy()[::1]):
        assert model.predict(given).rows() == expected
    assert model.predict(images.expand(-1, 3, -1, -1)).rows() == expected  # grey again
    assert len(model.predict(images[:0])) == 0


def test_images_of_another_size_are_resized(model: Predictor) -> None:
    images, _ = digits()
    large = images.repeat_interleave(4, -1).repeat_interleave(4, -2)
    assert model.predict(large).classes == model.predict(images).classes


@pytest.mark.parametrize("x", [torch.zeros(2, 1, 8, 8), torch.zeros(8, 8, dtype=torch.uint8)])
def test_other_arrays_are_refused(model: Predictor, x: torch.Tensor) -> None:
    with pytest.raises(UserError, match="must be uint8"):
        model.predict(x)


def test_the_best_class_comes_first_and_leads_by_its_margin(model: Predictor) -> None:
    images, _ = digits()
    for rule in ("nearest", "head"):
        found = model.predict(images, cast(Any, rule), top=8)
        assert bool((found.distances.diff() >= 0).all())
        assert torch.allclose(found.margin, found.distances[:, 1] - found.distances[:, 0])
        assert found.top.shape == (20, 8)
        assert torch.equal(model.predict(images, cast(Any, rule), top=1).margin, found.margin)
    features, logits = model.outputs(images)
    assert torch.allclose(found.distances, 1 - logits.softmax(-1).sort(descending=True).values, atol=1e-6)
    whole = model.predict(images, top=99)
    assert whole.top.shape == (20, 8)
    winners = model.pool.prototypes.vectors[whole.top[:, 0]][torch.arange(20), model.pool.nearest(features).slots[:, 0]]
    assert torch.allclose((features - winners).norm(dim=-1), whole.distances[:, 0])


def test_unknown_classes_are_refused_more_often(model: Predictor) -> None:
    images, labels = digits(400)
    known, unknown = images[labels[: len(images)] < 8], images[labels[: len(images)] >= 8]
    found, strange = model.predict(known, reject=0.1), model.predict(unknown, reject=0.1)
    assert found.rates is not None
    assert float(found.refused.double().mean()) < 0.2
    assert float(strange.refused.double().mean()) == pytest.approx(found.rates["unknown"])
    assert found.rates["unknown"] > found.rates["known"]
    assert [answer is None for answer in strange.classes] == strange.refused.tolist()
    assert not bool(model.predict(unknown).refused.any())


def test_wrong_options_are_named(model: Predictor) -> None:
    images, _ = digits(2)
    with pytest.raises(UserError, match="did you mean 'head'"):
        model.predict(images, cast(Any, "hed"))
    with pytest.raises(UserError, match="'0' for --top"):
        model.predict(images, top=0)
    with pytest.raises(UserError, match="'5' for --reject"):
        model.predict(images, reject=5)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"has no card\.json"):
        protofed.load(tmp_path)
