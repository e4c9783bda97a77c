"""Running experiments: run, compare, resume, and a look at a split."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofed.cli.common import (
    Config,
    Jobs,
    Json,
    Log,
    Methods,
    Out,
    Quiet,
    Seeds,
    Set,
    command,
    experiment_flags,
    experiment_from,
    finish,
    getting_ready,
    method_names,
    refuse_existing,
    refuse_several,
    show,
    speaks,
    whole,
)
from protofed.cli.deploy import simulate_command
from protofed.cli.studies import grid_from, play_study, study_from
from protofed.errors import UserError
from protofed.experiment import Experiment, options
from protofed.internal.yaml_files import read_yaml

if TYPE_CHECKING:
    from protofed.runs.run import Run


@command("run", "run --method fedproto --dataset digits --rounds 20")
@experiment_flags()
def run_command(
    flags: Mapping[str, Any],
    set_: Set = None,
    config: Config = None,
    out: Out = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Also write where the time goes: profile.json and, for Perfetto, trace.json."),
    ] = False,
    log: Log = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one method."""
    with getting_ready(quiet):
        from protofed.engines.distributed import join
        from protofed.internal.profiling import Profile
        from protofed.report.terminal import profile_table
        from protofed.runs import loggers
        from protofed.runs.folder import RunFolder, fresh_path
        from protofed.runs.progress import progress
        from protofed.runs.run import new_run

    experiment = experiment_from(read_yaml(config) if config else {}, flags, set_)
    loggers.need(log)
    if experiment.engine == "flower-sim":
        if log is not None:
            raise UserError("--log", log, "it does not go with --engine flower-sim")
        refuse_existing(out)
        path = out or fresh_path(f"{experiment.method}-{experiment.dataset}-seed{experiment.seed}")
        simulate_command(experiment, path, quiet, as_json)
        return
    with join() as ranks:
        ranks.first(lambda: refuse_existing(out))
        with getting_ready(quiet, again=True):
            run = new_run(experiment, ranks=ranks)
        if ranks.number > 0:
            _follow(run)
            return
        folder = RunFolder.create(
            out or fresh_path(f"{run.method.name}-{experiment.dataset}-seed{experiment.seed}"), run.experiment
        )
        measured = Profile(folder.path, run.device, experiment.rounds) if profile else None
        with measured or nullcontext():
            shown = loggers.logged(progress(quiet), log, folder.path, run.experiment)
            finish(lambda: run.play(folder, shown), shown, folder.path, as_json)
        if measured is not None and not as_json:
            profile_table(measured.report()).print()


