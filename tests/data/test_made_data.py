"""Datasets that a user's own function returns."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from protofed.data import check_name, load, loading
from protofed.errors import UserError
from tests.support.command_line import invoke, refused, succeed

CODE = """
import torch
from protofed.data import Client, Dataset, Federation, Samples

def make():
    x = torch.arange(80.0).view(20, 4)
    samples = Samples.of(x, torch.arange(20) % 2)
    return Dataset.of("mine", samples, samples, ["even", "odd"])

def federation():
    dataset = make()
    return Federation((Client.of(dataset.train, dataset.test),) * 3, dataset.classes)

def fails():
    raise RuntimeError("no luck")

def number():
    return 3

constant = 3
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(CODE)
    return tmp_path


def test_a_dataset_is_divided_and_a_federation_is_not(folder: Path) -> None:
    assert load(f"{folder}/mine.py:make").train.x.shape == (20, 4)
    words = ("--method", "fedavg", "--model", "linear", "--rounds", "1", "--split", "iid", "--quiet")
    for name, clients, flags in (("make", 2, ("--clients", "2")), ("federation", 3, ())):
        succeed(folder, "run", "--dataset", f"mine.py:{name}", *words, *flags, "--out", name)
        assert f"{folder.resolve()}/mine.py:{name}" in (folder / name / "config.yaml").read_text()
        assert f'"clients": {clients}' in (folder / name / "result.json").read_text()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mine.py:fails", "calling it failed: RuntimeError: no luck"),
        ("mine.py:number", "it must return a Dataset or a Federation, not int"),
        ("mine.py:constant", "it must be a function"),
        ("mine.py:none", "has no none"),
        ("other.py:make", "there is no file other.py"),
        ("mine.py:federation+digits", "it is a Federation, which cannot be divided"),
    ],
)
def test_refusals(folder: Path, name: str, reason: str) -> None:
    assert reason in refused(invoke(folder, "run", "--dataset", name, "--clients", "4"))


def test_a_package_brings_a_dataset_along(monkeypatch: pytest.MonkeyPatch) -> None:
    point = EntryPoint("theirs", "protofed.data.sources.digits:digits", loading.GROUP)

    def points(group: str, name: str) -> list[EntryPoint]:
        return [point] if (group, name) == (loading.GROUP, "theirs") else []

    monkeypatch.setattr(loading, "entry_points", points)
    assert len(load("theirs").train) == len(load("digits").train)
    with pytest.raises(UserError):
        check_name("others")
