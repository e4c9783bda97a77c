"""How rows of a table become samples: numbers as they are, a category as a one among zeros."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from protofed.data.encodings import Encoding
from protofed.errors import UserError, listed, missing_value, suggestion, unknown
from protofed.internal.schema import made, require

LARGEST = float(torch.finfo(torch.float32).max)
"""The largest number of a sample."""


@dataclass(frozen=True)
class Column:
    """Describe a column that a model sees.

    Args:
        name: as the header has it.
        categories: what it may hold, in the order of their places; None among them stands for a missing value. A column
            without any holds numbers.
        fill: the number in place of a missing one; None where none may be missing.

    Example:
        >>> from protofed.data import Column
        >>> Column("age", fill=54.0).width, Column("sex", ("female", "male", None)).width
        (1, 3)
    """

    name: str
    categories: tuple[str | None, ...] = ()
    fill: float | None = None

    @property
    def width(self) -> int:
        """How many numbers of a sample are of this column."""
        return len(self.categories) or 1


@dataclass(frozen=True)
class TableEncoding(Encoding):
    """Describe how rows of a table became samples; new rows go through the same.

    Args:
        columns: what a model sees, in order.
        missing: values that mean that there is none, in lower case.

    Raises:
        UserError: there is no column, two have one name, or one of categories has a number for missing values.

    Example:
        >>> from protofed.data import Column, TableEncoding
        >>> table = TableEncoding((Column("age", fill=54.0), Column("sex", ("female", "male"))), ("", "na"))
        >>> x = table.encode([{"age": "63", "sex": "male"}, {"age": "NA", "sex": "female"}])
        >>> x.tolist()
        [[63.0, 0.0, 1.0], [54.0, 1.0, 0.0]]
        >>> table.show(x[0])
        'age=63 sex=male'
    """

    kind: ClassVar[str] = "table"

    columns: tuple[Column, ...]
    missing: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [column.name for column in self.columns]
        if not names or len(set(names)) != len(names):
            raise UserError("columns", listed(names), "there must be one or more, and every name once")
        for column in self.columns:
            if len(set(column.categories)) != len(column.categories):
                raise UserError(f"categories of {column.name}", column.categories, "each may be there once")
            if column.categories and column.fill is not None:
                raise UserError(f"fill of {column.name}", column.fill, "it is for columns of numbers")

    def encode(self, rows: Sequence[Mapping[str, object] | Sequence[object]]) -> Tensor:
        """Make samples of rows.

        Args:
            rows: values by the names of columns, of which there may be more, or values in the order of `columns`.

        Returns:
            The samples, float32 [n, features].

        Raises:
            UserError: a value is missing and may not be, is no finite number, or no category that there was.
        """
        samples = [self._sample(number, row) for number, row in enumerate(rows, 1)]
        return torch.tensor(samples, dtype=torch.float32).view(len(samples), sum(one.width for one in self.columns))

    def _sample(self, number: int, row: Mapping[str, object] | Sequence[object]) -> list[float]:
        if not isinstance(row, Mapping):
            if isinstance(row, str) or len(row) != len(self.columns):
                raise UserError(f"row {number}", row, f"give {len(self.columns)} values, one for each column")
            row = {column.name: value for column, value in zip(self.columns, row, strict=True)}
        sample: list[float] = []
        for column in self.columns:
            if column.name not in row:
                there = [str(name) for name in row]
                raise missing_value(
                    f"column {column.name} in row {number}",
                    f"the row has {listed(there)}",
                    hint=suggestion(column.name, there),
                )
            sample += self._numbers(f"{column.name} in row {number}", column, row[column.name])
        return sample

    def _numbers(self, where: str, column: Column, value: object) -> list[float]:
        absent = is_missing(value, self.missing)
        if column.categories:
            name = None if absent else text_of(value)
            if name not in column.categories:
                if absent:
                    raise UserError(where, value, "it is missing, and none was where the model learned")
                raise unknown(where, value, [one for one in column.categories if one is not None])
            return [float(name == one) for one in column.categories]
        if absent:
            if column.fill is None:
                raise UserError(where, value, "it is missing, and rows with missing values were left out of training")
            return [column.fill]
        number = number_of(value)
        if number is None:
            raise UserError(where, value, "it must be a number")
        if not abs(number) <= LARGEST:
            raise UserError(where, value, "it must be a finite number")
        return [number]

    def show(self, x: Tensor) -> str:
        """Return one sample [features] as `name=value name=value`."""
        words, place, numbers = [], 0, x.tolist()
        for column in self.columns:
            part = numbers[place : place + column.width]
            place += column.width
            if not column.categories:
                words.append(f"{column.name}={part[0]:.6g}")
            else:
                name = column.categories[part.index(max(part))] if max(part) > 0 else None
                words.append(f"{column.name}={'?' if name is None else name}")
        return " ".join(words)

    def layout(self) -> Any:
        """Return the columns and their categories; what stands for missing numbers is each table's own."""
        return [[one.name, list(one.categories)] for one in self.columns]

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""
        columns = [
            {"name": one.name, "categories": list(one.categories)}
            if one.categories
            else {"name": one.name, "fill": one.fill}
            for one in self.columns
        ]
        return {"columns": columns, "missing": list(self.missing)}

    @classmethod
    def from_json(cls, said: Any) -> TableEncoding:
        """Read what `to_json` made; anything else is a UserError."""
        require("encoding", said, _Said)
        if {*said} != {"columns", "missing"}:
            raise UserError("encoding", listed(sorted(map(str, said))), "it must hold columns and missing")
        columns = [made("columns of the encoding", Column, one) for one in said["columns"]]
        return cls(tuple(Column(one.name, tuple(one.categories), one.fill) for one in columns), tuple(said["missing"]))


@dataclass(frozen=True)
class _Said:
    """What JSON holds of an encoding."""

    columns: list[dict[str, Any]]
    missing: list[str]


def is_missing(value: object, missing: Sequence[str] | frozenset[str]) -> bool:
    """Whether a value means that there is none; `missing` is in lower case."""
    if isinstance(value, str):
        return value.strip().lower() in missing
    return value is None or (isinstance(value, float) and math.isnan(value))


def number_of(value: object) -> float | None:
    """A value as a number; None for what is no number. 1_000 is none, though Python reads it."""
    try:
        return None if isinstance(value, str) and "_" in value else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None


def text_of(value: object) -> str:
    """A value as the name of a class or a category."""
    return value.strip() if isinstance(value, str) else str(value)
