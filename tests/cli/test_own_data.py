"""Every kind of a user's own data from the command line: mistakes are one clear line each."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from protofed.data.build import federation_of
from protofed.deploy.client import check_data
from protofed.deploy.owner import Owner
from protofed.errors import UserError
from protofed.experiment import Experiment, with_absolute_paths
from protofed.runs.folder import RunFolder
from tests.support.command_line import invoke, refused, succeed

CLASSES = ("a", "b")


def csv(path: Path, rows: Sequence[str], header: str = "x,y,label") -> str:
    path.write_text("\n".join([header, *rows]) + "\n")
    return f"csv:{path.name}"


def npz(path: Path, x: Any, labels: Any = None, **more: Any) -> str:
    labels = np.arange(len(x)) % 2 if labels is None else labels
    np.savez(path, x=x, labels=labels, **more)
    return f"npz:{path.name}"


def unlabelled(path: Path) -> str:
    np.savez(path, x=FLOATS)
    return f"npz:{path.name}"


def ts(path: Path, series: Sequence[str], classes: str = "a b") -> str:
    head = f"@problemName p\n@univariate true\n@classLabel true {classes}\n@data\n"
    path.write_text(head + "\n".join(series) + "\n")
    return f"ts:{path.name}"


def text(path: Path, lines: Sequence[str]) -> str:
    path.write_text("\n".join(lines) + "\n")
    return f"text:{path.name}"


def pictures(path: Path, number: int = 15) -> str:
    for label in CLASSES:
        (path / label).mkdir(parents=True)
        for place in range(number):
            shade = 40 * CLASSES.index(label) + place
            Image.new("RGB", (8, 8), (shade, 0, 0)).save(path / label / f"{place}.png")
    return f"folder:{path.name}"


ROWS = [f"{row},{row % 7},{CLASSES[row % 2]}" for row in range(30)]
FLOATS = np.random.default_rng(0).standard_normal((30, 3)).astype(np.float32)
IDS = np.random.default_rng(0).integers(1, 9, (30, 5))
SERIES = [f"{row}.0,1.0,2.5,{row % 3}.0:{CLASSES[row % 2]}" for row in range(30)]
LINES = [f"{CLASSES[row % 2]}\tword{row % 5} of {CLASSES[row % 2]}" for row in range(30)]

FEW = ("--clients", "2", "--min-size", "2", "--quiet", "--device", "cpu")

WRONG: dict[str, tuple[Callable[[Path], str], str]] = {  # what makes it, and what the line says
    # wrong columns, arrays, folders
    "csv: no label": (lambda at: csv(at / "t.csv", ROWS, "x,z,w"), "name the column of the classes"),
    "csv: one column": (lambda at: csv(at / "t.csv", ["a"] * 9, "label"), "its only column"),
    "csv: a short row": (lambda at: csv(at / "t.csv", [*ROWS, "1,a"]), "row 31 has 2 values"),
    "csv: no header": (lambda at: csv(at / "t.csv", ROWS, "1,2,3"), "its first line holds numbers"),
    "floats: no labels": (lambda at: unlabelled(at / "f.npz"), "no array `labels`"),
    "token ids: labels of another length": (
        lambda at: npz(at / "i.npz", IDS, np.arange(9)),
        "its `labels` are [9] and its `x` [30, 5]",
    ),
    "series: no classes": (
        lambda at: ((at / "s.ts").write_text("@univariate true\n@data\n1,2:a\n"), "ts:s.ts")[1],
        "@classLabel",
    ),
    "text: no tab": (lambda at: text(at / "t.tsv", [*LINES, "a of a"]), "line 31 is not label<TAB>text"),
    "pictures: not in classes": (
        lambda at: (pictures(at / "p"), (at / "p" / "a" / "0.png").rename(at / "p" / "0.png"), "folder:p")[2],
        "must all lie in class/",
    ),
    # mixed types
    "csv: numbers among text": (
        lambda at: csv(at / "t.csv", ["n/a,2,a", *ROWS]),
        "row 2 is a number, and 'n/a' is none",
    ),
    "csv: numbers with commas": (
        lambda at: csv(at / "t.csv", [f"{row},5;1;{CLASSES[row % 2]}" for row in range(30)], "x;y;label"),
        "row 1 has a comma in a number",
    ),
    "csv: a workbook": (lambda at: ((at / "t.csv").write_bytes(b"PK\x03\x04"), "csv:t.csv")[1], "it is a workbook"),
    "csv: text among numbers": (lambda at: csv(at / "t.csv", [*ROWS, "one,2,a"]), "row 31 is none"),
    "floats: objects": (lambda at: npz(at / "f.npz", np.array([[1, "a"]] * 30, dtype=object)), "no pickle is read"),
    "floats: two arrays of samples": (lambda at: npz(at / "f.npz", FLOATS, images=FLOATS), "both `x` and `images`"),
    "floats: one class": (
        lambda at: npz(at / "f.npz", FLOATS, np.array(["a"] * 30)),
        "all samples are of the class 'a'",
    ),
    "floats: labels below 0": (lambda at: npz(at / "f.npz", FLOATS, np.arange(30) % 2 - 1), "go from -1 to 0"),
    "floats: text": (lambda at: npz(at / "f.npz", np.array([["1", "a"]] * 30)), "must be numbers"),
    "floats: labels of floats": (lambda at: npz(at / "f.npz", FLOATS, np.ones(30)), "whole numbers or text"),
    "token ids: below 0": (lambda at: npz(at / "i.npz", -IDS), "token ids, from 0"),
    "series: text among numbers": (lambda at: ts(at / "s.ts", [*SERIES, "1,x,2,3:a"]), "line 35"),
    "text: packed": (lambda at: ((at / "t.tsv").write_bytes(b"\x1f\x8b"), "text:t.tsv")[1], "it is packed"),
    "text: bytes": (
        lambda at: ((at / "t.tsv").write_bytes(b"a\tgood\nb\t\xff\xfe\n"), "text:t.tsv")[1],
        "not UTF-8",
    ),
    "pictures: text": (
        lambda at: (pictures(at / "p"), (at / "p" / "a" / "0.png").write_text("no"), "folder:p")[2],
        "no picture",
    ),
    # not finite
    "csv: infinite": (lambda at: csv(at / "t.csv", [*ROWS, "inf,2,a"]), "not a finite number"),
    "floats: nan": (lambda at: npz(at / "f.npz", np.where(FLOATS > 2, np.nan, FLOATS)), "not finite"),
    "series: infinite": (lambda at: ts(at / "s.ts", [*SERIES, "1,inf,2,3:a"]), "finite"),
    # empty
    "csv: an empty label": (lambda at: csv(at / "t.csv", [*ROWS, "1,2,"]), "row 31 has none"),
    "csv: nothing": (lambda at: ((at / "t.csv").write_text(""), "csv:t.csv")[1], "it is empty"),
    "csv: a header alone": (lambda at: csv(at / "t.csv", []), "no rows"),
    "floats: nothing": (lambda at: npz(at / "f.npz", FLOATS[:0]), "labels"),
    "floats: no numbers": (lambda at: npz(at / "f.npz", FLOATS[:, :0]), "one or more each"),
    "series: nothing": (lambda at: ts(at / "s.ts", []), "no series"),
    "text: an empty one": (lambda at: text(at / "t.tsv", [*LINES, "a\t "]), "line 31"),
    "text: an empty label": (lambda at: text(at / "t.tsv", [*LINES, "\tof a"]), "line 31"),
    "pictures: none": (lambda at: pictures(at / "p", 0), "no pictures"),
    # headers
    "csv: a name twice": (lambda at: csv(at / "t.csv", ROWS, "x,x,label"), "two columns are named 'x'"),
    "csv: a name missing": (lambda at: csv(at / "t.csv", ROWS, "x,,label"), "column 2 has no name"),
    "series: a class twice": (lambda at: ts(at / "s.ts", SERIES, "a b a"), "declares a class twice"),
    # too many
    "csv: 100,000 categories": (
        lambda at: csv(at / "t.csv", [f"c{row},1,a" for row in range(100_000)]),
        "more than 100 categories",
    ),
    "csv: 100,000 classes": (
        lambda at: csv(at / "t.csv", [f"1,1,c{row}" for row in range(100_000)]),
        "more than 1000 classes",
    ),
}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


TRAINED = ("--rounds", "1", *FEW)
COMMANDS: dict[str, tuple[str, ...]] = {
    "run": TRAINED,
    "compare": ("--methods", "fedavg,fedproto", *TRAINED),
    "sweep": ("--method", "fedavg", "--grid", "lr=0.1,0.01", *TRAINED),
    "choose-k": ("--max-k", "2", *TRAINED),
    "split": ("--clients", "2", "--min-size", "2"),
}


def told(command: str, name: str, at: Path) -> str:
    """What a command says of a mistake in a dataset, in one line."""
    model = {"csv": "linear", "text": "embedding-bag", "ts": "cnn1d"}.get(name.partition(":")[0], "mlp")
    if command == "data":
        found = invoke(at, "data", name)
        assert found.code == 2
        line, *more = found.err.splitlines()
        assert len(more) == line.startswith("error:") * ("hint:" in found.err)
        return found.err
    if command == "client":  # of a federation, when it starts
        kind, _, path = name.partition(":")
        with pytest.raises(UserError) as error:
            check_data(Owner(0, data=f"{kind}:{at / path}"))
        return f"{error.value} {error.value.hint}"
    if command == "resume":  # of a run whose file was spoilt meanwhile
        RunFolder.create(at / "run", with_absolute_paths(Experiment(dataset=f"{name}", model=model, device="cpu")))
        return refused(invoke(at, "resume", "run", "--quiet"))
    words = COMMANDS[command]
    line = refused(invoke(at, command, "--dataset", name, *(("--model", model) if command != "split" else ()), *words))
    assert not (at / "runs").exists()
    return line


SLOW = [pytest.param(command, marks=pytest.mark.slow) for command in ("compare", "sweep", "choose-k", "split")]
"""They read data as a run does."""


@pytest.mark.parametrize("command", ["run", *SLOW, "data", "client", "resume"])
@pytest.mark.parametrize("mistake", WRONG)
def test_every_mistake_is_one_line(mistake: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if (mistake, command) == ("floats: one class", "client"):
        pytest.skip("others may hold more")
    monkeypatch.chdir(tmp_path)
    make, says = WRONG[mistake]
    line = told(command, make(tmp_path), tmp_path)
    assert says in line, line


def test_a_file_without_its_kind_is_said_to_need_one(tmp_path: Path) -> None:
    csv(tmp_path / "t.csv", ROWS)
    line = refused(invoke(tmp_path, "run", "--dataset", "t.csv", "--split", "by:y", "--model", "linear"))
    assert "a file or folder needs its kind before it" in line
    assert "did you mean csv:t.csv?" in line


def test_a_wrong_column_of_a_split_is_the_splits(tmp_path: Path) -> None:
    name = csv(tmp_path / "t.csv", ROWS)
    line = refused(invoke(tmp_path, "run", "--dataset", name, "--split", "by:yy", "--model", "linear"))
    assert "'by:yy' for --split: t.csv has the columns x, y, label" in line
    assert "did you mean 'y'?" in line


def test_lines_of_text_are_no_table(tmp_path: Path) -> None:
    text(tmp_path / "t.tsv", LINES)
    about = json.loads(succeed(tmp_path, "data", "t.tsv", "--json").out)
    assert (about["name"], about["classes"]) == ("text:t.tsv", {"a": [12, 3], "b": [12, 3]})
    rows = [f"{row}\t{CLASSES[row % 2]}" for row in range(30)]
    (tmp_path / "rows.tsv").write_text("\n".join(["x\tlabel", *rows]) + "\n")
    assert json.loads(succeed(tmp_path, "data", "rows.tsv", "--json").out)["name"] == "csv:rows.tsv"
    (tmp_path / "named.tsv").write_text("\n".join(["x\tkind", *rows]) + "\n")
    assert (
        json.loads(succeed(tmp_path, "data", "named.tsv", "--label", "kind", "--json").out)["name"] == "csv:named.tsv"
    )


MADE = """
import torch
from protofed.data import Client, Federation, Samples

