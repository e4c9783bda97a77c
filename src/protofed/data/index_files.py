"""Who holds which rows, as a file: JSON of ours, or FedLab's dict of each client's rows, as JSON or a pickle."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from protofed.data.sources.pickles import read_pickle
from protofed.errors import UserError
from protofed.experiment import INDICES
from protofed.internal.atomic_files import write_text

LARGEST = 2**26
"""Bytes that are read; ten million rows of seven digits."""
MOST_ROWS = 2**31
"""No row has a number as large."""
KEYS = ("train", "test", "pooled")


@dataclass(frozen=True, eq=False)
class Division:
    """Say which rows are whose.

    Args:
        train: of each client, the rows of the training samples that it holds [n], int64.
        test: of each client, the rows of the test samples that are its own test set [m]; None where nobody says it.
        pooled: whether both are rows of all samples, those for training before those for testing.

    Example:
        >>> import torch
        >>> from protofed.data.index_files import Division
        >>> Division([torch.tensor([0, 2]), torch.tensor([1])]).clients
        2
    """

    train: Sequence[Tensor]
    test: Sequence[Tensor] | None = None
    pooled: bool = False

    @property
    def clients(self) -> int:
        """How many there are."""
        return len(self.train)


def read_division(name: str) -> Division:
    """Read the file of a split `indices:FILE`.

    Args:
        name: `indices:` and the path of a file. JSON holds a list of lists of rows, or an object with lists of lists
            `train` and `test` and maybe `pooled`, or an object of lists by number of client, from "0"; a pickle holds
            a dict of rows by number of client.

    Returns:
        What it says; that rows are there is for `check_rows` to see.

    Raises:
        UserError: there is no such file, or it does not say who holds which rows.
    """
    path = Path(name.removeprefix(INDICES))
    try:
        if path.stat().st_size > LARGEST:
            raise _refused(name, f"it has {path.stat().st_size} bytes, and at most {LARGEST} are read")
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise (error if isinstance(error, UserError) else _refused(name, f"it cannot be read: {reason}")) from None
    said = _parsed(name, path, content)
    if isinstance(said, list):
        return Division(_rows(name, "client", said))
    if not isinstance(said, dict) or not said:
        raise _refused(name, "it must hold a list of the rows of each client, or an object with train and test")
    if "train" not in said:
        return Division(_rows(name, "client", _by_number(name, said)))
    if more := [key for key in said if key not in KEYS]:
        raise _refused(name, f"it holds {more[0]!r}, and may hold {', '.join(KEYS)}")
    train = _rows(name, "train", said["train"])
    test = None if said.get("test") is None else _rows(name, "test", said["test"])
    pooled = said.get("pooled", False)
    if not isinstance(pooled, bool):
        raise _refused(name, "its pooled must be true or false")
    if test is not None and len(test) != len(train):
        raise _refused(name, f"its train is of {len(train)} clients, and its test of {len(test)}")
    if pooled and test is None:
        raise _refused(name, "where rows are pooled, test must say which are for testing")
    return Division(train, test, pooled)


def write_division(division: Division, path: Path) -> None:
    """Write what `read_division` reads, a line per client."""
    parts = {"train": division.train, "test": division.test or ()}
    texts = [
        f'"{part}": [\n' + ",\n".join(json.dumps(rows.tolist()) for rows in lists) + "\n]"
        for part, lists in parts.items()
        if lists
    ]
    texts = ['"pooled": true', *texts] if division.pooled else texts
    write_text(path, "{" + ",\n".join(texts) + "}\n")


def check_rows(name: str, division: Division, train: int, test: int) -> None:
    """Refuse rows that are not there, and one that two clients train on or that is trained on and tested."""
    everyone = train + test if division.pooled else train
    _check_range(name, "train", division.train, everyone)
    together = [*division.train, *(division.test or ())] if division.pooled else division.train
    rows = torch.cat(list(together))
    if division.test is not None:
        _check_range(name, "test", division.test, everyone if division.pooled else test)
        for client, own in enumerate(division.test):
            if int(own.bincount().max()) > 1:
                raise _refused(name, f"the test rows of client {client} name one twice")
    counts = rows.bincount()
    if int(counts.max()) > 1:
        twice = "for two clients, or twice for one" if not division.pooled else "twice"
        raise _refused(name, f"row {int(counts.argmax())} is there {twice}")


def _check_range(name: str, part: str, lists: Sequence[Tensor], total: int) -> None:
    for client, rows in enumerate(lists):
        if int(rows.max()) >= total:
            why = f"{part} row {int(rows.max())} of client {client}, and rows are from 0 to {total - 1}"
            raise _refused(name, why)


def _parsed(name: str, path: Path, content: bytes) -> Any:
    if path.suffix in (".pkl", ".pickle"):
        return read_pickle(path, content, by_number=True)
    try:
        return json.loads(content, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        why = "it is nested too deeply" if isinstance(error, RecursionError) else f"it is no JSON: {error}"
        raise _refused(name, why) from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object, in which JSON would let a key be there twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is there twice")
    return found


def _by_number(name: str, said: Mapping[Any, Any]) -> list[Any]:
    """The rows of clients that are numbered, in JSON as text."""
    numbered = {str(key): rows for key, rows in said.items()}
    order = [str(number) for number in range(len(said))]
    if len(numbered) != len(said) or set(numbered) != set(order):
        raise _refused(name, f"its keys must be train and test, or the clients' numbers from 0 to {len(said) - 1}")
    return [numbered[number] for number in order]


def _rows(name: str, part: str, lists: Any) -> list[Tensor]:
    """A list of lists of whole numbers as tensors, each with one or more."""
    if not isinstance(lists, list | tuple) or not lists:
        raise _refused(name, f"its {part} must be a list of lists of rows, one for each client")
    found = []
    for client, said in enumerate(lists):
        where = f"the {'rows' if part == 'client' else f'{part} rows'} of client {client}"
        rows = said.tolist() if isinstance(said, np.ndarray) and said.dtype.kind in "iu" else said
        if not isinstance(rows, list | tuple) or not all(type(row) is int for row in rows):
            raise _refused(name, f"{where} must be a list of whole numbers")
        if not rows:
            raise _refused(name, f"{where} are none")
        if not 0 <= min(rows) <= max(rows) < MOST_ROWS:
            raise _refused(name, f"{where} name {min(rows) if min(rows) < 0 else max(rows)}: rows are from 0")
        found.append(torch.tensor(rows, dtype=torch.int64))
    return found


def _refused(name: str, reason: str) -> UserError:
    return UserError("--split", name, reason)
