"""What the commands share: the app, the flags, and how a command ends."""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import typer
import typer.core
import yaml

from protofed.errors import LostError, UserError
from protofed.experiment import Experiment, Group, flag_of, options
from protofed.internal.schema import check_type
from protofed.internal.version import VERSION
from protofed.internal.yaml_files import parse_yaml

if TYPE_CHECKING:
    import click

    from protofed.runs.result import Result
    from protofed.studies.study import Finding

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
SOME_FAILED = 3
"""Exit code of a study of which some runs have failed."""
GETTING_READY = "getting ready …"
NO_MEMORY = "the GPU's memory is full: fewer runs at a time (--jobs) or, in a new run, a smaller --width need less"

typer.core.HAS_RICH = False  # typer < 0.21 writes \[required] for rich, also where help is plain
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
        print(f"protofed {VERSION}")
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
Log = Annotated[
    str | None,
    typer.Option("--log", metavar="STR", help="Also log every round's numbers. One of tensorboard, wandb."),
]
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
        "[default: one per core, or up to 4 on a GPU]",
    ),
]


class Command(typer.core.TyperCommand):
    """A command whose help tells options by what they are about, its own first."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections: arguments, options, then each group of the experiment's."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for one in self.get_params(ctx):
            record = one.get_help_record(ctx)
            if record is not None:
                own = "Arguments" if one.param_type_name == "argument" else "Options"
                title = getattr(one, "rich_help_panel", None) or own
                sections.setdefault(title, []).append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def command(name: str, example: str, within: typer.Typer = app) -> Callable[[F], F]:
    """Make a function a command, of the app or of a group of commands; its help ends with the example."""
    return within.command(name, cls=Command, epilog=f"Example: protofed {example}")


def experiment_flags(
    names: Collection[str] = options(),
    leave_out: Collection[str] = (),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command flags for options of Experiment; it receives those that were used as `flags`.

    `defaults` are those that are the command's own.
    """
    hints = get_type_hints(Experiment)
    wanted = {*names} - {"params", *leave_out}

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = inspect.signature(command, eval_str=True).parameters
        fields = [item for item in dataclasses.fields(Experiment) if item.name in wanted]
        fields.sort(key=lambda item: get_args(Group).index(item.metadata["group"]))

        def wrapper(**given: Any) -> None:
            flags = {item.name: given.pop(item.name) for item in fields}
            used = {name: value_of(text, _plain(hints[name])) for name, text in flags.items() if text is not None}
            command(flags=used, **given)

        parameters = [parameter for name, parameter in own.items() if name != "flags"]
        for item in fields:
            default = defaults.get(item.name, item.default)
            option = _option(item.name, hints[item.name], default, item.metadata)
            parameters.append(
                inspect.Parameter(item.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
            )
        keyword = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
        wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]  # typer reads the flags from it
        wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in keyword}
        wrapper.__doc__, wrapper.__name__ = command.__doc__, command.__name__
        return wrapper

    return decorate


def _option(name: str, kind: Any, default: Any, about: Mapping[str, Any]) -> Any:
    flag, text, title = flag_of(name), about["help"], about["group"].capitalize()
    if get_origin(kind) is Literal:
        text = f"{text} One of {', '.join(get_args(kind))}."
    if default is not None:
        text = f"{text} [default: {default}]"
    if kind is bool:
        return Annotated[bool | None, typer.Option(f"{flag}/--no-{flag[2:]}", help=text, rich_help_panel=title)]
    shown = _plain(kind).__name__.upper()
    return Annotated[str | None, typer.Option(flag, metavar=shown, help=text, rich_help_panel=title)]


def _plain(kind: Any) -> Any:
    """The type of a flag: that of its field, without None and with choices as text."""
    if get_origin(kind) is Literal:
        return str
    return next((choice for choice in get_args(kind) if choice is not type(None)), kind)


def value_of(text: Any, kind: Any) -> Any:
    """What a flag says; text that is not of its type stays text, and the check of types complains about it."""
    try:
        return kind(text)
    except ValueError:
        return text


def whole(flag: str, text: str | None, default: T) -> int | T:
    """The whole number that a flag says, or the default if it was not used."""
    if text is None:
        return default
    number: int = check_type(flag, value_of(text, int), int)
    return number


def method_names(texts: list[str] | None) -> list[str]:
    """What --method says."""
    return [name for text in texts or [] for name in text.split(",")]


def parameters_from(pairs: list[str] | None) -> dict[str, Any]:
    values = {}
    for pair in pairs or []:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise UserError("--set", pair, "it must be KEY=VALUE, as in k=3")
        try:
            values[name] = parse_yaml(value)
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(f"--set {name}", value, "it cannot be read") from None
    return values


