"""What there is: methods, models, datasets, attacks, defences."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from protofed.cli.common import Json, command


@command("methods", "methods --json")
def methods_command(as_json: Json = False) -> None:
    """List the methods, their papers and what they send."""
    from protofed.methods import describe, method_names

    rows = [describe(name) for name in method_names()]
    _list(rows, ("name", "description", "paper", "link", "up", "down"), as_json)


@command("models", "models")
def models_command(as_json: Json = False) -> None:
    """List the models and their sizes."""
    from protofed.models import describe

    _list(describe(), ("name", "description", "input", "classes", "features", "parameters"), as_json)


@command("splits", "splits")
def splits_command(as_json: Json = False) -> None:
    """List the ways to divide a dataset among clients; `protofed split` shows what one gives."""
    from protofed.data.splits import SPLITS

    rows = [{"name": name, "description": inspect.getdoc(split) or ""} for name, split in SPLITS.items()]
    for row in rows:
        row["description"] = " ".join(row["description"].split("\n\n")[0].split())
    _list(rows, ("name", "description"), as_json)


@command("datasets", "datasets --data-dir data")
def datasets_command(
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Where dataset files are.")] = None,
    as_json: Json = False,
) -> None:
    """List the datasets and whether their files are there."""
    from protofed.data import describe

    rows = describe(data_dir)
    _list(rows, ("name", "description", "train", "test", "classes", "domains", "shape", "terms", "present"), as_json)
    for row in rows if not as_json else ():
        if row["note"] and row["present"]:
            print(f"{row['name']}: {row['note']}")
    if not as_json:
        print("your own data: folder:PATH (pictures) and npz:PATH (arrays)")


@command("attacks", "attacks")
def attacks_command(as_json: Json = False) -> None:
    """List the attacks that experiments can play."""
    from protofed.trust.attacks import ATTACKS

    _list(
        [{"name": name, "an attacker": attack.about} for name, attack in ATTACKS.items()],
        ("name", "an attacker"),
        as_json,
    )


@command("defences", "defences")
def defences_command(as_json: Json = False) -> None:
    """List the defences against clients that are not to be trusted."""
    from protofed.trust.defences import describe

    _list(describe(), ("name", "of", "description"), as_json)


def _list(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from protofed.report.terminal import console

    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_text(row[name]) for name in columns))
    console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={setting}" for name, setting in value.items())
    if isinstance(value, tuple):
        return ", ".join(value)
    if value is None:
        return "?"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
