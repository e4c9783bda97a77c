"""The command line. Flags come from the fields of Experiment; heavy imports happen inside the commands."""

from __future__ import annotations

import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer
import yaml

from protofed import __version__
from protofed.errors import DivergedError, LostError, UserError
from protofed.experiment import Experiment, check_type, parse_yaml, read_yaml

if TYPE_CHECKING:
    from protofed.comparison import Comparison
    from protofed.results.result import Result
    from protofed.runner import Run

app = typer.Typer(
    name="protofed",
    help="Federated prototype learning.",
    rich_markup_mode=None,
    add_completion=False,
)


@app.callback(invoke_without_command=True)
def version(show: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False) -> None:
    """Federated prototype learning."""
    if show:
        print(f"protofed {__version__}")
        raise typer.Exit


Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A parameter of the method; repeatable.")
]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML file with the experiment; flags override it.")
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="New folder for the run. [default: a fresh one in runs/]")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Methods = Annotated[
    list[str] | None, typer.Option("--method", "--methods", metavar="STR", help="Methods, comma-separated; repeatable.")
]
Seeds = Annotated[
    str | None, typer.Option("--seeds", metavar="INT", help="How many seeds, from --seed on. [default: 3]")
]
Jobs = Annotated[
    str | None,
    typer.Option(
        "--jobs",
        metavar="INT",
        help="Runs at a time, each in a process of its own; 1 is one after the other. "
        "[default: one a core, or up to 4 on a GPU]",
    ),
]


