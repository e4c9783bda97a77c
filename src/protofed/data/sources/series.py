"""Series with class labels: the .ts files of sktime and aeon, and the .arff files of the UCR and UEA archives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from protofed.data.holdout import fifth_out
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, Samples
from protofed.data.series_encoding import SeriesEncoding, filled
from protofed.data.sources.files import MOST, damaged
from protofed.data.sources.lines import text_lines
from protofed.errors import UserError, listed

Lines = Iterator[tuple[int, str]]


class Recordings(NamedTuple):
    """What a file holds: series [channels, steps], each with a class, and the classes that it declares."""

    series: list[Any]
    labels: list[str]
    classes: list[str]


def recordings(path: Path) -> Recordings:
    """What a .ts or .arff file holds."""
    return _arff(path) if path.suffix.lower() == ".arff" else _ts(path)


def ts(paths: Sequence[Path], _: int | None, name: str = "") -> Dataset:
    """A .ts file, or its training and its test part; named like the file unless a name is given."""
    return _dataset(paths, _ts, name)


def arff(paths: Sequence[Path], _: int | None) -> Dataset:
    """An .arff file, or its training and its test part."""
    return _dataset(paths, _arff)


def _dataset(paths: Sequence[Path], read: Callable[[Path], Recordings], name: str = "") -> Dataset:
    parts = [read(path) for path in paths]
    classes = parts[0].classes
    everything = [series for part in parts for series in part.series]
    for path, part in zip(paths, parts, strict=True):
        if set(part.classes) != set(classes):
            raise UserError("PATH", str(path), f"its classes are not those of {paths[0].name}: {listed(classes)}")
        if part.series[0].shape[0] != everything[0].shape[0]:
            raise UserError("PATH", str(path), f"its series have not as many channels as those of {paths[0].name}")
    encoding = SeriesEncoding.of(everything)
    if 4 * len(everything) * (encoding.channels + 1) * encoding.length > MOST:
        size = f"{len(everything)} series of up to {encoding.length} steps"
        raise UserError("PATH", str(paths[0]), f"{size} take more than {MOST} bytes when padded to one length")
    number = {label: place for place, label in enumerate(classes)}
    samples = [
        Samples.of(encoding.encode(part.series), torch.tensor([number[label] for label in part.labels]))
        for part in parts
    ]
    train, test = samples if len(samples) == 2 else fifth_out(samples[0])
    if not len(test):
        raise UserError("PATH", str(paths[0]), "every fifth of a class is for testing, and no class has five")
    preparation = Preparation.of(train.x, masked=encoding.masked)
    name = name or paths[0].stem.removesuffix("_TRAIN")
    return Dataset.of(name, train, test, classes, (), preparation, encoding)


def _ts(path: Path) -> Recordings:
    lines = text_lines(path, ("#", "%"))
    said = {words[0].lower(): words[1:] for words in _heading(path, lines)}
    if _yes(said, "timestamps"):
        raise UserError("PATH", str(path), "its series have time stamps, and only evenly spaced ones are read")
    classes = said.get("classlabel", [])[1:]
    if not _yes(said, "classlabel") or not classes:
        why = "it is for regression (@targetLabel)" if "targetlabel" in said else "it declares no classes"
        raise UserError("PATH", str(path), why, hint="@classLabel true NAME NAME ... before @data declares them")
    channels = 1 if _yes(said, "univariate") else _count(path, said, "dimensions") or _count(path, said, "dimension")
    steps = _count(path, said, "serieslength") if _yes(said, "equallength") else None

    def case(line: str) -> tuple[Any, str]:
        *rows, label = line.split(":")
        series = _series(rows)
        if channels is not None and len(series) != channels:
            raise ValueError(f"it has {len(series)} channels, and the heading says {channels}")
        if steps is not None and series.shape[1] != steps:
            raise ValueError(f"it has {series.shape[1]} steps, and the heading says {steps}")
        return series, label.strip()

    return _recordings(path, lines, case, classes)


def _arff(path: Path) -> Recordings:
    lines = text_lines(path, ("%",))
    numeric, relational, classes = 0, False, None
    for words in _heading(path, lines):
        if words[0].lower() != "attribute":
            continue
        kind = " ".join(words).rpartition("{")
        if kind[1]:
            classes = [_unquoted(label) for label in kind[2].removesuffix("}").split(",")]
        elif classes is not None:
            raise UserError("PATH", str(path), "its classes, in braces, must be its last attribute")
        elif words[-1].lower() == "relational":
            relational = True
        elif words[-1].lower() in ("numeric", "real", "integer"):
            numeric += 1
        else:
            raise UserError("PATH", str(path), f"an attribute is {words[-1]!r}, and series are numeric")
    if not classes or not numeric:
        raise UserError("PATH", str(path), "it declares no classes, in braces, as its last attribute, or no steps")

    def case(line: str) -> tuple[Any, str]:
        if relational:
            parts = re.fullmatch(r"""(['"])(.*)\1\s*,\s*([^,]+)""", line)
            if not parts:
                raise ValueError("it is not a quoted series, a comma and a class")
            rows, label = parts[2].split("\\n"), parts[3]
        else:
            series, _, label = line.rpartition(",")
            rows = [series]
        if any(row.count(",") + 1 != numeric for row in rows):
            raise ValueError(f"it does not have the {numeric} numbers that the heading declares")
        return _series(rows), _unquoted(label)

    return _recordings(path, lines, case, classes)


def _heading(path: Path, lines: Lines) -> Iterator[list[str]]:
    """The words of the lines up to @data, without the @."""
    for number, line in lines:
        words = line[1:].split()
        if not line.startswith("@") or not words:
            raise damaged(path, f"line {number} is neither a heading (@...) nor a comment, and comes before @data")
        if words[0].lower() == "data":
            return
        yield words
    raise damaged(path, "it has no @data")


def _recordings(path: Path, lines: Lines, case: Callable[[str], tuple[Any, str]], classes: list[str]) -> Recordings:
    """The series below @data."""
    if len(set(classes)) != len(classes):
        raise UserError("PATH", str(path), f"it declares a class twice: {listed(classes)}")
    known, found = set(classes), Recordings([], [], classes)
    for number, line in lines:
        try:
            series, label = case(line)
            if label not in known:
                raise ValueError(f"the class {label!r} is not declared")
            if found.series and len(series) != len(found.series[0]):
                raise ValueError(f"it has {len(series)} channels, and the first has {len(found.series[0])}")
        except ValueError as error:
            raise damaged(path, f"line {number}: {error}") from None
        found.series.append(series)
        found.labels.append(label)
    if not found.series:
        raise damaged(path, "it has no series")
    return found


def _series(rows: Sequence[str]) -> Any:
    """A series [channels, steps] of rows of numbers, in which ? is a missing one."""
    numbers = [[float("nan") if word.strip() == "?" else float(word) for word in row.split(",")] for row in rows]
    if len({len(row) for row in numbers}) != 1:
        raise ValueError("it has no channels, or channels of several lengths")
    return filled(np.array(numbers))


def _yes(said: dict[str, list[str]], name: str) -> bool:
    return [word.lower() for word in said.get(name, [])[:1]] == ["true"]


def _count(path: Path, said: dict[str, list[str]], name: str) -> int | None:
    """A whole number of the heading, if it is there."""
    if name not in said:
        return None
    if len(said[name]) != 1 or not re.fullmatch("[0-9]{1,9}", said[name][0]):
        raise damaged(path, f"@{name} is not one whole number")
    return int(said[name][0])


def _unquoted(label: str) -> str:
    return label.strip().strip("'\"")
