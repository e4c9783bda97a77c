"""Files of tables, some rows at a time: CSV, also packed or with other delimiters, and Parquet."""

from __future__ import annotations

import csv
import gzip
import lzma
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from protofed.data.sources.files import MOST
from protofed.errors import UserError

AT_ONCE = 10_000
"""Rows that are in memory as text."""
CELLS = 500_000
"""Values that are, of tables with many columns."""
CHARACTERS = 2**26
"""Characters that are, of tables with long values."""
LONGEST = 2**24
"""Characters of a row; more is taken for a bomb."""
DELIMITERS = ",;\t|"
GZIP, PARQUET, ZIP, UTF16 = b"\x1f\x8b", b"PAR1", b"PK\x03\x04", (b"\xff\xfe", b"\xfe\xff")
"""How files begin that are no plain text."""


@dataclass(frozen=True)
class TableFile:
    """A table's header, and its columns some rows at a time, from the first row on."""

    names: tuple[str, ...]
    parts: Iterator[Sequence[Sequence[object]]]


@contextmanager
def opened(path: Path) -> Iterator[TableFile]:
    """A table, whatever the name of its file.

    Raises:
        UserError: it is no table, or damaged; also while parts are read.
    """
    with path.open("rb") as file:
        start = file.read(4)
    if start == PARQUET or path.suffix == ".parquet":
        yield _parquet(path)
        return
    if start == ZIP:
        raise UserError("PATH", str(path), "it is a workbook or an archive", hint="save the sheet as CSV (UTF-8)")
    try:
        with _text(path, start.startswith(GZIP)) as text:
            yield _csv(path, _Lines(path, text))
    except UnicodeDecodeError as error:
        why = (
            f"it is not UTF-8 text: byte 0x{error.object[error.start]:02x} after {error.object[: error.start][-20:]!r}"
        )
        coding = "UTF-16" if start.startswith(UTF16) else "LATIN1"
        hint = f"convert it, such as with: iconv -f {coding} -t UTF-8 old.csv > new.csv"
        raise UserError("PATH", str(path), why, hint=hint) from None
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError) as error:
        raise UserError("PATH", str(path), f"it is damaged or cut short: {error}") from None


def _text(path: Path, packed: bool) -> IO[str]:
    if packed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


class _Lines:
    """The lines of a file, of which no row and not all together may be longer than is allowed, packed as they are."""

    def __init__(self, path: Path, file: IO[str]) -> None:
        self.path, self.file = path, file
        self.read = 0
        """Characters so far."""
        self.row = 0
        """Characters before the row that is read."""
        self.first = ""

    def __iter__(self) -> Iterator[str]:
        yield self.first
        while line := self.next():
            yield line

    def next(self) -> str:
        """The next line; at the end it is empty."""
        line = self.file.readline(LONGEST + 1)
        self.read += len(line)
        if self.read - self.row > LONGEST:
            raise UserError("PATH", str(self.path), f"a row of it has more than {LONGEST} characters")
        if self.read > MOST:
            raise UserError("PATH", str(self.path), f"it has, or unpacks to, more than {MOST} characters")
        return line


def _csv(path: Path, lines: _Lines) -> TableFile:
    """The header of a CSV file, and its columns."""
    first = lines.next()
    while first and not first.strip():
        first = lines.next()
    if not first:
        raise UserError("PATH", str(path), "it is empty")
    delimiter = max(DELIMITERS, key=first.count)
    lines.first = first
    reader = csv.reader(lines, delimiter=delimiter, skipinitialspace=True, strict=True)
    try:
        names = tuple(name.strip() for name in next(reader))
    except csv.Error as error:
        raise UserError("PATH", str(path), f"its header cannot be read: {error}") from None
    _check_header(path, names)
    return TableFile(names, _parts(path, lines, reader, len(names)))


def _check_header(path: Path, names: tuple[str, ...]) -> None:
    for place, name in enumerate(names, 1):
        if not name:
            hint = "name it; pandas writes such a column unless it is told index=False"
            raise UserError("PATH", str(path), f"column {place} has no name in the header", hint=hint)
        if name in names[: place - 1]:
            raise UserError("PATH", str(path), f"two columns are named {name!r}")
    if all(_is_number(name) for name in names):
        raise UserError("PATH", str(path), "its first line holds numbers, and must hold the names of the columns")


def _parts(path: Path, lines: _Lines, reader: Any, width: int) -> Iterator[Sequence[Sequence[object]]]:
    """Columns of so many rows at a time; empty lines are none."""
    start, at_once = 0, max(1, min(AT_ONCE, CELLS // width))
    while True:
        some: list[list[str]] = []
        before = lines.read
        try:
            while len(some) < at_once and lines.read - before < CHARACTERS:
                lines.row = lines.read
                if (row := next(reader, None)) is None:
                    break
                some.append(row)
        except csv.Error as error:
            raise UserError("PATH", str(path), f"line {reader.line_num} cannot be read: {error}") from None
        if not some:
            return
        rows = [row for row in some if row]
        if any(len(row) != width for row in rows):
            wrong = next(place for place, row in enumerate(rows) if len(row) != width)
            got = f"row {start + wrong + 1} has {len(rows[wrong])} values, and the header names {width} columns"
            raise UserError("PATH", str(path), got)
        start += len(rows)
        del some
        if rows:
            yield list(zip(*rows, strict=True))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _parquet(path: Path) -> TableFile:
    """The columns of a Parquet file."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        hint = "pip install 'protofed[parquet]'"
        raise UserError("PATH", str(path), "reading it needs the package pyarrow", hint=hint) from None
    try:
        file = _dictionaries(parquet, path)
    except ArrowException as error:
        raise UserError("PATH", str(path), f"it cannot be read as Parquet: {error}") from None
    names = tuple(file.schema_arrow.names)
    _check_header(path, names)

    def parts() -> Iterator[Sequence[Sequence[object]]]:
        try:
            for batch in file.iter_batches(max(1, min(AT_ONCE, CELLS // len(names)))):
                yield [_values(path, column) for column in batch.columns]
        except ArrowException as error:
            raise UserError("PATH", str(path), f"it is damaged: {error}") from None

    return TableFile(names, parts())


def _dictionaries(parquet: Any, path: Path) -> Any:
    """A Parquet file whose texts stay as they are packed: each once, however many rows have it."""
    file = parquet.ParquetFile(path)
    if file.metadata.num_rows * file.metadata.num_columns > MOST:
        raise UserError("PATH", str(path), f"it has {file.metadata.num_rows} rows, too many for its columns")
    texts = [
        column.path
        for column in map(file.schema.column, range(file.metadata.num_columns))
        if "BYTE" in column.physical_type
    ]
    return parquet.ParquetFile(path, read_dictionary=texts)


def _values(path: Path, column: Any) -> Sequence[object]:
    """The values of a column of some rows."""
    if not hasattr(column, "dictionary"):
        return list(column.to_pylist())
    words = column.dictionary.to_pylist()
    if any(len(word) > csv.field_size_limit() for word in words if word is not None):
        raise UserError("PATH", str(path), f"a value of it has more than {csv.field_size_limit()} characters")
    return [None if place is None else words[place] for place in column.indices.to_pylist()]