@command("compare", "compare --method local,fedavg,fedproto --rounds 20")
@experiment_flags(leave_out=("method",))
def compare_command(
    flags: Mapping[str, Any],
    method: Methods = None,
    seeds: Seeds = None,
    tune: Annotated[
        list[str] | None,
        typer.Option(
            "--tune",
            metavar="NAME=A,B,…",
            help="Choose a training option or a parameter of a method for each method by itself, on validation data "
            "and with as many trials for each, before the test; repeatable: every combination is tried.",
        ),
    ] = None,
    jobs: Jobs = None,
    set_: Set = None,
    config: Config = None,
    out: Out = None,
    log: Log = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare several methods over several seeds in one table."""
    with getting_ready(quiet):
        from protofed.runs import loggers
        from protofed.runs.folder import fresh_path
        from protofed.studies.comparison import ComparisonStudy

        refuse_several()
        asked: dict[str, Any] = {"methods": method_names(method) or None, "seeds": whole("--seeds", seeds, None)}
        asked |= {"jobs": whole("--jobs", jobs, None), "tune": grid_from("--tune", tune)}
        study = study_from(ComparisonStudy, config, flags, set_, **asked)
        loggers.need(log)
        refuse_existing(out)
        folder = out or fresh_path(f"compare-{study.experiment.dataset}")
        begun = study.begin(folder)
    play_study(begun, folder, jobs, quiet, as_json, lambda shown: loggers.logged(shown, log, folder, begun.experiment))


@command("resume", "resume runs/fedproto-digits-seed0")
def resume_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, comparison, sweep, choice of K or reproduction.")
    ],
    jobs: Annotated[
        str | None, typer.Option("--jobs", metavar="INT", help="Runs at a time from now on. [default: as before]")
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Also continue runs that have failed, from their last checkpoints.")
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Continue a run or a study from its last checkpoint."""
    from protofed.engines.distributed import join
    from protofed.runs.failure import FailedRun, forget_failure
    from protofed.runs.folder import RunFolder, run_folders
    from protofed.runs.progress import progress
    from protofed.runs.result import Result
    from protofed.runs.run import new_run
    from protofed.studies.kinds import kind_of

    if kind := kind_of(folder):
        refuse_several()
        study = kind.open(folder)
        for path in run_folders(folder, trials=True) if retry_failed else []:
            forget_failure(path)
        play_study(study, folder, jobs, quiet, as_json)
        return
    opened = RunFolder.open(folder)
    if retry_failed:
        forget_failure(folder)
    if (failed := FailedRun.read(folder)) is not None:
        print(f"{folder} has failed: {failed}; play it again with --retry-failed", file=sys.stderr)
        raise typer.Exit(1)
    if jobs is not None:
        raise UserError("--jobs", jobs, "a single run has no others beside it")
    if opened.result.exists():
        if speaks():
            print(f"{folder} is complete", file=sys.stderr)
            show(Result.read(folder), folder, as_json)
        return
    if (experiment := opened.experiment()).engine == "flower-sim":
        simulate_command(experiment, folder, quiet, as_json)
        return
    if opened.over_network:
        raise UserError("DIR", str(folder), "its clients are elsewhere", hint="continue with `protofed deploy run`")
    with join() as ranks:
        run = new_run(experiment, ranks=ranks)
        run.restore(opened.claim() if ranks.number == 0 else opened)
        if ranks.number > 0:
            _follow(run)
            return
        finish(lambda: run.play(opened, shown), shown := progress(quiet), folder, as_json)


@command("split", "split --dataset digits --split ways --shots 15 --clients 4")
@experiment_flags((*options("data"), "data_dir", "seed"))
def split_command(
    flags: Mapping[str, Any],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="New file: a PNG for the heat map, a JSON for the rows, which --split indices:FILE reads, or a "
            ".safetensors for the clients' samples, which --dataset federation:FILE reads. [default: split.png]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show which client holds what, or write whose each row is."""
    from protofed.data.build import division_of, federation_of
    from protofed.data.federation_file import write_federation
    from protofed.data.index_files import write_division
    from protofed.report.split_heatmap import heat_map
    from protofed.report.terminal import split_table

    if out is not None and out.exists():
        raise UserError("--out", str(out), "it exists already", hint="name a new file")
    out = out or Path("split.png")  # a picture that the next look may replace
    if not out.parent.is_dir():
        raise UserError("--out", str(out), f"there is no folder {out.parent}")
    experiment = Experiment.from_mapping(flags)
    division = division_of(experiment) if out.suffix == ".json" else None  # refuses what has no rows
    federation = federation_of(experiment)
    if as_json:
        print(json.dumps({"classes": federation.classes, "counts": federation.counts.tolist()}))
    else:
        split_table(federation).print()
    if division is not None:
        write_division(division, out)
        print(f"rows: {out}; read them again with --split indices:{out}", file=sys.stderr)
        return
    if out.suffix == ".safetensors":
        write_federation(federation, out)
        print(f"federation: {out}; read it again with --dataset federation:{out}", file=sys.stderr)
        return
    heat_map(federation.counts, federation.classes, out)
    print(f"heat map: {out}", file=sys.stderr)


def _follow(run: Run) -> None:
    """Play a run of which another process writes and says everything."""
    from protofed.runs.progress import Progress
    from protofed.runs.run import Interrupted

    try:
        run.play(None, Progress())
    except (Interrupted, KeyboardInterrupt):
        raise typer.Exit(130) from None
