"""Bad input: exit code 2, one line that names the argument, its value and what is allowed, and nothing written."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import pytest
import torch

from protofed.data.sources.catalogue import MNIST
from tests.support.command_line import everything_in, finish, invoke, start

BROKEN = """
from dataclasses import dataclass

from protofed.methods.base import Method


class NotADataclass:
    pass


class Fails:
    def __init__(self, shape, classes):
        raise ValueError("a reason\\nof two lines")
"""

FILES = {
    "misspelt.yaml": "ruonds: 3\n",
    "list.yaml": "- rounds\n- 3\n",
    "empty.yaml": "",
    "unparsable.yaml": "rounds: [3\n",
    "text.yaml": "rounds: many\n",
    "params.yaml": "params: [k]\n",
    "broken.py": BROKEN,
    "syntax.py": "def f(:\n",
    "taken/file": "",
}


def refuse(place: Path, *arguments: str) -> str:
    """The one line of a refusal that leaves no trace."""
    before = everything_in(place)
    outcome = invoke(place, *arguments)
    assert (outcome.code, outcome.out) == (2, ""), outcome.err
    (line,) = outcome.err.splitlines()
    assert line.startswith("error: ")
    assert {path for path in everything_in(place) if "__pycache__" not in path.parts} == before
    return line


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with wrong files."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--dataset nope", ["--dataset: 'nope'", "known: cifar10, ", "digit5, digits, "]),
        ("--dataset digit", ["--dataset: 'digit'", "did you mean 'digits'?"]),
        ("--dataset digits+nope", ["--dataset: 'nope'", "known: "]),
        ("--model nope", ["--model: 'nope'", "known: ", "mlp"]),
        ("--model cnn,resnet1", ["--model: 'resnet1'", "did you mean 'resnet1"]),
        ("--method fedprotto", ["--method: 'fedprotto'", "did you mean 'fedproto'?", "mp-fedcl"]),
        ("--split direchlet", ["--split: 'direchlet'", "did you mean 'dirichlet'?", "quantity"]),
        ("--engine stakced", ["--engine: 'stakced'", "did you mean 'stacked'?", "sequential"]),
        ("--precision float16", ["--precision: 'float16'", "float32, float64"]),
        ("--device nope", ["--device: 'nope'", "cpu, cuda"]),
        ("--ruonds 3", ["--ruonds", "--rounds"]),
        ("--rounds", ["--rounds", "requires an argument"]),
        ("--rounds many", ["--rounds: 'many'", "int"]),
        ("--rounds 2.5", ["--rounds: '2.5'", "int"]),
        ("--lr fast", ["--lr: 'fast'", "float"]),
        ("--rounds 0", ["--rounds: 0 ", "1 or more"]),
        ("--epochs 0", ["--epochs: 0 ", "1 or more"]),
        ("--batch-size 0", ["--batch-size: 0 ", "1 or more"]),
        ("--checkpoint-every 0", ["--checkpoint-every: 0 ", "1 or more"]),
        ("--alpha 0", ["--alpha: 0.0 ", "above 0"]),
        ("--alpha -0.5", ["--alpha: -0.5 ", "above 0"]),
        ("--participation 0", ["--participation: 0.0 ", "above 0 and at most 1"]),
        ("--participation 1.5", ["--participation: 1.5 ", "above 0 and at most 1"]),
        ("--clients 0", ["--clients: 0 ", "1 or more"]),
        ("--clients 2000", ["--clients: 2000 ", "from 1 to 1442"]),
        ("--split iid --train-size 20 --clients 21", ["--clients: 21 ", "from 1 to 20"]),
        ("--train-size 0", ["--train-size: 0 ", "1 to 1442"]),
        ("--train-size 99999", ["--train-size: 99999 ", "1 to 1442"]),
        ("--val-fraction 1", ["--val-fraction: 1.0 ", "below 1"]),
        ("--val-fraction -0.1", ["--val-fraction: -0.1 ", "at least 0"]),
        ("--lr nan", ["--lr: nan ", "finite"]),
        ("--lr inf", ["--lr: inf ", "finite"]),
        ("--lr 0", ["--lr: 0.0 ", "above 0"]),
        ("--momentum -1", ["--momentum: -1.0 ", "0 or more"]),
        ("--seed -1", ["--seed: -1 ", "0 or more"]),
        ("--time-budget 0", ["--time-budget: 0.0 ", "above 0"]),
        ("--long-tail 0.5", ["--long-tail: 0.5 ", "1 or more"]),
        ("--set k", ["--set: 'k'", "key=value"]),
        ("--set =3", ["--set: '=3'", "key=value"]),
        ("--set k=[", ["--set: 'k=['", "cannot be read"]),
        ("--set kk=3", ["--set", "'kk'", "did you mean 'k'?", "temperature"]),
        ("--set k=0", ["k: 0 ", "1 or more"]),
        ("--set k=two", ["k: 'two'", "int"]),
        ("--set k=true", ["k: True ", "int"]),
        ("--set start=middle", ["start: 'middle'", "random"]),
        ("--config misspelt.yaml", ["'ruonds'", "did you mean 'rounds'?"]),
        ("--config list.yaml", ["--config: 'list.yaml'", "name: value"]),
        ("--config empty.yaml", ["--config: 'empty.yaml'", "name: value"]),
        ("--config unparsable.yaml", ["--config: 'unparsable.yaml'", "line 2"]),
        ("--config absent.yaml", ["--config: 'absent.yaml'", "no such file"]),
        ("--config taken", ["--config: 'taken'", "directory"]),
        ("--config text.yaml", ["--rounds: 'many'", "int"]),
        ("--config params.yaml", ["--params: ['k']", "mapping"]),
        ("--out taken", ["--out: 'taken'", "exists"]),
        ("--out list.yaml", ["--out: 'list.yaml'", "exists"]),
        ("--out list.yaml/run", ["--out: 'list.yaml/run'", "Not a directory"]),
        ("--method absent.py:A", ["--method: 'absent.py:A'", "no file absent.py"]),
        ("--method broken.py", ["--method: 'broken.py'", "path/to/file.py:Name"]),
        ("--method broken.py:Absent", ["--method: 'broken.py:Absent'", "has no Absent"]),
        ("--method broken.py:NotADataclass", ["--method: 'broken.py:NotADataclass'", "extends protofed.methods"]),
        ("--method syntax.py:A", ["--method: 'syntax.py:A'", "SyntaxError"]),
        ("--model broken.py:Fails", ["--model: 'broken.py:Fails'", "a reason of two lines"]),
        ("--dataset mnist", ["--data-dir: None", "train-images-idx3-ubyte.gz"]),
        ("--dataset mnist --data-dir absent", ["--data-dir: 'absent'", "train-images-idx3-ubyte.gz"]),
        ("--method fedavg --model cnn,cnn-18", ["--model: 'cnn,cnn-18'", "one architecture"]),
    ],
)
def test_it_is_refused_in_one_line(place: Path, arguments: str, words: list[str]) -> None:
    line = refuse(place, "run", *arguments.split())
    assert all(word in line for word in words), line


@pytest.mark.parametrize(
    "command",
    [
        "run --split dirichlte",
        "run --split dirichlte --engine flower-sim",
        "compare --method local,fedavg --split dirichlte",
        "sweep --grid k=1,2 --split dirichlte",
        "sweep --grid split=iid,dirichlte",
        "choose-k --split dirichlte",
        "split --split dirichlte",
        "flower-app app --split dirichlte",
    ],
)
def test_a_misspelt_split_leaves_nothing_behind(place: Path, command: str) -> None:
    line = refuse(place, *command.split())
    assert "--split: 'dirichlte' is not usable; did you mean 'dirichlet'? known: dirichlet, domains, " in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_absent_gpu_is_refused(place: Path) -> None:
    assert "--device: 'cuda' is not usable; this machine cannot use it" in refuse(place, "run", "--device", "cuda")


def mnist_files(folder: Path) -> dict[str, bytes]:
    """Four small files with MNIST's names; what they hold is well formed."""
    shapes = {3: struct.pack(">4B3I", 0, 0, 8, 3, 20, 28, 28), 1: struct.pack(">4BI", 0, 0, 8, 1, 20)}
    size = {3: 20 * 28 * 28, 1: 20}
    content = {}
    for name in (file.name for file in MNIST):
        dimensions = 3 if "idx3" in name else 1
        content[name] = gzip.compress(shapes[dimensions] + bytes(size[dimensions]))
        (folder / name).write_bytes(content[name])
    return content


