"""The models of a result, with and without files."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import protofed
from protofed import api
from protofed.data import load
from protofed.errors import UserError
from protofed.models.output import Output
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run, new_run
from protofed.serving.export import export

SMALL: dict[str, Any] = {
    **{"model": "cnn", "train_size": 200, "clients": 3, "rounds": 2, "device": "cpu", "threads": 1, "quiet": True},
    **{"lr": 0.05, "val_fraction": 0.1},
}


def accuracy(model: nn.Module, result_of: protofed.Client) -> float:
    """On a client's pool, as anybody would compute it."""
    seen = result_of.preparation
    mean, std = (torch.tensor(part).view(-1, 1, 1) for part in (seen.mean, seen.std))
    with torch.no_grad():
        out = model((result_of.pool.x / 255 - mean) / std)
    assert isinstance(out, Output)
    return 100 * float((out.logits.argmax(1) == result_of.pool.labels).double().mean())


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("in_memory", [True, False])
def test_the_models_are_those_that_were_tested(tmp_path: Path, engine: Any, in_memory: bool) -> None:
    out = None if in_memory else tmp_path / "run"
    result = protofed.run("fedavg", engine=engine, out=out, **SMALL)
    assert list(result.models) == [0, 1, 2, "global"]
    dataset = load("digits", train_size=200)
    client = protofed.Client(dataset.train, dataset.test, torch.tensor([0]), None, dataset.preparation)
    assert accuracy(result.models["global"], client) == pytest.approx(result.accuracy["global/all/head"].last)
    own = result.accuracy["own/all/head"].per_client
    assert [accuracy(result.models[number], client) for number in range(3)] == pytest.approx(own)
    with pytest.raises(KeyError):
        result.models[3]


def test_clients_that_see_their_pixels_differently_have_one_averaged_model() -> None:
    dataset = load("digits", train_size=200)
    bright = protofed.Samples.of(dataset.train.x // 2, dataset.train.labels)
    clients = tuple(protofed.Client.of(train, dataset.test) for train in (dataset.train, bright))
    options = {name: value for name, value in SMALL.items() if name not in ("train_size", "clients")}
    result = protofed.run("fedavg", federation=protofed.Federation(clients, dataset.classes), **options)
    assert list(result.models) == [0, 1, "global"]
    assert list(protofed.run("fesem", **SMALL).models) == [0, 1, 2]  # an averaged model for each cluster


def test_without_an_averaged_model_there_are_the_clients_own() -> None:
    assert list(protofed.run("fedproto", **SMALL).models) == [0, 1, 2]


@pytest.mark.parametrize("method", ["mp-fedcl", "fedproto", "fedavg"])
def test_a_predictor_is_that_of_export_and_load(tmp_path: Path, method: str) -> None:
    result = protofed.run(method, out=tmp_path / "run", **SMALL)
    export(RunFolder.open(tmp_path / "run")).write(tmp_path / "model")
    loaded = protofed.load(tmp_path / "model")
    images = load("digits").test.x[:40]
    memory = protofed.run(method, **SMALL)
    for made in (result.predictor(), memory.predictor()):
        assert made.card == loaded.card
        assert made.predict(images, reject=0.05).rows() == loaded.predict(images, reject=0.05).rows()
    assert memory.predictor(client=1).card.whose == "client 1"


def test_objects_live_as_long_as_the_result() -> None:
    def net(shape: tuple[int, int, int], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 6), nn.ReLU(), nn.Linear(6, classes))

    result = protofed.run("fedavg", **{**SMALL, "model": net})
    del net
    assert len(result.models) == 4
    assert result.predictor().predict(load("digits").test.x[:2], top=1).top.shape == (2, 1)


def test_a_result_is_sent_without_its_run() -> None:
    result = protofed.run("fedavg", **SMALL)
    again = pickle.loads(pickle.dumps(result))
    assert again == result
    assert again.history == result.history
    with pytest.raises(UserError, match="give it a folder"):
        len(again.models)


def test_a_study_has_models_in_its_folder(tmp_path: Path) -> None:
    found = protofed.compare(["fedavg"], 1, out=tmp_path / "all", jobs=1, **SMALL)
    assert len(found.results[0].models) == 4
    alone = protofed.compare(["fedavg"], 1, jobs=1, **SMALL)
    with pytest.raises(UserError, match="give it a folder"):
        len(alone.results[0].models)


def test_clients_of_a_network_keep_their_models(tmp_path: Path) -> None:
    result = protofed.run("fedavg", out=tmp_path / "run", **SMALL)
    (tmp_path / "run/flower.json").write_text("{}")
    with pytest.raises(UserError, match="keep their own"):
        len(result.models)


def test_a_result_keeps_neither_data_nor_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[weakref.ref[Run]] = []

    def remembered(experiment: protofed.Experiment) -> Run:
        run = new_run(experiment)
        made.append(weakref.ref(run))
        return run

    monkeypatch.setattr(api, "new_run", remembered)
    result = protofed.run("fedavg", **SMALL)
    gc.collect()
    assert [found() for found in made] == [None]
    assert len(result.models) == 4
