"""Varying what is run: sweep, choose-k."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from protofed.cli.common import (
    Config,
    Jobs,
    Json,
    Methods,
    Out,
    Quiet,
    Seeds,
    Set,
    command,
    experiment_flags,
    experiment_from,
    finish,
    method_names,
    refuse_existing,
    refuse_several,
    whole,
)
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.yaml_files import parse_yaml, read_yaml

if TYPE_CHECKING:
    from protofed.studies.sweeps import Plan

GridFlags = Annotated[
    list[str] | None,
    typer.Option(
        "--grid",
        metavar="NAME=A,B,…",
        help="Values of an option or of a parameter of a method; repeatable: every combination is run.",
    ),
]
Score = Annotated[
    str | None,
    typer.Option("--score", metavar="STR", help="Accuracy to show, as model/test/rule. [default: the methods' own]"),
]

HELD_OUT = 0.2
"""Part of each client's training data that chooses K, unless given: a run by itself holds nothing out."""
MaxK = Annotated[str, typer.Option("--max-k", metavar="INT", help="Largest number of prototypes a class to try.")]


@command("sweep", "sweep --method mp-fedcl --grid k=1,2,4 --grid alpha=0.1,1")
@experiment_flags(leave_out=("method",))
def sweep_command(
    flags: Mapping[str, Any],
    grid: GridFlags = None,
    method: Methods = None,
    seeds: Seeds = None,
    score: Score = None,
    jobs: Jobs = None,
    set_: Set = None,
    config: Config = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Vary options or methods' parameters over a grid."""
    from protofed.report.plots import plotted
    from protofed.runs.folder import fresh_path
    from protofed.runs.progress import progress
    from protofed.studies import comparison, sweeps

    refuse_several()
    nothing: Any = ({}, [], comparison.SEEDS, None, None, {})
    swept, names, number, processes, shown_score, base = sweeps.read_config(config) if config else nothing
    planned = sweeps.plan(
        _grid(grid) if grid else swept,
        method_names(method) or names or [Experiment.method],
        whole("--seeds", seeds, number),
        whole("--jobs", jobs, processes),
        score or shown_score,
        experiment_from(base, flags, set_),
    )
    refuse_existing(out)
    path = out or fresh_path(f"sweep-{'-'.join(planned.grid)}-{planned.experiment.dataset}")
    folder = sweeps.create_folder(path, planned)
    shown = progress(quiet, len(planned.runs))
    finish(lambda: plotted(sweeps.sweep(planned, folder, shown)), shown, folder, as_json)


def resume_sweep(folder: Path, jobs: str | None, quiet: bool, as_json: bool) -> None:
    """Go on with a sweep."""
    from protofed.report.plots import plotted
    from protofed.runs.progress import progress
    from protofed.studies import sweeps

    refuse_several()
    planned = _with_jobs(sweeps.open_folder(folder), jobs)
    shown = progress(quiet, len(planned.runs))
    finish(lambda: plotted(sweeps.sweep(planned, folder, shown)), shown, folder, as_json)


@command("choose-k", "choose-k --method mp-fedcl --max-k 4 --seeds 2")
@experiment_flags(defaults={"val_fraction": HELD_OUT})
def choose_k_command(
    flags: Mapping[str, Any],
    max_k: MaxK = "5",
    seeds: Seeds = None,
    jobs: Jobs = None,
    set_: Set = None,
    config: Config = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Choose K, the number of prototypes a class."""
    from protofed.report.plots import plotted
    from protofed.runs.folder import fresh_path
    from protofed.runs.progress import progress
    from protofed.studies import choose_k, comparison, sweeps

    refuse_several()
    planned = choose_k.plan(
        whole("--max-k", max_k, 0),
        whole("--seeds", seeds, comparison.SEEDS),
        whole("--jobs", jobs, None),
        experiment_from({"val_fraction": HELD_OUT} | (read_yaml(config) if config else {}), flags, set_),
    )
    refuse_existing(out)
    path = out or fresh_path(f"choose-k-{planned.experiment.dataset}")
    folder = sweeps.create_folder(path, planned, choose_k.CONFIG)
    shown = progress(quiet, len(planned.runs))
    finish(lambda: choose_k.choose(plotted(sweeps.sweep(planned, folder, shown)), folder), shown, folder, as_json)


def resume_choice(folder: Path, jobs: str | None, quiet: bool, as_json: bool) -> None:
    """Go on with choosing K."""
    from protofed.report.plots import plotted
    from protofed.runs.progress import progress
    from protofed.studies import choose_k, sweeps

    refuse_several()
    planned = _with_jobs(sweeps.open_folder(folder, choose_k.CONFIG), jobs)
    shown = progress(quiet, len(planned.runs))
    finish(lambda: choose_k.choose(plotted(sweeps.sweep(planned, folder, shown)), folder), shown, folder, as_json)


def _with_jobs(planned: Plan, jobs: str | None) -> Plan:
    """As planned, threads included, but so many runs at a time."""
    return dataclasses.replace(planned, jobs=whole("--jobs", jobs, planned.jobs))


def _grid(pairs: list[str]) -> dict[str, list[Any]]:
    """What --grid says: names, with dashes as in flags or not, and values as --set reads them."""
    grid: dict[str, list[Any]] = {}
    for pair in pairs:
        text, equals, values = pair.partition("=")
        name = text.replace("-", "_")
        if not equals or not name:
            raise UserError("--grid", pair, "write it as name=value,value")
        if name in grid:
            raise UserError("--grid", pair, f"{text} is there twice; give all its values at once")
        try:
            grid[name] = [parse_yaml(value) for value in values.split(",")]
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError("--grid", pair, "the values cannot be read") from None
    return grid
