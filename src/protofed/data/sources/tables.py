"""A user's own table: which column is what, and the dataset that its rows make."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofed.data.holdout import fifth_out
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.table_files import TableFile, opened
from protofed.data.tables import LARGEST, Column, TableEncoding, is_missing, number_of, text_of
from protofed.errors import UserError, listed, missing_value, suggestion, unknown
from protofed.experiment import BY, TABLE, Experiment, flag_of

LABELS = ("label", "class", "target", "y")
"""Names by which a column is taken for the label, the first of them that there is."""
MOST = {"category": 100, "label": 1000, "client": 100_000, "domain": 1000, "test": 2}
"""How many values a column may have, by what it is."""
TESTED = {"test": True, "1": True, "true": True, "yes": True, "train": False, "0": False, "false": False, "no": False}
"""What a column may say of whether a row is for testing."""
COMMA = re.compile(r"[+-]?\d[\d.]*,\d+")
"""A number as much of the world writes it, and no table that is read here."""


@dataclass(frozen=True)
class TableOptions:
    """Say which column of a table is what; the fields are options of Experiment, which has their defaults."""

    label: str | None
    client_column: str | None
    domain_column: str | None
    test_column: str | None
    drop: str | None
    categories: str | None
    missing: str
    fill: str
    divided: bool = False
    """Whether the split names the column of whose a row is."""

    @classmethod
    def of(cls, experiment: Experiment) -> TableOptions:
        """Those of an experiment; what it is divided by is the column that says whose a row is."""
        said = {name: getattr(experiment, name) for name in TABLE}
        column = experiment.split.removeprefix(BY) if experiment.split.startswith(BY) else None
        if column not in (None, "label", "domain"):
            if said["client_column"] not in (None, column):
                why = f"--split {experiment.split} names another column of whose a row is"
                raise UserError("--client-column", said["client_column"], why)
            return cls(**said | {"client_column": column}, divided=True)
        return cls(**said)

    def check_unused(self, dataset: str) -> None:
        """Refuse what is only for tables."""
        usual = TableOptions.of(Experiment())
        for name in TABLE:
            if getattr(self, name) != getattr(usual, name):
                raise UserError(flag_of(name), getattr(self, name), f"it is for tables, and {dataset} is none")

    def roles(self, path: Path, names: Sequence[str]) -> dict[str, str]:
        """What each column is: label, client, domain, test, dropped, or a feature, maybe said to be of categories."""
        roles = dict.fromkeys(names, "feature")
        named = {"domain": "domain_column", "test": "test_column", "client": "client_column"}
        several = {"dropped": ("drop", self.drop), "category": ("categories", self.categories)}
        wanted = [(role, option, getattr(self, option)) for role, option in named.items()]
        wanted += [(role, option, name) for role, (option, text) in several.items() for name in _several(text)]
        for role, option, name in [("label", "label", label_among(path, names, self.label)), *wanted]:
            if name is None:
                continue
            if name not in roles:
                why = f"{path.name} has the columns {listed(names)}"
                flag, said = (
                    ("--split", f"{BY}{name}") if role == "client" and self.divided else (flag_of(option), name)
                )
                raise UserError(flag, said, why, hint=suggestion(name, names))
            if role == "client" and roles[name] in ("label", "domain"):
                continue  # one column may say both
            if roles[name] != "feature":
                raise UserError(flag_of(option), name, f"the column is also said to be: {roles[name]}")
            roles[name] = role
        if not {"feature", "category"} & {*roles.values()}:
            raise UserError("PATH", str(path), "no column is left for a model to learn from")
        return roles


def _several(text: str | None) -> list[str]:
    return [name.strip() for name in text.split(",")] if text else []


def label_among(path: Path, names: Sequence[str], label: str | None) -> str:
    """The column of the classes: the one that is named, or the one that looks like it."""
    if label is not None:
        if label not in names:
            why = f"{path.name} has the columns {listed(names)}"
            raise UserError("--label", label, why, hint=suggestion(label, names))
        return label
    by_name = {name.lower(): name for name in reversed(names)}
    for usual in LABELS:
        if usual in by_name:
            return by_name[usual]
    raise missing_value("--label", f"name the column of the classes: {path.name} has {listed(names)}")


class TableColumn:
    """A column while it is read: numbers, or the places of its values in a list of names."""

    def __init__(self, name: str, role: str, missing: frozenset[str]) -> None:
        self.name, self.missing, self.said = name, missing, role != "feature"
        self.role = "category" if role == "feature" else role
        self.kind: str | None = None if role == "feature" else "names"  # that of a feature shows in its first value
        self.parts: list[NDArray[Any]] = []
        self.places: dict[str | None, int] = {}
        self.empty = 0  # rows before the first value
        self.absent = 0
        self.whole = False  # whether rows without a value are left out
        self.refused: UserError | None = None

    def add(self, values: Sequence[object], start: int) -> None:
        """Take the values of some rows, the first of which is row start + 1."""
        first = next((one for one in values if not is_missing(one, self.missing)), None)
        if isinstance(first, list | dict | bytes):
            why = f"a value is one number or one text, and these are {type(first).__name__}"
            raise UserError(f"column {self.name}", first, why, hint=f"--drop {self.name}")
        if self.kind is None:
            if first is None:
                self.empty += len(values)
                return
            self.kind = "names" if number_of(first) is None else "numbers"
            if self.empty:
                before, self.empty = self.empty, 0
                self._take([None] * before, 0)
        self._take(values, start)

    def _take(self, values: Sequence[object], start: int) -> None:
        self.parts.append(self._numbers(values, start) if self.kind == "numbers" else self._names(values, start))

    def _numbers(self, values: Sequence[object], start: int) -> NDArray[np.float32]:
        try:
            if not (isinstance(values[0], str) and "_" in "".join(values)):  # type: ignore[arg-type]
                part = np.fromiter(map(float, values), np.float64, len(values))  # type: ignore[arg-type]
                if (np.abs(part) <= LARGEST).all():
                    return part.astype(np.float32)
        except (TypeError, ValueError, OverflowError):
            pass
        return np.fromiter((self._number(one, start + row) for row, one in enumerate(values, 1)), np.float32)

    def _number(self, value: object, row: int) -> float:
        if is_missing(value, self.missing):
            self.absent += 1
            return np.nan
        number = number_of(value)
        if number is None:
            why = f"the column holds numbers, and row {row} is none"
            hint = f"--missing if it means none, --categories {self.name} if numbers are names there, or --drop it"
            raise UserError(f"column {self.name}", value, why, hint=hint)
        if not abs(number) <= LARGEST:
            hint = "--missing names values that mean none"
            raise UserError(f"column {self.name}", value, f"row {row} is not a finite number", hint=hint)
        return number

    def _names(self, values: Sequence[object], start: int) -> NDArray[np.int32]:
        names = [None if is_missing(one, self.missing) else text_of(one) for one in values]
        self.absent += names.count(None)
        fresh = [name for name in dict.fromkeys(names) if name not in self.places]
        for name in fresh:
            self.places[name] = len(self.places)
        if not self.said:
            self._check_names(fresh, names, start)
        if len(self.places) - (None in self.places) > MOST[self.role]:
            what = {"category": "categories", "label": "classes"}.get(self.role, f"values of a {self.role} column")
            why = f"it has more than {MOST[self.role]} {what}, such as {listed([n for n in names if n][:3])}"
            hints = {
                "category": f"--drop {self.name}, or make fewer categories of it",
                "label": "--label names another",
            }
            raise UserError("column", self.name, why, hint=hints.get(self.role))
        return np.fromiter(map(self.places.__getitem__, names), np.int32, len(names))

    def _check_names(self, fresh: Collection[str | None], names: Sequence[str | None], start: int) -> None:
        """Refuse numbers among the names of a column that nobody has said to hold names."""
        number = next((one for one in fresh if one and (number_of(one) is not None or COMMA.fullmatch(one))), None)
        if number is None:
            return
        row, hint = start + names.index(number) + 1, f"--categories {self.name} if these are names, or --drop it"
        if COMMA.fullmatch(number):
            why = f"row {row} has a comma in a number, which is written with a point, as in 0.5"
            raise UserError(f"column {self.name}", number, why, hint=hint)
        text = next(one for one in self.places if one is not None and number_of(one) is None)
        why = f"row {row} is a number, and {text!r} is none"
        raise UserError(f"column {self.name}", number, why, hint=f"--missing if {text!r} means none, {hint}")

    def sorted_names(self) -> list[str | None]:
        """The values in order, by number where all are numbers; a missing one comes last."""
        names = [name for name in self.places if name is not None]
        values = [number_of(name) for name in names]
        order = (
            sorted(zip(values, names, strict=True)) if None not in values else [(0.0, name) for name in sorted(names)]
        )
        return [name for _, name in order] + [None] * (None in self.places and not self.whole)

    def codes(self) -> NDArray[np.int64]:
        """The place of each row's value among `sorted_names`."""
        names = self.sorted_names()
        order = {name: place for place, name in enumerate(names)}
        moved = np.array([order.get(name, -1) for name in self.places], np.int64)
        codes: NDArray[np.int64] = moved[np.concatenate(self.parts)]
        return codes


