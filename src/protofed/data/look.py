"""What is known of a dataset before anything is trained on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from protofed.data.build import check_classes, dataset_of, federation_of
from protofed.data.encodings import Encoding
from protofed.data.federation import Federation
from protofed.data.loading import check_name, is_made, is_table, made_data
from protofed.data.samples import Dataset, joined
from protofed.data.series_encoding import shown
from protofed.data.sources.catalogue import DATASETS
from protofed.data.sources.tables import LABELS, Table, TableColumn, TableOptions, dataset_from, read_table
from protofed.errors import UserError
from protofed.experiment import Experiment, kind_of

SOME = 2**16
"""Bytes by which text and tables are told apart."""
SHOWN = 12
"""Categories of a column that are named."""


def named_data(name: str, label: str | None = None) -> str:
    """A dataset's name; a path without its kind is given one by the look of it, a table where a label is named."""
    path = Path(name)
    if ":" in name or name in DATASETS or is_made(name) or not path.exists():
        return name
    if path.suffix.lower() == ".tsv" and path.is_file() and label is None and _is_text(path):
        return f"text:{path}"
    return f"{kind_of('PATH', path)}:{path}"


def _is_text(path: Path) -> bool:
    """Whether a file is of lines `label<TAB>text`: two columns, of which the header names neither the label."""
    with path.open("rb") as file:
        lines = [line.decode("utf-8", "replace") for line in file.readlines(SOME)[:-1] if line.strip()]
    header = [name.strip().lower() for name in lines[0].split("\t")] if lines else []
    return bool(lines) and all(line.count("\t") == 1 for line in lines) and not {*header} & {*LABELS}


def look(experiment: Experiment) -> dict[str, Any]:
    """Describe the dataset of an experiment.

    Args:
        experiment: its options of data count.

    Returns:
        `name`; `train`, `test`, `classes`, `domains`, `shape`, `preparation` and `example`, unless it cannot be made;
        of a federation also `clients`, and no `shape` and `example` where shapes differ; of a table also `rows`,
        `left_out`, `clients`, `columns`, and `refused`: what is wrong with it, a line each.

    Raises:
        UserError: there is no such dataset, or it cannot be read at all.
    """
    name = experiment.dataset
    check_name(name)
    if is_table(name):
        return {"name": name} | _of_table(experiment, Path(name.partition(":")[2]).expanduser())
    if is_made(name) and isinstance(made_data(name), Federation):
        return {"name": name} | _of_federation(federation_of(experiment))
    return {"name": name} | _of_dataset(dataset_of(experiment, name, experiment.train_size, None))


def _of_federation(federation: Federation) -> dict[str, Any]:
    """What the clients of one's own federation hold together."""
    train = joined([client.train for client in federation.clients])
    pools = {id(client.pool): client.pool for client in federation.clients}  # which clients share
    test = joined(list(pools.values()))
    first, shapes = federation.clients[0], {client.train.x.shape[1:] for client in federation.clients}
    about = {
        "clients": {f"client {number}": len(client.train) for number, client in federation.members.items()},
        "train": len(train),
        "test": len(test),
        "classes": _counted(federation.classes, train.labels, test.labels),
        "domains": _counted(federation.domains, train.domains, test.domains),
        "preparation": "+".join(dict.fromkeys(client.preparation.kind for client in federation.clients)),
    }
    if len(shapes) > 1:
        return about
    return about | {"shape": list(*shapes), "example": _example(first.train.x[0], federation.encoding)}


def _example(first: Tensor, encoding: Encoding | None) -> str:
    """A sample as a line."""
    drawn = shown(first) if encoding is None else encoding.show(first)
    return f"{first.dtype} {list(first.shape)}" if drawn is None else drawn


def _of_dataset(dataset: Dataset) -> dict[str, Any]:
    check_classes(dataset.name, dataset.classes)
    first = dataset.train.x[0]
    return {
        "train": len(dataset.train),
        "test": len(dataset.test),
        "classes": _counted(dataset.classes, dataset.train.labels, dataset.test.labels),
        "domains": _counted(dataset.domains, dataset.train.domains, dataset.test.domains),
        "shape": list(first.shape),
        "preparation": dataset.preparation.kind,
        "example": _example(first, dataset.encoding),
    }


def _counted(names: tuple[str, ...], *numbers: Tensor) -> dict[str, list[int]]:
    """How many training and test samples there are of each."""
    counts = [part.bincount(minlength=len(names)).tolist() for part in numbers]
    return {name: list(pair) for name, *pair in zip(names, *counts, strict=True)}


def _of_table(experiment: Experiment, path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError("--dataset", experiment.dataset, f"there is no file {path}")
    table = read_table(path, TableOptions.of(experiment), look=True)
    clients = table.of("client")
    about: dict[str, Any] = {"rows": table.rows, "columns": [_of_column(table, name) for name in table.roles]}
    about["clients"] = {} if clients is None else _values(clients)
    refused = [one.refused for one in table.columns.values() if one.refused is not None]
    made: dict[str, Any] = {}
    if not refused:
        try:
            dataset = dataset_from(table)
            made = _of_dataset(dataset) | {"left_out": table.rows - len(dataset.train) - len(dataset.test)}
        except UserError as error:
            refused = [error]
    lines = [f"{error}{f' (hint: {error.hint})' if error.hint else ''}" for error in refused]
    return about | made | {"refused": lines}


def _of_column(table: Table, name: str) -> dict[str, Any]:
    column = table.columns.get(name)
    if column is None:
        return {"name": name, "kind": "dropped", "missing": None, "values": None}
    kind = table.roles[name]
    if kind == "feature":
        kind = "number" if column.kind == "numbers" else "category"
    names = [one for one in column.sorted_names() if one is not None] if column.places else []
    values = None if column.kind == "numbers" else [len(names), names[:SHOWN]]
    return {"name": name, "kind": "refused" if column.refused else kind, "missing": column.absent, "values": values}


def _values(column: TableColumn) -> dict[str, int]:
    """How many rows there are of each value."""
    import numpy as np

    counts = np.bincount(column.codes(), minlength=len(column.places)).tolist()
    return {str(name): count for name, count in zip(column.sorted_names(), counts, strict=True)}
