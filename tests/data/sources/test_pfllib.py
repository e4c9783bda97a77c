"""PFLlib's partition files, written here as its code writes them, and pickles in them that want to do harm."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protofed.data import Federation, load
from protofed.data.build import federation_of
from protofed.errors import UserError
from protofed.experiment import Experiment
from tests.support.command_line import invoke, refused, result_of, succeed


def save_file(folder: Path, train: Sequence[Any], test: Sequence[Any]) -> None:
    """As `save_file` of PFLlib's utils/dataset_utils.py."""
    for name, part in (("train", train), ("test", test)):
        (folder / name).mkdir(parents=True)
        for number, held in enumerate(part):
            with (folder / name / f"{number}.npz").open("wb") as file:
                np.savez_compressed(file, data=held)
    (folder / "config.json").write_text(json.dumps({"num_clients": len(train), "num_classes": 3}))


def pictures(number: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    y = np.arange(number) % 3
    x = rng.normal(size=(number, 1, 8, 8)).astype(np.float32) + y[:, None, None, None]
    return {"x": x.astype(np.float32), "y": y}


def texts(number: int, seed: int) -> dict[str, Any]:
    """What generate_AGNews.py makes: pairs of padded ids and a length, as an array of objects."""
    rng = np.random.default_rng(seed)
    pairs = [([*map(int, rng.integers(1, 50, 5)), 0, 0], 5) for _ in range(number)]
    return {"x": np.array(pairs, dtype=object), "y": np.arange(number) % 2}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Three clients with pictures of different numbers."""
    sizes = (12, 9, 15)
    save_file(tmp_path / "mine", [pictures(n, n) for n in sizes], [pictures(n // 3, n + 1) for n in sizes])
    return tmp_path


def loaded(folder: Path, **more: Any) -> Federation:
    return federation_of(Experiment(dataset=f"pfllib:{folder}", **more))


def test_clients_are_those_of_the_files(place: Path) -> None:
    federation = loaded(place / "mine")
    assert federation.classes == ("0", "1", "2")
    assert [len(client.train) for client in federation.clients] == [12, 9, 15]
    held = pictures(9, 9)
    assert np.array_equal(federation.clients[1].train.x.numpy(), held["x"])
    assert federation.clients[1].train.labels.tolist() == held["y"].tolist()
    tests = pictures(3, 10)
    own = federation.clients[1].pool.take(federation.clients[1].own)
    assert np.array_equal(own.x.numpy(), tests["x"])
    assert own.labels.tolist() == tests["y"].tolist()
    assert len(federation.clients[0].pool) == 4 + 3 + 5  # of all, who share it
    assert federation.clients[0].pool is federation.clients[2].pool
    assert federation.clients[0].preparation.kind == "none"  # PFLlib has standardised them


def test_text_is_token_ids(tmp_path: Path) -> None:
    save_file(tmp_path / "news", [texts(9, 0), texts(7, 1)], [texts(4, 2), texts(4, 3)])
    federation = loaded(tmp_path / "news")
    x = federation.clients[0].train.x
    assert (x.dtype, list(x.shape), x[:, -1].tolist()) == (torch.int64, [9, 7], [0] * 9)
    assert x[0].tolist() == texts(9, 0)["x"][0][0]
    assert federation.clients[0].preparation.tokens <= 50


def test_a_run_on_them(place: Path) -> None:
    words = ("run", "--dataset", "pfllib:mine", "--model", "cnn-fedavg", "--method", "fedavg", "--rounds", "1")
    succeed(place, *words, "--device", "cpu", "--quiet", "--out", "run")
    result = result_of(place / "run")
    assert (result["clients"], result["dataset"]) == (3, f"pfllib:{place / 'mine'}")
    line = refused(invoke(place, *words, "--clients", "5"))
    assert "'5' for --clients: your own federation has 3" in line
    line = refused(invoke(place, *words, "--test-fraction", "0.25"))
    assert "your own federation is divided already" in line


def test_what_divides_a_dataset_refuses_it(place: Path) -> None:
    with pytest.raises(UserError, match="cannot be divided"):
        load(f"pfllib:{place / 'mine'}")


def test_nothing_in_it_is_called(place: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(place / "harm"),)

    held: Any = {"x": Harm(), "y": np.zeros(3)}
    np.savez_compressed(place / "mine" / "train" / "0.npz", data=held)
    with pytest.raises(UserError, match=r"0.npz.*it asks for posix.mkdir"):
        loaded(place / "mine")
    assert not (place / "harm").exists()


ZEROS = np.zeros((4, 2), np.float32)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ({"x": ZEROS}, "it has no 'y'"),
        ({"x": ZEROS, "y": np.zeros(3)}, r"its `y` is float64 \[3\]"),
        ({"x": ZEROS, "y": np.full(4, 0.5)}, "whole numbers"),
        ({"x": ZEROS, "y": -np.ones(4)}, "must start at 0"),
        ({"x": ZEROS[0], "y": np.zeros(2)}, r"its `x` is float32 \[2\]"),
        ({"x": "text", "y": np.zeros(2)}, "its `x` is str"),
        ({"x": [["a"], 1], "y": np.zeros(1)}, "neither an array of numbers nor pairs"),
        (np.zeros(3), "must be a dict"),
        (np.array([None], dtype=object), "must be a dict"),
        ({"x": np.zeros((4, 3), np.float32), "y": np.zeros(4)}, "samples differ in shape"),
        ({"x": np.full((4, 1, 8, 8), np.nan), "y": np.zeros(4)}, "not finite"),
    ],
)
def test_what_is_no_partition_is_one_line(data: Any, why: str, place: Path) -> None:
    np.savez_compressed(place / "mine" / "train" / "1.npz", data=data)
    with pytest.raises(UserError, match=why):
        loaded(place / "mine")


@pytest.mark.parametrize(("missing", "why"), [("test/2.npz", "there is no test/2"), ("train/0.npz", "no train/0")])
def test_a_missing_file_is_named(missing: str, why: str, place: Path) -> None:
    (place / "mine" / missing).unlink()
    with pytest.raises(UserError, match=why):
        loaded(place / "mine")


def test_other_folders_and_damaged_files(place: Path) -> None:
    with pytest.raises(UserError, match="there is no train/0"):
        loaded(place)
    with pytest.raises(UserError, match="there is no"):
        loaded(place / "nowhere")
    (place / "mine" / "train" / "0.npz").write_bytes(b"PK\3\4")
    with pytest.raises(UserError, match="damaged or cut short"):
        loaded(place / "mine")