@dataclass(frozen=True)
class Table:
    """A table that was read: its rows, its columns in the order of the file, and what each is."""

    path: Path
    options: TableOptions
    rows: int
    roles: dict[str, str]
    columns: dict[str, TableColumn]  # without those that are dropped

    @property
    def features(self) -> list[TableColumn]:
        """What a model sees."""
        return [one for one in self.columns.values() if self.roles[one.name] in ("feature", "category")]

    def of(self, role: str) -> TableColumn | None:
        """The column of a role that one has at most."""
        return next((one for one in self.columns.values() if self.roles[one.name] == role), None)


def read_table(path: Path, options: TableOptions, look: bool = False) -> Table:
    """Read a table; to look at it, what is wrong with a column is kept there instead of raised.

    Raises:
        UserError: an option names no column, or the table cannot be made a dataset of.
    """
    with opened(path) as file:
        return rows_of(path, file, options, look)


def rows_of(path: Path, file: TableFile, options: TableOptions, look: bool = False) -> Table:
    """The table of a header and rows; see `read_table`."""
    if len(file.names) < 2:
        alone = f"its only column is {file.names[0]!r}: a table has a label and at least one more"
        raise UserError("PATH", str(path), alone, hint="delimiters may be , ; | or a tab")
    missing = frozenset(one.strip().lower() for one in options.missing.split(","))
    roles = options.roles(path, file.names)
    columns = {name: TableColumn(name, role, missing) for name, role in roles.items() if role != "dropped"}
    rows = 0
    for part in file.parts:
        for name, values in zip(file.names, part, strict=True):
            if name in columns and columns[name].refused is None:
                try:
                    columns[name].add(values, rows)
                except UserError as error:
                    if not look:
                        raise
                    columns[name].refused = error
        rows += len(part[0])
    if not rows:
        raise UserError("PATH", str(path), "it has a header and no rows")
    for column in columns.values():
        if column.kind is None and column.refused is None:
            why = UserError("column", column.name, "it has no values at all", hint=f"--drop {column.name}")
            if not look:
                raise why
            column.refused = why
    return Table(path, options, rows, roles, columns)


