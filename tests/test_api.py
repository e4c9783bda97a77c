"""The Python interface: names or objects in, typed results out."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

import protofed
from protofed.data import federate, load
from protofed.data.splits import Split
from protofed.errors import UserError
from protofed.methods.base import Batch, Turn, cross_entropy
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.runs.result import Result
from tests.support.command_line import result_of, succeed

SMALL: dict[str, Any] = {"train_size": 150, "clients": 3, "rounds": 2, "device": "cpu", "threads": 1}


@dataclass(frozen=True)
class Halved(FedAvg):
    """Half the loss: a method that a user might write."""

    name: ClassVar[str] = "halved"
    factor: float = 0.5

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:  # noqa: ARG002
        """Less of it."""
        return self.factor * cross_entropy(model(batch.x).logits, batch.y)


def net(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A model that a user might write."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 6), nn.ReLU(), nn.Linear(6, classes))


def own_federation() -> protofed.Federation:
    """Two clients with images of 4×4 and three classes: bright, dark and grey."""

    def samples(size: int, seed: int) -> protofed.Samples:
        labels = torch.arange(size) % 3
        noise = torch.randint(0, 40, (size, 1, 4, 4), generator=torch.Generator().manual_seed(seed))
        return protofed.Samples.of((noise + 100 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels)

    pool = samples(30, 9)
    clients = tuple(protofed.Client.of(samples(size, size), pool) for size in (24, 36))
    return protofed.Federation(clients, ("dark", "grey", "bright"))


def test_a_run_by_names_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    result = protofed.run("fedproto", model="cnn", out=tmp_path / "python", **SMALL)
    options = [text for name, value in SMALL.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    succeed(tmp_path, "run", "--method", "fedproto", "--model", "cnn", *options, "--out", "shell", "--quiet")
    assert result_of(tmp_path / "python") == result_of(tmp_path / "shell")
    assert Result.read(tmp_path / "python") == result
    assert result.folder == str(tmp_path / "python")


def test_a_run_without_out_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = protofed.run("local", model="cnn", **SMALL)
    assert result.folder is None
    assert list(tmp_path.iterdir()) == []


def test_results_are_typed() -> None:
    result = protofed.run("mp-fedcl", model="cnn", params={"k": 3}, **SMALL)
    assert isinstance(result, Result)
    assert (result.method, result.clients, result.rounds, result.params["k"]) == ("mp-fedcl", 3, 2, 3)
    score = result.accuracy[result.score]
    assert score.last == pytest.approx(sum(score.per_client) / 3)


def test_a_method_object_is_the_method_of_that_name() -> None:
    named = protofed.run("fedavg", model="cnn", **SMALL)
    assert protofed.run(FedAvg(), model="cnn", **SMALL).accuracy == named.accuracy
    halved = protofed.run(Halved(), model="cnn", **SMALL)
    assert (halved.method, halved.params["factor"]) == ("halved", 0.5)
    assert protofed.run(Halved(factor=1.0), model="cnn", **SMALL).accuracy == named.accuracy
    assert halved.accuracy != named.accuracy


def test_a_model_may_be_a_callable() -> None:
    result = protofed.run("fedproto", model=net, **SMALL)
    assert result.model_parameters == [64 * 6 + 6 + 6 * 10 + 10]
    assert result.model == "custom"


def test_a_federation_of_ones_own_is_learnt() -> None:
    result = protofed.run("fedavg", model=net, federation=own_federation(), rounds=30, batch_size=4, device="cpu")
    assert (result.clients, result.dataset, result.rounds) == (2, "custom", 30)
    assert set(result.model_parameters) == {16 * 6 + 6 + 6 * 3 + 3}
    assert result.accuracy["global/all/head"].last > 90


def test_a_federation_made_from_a_dataset_gives_the_same_run() -> None:
    named = protofed.run("local", model="cnn", split="iid", seed=3, **SMALL)
    split = Split("iid", alpha=0.1, min_size=10, balance=True, ways=3, half_width=2, shots=100, test_shots=40)
    federation = federate(load("digits", train_size=150), split, 3, 3, 0.0)
    made = protofed.run("local", model="cnn", federation=federation, seed=3, rounds=2, device="cpu")
    assert made.accuracy == named.accuracy


@pytest.mark.parametrize(
    ("objects", "name"),
    [({"method": Halved()}, "method"), ({"model": net}, "model"), ({"federation": own_federation()}, "federation")],
)
def test_objects_cannot_be_written_to_a_folder(tmp_path: Path, objects: dict[str, Any], name: str) -> None:
    with pytest.raises(UserError, match=f"{name} cannot be an object"):
        protofed.run(out=tmp_path / "run", **objects)
    assert not (tmp_path / "run").exists()


def test_parameters_beside_a_method_object_are_refused() -> None:
    with pytest.raises(UserError, match=r"'\{'factor': 1\}' for params: "):
        protofed.run(Halved(), params={"factor": 1})


RIGHT = """
from pathlib import Path
import protofed
protofed.run("fedproto", alpha=1, data_dir=Path("data"), params={"lam": 0.1})
protofed.compare(["fedavg"], model="cnn", rounds=3)
protofed.sweep({"k": [1, 2]}, model="cnn", engine="stacked")
"""
WRONG = """
import protofed
protofed.run(alpa=0.1)
protofed.compare(["fedavg"], ruonds=3)
protofed.sweep({"k": [1, 2]}, engine="stacke")
"""


@pytest.mark.slow
def test_mypy_knows_the_options(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "right.py", "wrong.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(protofed.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.split(": error: ") for line in done.stdout.splitlines() if ": error: " in line]
    assert [where for where, _ in errors] == ["wrong.py:3", "wrong.py:4", "wrong.py:5"], done.stdout
    assert all(word in said for word, (_, said) in zip(("alpa", "ruonds", "stacke"), errors, strict=True))


def test_a_misspelt_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'rounds'"):
        protofed.run("fedproto", ruonds=3)  # type: ignore[call-arg]  # mypy sees it too


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists"):
        protofed.run("local", model="cnn", out=tmp_path, **SMALL)
    with pytest.raises(UserError, match="exists"):
        protofed.compare(["local"], 1, model="cnn", out=tmp_path, **SMALL)


def test_compare_returns_a_row_a_method_and_writes_what_it_returns(tmp_path: Path) -> None:
    found = protofed.compare(["local", "mp-fedcl"], seeds=2, model="cnn", out=tmp_path / "all", **SMALL)
    assert [row.method for row in found.rows] == ["local", "mp-fedcl"]
    assert [(run.method, run.seed) for run in found.results] == [
        *(("local", 0), ("local", 1)),
        *(("mp-fedcl", 0), ("mp-fedcl", 1)),
    ]
    spread = found.rows[1].accuracy["own/all/nearest"]
    assert spread.values == [run.accuracy["own/all/nearest"].last for run in found.results[2:]]
    assert (tmp_path / "all/compare.json").read_text() == found.to_json()
    assert (tmp_path / "all/compare.csv").read_text() == found.to_csv()


def test_wrong_input_to_compare_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one architecture"):
        protofed.compare(["local", "fedavg"], 1, model="cnn,cnn-18", out=tmp_path / "all", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there() -> None:
    assert all(hasattr(protofed, name) for name in protofed.__all__)
    with pytest.raises(AttributeError, match="'nope'"):
        getattr(protofed, "nope")  # noqa: B009
