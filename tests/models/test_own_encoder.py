"""A frozen encoder that is the user's own code: what it sees, what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import protofed
from protofed.data import Preparation, load
from protofed.deploy.owner import Owner
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.models.encoder import OwnEncoder
from protofed.runs.run import new_run
from tests.support.command_line import invoke, refused, result_of, succeed

CPU = torch.device("cpu")
CODE = """
import torch
from torch import nn


class Half(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((1,), 0.5))
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        open("calls", "a").write("x")
        return self.drop(x.flatten(1) * self.weight)


def make():
    return Half()


def pair():
    class Pair(Half):
        def forward(self, x):
            return super().forward(x), None
    return Pair()


def wide():
    return nn.Identity()


def broken():
    return nn.Linear(3, 2)


def infinite():
    class Infinite(nn.Module):
        def forward(self, x):
            return x.flatten(1).float() / 0
    return Infinite()


def ids():
    return nn.EmbeddingBag(99, 4)


def nothing():
    return 3


def raises():
    raise ValueError("no weights")
"""
FLAGS = ("--clients", "2", "--split", "iid", "--rounds", "1", "--device", "cpu", "--quiet", "--out", "run")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and the code."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "enc.py").write_text(CODE)
    return tmp_path


def floats(path: Path) -> str:
    np.savez(path / "f.npz", x=np.random.default_rng(0).normal(3, 2, (40, 6)), labels=np.arange(40) % 2)
    return f"npz:{path / 'f.npz'}"


def features(encoder: str, dataset: str, **more: Any) -> Tensor:
    run = new_run(
        Experiment(encoder=encoder, dataset=dataset, clients=2, split="iid", device="cpu", model="linear", **more)
    )
    return torch.cat([client.train.x for client in run.federation.clients])


def test_it_sees_samples_as_models_would(place: Path) -> None:
    name = floats(place)
    dataset = load(name)
    x = dataset.train.x
    expected = 0.5 * (x - x.mean(0)) / x.std(0, correction=0)
    found = OwnEncoder("enc.py:make", CPU).dataset(dataset)
    assert found.train.x.shape == (32, 6, 1, 1)
    torch.testing.assert_close(found.train.x[..., 0, 0], expected)  # and dropout does nothing
    assert found.preparation == Preparation()
    again = OwnEncoder("enc.py:pair", CPU).dataset(dataset)
    assert torch.equal(again.train.x, found.train.x)
    assert float(features("enc.py:make", name, normalise="none").mean()) > 1  # what is asked for holds


def test_pictures_and_token_ids(place: Path) -> None:
    assert features("enc.py:make", "digits", train_size=100).shape == (100, 64, 1, 1)
    np.savez(place / "i.npz", x=np.random.default_rng(0).integers(0, 99, (40, 5)), labels=np.arange(40) % 2)
    assert features("enc.py:ids", f"npz:{place / 'i.npz'}").shape == (32, 4, 1, 1)


def test_features_are_kept_until_weights_code_or_preparation_change(place: Path) -> None:
    name, calls = floats(place), place / "calls"

    def looks(**more: Any) -> int:
        calls.write_text("")
        features("enc.py:make", name, **more)
        return len(calls.read_text())

    assert looks() > 0
    assert looks() == 0
    assert looks(normalise="none") > 0
    (place / "enc.py").write_text(CODE.replace("0.5)", "0.25)"))
    assert looks() > 0
    assert looks() == 0


def test_a_run_says_which_it_was(place: Path) -> None:
    words = ("run", "--dataset", floats(place), "--model", "linear", "--encoder", "enc.py:make", *FLAGS)
    assert "on features of enc.py:make" in " ".join(succeed(place, *words).out.split())
    card = result_of(place / "run")["encoder"]
    assert (card["model"], card["source"], card["feature_size"]) == ("enc.py:make", "enc.py", 6)
    assert len(card["digest"]) == 32
    line = refused(invoke(place, "export", "run", "--out", "model"))
    assert "an exported model holds no code" in line


def test_import_keeps_the_weights_and_a_card(place: Path) -> None:
    out = succeed(place, "encoder", "import", "enc.py:make", "--out", "half.safetensors").out
    assert "use it with: --encoder enc.py:make@half.safetensors" in out
    (place / "enc.py").write_text(CODE.replace("(1,), 0.5", "(1,), 0.1"))  # what is in the file holds
    found = OwnEncoder("enc.py:make@half.safetensors", CPU)
    assert found.weights()["weight"].tolist() == [0.5]
    name = floats(place)
    words = ("run", "--dataset", name, "--model", "linear")
    succeed(place, *words, "--encoder", "enc.py:make@half.safetensors", *FLAGS)
    assert result_of(place / "run")["encoder"]["source"] == "half.safetensors"
    line = refused(invoke(place, *words, "--encoder", "half.safetensors", "--clients", "2"))
    assert "which is code" in line  # a file never has code run
    assert "@half.safetensors" in line


@pytest.mark.parametrize(
    ("encoder", "says"),
    [
        ("enc.py:missing", "has no missing"),
        ("nowhere.py:make", "there is no file nowhere.py"),
        ("enc.py", "it must be path/to/file.py:Name"),
        ("enc.py:nothing", "it must return an nn.Module, not int"),
        ("enc.py:raises", "calling it failed: ValueError: no weights"),
        ("enc.py:broken", "its forward raised RuntimeError"),
        ("enc.py:infinite", "a feature that is not finite"),
        ("enc.py:make@nowhere.safetensors", "it does not hold weights of"),
    ],
)
def test_what_is_no_encoder_is_one_line(encoder: str, says: str, place: Path) -> None:
    words = ("run", "--dataset", floats(place), "--model", "linear", "--clients", "2", "--encoder", encoder)
    assert says in refused(invoke(place, *words))


def test_features_must_be_vectors() -> None:
    words: dict[str, Any] = {"model": "linear", "device": "cpu", "clients": 2, "train_size": 60}
    with pytest.raises(
        UserError, match=r"it makes torch.float32 \[60, 1, 8, 8\], and must make floats \[60, features\]"
    ):
        protofed.run("fedavg", dataset="digits", encoder="enc.py:wide", **words)


@pytest.mark.parametrize("more", [{"augment": "crop"}, {"normalise": "client"}])
def test_what_it_sees_once_is_not_changed(more: dict[str, Any], place: Path) -> None:
    with pytest.raises(UserError, match=f"--{next(iter(more))}"):
        features("enc.py:make", floats(place), **more)


def test_a_server_names_none() -> None:
    (objection,) = Owner(0).objections(Experiment(encoder="enc.py:make"))
    assert objection == "encoder enc.py:make: not over a network"