def table(path: Path, options: TableOptions) -> Dataset:
    """The dataset that a table's rows make."""
    return dataset_from(read_table(path, options))


def dataset_from(read: Table) -> Dataset:
    """The dataset of a table; its columns are let go on the way, for the sake of memory."""
    where, kept = str(read.path), _kept(read)
    labels, classes = _numbered(read.of("label"), kept)
    domains, names = _numbered(read.of("domain"), kept)
    holders, held_by = None, list[str]()
    if read.options.client_column is not None:
        holders, held_by = _numbered(read.columns[read.options.client_column], kept)
    widths = [1 if one.kind == "numbers" else len(one.sorted_names()) for one in read.features]
    x, place = np.zeros((len(labels), sum(widths)), np.float32), 0
    categories: dict[str, tuple[str | None, ...]] = {}
    for one, width in zip(read.features, widths, strict=True):
        if one.kind == "numbers":
            x[:, place] = np.concatenate(one.parts)[kept]
        else:
            x[np.arange(len(x)), place + one.codes()[kept]] = 1
            categories[one.name] = tuple(one.sorted_names())
        one.parts.clear()
        place += width
    samples = Samples(torch.from_numpy(x), labels, domains, holders)
    del x
    train, test = _divided(read, samples, kept)
    del samples
    if not len(train) or not len(test):
        lacking = "training" if not len(train) else "testing"
        why = "every fifth of a class is for testing, and no class has five" if read.of("test") is None else ""
        raise UserError("PATH", where, why or f"no row is for {lacking}")
    columns, place = [], 0
    for one, width in zip(read.features, widths, strict=True):
        fill = None
        if one.kind == "numbers" and read.options.fill == "mean":
            fill = _fill(one.name, train.x[:, place], test.x[:, place])
        columns.append(Column(one.name, categories.get(one.name, ()), fill))
        place += width
    encoding = TableEncoding(tuple(columns), tuple(sorted(_missing(read))))
    made = Dataset.of(read.path.name.split(".")[0], train, test, classes, names, encoding=encoding)
    return replace(made, holders=tuple(held_by))


