"""A federation of a user's own as one file: safetensors, which nothing in can be executed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from safetensors import SafetensorError
from torch import Tensor

from protofed.data.encodings import decoded, encoded
from protofed.data.federation import Client, Federation
from protofed.data.preparation import Preparation
from protofed.data.samples import Samples
from protofed.errors import UserError
from protofed.internal.plugins import SESSION, given
from protofed.internal.schema import require
from protofed.internal.tensor_files import read_tensors, write_tensors

FILE = "federation.safetensors"
KIND = "federation:"
"""Before the file's path, where an experiment names its dataset."""


PARTS = ("x", "labels", "domains")
"""Of samples."""


class Held(TypedDict):
    """Which samples a client holds, by their numbers in the file."""

    train: int
    pool: int
    validation: int | None
    preparation: dict[str, Any]


class Contents(TypedDict):
    """What the file says beside tensors."""

    clients: list[Held]
    classes: list[str]
    domains: list[str]
    novel: int | None
    encoding: dict[str, Any] | None


def is_federation(dataset: str) -> bool:
    """Whether the dataset of an experiment is a federation of the user's own, which is not divided any more."""
    return dataset.startswith((KIND, SESSION))


def named_federation(dataset: str) -> Federation:
    """The federation that an experiment names: one of this session, or a file.

    Raises:
        UserError: there is none.
    """
    found: Federation | None = given(dataset)
    if found is None and dataset.startswith(SESSION):
        raise UserError("--dataset", dataset, "it is a federation of a Python session, which only that one has")
    return read_federation(Path(dataset.removeprefix(KIND))) if found is None else found


def write_federation(federation: Federation, path: Path) -> None:
    """Write a whole federation; samples that clients share are there once."""
    if federation.numbers is not None:
        raise UserError("federation", federation.numbers, "some of its clients are elsewhere")
    samples: dict[int, tuple[int, Samples]] = {}  # by identity: clients of one pool are tested together

    def number(one: Samples) -> int:
        return samples.setdefault(id(one), (len(samples), one))[0]

    def held(client: Client) -> Held:
        validation = None if client.validation is None else number(client.validation)
        parts = {"train": number(client.train), "pool": number(client.pool), "validation": validation}
        return cast(Held, parts | {"preparation": asdict(client.preparation)})

    said: Contents = {
        "clients": [held(client) for client in federation.clients],
        "classes": list(federation.classes),
        "domains": list(federation.domains),
        "novel": None if federation.novel is None else number(federation.novel),
        "encoding": encoded(federation.encoding),
    }
    tensors = {f"own/{place}": client.own.clone() for place, client in enumerate(federation.clients)}
    for place, one in samples.values():  # copies, as safetensors takes no memory that two tensors share
        tensors |= {
            f"{place}/{part}": getattr(one, part).clone(memory_format=torch.contiguous_format) for part in PARTS
        }
    write_tensors(path, tensors, {"federation": json.dumps(said)})


def read_federation(path: Path) -> Federation:
    """Read what `write_federation` wrote.

    Raises:
        UserError: there is no such file, or it does not hold a federation.
    """
    try:
        tensors, about = read_tensors(path)
        return _assembled(json.loads(about.get("federation", "null")), tensors)
    except (OSError, SafetensorError, ValueError, RecursionError, KeyError) as error:  # UserError is a ValueError
        why = f"it does not say {error}" if isinstance(error, KeyError) else " ".join(str(error).split())
        raise UserError("--dataset", str(path), f"it cannot be read as a federation: {why}") from None


def _assembled(said: Any, tensors: dict[str, Tensor]) -> Federation:
    require("federation", said, Contents)
    samples: dict[int, Samples] = {}

    def some(number: int | None) -> Samples | None:
        if number is not None and number not in samples:
            samples[number] = Samples(*(tensors[f"{number}/{part}"] for part in PARTS))
        return None if number is None else samples[number]

    clients = []
    for place, held in enumerate(said["clients"]):
        train, pool, validation = (some(held[part]) for part in ("train", "pool", "validation"))
        assert train is not None
        assert pool is not None
        own, preparation = tensors[f"own/{place}"], Preparation.from_json(held["preparation"])
        if own.dtype != torch.int64 or own.dim() != 1:
            raise UserError("own", f"{own.dtype} {list(own.shape)}", "give int64 [m]")
        clients.append(Client(train, pool, own, validation, preparation))
    names, encoding = (tuple(said["classes"]), tuple(said["domains"])), decoded(said["encoding"])
    return Federation(tuple(clients), *names, some(said["novel"]), encoding=encoding)
