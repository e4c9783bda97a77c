"""A federation whose clients ask to be let in, by the command line."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from tests.support.command_line import Outcome, invoke, succeed


def founded(place: Path, *words: str) -> str:
    """A federation in a folder; the passphrase of its authority's key."""
    return succeed(place, "deploy", "init", "federation", *words).out.split()[-1]


def typed(passphrase: str, place: Path, *words: str) -> Outcome:
    """A command that asks for the passphrase."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", io.StringIO(passphrase + "\n"))
        return invoke(place, *words)


def asks(place: Path, site: str, *words: str) -> Path:
    """A client makes a key and a request; the request."""
    succeed(place, "deploy", "join", site, "--name", f"site {site}", *words)
    return place / site / "request.csr"


def admitted(place: Path, passphrase: str, site: str, *words: str) -> int:
    """A client that has asked is let in, and has put beside its key what came back; its number."""
    outcome = typed(passphrase, place, "deploy", "admit", "federation", str(asks(place, site)), *words)
    assert outcome.code == 0, outcome.err
    number = int(outcome.out.split("--id ")[1].split("`")[0])
    received(place, site, number)
    return number


def received(place: Path, site: str, number: int) -> None:
    """What the operator has sent is beside the client's key."""
    for file in (place / "federation/clients" / str(number)).iterdir():
        if file.is_file():
            (place / site / file.name).write_bytes(file.read_bytes())


def secrets_in(folder: Path) -> list[str]:
    """Files with a private key."""
    files: list[Any] = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [str(path.relative_to(folder)) for path in files if b"PRIVATE KEY" in path.read_bytes()]
