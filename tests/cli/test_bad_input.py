"""Bad input: exit code 2, a line that names the argument, its value and the reason, maybe a hint, nothing written."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import pytest
import torch

from protofed.data.sources.catalogue import MNIST
from tests.support.command_line import everything_in, finish, invoke, refused, start

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
    "emptied/notes.txt": "no picture",
    "a.txt": "no archive",
    "rows.json": "[[0, 1, 2], [3]]",
    "many.json": "[[0, 1, 2], [5000]]",
}


def refuse(place: Path, *arguments: str) -> str:
    """What is said of a mistake that leaves no trace."""
    before = everything_in(place)
    said = refused(invoke(place, *arguments))
    assert {path for path in everything_in(place) if "__pycache__" not in path.parts} == before
    return said


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
        (
            "--dataset nope",
            ["'nope' for --dataset", "there is none of that name", "hint: `protofed datasets` lists them all"],
        ),
        (
            "--dataset digit",
            ["'digit' for --dataset", "\nhint: did you mean 'digits'? `protofed datasets` lists them all\n"],
        ),
        ("--dataset digits+nope", ["'nope' for --dataset", "`protofed datasets`"]),
        ("--model nope", ["'nope' for --model", "hint: `protofed models` lists them all"]),
        ("--model cnn,resnet1", ["'resnet1' for --model", "did you mean 'resnet1"]),
        ("--method fedprotto", ["'fedprotto' for --method", "did you mean 'fedproto'?", "`protofed methods`"]),
        (
            "--split direchlet",
            ["'direchlet' for --split", "did you mean 'dirichlet'?", "`protofed splits`"],
        ),
        ("--engine stakced", ["'stakced' for --engine", "did you mean 'stacked'?", "sequential"]),
        ("--precision float16", ["'float16' for --precision", "float32, float64"]),
        ("--device nope", ["'nope' for --device", "cpu, cuda"]),
        (
            "--ruonds 3",
            ["'--ruonds' for OPTION", "hint: did you mean '--rounds'? `protofed run --help` lists them all"],
        ),
        ("--rounds", ["missing value for --rounds: it needs one"]),
        ("--rounds many", ["'many' for --rounds", "int"]),
        ("--rounds 2.5", ["'2.5' for --rounds", "int"]),
        ("--lr fast", ["'fast' for --lr", "float"]),
        ("--rounds 0", ["'0' for --rounds: ", "1 or more"]),
        ("--epochs 0", ["'0' for --epochs: ", "1 or more"]),
        ("--batch-size 0", ["'0' for --batch-size: ", "1 or more"]),
        ("--checkpoint-every 0", ["'0' for --checkpoint-every: ", "1 or more"]),
        ("--alpha 0", ["'0.0' for --alpha: ", "above 0"]),
        ("--alpha -0.5", ["'-0.5' for --alpha: ", "above 0"]),
        ("--participation 0", ["'0.0' for --participation: ", "above 0 and at most 1"]),
        ("--participation 1.5", ["'1.5' for --participation: ", "above 0 and at most 1"]),
        ("--clients 0", ["'0' for --clients: ", "1 or more"]),
        ("--clients 2000", ["'2000' for --clients: ", "from 1 to 1442"]),
        ("--split iid --train-size 20 --clients 21", ["'21' for --clients: ", "from 1 to 20"]),
        ("--train-size 0", ["'0' for --train-size: ", "1 to 1442"]),
        ("--train-size 99999", ["'99999' for --train-size: ", "1 to 1442"]),
        ("--split by:ward", ["'by:ward' for --split: ", "columns are of tables", "by:label"]),
        ("--split by:label --clients 4", ["'4' for --clients: ", "by:label has 10", "leave --clients out"]),
        ("--split indices:absent.json", ["for --split: ", "it cannot be read: No such file"]),
        ("--split indices:taken", ["for --split: ", "it cannot be read: Is a directory"]),
        ("--split indices:misspelt.yaml", ["for --split: ", "it is no JSON"]),
        ("--split indices:many.json", ["for --split: ", "train row 5000 of client 1, and rows are from 0 to 1441"]),
        ("--split indices:rows.json --clients 3", ["'3' for --clients: ", "has 2"]),
        ("--split indices:rows.json --long-tail 10", ["'10.0' for --long-tail: ", "which rows are whose"]),
        ("--split indices:rows.json --drift gradual", ["'gradual' for --drift: ", "another seed gives the same"]),
        ("--split iid --clients-per-domain 1,2", ["'1,2' for --clients-per-domain: ", "--split domains"]),
        ("--dataset digit-domains --split domains --clients-per-domain 1,2", ["'1,2' for --cli", "has 4 domains"]),
        ("--dataset digit-domains --unseen scaned", ["'scaned' for --unseen: ", "did you mean 'scanned'?"]),
        ("--unseen digits", ["'digits' for --unseen: ", "digits has no domains"]),
        ("--test-fraction 1", ["'1.0' for --test-fraction: ", "below 1"]),
        ("--val-fraction 1", ["'1.0' for --val-fraction: ", "below 1"]),
        ("--val-fraction -0.1", ["'-0.1' for --val-fraction: ", "at least 0"]),
        ("--lr nan", ["'nan' for --lr: ", "finite"]),
        ("--lr inf", ["'inf' for --lr: ", "finite"]),
        ("--lr 0", ["'0.0' for --lr: ", "above 0"]),
        ("--momentum -1", ["'-1.0' for --momentum: ", "0 or more"]),
        ("--seed -1", ["'-1' for --seed: ", "0 or more"]),
        ("--time-budget 0", ["'0.0' for --time-budget: ", "above 0"]),
        ("--long-tail 0.5", ["'0.5' for --long-tail: ", "1 or more"]),
        ("--set k", ["'k' for --set", "KEY=VALUE"]),
        ("--set =3", ["'=3' for --set", "KEY=VALUE"]),
        ("--set k=[", ["'[' for --set k: ", "cannot be read"]),
        ("--set kk=3", ["'kk' for --set with --method mp-fedcl: ", "did you mean 'k'?", " more\n"]),
        ("--set k=0", ["'0' for --set k: ", "1 or more"]),
        ("--set k=two", ["'two' for --set k", "int"]),
        ("--set k=true", ["'true' for --set k: ", "int"]),
        ("--set start=middle", ["'middle' for --set start", "random"]),
        (
            "--config misspelt.yaml",
            ["'ruonds' for OPTION", "hint: did you mean 'rounds'? `protofed run --help` lists them all"],
        ),
        ("--config list.yaml", ["'list.yaml' for --config", "name: value"]),
        ("--config empty.yaml", ["'empty.yaml' for --config", "name: value"]),
        ("--config unparsable.yaml", ["'unparsable.yaml' for --config", "line 2"]),
        ("--config absent.yaml", ["'absent.yaml' for --config", "no such file"]),
        ("--config taken", ["'taken' for --config", "directory"]),
        ("--config text.yaml", ["'many' for --rounds", "int"]),
        ("--config params.yaml", ["'['k']' for --params", "mapping"]),
        ("--out taken", ["'taken' for --out", "exists"]),
        ("--out list.yaml", ["'list.yaml' for --out", "exists"]),
        ("--out list.yaml/run", ["'list.yaml/run' for --out", "Not a directory"]),
        ("--method absent.py:A", ["'absent.py:A' for --method", "no file absent.py"]),
        ("--method broken.py", ["'broken.py' for --method", "path/to/file.py:Name"]),
        ("--method broken.py:Absent", ["'broken.py:Absent' for --method", "has no Absent"]),
        ("--method broken.py:NotADataclass", ["'broken.py:NotADataclass' for --method", "extends protofed.methods"]),
        ("--method syntax.py:A", ["'syntax.py:A' for --method", "SyntaxError"]),
        ("--model broken.py:Fails", ["'broken.py:Fails' for --model", "a reason of two lines"]),
        ("--dataset mnist", ["'mnist' for --dataset: it needs train-images-idx3-ubyte.gz and 3 more", "--data-dir"]),
        ("--dataset mnist --data-dir absent", ["'absent' for --data-dir", "train-images-idx3-ubyte.gz"]),
        ("--method fedavg --model cnn,cnn-18", ["'cnn,cnn-18' for --model", "one architecture"]),
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
    assert "invalid value 'dirichlte' for --split: there is none of that name" in line
    assert line.endswith("hint: did you mean 'dirichlet'? `protofed splits` lists them all\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_an_absent_gpu_is_refused(place: Path) -> None:
    assert "invalid value 'cuda' for --device: this machine cannot use it" in refuse(place, "run", "--device", "cuda")


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
    assert f"invalid value '{place}' for --data-dir: " in line
    assert "t10k-labels-idx1-ubyte.gz" in line


@pytest.mark.parametrize(
    ("arguments", "first", "hint"),
    [
        ("rn", "invalid value 'rn' for COMMAND: `protofed` has no such command", "did you mean 'run'? `protofed --"),
        ("deploy", "missing value for COMMAND: `protofed deploy` needs one", "`protofed deploy --help` lists them all"),
        (
            "deploy sever",
            "invalid value 'sever' for COMMAND: `protofed deploy` has",
            "did you mean 'server'? `protofed d",
        ),
        (
            "resume",
            "missing value for DIR: `protofed resume` needs one",
            "`protofed resume --help` shows what it takes",
        ),
        ("resume a b", "invalid value 'b' for ARGUMENT: `protofed resume` takes no more", "`protofed resume --help`"),
        ("resume taken", "invalid value 'taken' for DIR: it is not a run folder: it has no config.yaml", ""),
        (
            "run --methd x",
            "invalid value '--methd' for OPTION: `protofed run` has",
            "did you mean '--method'? `protofed ",
        ),
        (
            "run --xyzzy",
            "invalid value '--xyzzy' for OPTION: `protofed run` has",
            "`protofed run --help` lists them all",
        ),
        ("run --quiet=3", "invalid use of --quiet: it takes no value", ""),
        ("run --set k=abc", "invalid value 'abc' for --set k: it must be of type int", ""),
        ("run --method local --set k=1", "invalid value 'k' for --set with --method local: there are none", ""),
        (
            "run --secure",
            "invalid use of --secure: it is for runs over a network",
            "take --engine flower-sim, or `prot",
        ),
        ("run --dataset folder:emptied", "for PATH: it has no pictures", "pictures are .bmp, "),
        ("run --dataset folder:a.txt", "for PATH: it is neither a folder nor a zip file", ""),
        ("run --dataset npz:a.txt", "for PATH: it is not an npz file, or cut short", ""),
        ("run --dataset npz:no.npz", "invalid value 'npz:no.npz' for --dataset: there is no no.npz", ""),
        (
            "run --split domains",
            "invalid value 'domains' for --split: digits has no domains",
            "datasets that have: digit-",
        ),
        (
            "run --defence krumm",
            "invalid value 'krumm' for --defence: ",
            "did you mean 'krum'? `protofed defences` lists them",
        ),
        ("run --attack x", "invalid value 'x' for --attack: ", "`protofed attacks` lists them all"),
        ("run --log paper", "invalid value 'paper' for --log: it must be one of tensorboard, wandb", ""),
        ("run --method fccl-plus", "missing value for --public: fccl-plus needs a public dataset", ""),
        ("run --method fedavg --public nope", "invalid value 'nope' for --public: ", "`protofed datasets` lists them"),
        ("compare", "missing value for --method: name at least one", ""),
        (
            "compare --method fedavg --set lamda=1",
            "invalid value 'lamda' for --set: ",
            "",
        ),
        (
            "compare --method fedprox --tune params.muu=1,2",
            "invalid value 'muu' for --tune: it must be one of ",
            "did you mean 'mu'?",
        ),
        ("sweep", "missing value for --grid: name what is varied", ""),
        ("sweep --grid seed=1,2", "invalid value 'seed' for --grid: it cannot be varied", "see --seeds"),
        (
            "sweep --grid aplha=1",
            "invalid value 'aplha' for --grid: there is none",
            "did you mean 'alpha'? `protofed run",
        ),
        ("watch . --port 80", "invalid value '80' for --port: it is the port of a page, and only --ser", "add --serve"),
        ("watch . --once --serve", "invalid use of --once: it does not go with --serve", ""),
        ("reproduce", "missing value for TABLE: name one", "`protofed reproduce --list` lists them all"),
        ("reproduce fedproto/tabel1", "invalid value 'fedproto/tabel1' for TABLE: ", "did you mean 'fedproto/table1'?"),
        ("theory taken --points few", "invalid value 'few' for --points: it is not a valid integer", ""),
        (
            "predict taken a.txt",
            "invalid value 'taken' for MODEL: it is not an exported model: it has no card.json",
            "",
        ),
        ("predict taken a.txt --csv --json", "invalid use of --csv: it does not go with --json", ""),
        (
            "predict taken",
            "missing value for PATH…: `protofed predict` needs one",
            "`protofed predict",
        ),
        ("report absent", "invalid value 'absent' for DIR: there is no such folder", ""),
        ("add-class m x --data d", "missing value for --out: `protofed add-class` needs one", "`protofed add-class -"),
        ("encoder import a.txt --out taken/file", "invalid value 'taken/file' for --out: it exists", "name a new file"),
    ],
)
def test_each_mistake_is_told_in_the_template(place: Path, arguments: str, first: str, hint: str) -> None:
    line, _, second = refuse(place, *arguments.split()).partition("\n")
    assert first in line
    assert second.startswith(f"hint: {hint}" if hint else ""), second
    assert bool(second) == bool(hint), second


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--out list.yaml", ["'list.yaml' for --out", "exists"]),
        ("--out absent/split.png", ["'absent/split.png' for --out", "no folder absent"]),
        ("--clients 2000", ["'2000' for --clients"]),
        ("--rounds 3", ["--rounds"]),
    ],
)
def test_split_refuses_in_one_line(place: Path, arguments: str, words: list[str]) -> None:
    line = refuse(place, "split", *arguments.split())
    assert all(word in line for word in words), line


def test_a_process_of_its_own_says_the_same(place: Path) -> None:
    before = everything_in(place)
    outcome = finish(start(place, "run", "--method", "fedprotto"))
    assert refused(outcome).splitlines() == [
        "error: invalid value 'fedprotto' for --method: there is none of that name",
        "hint: did you mean 'fedproto'? `protofed methods` lists them all",
    ]
    assert everything_in(place) == before
