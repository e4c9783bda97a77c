"""What there is: methods, models, datasets, attacks, defences."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from protofed.cli.common import Json, command
from protofed.errors import UserError, unknown

Name = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Only this one, in detail.")]


@command("methods", "methods fedproto")
def methods_command(
    name: Name = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Show all methods in one table: what each sends, keeps and needs.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the methods; of one, its paper and parameters."""
    from protofed.internal.plugins import is_code
    from protofed.methods import METHODS, describe, method_names
    from protofed.studies.paper_parameters import paper_values

    if matrix:
        _matrix(name, as_json)
        return
    if name is None:
        _list([describe(name) for name in method_names()], ("name", "description"), as_json, text="cut")
        return
    if name not in method_names() and not is_code(name):
        raise unknown("NAME", name, method_names())
    about, papers = describe(name), paper_values(name)
    if as_json:
        print(json.dumps(about | {"papers": [one._asdict() for one in papers]}, indent=2))
        return
    facts = {"sent up": about["up"], "sent down": about["down"], "paper reports": about["score"]}
    page = {"page": f"docs/methods/{name}.md"} if name in METHODS else {}
    _facts(name, {key: about[key] for key in ("description", "paper", "link")} | page | facts)
    defaults = about["parameters"].items()
    _table(("parameter", "default", "meaning"), [[key, _value(value), about["help"][key]] for key, value in defaults])
    places = [", ".join(f"{table} ({', '.join(of)})" for table, of in one.tables.items()) for one in papers]
    values = [[one.parameter, _value(one.value), place] for one, place in zip(papers, places, strict=True)]
    _table(("parameter", "value", "in the papers' tables"), values)


def _matrix(name: str | None, as_json: bool) -> None:
    """All methods of ours beside each other."""
    from protofed.report.methods_matrix import COLUMNS, SAID, matrix

    if name is not None:
        raise UserError("--matrix", name, "it shows all methods", hint="leave the name out")
    rows = matrix()
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        short = [column for column in COLUMNS if column not in SAID]  # free text comes last, where it may be wrapped
        cells = [[*(row[column] for column in short), " | ".join(row[column] for column in SAID)] for row in rows]
        _table((*short, " | ".join(SAID)), cells, "l")


@command("models", "models")
def models_command(as_json: Json = False) -> None:
    """List the models and their sizes."""
    from protofed.models import describe

    _list(describe(), ("name", "parameters", "features", "input", "description"), as_json, "lrrrl")
    if not as_json:
        print("parameters are counted for this input and 10 classes")


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
    name: Name = None,
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Where dataset files are.")] = None,
    as_json: Json = False,
) -> None:
    """List the datasets and whether their files are there."""
    from protofed.data import DATASETS, describe

    if name is not None and name not in DATASETS:
        raise unknown("NAME", name, DATASETS)
    rows = [row for row in describe(data_dir) if name in (None, row["name"])]
    if as_json:
        print(json.dumps(rows if name is None else rows[0], indent=2))
        return
    for row in rows:
        needed = bool(DATASETS[row["name"]].parts or DATASETS[row["name"]].forms[0].files)
        row["files"] = "not needed" if not needed else "present" if row["present"] else "missing"
    if name is not None:
        _facts(name, {key: value for key, value in rows[0].items() if key != "present"})
        return
    lines = [row | {"domains": len(row["domains"]) or 1} for row in rows]
    _list(lines, ("name", "classes", "train", "test", "shape", "domains", "files"), as_json, "lrrrrrl", text=None)
    for row in rows:
        if row["note"] and row["files"] != "missing":
            print(f"{row['name']}: {row['note']}")
    print("your own data: folder:PATH (pictures), npz:PATH (arrays), csv:PATH and parquet:PATH (tables),")
    print("ts:PATH and arff:PATH (series), text:PATH (text), file.py:make (what your function returns)")


@command("attacks", "attacks")
def attacks_command(as_json: Json = False) -> None:
    """List the attacks that experiments can simulate."""
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


def _list(
    rows: list[dict[str, Any]],
    columns: tuple[str, ...],
    as_json: bool,
    align: str = "l",
    text: Literal["cut", "wrapped"] | None = "wrapped",
) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
    else:
        _table(columns, [[_text(row[name]) for name in columns] for row in rows], align, text)


def _facts(name: str, facts: Mapping[str, Any]) -> None:
    """What is known of one thing, a line each."""
    lines = [[key, text] for key, value in facts.items() if key != "name" and (text := _text(value))]
    _table(("name", name), lines)


def _table(
    titles: tuple[str, ...],
    rows: Sequence[Sequence[str]],
    align: str = "l",
    text: Literal["cut", "wrapped"] | None = "wrapped",
) -> None:
    """Nothing for no rows."""
    from protofed.report.terminal import TextTable

    if rows:
        TextTable(titles, rows, align=align, text=text).print()
        print()


def _value(value: Any) -> str:
    """A parameter's value as --set reads it."""
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)


def _text(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(value)
    if value is None:
        return "?"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