def _missing(read: Table) -> frozenset[str]:
    return next(iter(read.columns.values())).missing


def _kept(read: Table) -> NDArray[np.bool_]:
    """Which rows stay; a missing label, domain, client or test is refused unless rows with missing values go."""
    kept = np.ones(read.rows, bool)
    for one in read.columns.values():
        if not one.absent:
            continue
        gone = np.isnan(np.concatenate(one.parts)) if one.kind == "numbers" else one.codes() == len(one.places) - 1
        if read.options.fill == "drop-row":
            kept &= ~gone
            one.whole = True
        elif one.role != "category":
            why = f"row {int(gone.argmax()) + 1} has none in the column {one.name!r}, and {one.absent} rows in all"
            raise missing_value(f"the {one.role}", why, hint="--fill drop-row leaves rows with missing values out")
    if not kept.any():
        hint = "--drop columns with many missing values, or --fill mean"
        raise UserError("--fill", read.options.fill, "every row has a missing value", hint=hint)
    return kept


def _numbered(column: TableColumn | None, kept: NDArray[np.bool_]) -> tuple[Tensor, list[str]]:
    """The numbers of the rows' classes, domains or holders, and the names of those that are there."""
    if column is None:
        return torch.zeros(int(kept.sum()), dtype=torch.int64), []
    names = column.sorted_names()
    there, numbers = np.unique(column.codes()[kept], return_inverse=True)
    return torch.from_numpy(numbers.astype(np.int64)), [str(names[place]) for place in there]


def _divided(read: Table, samples: Samples, kept: NDArray[np.bool_]) -> tuple[Samples, Samples]:
    """Training and test rows: as a column says, or every fifth of a class for testing."""
    column = read.of("test")
    if column is not None:
        names = [str(name) for name in column.sorted_names()]
        for name in names:
            if name.lower() not in TESTED:
                raise unknown(f"column {column.name}", name, TESTED)
        tested = torch.tensor([TESTED[name.lower()] for name in names])[torch.from_numpy(column.codes()[kept])]
        return samples.take((~tested).nonzero().flatten()), samples.take(tested.nonzero().flatten())
    counts = samples.labels.bincount()
    if int(counts.min()) == 1:
        names = _numbered(read.of("label"), kept)[1]
        why = f"class {names[int(counts.argmin())]!r} has a single row, which cannot be trained on and tested"
        raise UserError("PATH", str(read.path), why, hint="leave the row out, or say which rows are for testing")
    return fifth_out(samples)


def _fill(name: str, train: Tensor, test: Tensor) -> float:
    """Put the mean of the training rows [n] in place of missing values, here and in the test rows."""
    known = train[~train.isnan()].double()
    if not len(known):
        raise UserError("column", name, "no training row has a value", hint=f"--drop {name}")
    mean = float(known.mean().float())
    for part in (train, test):
        part.nan_to_num_(nan=mean)
    return mean