def fed():
    x = torch.arange(60.0).view(20, 3)
    train, test = Samples.of(x, torch.arange(20) % 2), Samples.of(x[:4], torch.arange(4) % 2)
    return Federation((Client.of(train, test), Client.of(train.take(torch.arange(10)), test)), ("l", "r"))
"""


def test_a_federation_of_ones_own_is_looked_at_and_written(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MADE)
    about = json.loads(succeed(tmp_path, "data", "mine.py:fed", "--json").out)
    assert (about["clients"], about["train"], about["test"]) == ({"client 0": 20, "client 1": 10}, 30, 4)
    assert (about["classes"], about["shape"], about["example"]) == ({"l": [15, 2], "r": [15, 2]}, [3], "0 1 2")
    assert "client 0 20, client 1 10" in succeed(tmp_path, "data", "mine.py:fed").out
    line = refused(invoke(tmp_path, "split", "--dataset", "mine.py:fed", "--out", "rows.json"))
    assert "--out FILE.safetensors" in line
    succeed(tmp_path, "split", "--dataset", "mine.py:fed", "--out", "fed.safetensors")
    again = json.loads(succeed(tmp_path, "split", "--dataset", "federation:fed.safetensors", "--json").out)
    assert again == {"classes": ["l", "r"], "counts": [[10, 10], [5, 5]]}
    line = refused(invoke(tmp_path, "run", "--dataset", "mine.py:fed", "--clients", "5", "--model", "linear"))
    assert "'5' for --clients: your own federation has 2" in line


def test_columns_are_of_the_hub_too() -> None:
    """`by:COLUMN` is not refused before the table has been read."""
    with pytest.raises(UserError) as error:
        federation_of(Experiment(dataset="hf:nowhere/at-all", split="by:site"))
    assert "for --dataset" in str(error.value)
