"""Rows of a table, series, text, numbers and token ids: exported, predicted, onboarded, refused, shown and reported."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import protofed
from protofed.data.encodings import Encoding
from protofed.serving.predictor import Predictor
from tests.support.command_line import invoke, refused, succeed

CLASSES = ("down", "up")


def _table(place: Path) -> None:
    with (place / "data.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("age", "ward", "label"))
        writer.writerows((20 + n % 7 + 40 * (n % 2), "ab"[n % 2], CLASSES[n % 2]) for n in range(60))
    (place / "new.csv").write_text("ward,age\nb,63\na,21\n")


def _text(place: Path) -> None:
    words = {"down": "rain and wind", "up": "goal and match"}
    (place / "data.tsv").write_text("".join(f"{name}\t{words[name]} {n}\n" for n in range(30) for name in CLASSES))
    (place / "new.lines").write_text("a match\nthe wind\n")


HEADING = "@univariate true\n@equalLength false\n@classLabel true down up\n@data\n"


def _series(place: Path) -> None:
    lines = [
        f"{','.join(str(sign * step) for step in range(3 + n % 4))}:{name}\n"
        for n in range(30)
        for sign, name in ((-1, "down"), (1, "up"))
    ]
    (place / "data.ts").write_text(HEADING + "".join(lines))
    (place / "new.ts").write_text(f"{HEADING}0,1,2,3:up\n0,-1,-2:down\n")


def _floats(place: Path) -> None:
    labels = np.arange(60) % 2
    x = np.where(labels, 5.0, -5.0)[:, None] + np.linspace(0, 1, 180).reshape(60, 3)
    np.savez(place / "data.npz", x=x.astype(np.float32), labels=labels)
    np.savez(place / "new.npz", x=np.array([[5, 5, 5], [-5, -5, -5]], np.float32))


def _tokens(place: Path) -> None:
    labels = np.arange(60) % 2
    x = np.stack([2 + labels, 4 + np.arange(60) % 3, 0 * labels], 1)
    np.savez(place / "data.npz", x=x, labels=labels)
    np.savez(place / "new.npz", x=np.array([[3, 4, 0], [2, 4, 0]]))


KINDS: dict[str, tuple[Callable[[Path], None], str, str, str]] = {
    "table": (_table, "csv:data.csv", "mlp", "new.csv"),
    "text": (_text, "text:data.tsv", "embedding-bag", "new.lines"),
    "series": (_series, "ts:data.ts", "cnn1d", "new.ts"),
    "floats": (_floats, "npz:data.npz", "mlp", "new.npz"),
    "tokens": (_tokens, "npz:data.npz", "embedding-bag", "new.npz"),
}
"""What makes the files, and the dataset, model and new samples: the first is `up`, the second `down`."""
SHORT = [
    "--clients",
    "2",
    "--split",
    "iid",
    "--rounds",
    "3",
    "--epochs",
    "10",
    "--lr",
    "0.3",
    "--length",
    "6",
    "--quiet",
]


@pytest.fixture(scope="module", params=KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, a comparison of two methods with its report, and a model with examples."""
    make, data, model, new = KINDS[request.param]
    folder: Path = tmp_path_factory.mktemp(request.param)
    make(folder)
    (folder / "kind").write_text(request.param)
    (folder / "new").write_text(new)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        words = ("compare", "--methods", "fedavg,fedproto", "--dataset", data, "--model", model, "--seeds", "2")
        succeed(folder, *words, *SHORT, "--out", "study")
        succeed(folder, "export", "study/fedavg-seed0", "--out", "model", "--examples", "2")
    return folder


def names_of(predictor: Predictor) -> list[str]:
    """The names of the classes `up` and `down`; arrays have numbers."""
    return list(predictor.card.classes[::-1]) if predictor.card.encoding is None else ["up", "down"]


def test_a_split_and_a_report_are_those_of_pictures(place: Path) -> None:
    _, data, _, _ = KINDS[(place / "kind").read_text()]
    said = json.loads(succeed(place, "split", "--dataset", data, "--clients", "2", "--split", "iid", "--json").out)
    assert len(said["counts"]) == 2
    page = (place / "study" / "report.html").read_text()
    assert "fedproto" in page
    assert data.partition(":")[2] in page


