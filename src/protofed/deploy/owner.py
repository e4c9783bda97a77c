"""client.yaml, without torch: what the owner of a client says, checked when the client starts and at every message."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from protofed.errors import UserError, unknown
from protofed.internal.schema import made
from protofed.internal.yaml_files import read_yaml

PARTS = ("weights", "prototypes", "numbers")


@dataclass(frozen=True)
class Says:
    """What the owner of a client says: which client it is, what data it has, and what it may take part in."""

    id: int
    data: str | None = None  # a dataset, or a path; unless given, the experiment's dataset
    data_dir: str | None = None
    methods: tuple[str, ...] | None = None  # any, unless given; also files with a method or model (file.py:Class)
    rounds: int = 1_000_000
    megabytes: float = 1000.0  # of a message, in or out
    send: tuple[str, ...] = PARTS  # what an upload may hold
    secure: Literal["optional", "required"] = "optional"  # whether uploads leave under secure aggregation's masks only
    device: str = "cpu"
    threads: int | None = None
    memory: str | None = None  # folder of what is kept between rounds
    server: str | None = None  # where it is; `protofed deploy client` reads it

    @classmethod
    def read(cls, path: Path, data: str | None = None) -> Self:
        """From a client.yaml, with this data if it is given."""
        says = made(str(path), cls, {"memory": str(path.parent / "memory"), **read_yaml(path)})
        for part in says.send:
            if part not in PARTS:
                raise unknown(f"{path}: send", part, PARTS)
        if data is not None:
            return replace(says, data=dataset_at("--data", data))
        return says if says.data is None else replace(says, data=dataset_at(f"{path}: data", says.data))


def dataset_at(argument: str, data: str) -> str:
    """A path as the dataset that it is, with or without its kind; the name of a dataset as it is."""
    if kind := re.fullmatch("(npz|folder):(.*)", data):
        return f"{kind[1]}:{_there(argument, kind[2])}"
    if "/" not in data and "." not in data:
        from protofed.data import DATASETS  # and torch, which a client that brings no dataset's name does not wait for

        if data in DATASETS:
            return data
        if not Path(data).exists():
            raise unknown(argument, data, DATASETS)
    path = _there(argument, data)
    return f"{'folder' if path.is_dir() else 'npz'}:{path}"


def _there(argument: str, path: str) -> Path:
    """A client whose own data is not there would be online, and fail in every run."""
    try:
        return Path(path).resolve(strict=True)
    except (OSError, ValueError):
        raise UserError(argument, path, f"there is no {path}") from None
