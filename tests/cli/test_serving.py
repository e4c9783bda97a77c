"""`protofed export`, `predict`, `onboard` and `add-class` as a user meets them."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import protofed
from protofed.data import load
from protofed.serving.card import ModelCard
from tests.support.command_line import everything_in, invoke, refused, succeed

SMALL = ("--train-size", "300", "--alpha", "1", "--clients", "3", "--rounds", "3", "--device", "cpu", "--quiet")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run, a model of it, and images to ask about."""
    folder = tmp_path_factory.mktemp("use")
    succeed(folder, "run", "--method", "mp-fedcl", *SMALL, "--out", "run")
    succeed(folder, "export", "run", "--out", "model")
    digits = load("digits")
    np.savez(folder / "test.npz", images=digits.test.x[:30].numpy())
    np.savez(folder / "new.npz", images=digits.train.x[:200].numpy(), labels=digits.train.labels[:200].numpy())
    (folder / "pictures" / "more").mkdir(parents=True)
    for number, name in enumerate(("a.png", "b.png", "more/c.png")):
        Image.fromarray(digits.test.x[number, 0].numpy()).save(folder / "pictures" / name)
    (folder / "pictures" / "notes.txt").write_text("not a picture")
    return folder


def test_export_says_what_it_made(place: Path, tmp_path: Path) -> None:
    said = succeed(tmp_path, "export", str(place / "run"), "--out", "mine", "--client", "2").out
    assert "model: mlp, client 2" in said
    assert "rounds: 3 of 3\n" in said
    names = {path.name for path in (tmp_path / "mine").iterdir()}
    assert names == {"card.json", "model.safetensors", "prototypes.safetensors", "held-out.safetensors"}
    again = json.loads(succeed(tmp_path, "export", str(place / "run"), "--out", "again", "--json").out)
    assert again == json.loads((place / "model" / "card.json").read_text())
    card = ModelCard.read(tmp_path / "again" / "card.json")
    assert card.data["dataset"] == "digits"
    assert card.shared["up"] == "weights, prototypes"


def test_predict_as_json_csv_and_table(place: Path) -> None:
    found = json.loads(succeed(place, "predict", "model", "test.npz", "--json").out)
    assert list(found) == ["predictions"]
    rows = found["predictions"]
    expected = protofed.load(place / "model").predict(load("digits").test.x[:30]).rows()
    assert rows == [{"image": f"test.npz[{row}]", **one} for row, one in enumerate(expected)]
    assert len(rows[0]["top"]) == 3

    lines = list(csv.DictReader(io.StringIO(succeed(place, "predict", "model", "test.npz", "--csv").out)))
    assert [line["class"] for line in lines] == [row["class"] for row in rows]
    assert [float(line["distance_2"]) for line in lines] == [row["top"][1]["distance"] for row in rows]
    table = succeed(place, "predict", "model", "test.npz", "--top", "1").out
    assert all(f"test.npz[{row}]" in table for row in range(30))
    assert f"client {rows[0]['client']}, cluster {rows[0]['cluster']}" in table


def test_pictures_folders_and_arrays_are_seen_alike(place: Path) -> None:
    single = json.loads(succeed(place, "predict", "model", "pictures/a.png", "pictures/b.png", "--json").out)
    whole = json.loads(succeed(place, "predict", "model", "pictures", "--json").out)["predictions"]
    arrays = json.loads(succeed(place, "predict", "model", "test.npz", "--json").out)["predictions"]
    assert [row["image"] for row in whole] == ["pictures/a.png", "pictures/b.png", "pictures/more/c.png"]
    far = [row["distance"] for row in arrays[:3]]
    assert [row["distance"] for row in whole] == pytest.approx(far, rel=1e-5)
    assert [row["distance"] for row in single["predictions"]] == pytest.approx(far[:2], rel=1e-5)


def test_what_is_refused_is_unknown_and_the_rates_are_told(place: Path) -> None:
    np.savez(place / "noise.npz", images=np.random.default_rng(0).integers(0, 256, (20, 8, 8), np.uint8))
    asked = ("predict", "model", "noise.npz", "--reject", "0.05")
    found = json.loads(succeed(place, *asked, "--json").out)
    refused = [row["refused"] for row in found["predictions"]]
    assert any(refused)
    assert [row["class"] is None for row in found["predictions"]] == refused
    assert 0 <= found["reject"]["known"] < 0.15
    said = succeed(place, *asked).out
    assert "unknown" in said
    assert f"refused: {sum(refused)} of 20" in said
    told = succeed(place, *asked, "--csv")
    assert f"refused: {sum(refused)} of 20" in told.err
    assert told.out.count("\n") == 21


