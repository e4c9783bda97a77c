"""Heart disease: the columns and patients that are left, and who is tested."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.heart import federations, trained_alone
from protofed.data import TableEncoding, load
from protofed.data.sources.heart import HOSPITALS
from protofed.errors import UserError

SIZES = {"cleveland": 30, "hungarian": 20, "switzerland": 9, "va": 12}


def patient(number: int, slope: str = "?") -> str:
    values = (40 + number, number % 2, number % 4 + 1, 120 + number, 200, 0, number % 3, 150 - number, 1, 0.5)
    return ",".join(map(str, values)) + f",{slope},?,?,{number % 5 % 3}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four files; those of two hospitals have a header, and -9 for what is missing."""
    for name, size in SIZES.items():
        text = "".join(map(patient, range(size))) + patient(3).replace(",120", ",?").replace("123", "?")
        if name in ("va", "cleveland"):
            text = ",".join(f"X{i}" for i in range(1, 15)) + "\n" + text.replace("?", "-9")
        (tmp_path / f"processed.{name}.data").write_text(text)
    return tmp_path


def test_patients_without_missing_values_are_divided(folder: Path) -> None:
    dataset = load("heart-disease", folder)
    assert dataset.domains == HOSPITALS
    assert dataset.classes == ("healthy", "ill")
    for number, size in enumerate(SIZES.values()):
        trained, tested = (int((part.domains == number).sum()) for part in (dataset.train, dataset.test))
        assert trained + tested == size
        assert trained == int(0.66 * size)
    assert isinstance(dataset.encoding, TableEncoding)
    assert dataset.train.x.shape[1] == 8 + 4 + 3
    assert torch.equal(dataset.train.x[:, 2:6].sum(1), torch.ones(len(dataset.train)))
    ages = torch.cat([dataset.train.x[:, 0], dataset.test.x[:, 0]])
    assert sorted(ages.tolist()) == sorted(40.0 + number for size in SIZES.values() for number in range(size))
    row = int((dataset.train.x[:, 0] == 41).nonzero()[0])
    shown = "age=41 sex=1 cp=2 trestbps=121 chol=200 fbs=0 restecg=1 thalach=149 exang=1 oldpeak=0.5"
    assert dataset.encoding.show(dataset.train.x[row]) == shown
    assert int(dataset.train.labels[row]) == 1


@pytest.mark.parametrize(
    ("text", "reason"), [("1,2\n", "line 1 has 2 values"), ("", "0 patients"), ("\xff", "has 1 val")]
)
def test_broken_files(folder: Path, text: str, reason: str) -> None:
    (folder / "processed.va.data").write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=reason):
        load("heart-disease", folder)


def test_the_benchmark_standardises_where_flamby_does(folder: Path) -> None:
    dataset = load("heart-disease", folder)
    pooled, hospitals = federations(dataset)
    assert pooled.clients[0].train.x.shape == (len(dataset.train), 13)
    for client in (*pooled.clients, *hospitals.clients):
        assert client.train.x.mean(0).abs().max() < 1e-5
        assert len(client.pool) == len(dataset.test)
        assert torch.equal(client.pool.x, pooled.clients[0].pool.x)
    each = trained_alone(hospitals, 0)
    assert len(each) == len(HOSPITALS)
    assert all(0 <= value <= 100 for found in each for value in found.values())
