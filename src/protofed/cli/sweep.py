"""Varying what is run: sweep, choose-k."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

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
    getting_ready,
    method_names,
    refuse_existing,
    refuse_several,
    whole,
)
from protofed.cli.studies import grid_from, play_study, study_from
from protofed.experiment import HELD_OUT
from protofed.internal.yaml_files import read_yaml

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

MaxK = Annotated[str, typer.Option("--max-k", metavar="INT", help="Largest number of prototypes per class to try.")]


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
    with getting_ready(quiet):
        from protofed.runs.folder import fresh_path
        from protofed.studies.sweeps import SweepStudy

        refuse_several()
        asked: dict[str, Any] = {"grid": grid_from("--grid", grid), "methods": method_names(method) or None}
        asked |= {"seeds": whole("--seeds", seeds, None), "jobs": whole("--jobs", jobs, None), "score": score}
        study = study_from(SweepStudy, config, flags, set_, **asked)
        refuse_existing(out)
        folder = out or fresh_path(f"sweep-{'-'.join(study.grid)}-{study.experiment.dataset}")
        begun = study.begin(folder)
    play_study(begun, folder, jobs, quiet, as_json)


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
    """Choose K, the number of prototypes per class."""
    with getting_ready(quiet):
        from protofed.runs.folder import fresh_path
        from protofed.studies.choose_k import ChoiceStudy
        from protofed.studies.study import SEEDS

        refuse_several()
        study = ChoiceStudy.up_to(
            whole("--max-k", max_k, 0),
            experiment_from({"val_fraction": HELD_OUT} | (read_yaml(config) if config else {}), flags, set_),
            whole("--seeds", seeds, SEEDS),
            whole("--jobs", jobs, None),
        )
        refuse_existing(out)
        folder = out or fresh_path(f"choose-k-{study.experiment.dataset}")
        begun = study.begin(folder)
    play_study(begun, folder, jobs, quiet, as_json)
