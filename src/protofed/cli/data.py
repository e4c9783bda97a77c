"""A look at data before anything is trained on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from protofed.cli.common import Json, command, experiment_flags
from protofed.experiment import Experiment, options

FEW = 20
"""Names that are shown, with their counts; of more there is the number."""


@command("data", "data patients.csv --label ill --drop name")
@experiment_flags((*options("data"), "data_dir"), leave_out=("dataset",))
def data_command(
    flags: Mapping[str, Any],
    name: Annotated[str, typer.Argument(metavar="PATH|NAME", help="A file, a folder, or a name as --dataset has it.")],
    as_json: Json = False,
) -> None:
    """Show what a dataset holds, and what in it would be refused; exit code 2 if anything would."""
    from protofed.data.look import look, named_data

    about = look(Experiment.from_mapping({**flags, "dataset": named_data(name, flags.get("label"))}))
    if as_json:
        print(json.dumps(about, indent=2))
    else:
        _show(about)
    if refused := about.get("refused", ()):
        for line in refused:
            print(f"refused: {line}", file=sys.stderr)
        raise typer.Exit(2)


def _show(about: Mapping[str, Any]) -> None:
    from protofed.report.terminal import TextTable

    if "columns" in about:
        rows = [[one["name"], one["kind"], _text(one["missing"]), _named(one["values"])] for one in about["columns"]]
        TextTable(("column", "kind", "missing", "values"), rows, align="llrl", text="wrapped").print()
        print()
    facts = [
        [key.replace("_", " "), _fact(value) if key != "shape" else "×".join(map(str, value))]
        for key, value in about.items()
        if key not in ("columns", "refused")
    ]
    TextTable(("", ""), [row for row in facts if row[1]], align="l", text="wrapped").print()


def _named(values: Any) -> str:
    if not values:
        return ""
    number, names = values
    return f"{number}: {', '.join(names)}{', …' if number > len(names) else ''}"


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        pairs = [f"{name} {_fact(count)}" for name, count in list(value.items())[:FEW]]
        return f"{len(value)}: {', '.join(pairs)}{', …' if len(value) > FEW else ''}" if value else ""
    if isinstance(value, list):
        return "+".join(map(_text, value))
    return _text(value)


def _text(value: Any) -> str:
    return "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
