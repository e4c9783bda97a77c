"""A class from a few examples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import protofed
from protofed.data import load
from protofed.errors import UserError
from protofed.serving.add_class import add_class, read_held_out
from protofed.serving.export import Exported, export
from tests.support.exported_runs import plan, play


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """Eight digits; nobody had the last two."""
    experiment = plan(train_size=None, alpha=1.0, novel=2, episode_ways=2, rounds=5)
    return export(play(tmp_path_factory.mktemp("run") / "run", experiment))


def images_of(label: int, number: int) -> torch.Tensor:
    train = load("digits").train
    return train.x[train.labels == label][:number]


def test_the_new_class_is_found_and_the_old_ones_are_measured(exported: Exported, tmp_path: Path) -> None:
    model, held_out = exported.predictor, exported.held_out
    changed, effect = add_class(model, "nine", images_of(9, 10), held_out)
    changed.write(tmp_path / "new", held_out)
    again = protofed.load(tmp_path / "new")
    assert again.card.classes == [*"01234567", "nine"]
    test = load("digits").test
    nines = again.predict(test.x[test.labels == 9])
    assert nines.classes.count("nine") > len(nines) / 2
    assert {row["client"] for row in nines.rows() if row["class"] == "nine"} == {None}

    known = held_out["labels"] >= 0
    before, after = (pool.nearest(held_out["features"][known]).classes[:, 0] for pool in (model.pool, changed.pool))
    truth = held_out["labels"][known]
    assert effect.held_out == len(truth)
    assert effect.before == pytest.approx(100 * float((before == truth).double().mean()))
    assert effect.before == pytest.approx(model.card.held_out["nearest"])
    assert effect.after == pytest.approx(100 * float((after == truth).double().mean()))
    assert effect.taken == pytest.approx(100 * float((after == 8).double().mean()))
    assert bool(((before == after) | (after == 8)).all())  # an answer changes only to the new class
    assert again.card.added[0]["before"] == effect.before


def test_its_prototype_is_the_mean_and_each_example_is_left_out_in_turn(exported: Exported) -> None:
    examples = images_of(9, 4)
    changed, effect = add_class(exported.predictor, "nine", examples, exported.held_out)
    features = exported.predictor.outputs(examples)[0]
    flat = changed.pool.flat()
    assert torch.allclose(flat["vectors"][-1], features.mean(0), atol=1e-6)
    assert flat["counts"][-1] == 4
    hits = 0
    for row in range(4):
        others = torch.cat([features[:row], features[row + 1 :]])
        nearest_old = exported.predictor.pool.nearest(features[row : row + 1]).distances[0, 0]
        hits += int((features[row] - others.mean(0)).norm() < nearest_old)
    assert effect.recognised == 25 * hits
    assert add_class(exported.predictor, "nine", examples[:1], exported.held_out)[1].recognised is None


def test_the_head_goes_on_with_the_old_classes(exported: Exported) -> None:
    changed, _ = add_class(exported.predictor, "nine", images_of(9, 5), exported.held_out)
    images = images_of(3, 6)
    assert torch.equal(changed.predict(images, "head").top, exported.predictor.predict(images, "head").top)
    twice, _ = add_class(changed, "eight", images_of(8, 5), exported.held_out)
    assert twice.card.classes[8:] == ["nine", "eight"]
    assert len(twice.card.added) == 2


def test_without_held_out_images_nothing_is_measured(exported: Exported, tmp_path: Path) -> None:
    exported.write(tmp_path / "model")
    (tmp_path / "model" / "held-out.safetensors").unlink()
    nothing = read_held_out(tmp_path / "model", exported.predictor.card.feature_size)
    changed, effect = add_class(exported.predictor, "nine", images_of(9, 5), nothing)
    assert (effect.held_out, effect.before, effect.after, effect.taken) == (0, None, None, None)
    with pytest.raises(UserError, match="without held-out images"):
        changed.predict(images_of(9, 2), reject=0.05)
    (tmp_path / "model" / "held-out.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"held-out\.safetensors cannot be read"):
        read_held_out(tmp_path / "model", exported.predictor.card.feature_size)


@pytest.mark.parametrize("name", ["3", ""])
def test_a_name_is_new(exported: Exported, name: str) -> None:
    with pytest.raises(UserError, match="NAME"):
        add_class(exported.predictor, name, images_of(9, 5), exported.held_out)


def test_held_out_features_of_another_form_are_refused(tmp_path: Path) -> None:
    for features, labels in ((torch.zeros(4), torch.tensor(1)), (torch.zeros(2, 3), torch.zeros(2).long())):
        save_file({"features": features, "labels": labels}, tmp_path / "held-out.safetensors")
        with pytest.raises(UserError, match="do not fit together"):
            read_held_out(tmp_path, 4)