def _experiment_flags(*leave_out: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command a flag for every field of Experiment; it receives those that were used as `flags`."""
    hints = get_type_hints(Experiment)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        fields = [item for item in dataclasses.fields(Experiment) if item.name not in ("params", *leave_out)]

        def wrapper(**given: Any) -> None:
            flags = {item.name: given.pop(item.name) for item in fields}
            used = {name: _value(text, _plain(hints[name])) for name, text in flags.items() if text is not None}
            command(flags=used, **given)

        parameters = [parameter for name, parameter in own.items() if name != "flags"]
        for item in fields:
            option = _option(item.name, hints[item.name], item.default, item.metadata["help"])
            parameters.append(
                inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            )
        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]  # typer reads the flags from it
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
        return wrapper

    return decorate


def _option(name: str, kind: Any, default: Any, text: str) -> Any:
    flag = "--" + name.replace("_", "-")
    if get_origin(kind) is Literal:
        text = f"{text} One of {', '.join(get_args(kind))}."
    if default is not None:
        text = f"{text} [default: {default}]"
    if kind is bool:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text)]
    return Annotated[str | None, typer.Option(flag, metavar=_plain(kind).__name__.upper(), help=text)]


def _plain(kind: Any) -> Any:
    """The type of a flag: that of its field, without None and with choices as text."""
    if get_origin(kind) is Literal:
        return str
    return next((choice for choice in get_args(kind) if choice is not type(None)), kind)


def _value(text: Any, kind: Any) -> Any:
    """What a flag says; text that is not of its type stays text, and the check of types complains about it."""
    try:
        return kind(text)
    except ValueError:
        return text


def _parameters(pairs: list[str] | None) -> dict[str, Any]:
    values = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError("--set", pair, "write it as key=value")
        try:
            values[name] = parse_yaml(value)
        except yaml.YAMLError:
            raise UserError("--set", pair, "the value cannot be read") from None
    return values


def _experiment(base: Mapping[str, Any], flags: Mapping[str, Any], pairs: list[str] | None) -> Experiment:
    """Flags over the file over the defaults."""
    given = base.get("params") or {}
    params = {**given, **_parameters(pairs)} if isinstance(given, Mapping) else given
    return Experiment.from_mapping({**base, **flags, "params": params})


@app.command("run")
@_experiment_flags()
def run_command(
    flags: Mapping[str, Any],
    set_: Set = None,
    config: Config = None,
    out: Out = None,
    profile: Annotated[
        bool,
        typer.Option("--profile", help="Also write where the time goes: profile.json and, for Perfetto, trace.json."),
    ] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one method."""
    from protofed.engines.ranks import join
    from protofed.profiling import Profile
    from protofed.results.folder import RunFolder, fresh_path
    from protofed.results.progress import progress
    from protofed.results.table import console, profile_table
    from protofed.runner import Run

    experiment = _experiment(read_yaml(config) if config else {}, flags, set_)
    with join() as ranks:
        ranks.first(lambda: _refuse_existing(out))
        run = Run(experiment, ranks=ranks)
        if ranks.number > 0:
            _follow(run)
            return
        folder = RunFolder.create(
            out or fresh_path(f"{run.method.name}-{experiment.dataset}-seed{experiment.seed}"), run.experiment
        )
        measured = Profile(folder.path, run.device, experiment.rounds) if profile else None
        with measured or nullcontext():
            _finish(lambda: run.play(folder, shown), shown := progress(quiet), folder.path, as_json)
        if measured is not None and not as_json:
            console().print(profile_table(measured.report()))


@app.command("compare")
@_experiment_flags("method")
def compare_command(
    flags: Mapping[str, Any],
    method: Methods = None,
    seeds: Seeds = None,
    jobs: Jobs = None,
    set_: Set = None,
    config: Config = None,
    out: Out = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Compare several methods over several seeds in one table."""
    from protofed import comparison
    from protofed.results.folder import fresh_path
    from protofed.results.progress import progress
    from protofed.runner import Run

    _refuse_several()
    names, number, processes, base = comparison.read_config(config) if config else ([], comparison.SEEDS, None, {})
    names = [name for text in method for name in text.split(",")] if method else names
    number = number if seeds is None else check_type("--seeds", _value(seeds, int), int)
    processes = processes if jobs is None else check_type("--jobs", _value(jobs, int), int)
    experiment = comparison.share_cores(_experiment(base, flags, set_), len(names) * number, processes)
    runs = comparison.plan(names, number, experiment)
    _refuse_existing(out)
    for first in runs[::number]:
        Run(first)  # wrong input must not leave a folder behind
    path = out or fresh_path(f"compare-{experiment.dataset}")
    folder = comparison.create_folder(path, names, number, processes, experiment)
    shown = progress(quiet, len(runs))
    _finish(lambda: comparison.compare(runs, folder, shown, processes), shown, folder, as_json)


@app.command("resume")
def resume_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run's or a comparison's folder.")],
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Continue a run or a comparison from its last checkpoint."""
    from protofed import comparison
    from protofed.engines.ranks import join
    from protofed.results.folder import RunFolder
    from protofed.results.progress import progress
    from protofed.results.result import Result
    from protofed.runner import Run

    if (folder / "compare.yaml").is_file():
        _refuse_several()
        names, number, jobs, base = comparison.read_config(folder / "compare.yaml")
        runs = comparison.plan(names, number, Experiment.from_mapping(base))
        shown = progress(quiet, len(runs))
        _finish(lambda: comparison.compare(runs, folder, shown, jobs), shown, folder, as_json)
        return
    opened = RunFolder.open(folder)
    if opened.result.exists():
        if _speaks():
            print(f"{folder} is complete", file=sys.stderr)
            _show(Result.read(folder), folder, as_json)
        return
    with join() as ranks:
        run = Run(opened.experiment(), ranks=ranks)
        run.restore(opened)
        if ranks.number > 0:
            _follow(run)
            return
        _finish(lambda: run.play(opened, shown), shown := progress(quiet), folder, as_json)


@app.command("split")
@_experiment_flags(
    "method",
    "rounds",
    "epochs",
    "batch_size",
    "lr",
    "lr_decay",
    "momentum",
    "weight_decay",
    "model",
    "engine",
    "width",
    "device",
    "threads",
    "precision",
    "deterministic",
    "eval_every",
    "participation",
    "time_budget",
    "checkpoint_every",
)
def split_command(
    flags: Mapping[str, Any],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="New PNG file for the heat map. [default: split.png]")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show who holds what, as a table and a heat map."""
    from protofed.data.picture import heat_map
    from protofed.results.table import console, split_table
    from protofed.runner import federation_of

    if out is not None and out.exists():
        raise UserError("--out", str(out), "it exists already; name a new file")
    out = out or Path("split.png")  # a picture that the next look may replace
    if not out.parent.is_dir():
        raise UserError("--out", str(out), f"there is no folder {out.parent}")
    federation = federation_of(Experiment.from_mapping(flags))
    if as_json:
        print(json.dumps({"classes": federation.classes, "counts": federation.counts.tolist()}))
    else:
        console().print(split_table(federation))
    heat_map(federation.counts, federation.classes, out)
    print(f"heat map: {out}", file=sys.stderr)


@app.command("methods")
def methods_command(as_json: Json = False) -> None:
    """List the methods, their papers and what they send."""
    from protofed.methods import describe, method_names

    rows = [describe(name) for name in method_names()]
    _list(rows, ("name", "description", "paper", "link", "up", "down"), as_json)


@app.command("models")
def models_command(as_json: Json = False) -> None:
    """List the models and their sizes."""
    from protofed.models import describe

    _list(describe(), ("name", "description", "input", "classes", "features", "parameters"), as_json)


@app.command("datasets")
def datasets_command(
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR", help="Where dataset files are.")] = None,
    as_json: Json = False,
) -> None:
    """List the datasets and whether their files are there."""
    from protofed.data import describe

    _list(describe(data_dir), ("name", "description", "present"), as_json)


def _refuse_existing(out: Path | None) -> None:
    if out is not None and out.exists():
        raise UserError("--out", str(out), "it exists already; name a new folder")


def _refuse_several() -> None:
    """A launcher's processes share a run, not a comparison."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("WORLD_SIZE", os.environ["WORLD_SIZE"], "a comparison starts its processes itself: see --jobs")


def _speaks() -> bool:
    """Whether this is the one of a launcher's processes that prints; engines.ranks, which knows, imports torch."""
    several, rank = os.environ.get("WORLD_SIZE", "1") != "1", os.environ.get("RANK", "0")
    return not (several and rank.isdecimal() and int(rank) > 0)


def _follow(run: Run) -> None:
    """Play a run of which another process writes and says everything."""
    from protofed.results.progress import Progress
    from protofed.runner import Interrupted

    try:
        run.play(None, Progress())
    except (Interrupted, KeyboardInterrupt):
        raise typer.Exit(130) from None


def _finish(play: Callable[[], Result | Comparison], shown: Any, folder: Path, as_json: bool) -> None:
    """Play, then show; Ctrl-C, or the end of another process, says how to go on."""
    from protofed.runner import Interrupted
    from protofed.workers import WorkerDied

    try:
        outcome = play()
    except (Interrupted, KeyboardInterrupt, WorkerDied, LostError) as stop:
        shown.end()
        print(f"{str(stop) or 'stopped'}; continue with: protofed resume {folder}", file=sys.stderr)
        raise typer.Exit(1 if isinstance(stop, WorkerDied | LostError) else 130) from None
    finally:
        shown.end()
    _show(outcome, folder, as_json)


def _show(outcome: Result | Comparison, folder: Path, as_json: bool) -> None:
    from protofed.comparison import Comparison
    from protofed.results.table import comparison_table, console, result_table

    if as_json:
        print(outcome.to_json(), end="")
        return
    if isinstance(outcome, Comparison):
        console().print(comparison_table(outcome))
        for note in outcome.notes():
            print(f"note: {note}")
        print(f"runs: {folder}")
    else:
        console().print(result_table(outcome))
        print(f"run folder: {folder}")


def _list(rows: list[dict[str, Any]], columns: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    from rich.table import Table

    from protofed.results.table import console

    table = Table()
    for name in columns:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(_text(row[name]) for name in columns))
    console().print(table)


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={setting}" for name, setting in value.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def main() -> None:
    """Run the command line; wrong input is one line on stderr and exit code 2."""
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except (UserError, DivergedError, LostError) as error:
        if _speaks() or isinstance(error, LostError):
            print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2 if isinstance(error, UserError) else 1)
    except Exception as error:
        # Typer's own usage errors; which class they are depends on its version.
        if not hasattr(error, "format_message"):
            raise
        print(f"error: {error.format_message()}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)