def test_new_samples_are_answered_with_the_nearest_training_samples(place: Path) -> None:
    predictor = protofed.load(place / "model")
    found = json.loads(succeed(place, "predict", "model", (place / "new").read_text(), "--json").out)["predictions"]
    up, down = names_of(predictor)
    assert [row["class"] for row in found] == [up, down]
    assert [row["example"]["class"] for row in found] == [up, down]
    examples, encoding = predictor.examples, predictor.card.encoding
    assert examples is not None
    for row in found:  # the example is a training sample, told in words where there are words for it
        number = row["example"]["number"]
        sample = examples.x[number]
        words = " ".join(f"{value:.4g}" for value in sample.tolist()) if encoding is None else encoding.show(sample)
        assert row["example"]["sample"] == words
        assert int(examples.clients[number]) == row["example"]["client"]
    assert "nearest example" in succeed(place, "predict", "model", (place / "new").read_text()).out
    assert "example" in succeed(place, "predict", "model", (place / "new").read_text(), "--csv").out.splitlines()[0]


def test_an_exported_model_sees_what_the_run_saw(place: Path) -> None:
    """Its accuracy on the test samples is the run's own."""
    predictor = protofed.load(place / "model")
    accuracy = predictor.card.accuracy["global/all/head"]
    assert predictor.card.held_out["head"] == pytest.approx(accuracy)


def test_what_is_like_nothing_known_is_refused(place: Path) -> None:
    predictor = protofed.load(place / "model")
    card = predictor.card
    odd = torch.full((1, *card.shape), 10**6 if card.dtype == "float32" else 1, dtype=getattr(torch, card.dtype))
    found = predictor.predict(odd, reject=0.05)
    assert found.rates is not None
    assert found.refused.tolist() == [bool(found.distances[0, 0] > found.rates["threshold"])]
    if card.dtype == "float32":
        assert found.classes == [None]


def test_a_newcomer_joins_with_the_same_files(place: Path) -> None:
    _, data, _, _ = KINDS[(place / "kind").read_text()]
    said = json.loads(succeed(place, "onboard", "model", "--data", data.partition(":")[2], "--json").out)
    assert said["samples"] + said["test_samples"] == 60
    assert said["after"]["head"] >= 90


def test_records_are_answered_from_python(place: Path) -> None:
    predictor = protofed.load(place / "model")
    records: dict[str, list[object]] = {
        "table": [{"age": 63, "ward": "b"}, {"age": 21, "ward": "a"}],
        "text": ["a match", "the wind"],
        "series": [[[0, 1, 2, 3]], [[0, -1, -2]]],
        "floats": [[5.0, 5.0, 5.0], [-5.0, -5.0, -5.0]],
        "tokens": [[3, 4, 0], [2, 4, 0]],
    }
    given = records[(place / "kind").read_text()]
    x = given if isinstance(predictor.card.encoding, Encoding) else np.array(given)
    assert predictor.predict(x).classes == names_of(predictor)


def test_a_model_of_tables_takes_no_array_and_no_row_without_a_column(place: Path) -> None:
    if (place / "kind").read_text() != "table":
        pytest.skip("the others have no columns")
    np.savez(place / "wide.npz", x=np.zeros((2, 3), np.float32))  # as wide as a row is
    line = refused(invoke(place, "predict", "model", "wide.npz"))
    assert "an array does not say which column is which" in line
    (place / "narrow.csv").write_text("age,wards\n63,b\n")
    line = refused(invoke(place, "predict", "model", "narrow.csv"))
    assert "missing value for column ward in row 1: the row has age, wards" in line
    assert "did you mean 'wards'?" in line


@pytest.mark.parametrize("shape", [(2, 9, 9, 9), (2, 1)])
def test_arrays_of_another_shape_are_one_line(place: Path, shape: tuple[int, ...]) -> None:
    np.savez(place / "odd.npz", x=np.zeros(shape, np.float32))
    says = "an array does not say" if (place / "kind").read_text() == "table" else "they must be"
    assert says in refused(invoke(place, "predict", "model", "odd.npz"))