def test_onboard_prints_before_after_and_alone(place: Path, tmp_path: Path) -> None:
    asked = ("onboard", str(place / "model"), "--data", str(place / "new.npz"), "--shots", "5")
    found = json.loads(succeed(tmp_path, *asked, "--json", "--out", "client").out)
    assert (found["start"], found["epochs"], found["samples"]) == ("pretrained", 2, 50)
    said = succeed(tmp_path, *asked).out
    for part in ("before", "after", "alone"):
        assert part in said
        assert f"{found[part]['head']:.2f}" in said
    assert all(f"note: {note}" in said for note in found["notes"])
    assert json.loads(succeed(tmp_path, "predict", "client", str(place / "test.npz"), "--json").out)["predictions"]
    other = succeed(tmp_path, *asked, "--start", "own", "--model", "mlp-fedpcl", "--seed", "3").out
    assert "mlp-fedpcl, start own" in other


def test_add_class_measures_the_old_ones(place: Path, tmp_path: Path) -> None:
    asked = ("add-class", str(place / "model"), "noise", "--data", str(place / "pictures"))
    effect = json.loads(succeed(tmp_path, *asked, "--out", "a", "--json").out)
    assert (effect["name"], effect["examples"]) == ("noise", 3)
    said = succeed(tmp_path, *asked, "--out", "b").out
    assert f"{effect['before']:.2f} % before, {effect['after']:.2f} % after" in said
    assert protofed.load(tmp_path / "b").card.classes[-1] == "noise"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("export", "empty", "--out", "new"), "it has no config.yaml"),
        (("export", "missing", "--out", "new"), "it has no config.yaml"),
        (("export", "run", "--out", "model"), "it exists already"),
        (("export", "run", "--out", "new", "--client", "7"), "'7' for --client"),
        (("export", "run", "--out", "new", "--client", "x"), "not a valid int"),
        (("predict", "empty", "test.npz"), "it has no card.json"),
        (("predict", "run", "test.npz"), "it has no card.json"),
        (("predict", "model", "missing.png"), "there is no such file"),
        (("predict", "model", "empty"), "there are no pictures"),
        (("predict", "model", "pictures/notes.txt"), "it is no folder, .npz or picture"),
        (("predict", "model", "pickled.npz"), "pickled, and no pickle is read"),
        (("predict", "model", "keyless.npz"), "it has no array `x` or `images`"),
        (("predict", "model", "floats.npz"), "must be uint8"),
        (("predict", "model", "broken.png"), "damaged"),
        (("predict", "model", "test.npz", "--rule", "closest"), "'closest' for --rule"),
        (("predict", "model", "test.npz", "--reject", "2"), "'2.0' for --reject"),
        (("predict", "model", "test.npz", "--json", "--csv"), "it does not go with --json"),
        (("onboard", "model", "--data", "test.npz"), "it has no array `labels`"),
        (("onboard", "model", "--data", "new.npz", "--model", "cnn"), "its features have 50 numbers"),
        (("onboard", "model", "--data", "new.npz", "--out", "model"), "it exists already"),
        (("add-class", "model", "3", "--data", "pictures", "--out", "new"), "'3' for NAME"),
        (("add-class", "model", "x", "--data", "pictures", "--out", "model"), "it exists already"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(arguments: tuple[str, ...], says: str, place: Path) -> None:
    (place / "empty").mkdir(exist_ok=True)
    np.savez(place / "pickled.npz", images=np.array([{"any": "thing"}]))
    np.savez(place / "keyless.npz", pixels=np.zeros((2, 8, 8), np.uint8))
    np.savez(place / "floats.npz", images=np.zeros((2, 8, 8)))
    (place / "broken.png").write_bytes(b"\x89PNG nothing")
    before = everything_in(place)
    outcome = invoke(place, *arguments)
    assert says in refused(outcome)
    assert everything_in(place) == before


def test_onnx_without_its_packages_says_how_to_get_them(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protofed.serving.onnx.find_spec", lambda _: None)
    outcome = invoke(tmp_path, "export", str(place / "run"), "--out", "new", "--onnx")
    assert outcome.code == 2
    assert "hint: pip install 'protofed[onnx]'" in refused(outcome)
    assert everything_in(tmp_path) == set()


def test_forget_and_calibrate_say_what_they_did(tmp_path: Path) -> None:
    succeed(tmp_path, "run", "--method", "fedavg", "--model", "cnn", *SMALL, "--out", "averaged")
    succeed(tmp_path, "run", "--method", "fed3r", "--model", "cnn", *SMALL, "--out", "summed")
    said = succeed(tmp_path, "forget", "summed", "--client", "1").out  # beside the run unless told otherwise
    assert said.startswith("exact: the model is that of a run without client 1")
    assert said.endswith("exported: summed-without-1\n")
    assert protofed.load(tmp_path / "summed-without-1").card.whose == "averaged"
    told = json.loads(
        succeed(tmp_path, "calibrate", "averaged", "--out", "mended", "--set", "virtual=20", "--json").out
    )
    assert told["method"] == "fedavg"
    assert (tmp_path / "mended" / "card.json").is_file()
    assert "only averages" in refused(invoke(tmp_path, "forget", "averaged", "--client", "1", "--out", "other"))
    assert "'virtul' for --set" in refused(invoke(tmp_path, "calibrate", "averaged", "--out", "x", "--set", "virtul=2"))