def experiment_from(base: Mapping[str, Any], flags: Mapping[str, Any], pairs: list[str] | None) -> Experiment:
    """Flags over the file over the defaults."""
    given = base.get("params") or {}
    params = {**given, **parameters_from(pairs)} if isinstance(given, Mapping) else given
    return Experiment.from_mapping({**base, **flags, "params": params})


def subcommands(name: str, text: str) -> typer.Typer:
    """A group of commands under one name."""
    group = typer.Typer(name=name, help=text, rich_markup_mode=None)
    app.add_typer(group)
    return group


def refuse_existing(out: Path | None) -> None:
    if out is not None and os.path.exists(out):  # noqa: PTH110 - Path.exists raises where a name is too long
        raise UserError("--out", str(out), "it exists already", hint="name a new folder")


def refuse_several() -> None:
    """A launcher's processes share a run, not a comparison."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError(
            "WORLD_SIZE", os.environ["WORLD_SIZE"], "a comparison starts its processes itself", hint="see --jobs"
        )


def speaks() -> bool:
    """Whether this one of a launcher's processes prints; engines.distributed, which knows, imports torch."""
    several, rank = os.environ.get("WORLD_SIZE", "1") != "1", os.environ.get("RANK", "0")
    return not (several and rank.isdecimal() and int(rank) > 0)


@contextmanager
def getting_ready(quiet: bool, again: bool = False) -> Iterator[None]:
    """Say at once that a command goes on: to load torch and to check every run takes seconds.

    In a terminal, what is printed meanwhile overwrites it, since the cursor stays at the beginning of the line;
    elsewhere it is a line of its own, once.
    """
    shown, terminal = not quiet and speaks(), sys.stderr.isatty()
    if shown and (terminal or not again):
        print(GETTING_READY, end="\r" if terminal else "\n", file=sys.stderr, flush=True)
    try:
        yield
    finally:
        if shown and terminal:
            print(" " * len(GETTING_READY), end="\r", file=sys.stderr, flush=True)


def finish(
    play: Callable[[], Result | Finding], shown: Any, folder: Path, as_json: bool, again: str | None = None
) -> None:
    """Play, then show; Ctrl-C, the end of another process or of the GPU's memory says how to go on."""
    from torch import OutOfMemoryError

    from protofed.runs.result import Result
    from protofed.runs.run import Interrupted
    from protofed.studies.workers import WorkerDied

    try:
        outcome = play()
    except (Interrupted, KeyboardInterrupt, WorkerDied, LostError, OutOfMemoryError) as stop:
        shown.end()
        why = NO_MEMORY if isinstance(stop, OutOfMemoryError) else str(stop) or "stopped"
        print(f"{why}; continue with: {again or f'protofed resume {folder}'}", file=sys.stderr)
        raise typer.Exit(1 if isinstance(stop, WorkerDied | LostError | OutOfMemoryError) else 130) from None
    finally:
        shown.end()
    show(outcome, folder, as_json)
    if isinstance(outcome, Result):
        return
    draw(outcome, folder, as_json)
    if outcome.failures:
        for failed in outcome.failures:
            print(f"failed: {failed}", file=sys.stderr)
        print(f"play them again with: protofed resume {folder} --retry-failed", file=sys.stderr)
        raise typer.Exit(SOME_FAILED if outcome.results else 1)


def draw(outcome: Finding, folder: Path, as_json: bool) -> None:
    """Write the plot and the report of a study; what it came to is there also where that does not succeed."""
    from protofed.report.html import gather, write_report
    from protofed.report.paper_figures import plot
    from protofed.studies.kinds import kind_of

    kind = kind_of(folder)
    try:
        plot(outcome, folder)
        if kind and kind.reported:
            write_report(gather([folder]), folder / "report.html")
    except UserError as error:
        print(f"no report: {error}", file=sys.stderr)
    else:
        if not as_json and (folder / "report.html").is_file():
            print(f"report: {folder / 'report.html'}")


def show(outcome: Result | Finding, folder: Path, as_json: bool) -> None:
    """What came out of a run or of a study, and where it is."""
    from protofed.report.outcome_tables import outcome_table
    from protofed.report.terminal import drift_table, result_table
    from protofed.runs.result import Result

    if as_json:
        print(outcome.to_json(), end="")
    elif isinstance(outcome, Result):
        result_table(outcome).print()
        if outcome.drift:
            drift_table(outcome.drift).print()
        for note in outcome.notes():
            print(f"note: {note}")
        print(f"run folder: {folder}")
    else:
        outcome_table(outcome).print()
        for note in outcome.notes():
            print(f"note: {note}")
        print(f"runs: {folder}")
