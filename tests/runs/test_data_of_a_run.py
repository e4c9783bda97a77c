"""What a run's folder says of its data: how samples are prepared, and whether they are those it was begun with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import protofed
from protofed.data import Client, Dataset, Federation, Preparation, Samples
from protofed.data.federation import MOST_STATISTICS
from protofed.internal.tensor_files import read_tensors, write_tensors
from protofed.runs.result import Result
from tests.support.command_line import invoke, refused, result_of, succeed

PLAN: dict[str, Any] = {"model": "linear", "rounds": 2, "clients": 2, "split": "iid", "device": "cpu"}
FLAGS = ("--model", "linear", "--clients", "2", "--split", "iid", "--device", "cpu", "--quiet", "--out", "run")


def npz(path: Path, seed: int = 0, **more: Any) -> str:
    x = np.random.default_rng(seed).normal(3, 2, (40, 3)).astype(np.float32)
    np.savez(path, x=x, labels=np.arange(40) % 2, **more)
    return f"npz:{path}"


def test_the_result_says_how_samples_are_prepared(tmp_path: Path) -> None:
    data = npz(tmp_path / "a.npz", mean=np.array([1.0, 2, 3]), std=np.ones(3))
    result = protofed.run("fedavg", dataset=data, **PLAN, out=tmp_path / "run")
    expected = {"kind": "standardise", "mean": [1.0, 2.0, 3.0], "std": [1.0] * 3, "tokens": 0, "masked": False}
    assert Result.read(tmp_path / "run").preparation == [expected]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["preparation"] == [expected]
    assert result.preparation == [expected | {"mean": [1.0, 2.0, 3.0], "std": [1.0] * 3}]


def test_clients_with_statistics_of_their_own_are_told_apart(tmp_path: Path) -> None:
    result = protofed.run("fedavg", dataset=npz(tmp_path / "a.npz"), normalise="client", **PLAN)
    assert result.preparation is not None
    assert [said["clients"] for said in result.preparation] == [[0], [1]]
    assert result.preparation[0]["mean"] != result.preparation[1]["mean"]


def test_token_ids_and_masks_are_told(tmp_path: Path) -> None:
    np.savez(tmp_path / "i.npz", x=np.arange(160).reshape(40, 4) % 9, labels=np.arange(40) % 2)
    plan = PLAN | {"model": "embedding-bag", "dataset": f"npz:{tmp_path / 'i.npz'}"}
    found = protofed.run("fedavg", **plan).preparation
    assert found is not None
    (said,) = found
    assert (said["kind"], said["tokens"], said["masked"]) == ("none", 9, False)


def test_statistics_of_very_many_channels_are_left_out() -> None:
    samples = Samples.of(torch.randn(4, MOST_STATISTICS + 1), torch.tensor([0, 1, 0, 1]))
    (said,) = Federation((Client.of(samples, samples),), ("a", "b")).prepared
    assert said == {"kind": "standardise", "tokens": 0, "masked": False}


@pytest.mark.parametrize("how", ["samples", "labels", "order"])
def test_a_run_does_not_go_on_with_other_data(how: str, tmp_path: Path) -> None:
    name = npz(tmp_path / "a.npz")
    arrays = dict(np.load(tmp_path / "a.npz"))
    before = invoke(tmp_path, "run", "--dataset", name, *FLAGS, "--rounds", "4", "--time-budget", "0.000001")
    assert before.code == 0, before
    (tmp_path / "run" / "result.json").unlink()
    config = tmp_path / "run" / "config.yaml"
    config.write_text(config.read_text().partition("---\n")[2].replace("time_budget: 1.0e-06", "time_budget: null"))
    if how == "samples":
        arrays["x"][-1, -1] += 1  # a single test value
    elif how == "labels":
        arrays["labels"] = 1 - arrays["labels"]
    else:
        arrays = {key: value[::-1] for key, value in arrays.items()}
    np.savez(tmp_path / "a.npz", **arrays)
    line = refused(invoke(tmp_path, "resume", "run", "--quiet"))
    assert f"'{name}' for --dataset: its samples, labels or who holds them are not those that" in line
    npz(tmp_path / "a.npz")  # the first ones again
    succeed(tmp_path, "resume", "run", "--quiet")
    assert result_of(tmp_path / "run")["rounds"] == 4


def test_a_folder_without_a_digest_is_read(tmp_path: Path) -> None:
    name = npz(tmp_path / "a.npz")
    protofed.run("fedavg", dataset=name, **PLAN, out=tmp_path / "run")
    state = tmp_path / "run" / "checkpoint" / "state.safetensors"
    tensors, about = read_tensors(state, always=True)
    assert len(about["data"]) == 32
    write_tensors(state, {key: value.clone() for key, value in tensors.items()}, {"rounds": about["rounds"]})
    npz(tmp_path / "a.npz", seed=1)
    assert protofed.resume(tmp_path / "run").rounds == 2


def test_a_federation_of_ones_own_is_recognised() -> None:
    def made(shift: float) -> Federation:
        x = torch.linspace(0, 1, 24).view(12, 2) + shift
        samples = Samples.of(x, torch.arange(12) % 2)
        return Federation((Client.of(samples, samples), Client.of(samples, samples)), ("a", "b"))

    assert made(0).digest() == made(0).digest() != made(1).digest()
    assert made(0).digest(features=True) == made(1).digest(features=True)


def test_what_a_dataset_prepares_is_no_part_of_the_digest() -> None:
    samples = Samples.of(torch.rand(6, 2), torch.arange(6) % 2)
    plain = Dataset.of("a", samples, samples, ["a", "b"], preparation=Preparation())
    other = Preparation.of(samples.x)
    clients = [Client(plain.train, plain.test, torch.arange(6), None, how) for how in (plain.preparation, other)]
    first, second = (Federation((client,), ("a", "b")).digest() for client in clients)
    assert first == second