def test_a_wrong_checksum_is_refused(place: Path) -> None:
    content = mnist_files(place)
    name = "train-images-idx3-ubyte.gz"
    line = refuse(place, "run", "--dataset", "mnist", "--data-dir", str(place))
    assert str(place / name) in line
    assert hashlib.sha256(content[name]).hexdigest() in line
    assert f"should be {MNIST[0].checksum.removeprefix('sha256:')}" in line


def test_a_truncated_file_is_refused(place: Path) -> None:
    content = mnist_files(place)
    for what in ("images-idx3", "labels-idx1"):  # no checksum is published for these
        name = f"emnist-byclass-test-first20-{what}-ubyte.gz"
        (place / name).write_bytes(content[f"t10k-{what}-ubyte.gz"][:-9])
    line = refuse(place, "run", "--dataset", "emnist", "--data-dir", str(place))
    assert str(place / "emnist-byclass-test-first20-images-idx3-ubyte.gz") in line
    assert "cut short" in line


def test_a_missing_file_among_others_is_named(place: Path) -> None:
    mnist_files(place)
    (place / "t10k-labels-idx1-ubyte.gz").unlink()
    line = refuse(place, "run", "--dataset", "mnist", "--data-dir", str(place))
    assert "--data-dir: " in line
    assert "t10k-labels-idx1-ubyte.gz" in line


def test_an_unknown_command_is_refused(place: Path) -> None:
    assert "'rnu'" in refuse(place, "rnu")


def test_resume_without_a_folder_is_refused(place: Path) -> None:
    assert "DIR" in refuse(place, "resume")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--out list.yaml", ["--out: 'list.yaml'", "exists"]),
        ("--out absent/split.png", ["--out: 'absent/split.png'", "no folder absent"]),
        ("--clients 2000", ["--clients: 2000"]),
        ("--rounds 3", ["--rounds"]),
    ],
)
def test_split_refuses_in_one_line(place: Path, arguments: str, words: list[str]) -> None:
    line = refuse(place, "split", *arguments.split())
    assert all(word in line for word in words), line


def test_a_process_of_its_own_says_the_same(place: Path) -> None:
    before = everything_in(place)
    outcome = finish(start(place, "run", "--method", "fedprotto"))
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith("error: --method: 'fedprotto' is not usable; did you mean 'fedproto'? ")
    assert outcome.err.count("\n") == 1
    assert everything_in(place) == before
