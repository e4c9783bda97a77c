"""The papers' tables and figures, as commands."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from protofed.cli.common import (
    Jobs,
    Json,
    Methods,
    Quiet,
    Seeds,
    command,
    experiment_flags,
    method_names,
    refuse_several,
    whole,
)
from protofed.cli.studies import play_study
from protofed.errors import missing_value, unknown
from protofed.experiment import PATHS, options

READERS = (*options("machine"), "encoder", "seed", "precision", "deterministic", "eval_every")
"""The options that are not the paper's business."""


@command("reproduce", "reproduce fedproto/table1 --only mnist --variant tiny")
@experiment_flags(READERS)
def reproduce_command(
    flags: Mapping[str, Any],
    target: Annotated[
        str | None, typer.Argument(metavar="[TABLE]", help="Such as mp-fedcl/table6; --list names all.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="List tables and figures, and what can run with the files present.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option("--only", metavar="STR", help="Only these datasets or settings, comma-separated: mnist, n=3."),
    ] = None,
    method: Methods = None,
    variant: Annotated[
        str | None,
        typer.Option("--variant", metavar="STR", help="A named reduction or another reading of the paper's protocol."),
    ] = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder; one that this command has begun is continued."),
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a paper's table or figure, and show both numbers."""
    from protofed.runs.folder import fresh_path
    from protofed.studies.reproduction import ReproductionStudy
    from protofed.studies.study import SEEDS

    if list_:
        _list(target, variant, flags, as_json)
        return
    if target is None:
        raise missing_value("TABLE", "name one", hint="`protofed reproduce --list` lists them all")
    refuse_several()
    study = ReproductionStudy(
        target,
        variant,
        [term.strip() for term in only.split(",")] if only else [],
        method_names(method),
        whole("--seeds", seeds, SEEDS),
        whole("--jobs", jobs, None),
        {name: str(Path(value).resolve()) if name in PATHS else value for name, value in flags.items()},
    )
    folder = out or fresh_path(f"reproduce-{target.replace('/', '-')}")
    play_study(study.begin(folder), folder, jobs, quiet, as_json)


def _list(target: str | None, variant: str | None, machine: Mapping[str, Any], as_json: bool) -> None:
    """Every table and figure, or those of a paper, and what of it can be run here."""
    from protofed.report.terminal import TextTable
    from protofed.studies.papers import find_target, target_names
    from protofed.studies.reproduced import obstacle
    from protofed.studies.reproduction import absent_data, obstacles

    names = [name for name in target_names() if target is None or f"{name}/".startswith(f"{target}/")]
    if not names:
        raise unknown("TABLE", str(target), target_names(), see="protofed reproduce --list")
    absent = absent_data(machine)
    rows: list[dict[str, Any]] = []
    for name in names:
        found = find_target(name, variant)
        missing = obstacles(found, absent, machine)
        words = ("dataset", "setting", "method", "metric")
        cells = [
            {word: getattr(cell, word) for word in words} | {"missing": obstacle(found, cell, missing)}
            for cell in found.cells
        ]
        rows.append({"name": name, "title": found.title, "cells": cells})
    if as_json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return
    lines = []
    for row in rows:
        reasons: dict[str, set[str]] = {}
        for cell in row["cells"]:
            if cell["missing"]:
                reasons.setdefault(cell["missing"], set()).add(cell["dataset"])
        able = sum(not cell["missing"] for cell in row["cells"])
        why = "\n".join(f"{', '.join(sorted(of))}: {reason}" for reason, of in reasons.items())
        lines.append([row["name"], str(able), str(len(row["cells"])), f"{row['title']}\n{why}".strip()])
    TextTable(("name", "can run", "cells", "what, and why not all"), lines, align="lrrl", text="wrapped").print()
    asked = {cell["missing"] for row in rows for cell in row["cells"]}
    for name, reason in absent.items():
        if any(f"data missing: {name}" in text.split(", ") for text in asked):
            print(f"{name}: {reason}")
    if any("encoder missing" in text for text in asked):
        print("encoder: give one with --encoder; `protofed encoder train` makes one")
