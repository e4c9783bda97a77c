"""New records for a model that is there already: rows of a table, series or text, with their classes or without."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from protofed.data.encodings import Encoding
from protofed.data.sources.lines import text_lines, text_of
from protofed.data.sources.series import recordings
from protofed.data.sources.table_files import opened
from protofed.data.sources.tables import label_among
from protofed.data.sources.texts import texts
from protofed.errors import UserError


class Labelled(NamedTuple):
    """Records with the name of the class of each."""

    records: list[Any]
    labels: list[str]


def read_records(path: Path, encoding: Encoding) -> tuple[list[str], list[Any]]:
    """The names and the records of a file, as `encoding.encode` takes them.

    Rows of a table may have further columns; of a text file each is one text (.txt) or each line is one (others).
    """
    if not path.exists():
        raise UserError("PATH", str(path), "there is no such file or folder")
    names, records = READERS[encoding.kind](path)
    if not records:
        raise UserError("PATH", str(path), "it holds nothing")
    return names, records


def read_labelled(path: Path, encoding: Encoding, label: str | None = None) -> Labelled:
    """The records of a file or folder with their classes; `label` names the column of a table that has them."""
    if not path.exists():
        raise UserError("PATH", str(path), "there is no such file or folder")
    return LABELLED[encoding.kind](path, label)


def _rows(path: Path) -> tuple[list[str], list[Any]]:
    rows: list[Any] = []
    with opened(path) as table:
        for part in table.parts:
            rows += [dict(zip(table.names, row, strict=True)) for row in zip(*part, strict=True)]
    return [f"{path}[{number}]" for number in range(1, len(rows) + 1)], rows


def _labelled_rows(path: Path, label: str | None) -> Labelled:
    _, rows = _rows(path)
    if not rows:
        raise UserError("PATH", str(path), "it has no rows")
    column = label_among(path, list(rows[0]), label)
    return Labelled(rows, [str(row[column]).strip() for row in rows])


def _series(path: Path) -> tuple[list[str], list[Any]]:
    series = recordings(path).series
    return [f"{path}[{number}]" for number in range(1, len(series) + 1)], series


def _labelled_series(path: Path, _: str | None) -> Labelled:
    said = recordings(path)
    return Labelled(said.series, said.labels)


def _texts(path: Path) -> tuple[list[str], list[Any]]:
    if path.is_dir():
        files = sorted(file for file in path.rglob("*.txt") if file.is_file())
        return [str(file) for file in files], [text_of(file.read_bytes(), str(file)) for file in files]
    if path.suffix == ".txt":
        return [str(path)], [text_of(path.read_bytes(), str(path))]
    lines = list(text_lines(path))
    return [f"{path}[{number}]" for number, _ in lines], [line for _, line in lines]


def _labelled_texts(path: Path, _: str | None) -> Labelled:
    corpus = texts([path], None)
    every: Sequence[Any] = [*corpus.train, *corpus.test]
    return Labelled([text.content for text in every], [text.label for text in every])


READERS: dict[str, Callable[[Path], tuple[list[str], list[Any]]]] = {
    "table": _rows,
    "series": _series,
    "text": _texts,
}
"""What reads records, by the kind of their encoding."""
LABELLED: dict[str, Callable[[Path, str | None], Labelled]] = {
    "table": _labelled_rows,
    "series": _labelled_series,
    "text": _labelled_texts,
}
