"""Heart disease at four hospitals, as UCI publishes it, in FLamby's form: who is ill, from ten measurements."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from protofed.data.samples import Dataset, Samples
from protofed.data.sources.files import damaged
from protofed.data.tables import Column, TableEncoding, number_of
from protofed.errors import UserError

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
"""Those of a file, before the last, which is 0 for the healthy and 1 to 4 for the ill."""
DROPPED = ("slope", "ca", "thal")
"""Missing for most patients."""
CATEGORIES = {"cp": ("1", "2", "3", "4"), "restecg": ("0", "1", "2")}
MISSING = ("", "?", "-9", "-9.0")
TRAINED = 0.66
"""Part of a hospital's patients that is trained on."""
DRAW = 43
"""FLamby's seed of that part."""


def heart_disease(paths: Sequence[Path], _: int | None) -> Dataset:
    """The patients of four hospitals without missing values; a third of each hospital's is for testing."""
    from sklearn.model_selection import train_test_split

    kept = [name for name in COLUMNS if name not in DROPPED]
    encoding = TableEncoding(tuple(Column(name, CATEGORIES.get(name, ())) for name in kept), MISSING)
    parts: dict[str, list[Samples]] = {"train": [], "test": []}
    for hospital, path in enumerate(paths):
        rows, ill = _patients(path)
        x, labels = encoding.encode(rows), torch.tensor(ill)
        halves = train_test_split(
            np.arange(len(rows)),
            train_size=TRAINED,
            test_size=1 - TRAINED,
            random_state=DRAW,
            stratify=ill if min(np.bincount(ill, minlength=2)) > 2 else None,
        )
        for part, half in zip(parts.values(), halves, strict=True):
            part.append(Samples.of(x, labels, hospital).take(torch.from_numpy(np.sort(half))))
    train, test = (
        Samples(*(torch.cat([getattr(one, name) for one in part]) for name in ("x", "labels", "domains")))
        for part in parts.values()
    )
    return Dataset.of("heart-disease", train, test, ("healthy", "ill"), HOSPITALS, encoding=encoding)


def _patients(path: Path) -> tuple[list[dict[str, object]], list[int]]:
    """A hospital's patients, as values by column, and whether each is ill; a header may be there."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, error) from None
    rows: list[dict[str, object]] = []
    ill = []
    for number, line in enumerate(lines, 1):
        if len(line) != len(COLUMNS) + 1:
            raise damaged(path, f"line {number} has {len(line)} values, and must have {len(COLUMNS) + 1}")
        if number == 1 and number_of(line[0]) is None:
            continue
        values: dict[str, object] = {n: v for n, v in zip(COLUMNS, line, strict=False) if n not in DROPPED}
        if any(value in MISSING for value in (*values.values(), line[-1])):
            continue
        for name in CATEGORIES:
            values[name] = f"{number_of(values[name]) or 0:g}"
        grade = number_of(line[-1])
        if grade is None:
            raise damaged(path, f"line {number} ends with {line[-1]!r}, and must with a grade from 0 to 4")
        rows.append(values)
        ill.append(int(grade > 0))
    if len(rows) < 5:
        raise UserError("FILE", str(path), f"it has {len(rows)} patients without missing values, and needs five")
    return rows, ill
