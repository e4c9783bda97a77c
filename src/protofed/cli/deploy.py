"""Over a network, on Flower: a federation in a few commands, the app for those who have one, and the simulation."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

from protofed.cli.common import (
    Config,
    Json,
    Quiet,
    Set,
    command,
    experiment_flags,
    experiment_from,
    finish,
    refuse_existing,
    subcommands,
    whole,
)
from protofed.cli.serving import NewModel, Onnx, Shown, write_export
from protofed.errors import misused
from protofed.experiment import CLIENTS, Experiment
from protofed.internal.yaml_files import read_yaml
from protofed.server.round import Round

REFUSED_CODE = 3
"""Exit code of `--explain` where something would be refused."""

group = subcommands("deploy", "A federation of real machines, on Flower.")

Dir = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder.")]


MetricsPort = Annotated[
    str | None,
    typer.Option("--metrics-port", metavar="INT", help="Serve Prometheus' /metrics at 127.0.0.1; 0 is any free port."),
]


def port_of(value: str | None) -> int | None:
    """The port of `--metrics-port`, if one was asked for."""
    return None if value is None else whole("--metrics-port", value, 0)


def need_flower() -> None:
    if find_spec("flwr") is None:  # imported where it is used
        raise misused("Flower", "it is not installed", hint="pip install 'protofed[flower]'")


@command("init", "deploy init federation --clients 3", group)
def init_command(
    folder: Dir,
    clients: Annotated[
        int,
        typer.Option("--clients", help="Number of clients whose keys are made here, to try it; others `join`."),
    ] = 0,
    host: Annotated[
        str | None,
        typer.Option(
            "--host", help="Where clients reach the server; by default this machine alone (docs/deployment.md)."
        ),
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="The server's port.")] = None,
    minimum: Annotated[int | None, typer.Option("--minimum", help="Clients that must answer in a round.")] = None,
    deadline: Annotated[
        float | None, typer.Option("--deadline", help="Seconds that a client has for its turn.")
    ] = None,
    wait: Annotated[float | None, typer.Option("--wait", help="Seconds to wait for clients.")] = None,
    requests: Annotated[
        list[Path] | None,
        typer.Option("--admit", metavar="REQUEST", help="Of a client that has made its key (`join`); repeatable."),
    ] = None,
) -> None:
    """Make a federation's certificates, keys and configuration."""
    need_flower()
    from protofed.deploy.federation import FederationFolder, init
    from protofed.deploy.pki import fingerprint

    flags = {"host": host, "port": port, "minimum": minimum, "deadline": deadline, "wait": wait}
    given: dict[str, Any] = {name: value for name, value in flags.items() if value is not None}
    made = FederationFolder(folder.resolve(), **given)
    passphrase = init(made, clients, requests or ())
    members = made.members()
    print(f"{folder}: server at {made.address}, {len(members)} clients")
    if clients:
        print(f"give each client its folder, {folder}/clients/K, and nobody else: it holds the client's key")
    for number in range(clients, len(members)):
        name, key = members[number].name, fingerprint(members[number].key)
        print(f"{name}, whose key is {key}, is client {number}: send it {made.client(number)}, which holds no secret")
    if not members:
        print(f"clients ask to be let in: `protofed deploy join PLACE`, then `protofed deploy admit {folder} REQUEST`")
    print(f"passphrase of {folder}/server/ca.key, needed to admit and renew; it is written nowhere: {passphrase}")


@command("server", "deploy server federation", group)
def server_command(folder: Dir, metrics_port: MetricsPort = None) -> None:
    """Run the server until Ctrl-C."""
    need_flower()
    from protofed.deploy import supervise
    from protofed.deploy.federation import FederationFolder

    federation = FederationFolder.open(folder)
    said = f"listening on {federation.address}; log: {federation.log}"
    raise typer.Exit(supervise.serve(federation, lambda: print(said, flush=True), port_of(metrics_port)))


@command("client", "deploy client federation/clients/0 --id 0 --data images", group)
def client_command(
    folder: Dir,
    number: Annotated[int, typer.Option("--id", help="Which client.")],
    data: Annotated[
        str | None,
        typer.Option("--data", help="A folder of images, an npz file, or a dataset's name; client.yaml may say it."),
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(
            "--explain", metavar="EXPERIMENT", help="List what this client would refuse of an experiment, and exit."
        ),
    ] = None,
    metrics_port: MetricsPort = None,
) -> None:
    """Run a client until Ctrl-C."""
    need_flower()
    from protofed.deploy import supervise
    from protofed.deploy.log_lines import say

    if explain is not None:
        from protofed.deploy.explain import explained

        asked = {"clients": max(CLIENTS, number + 1), **read_yaml(explain)}
        refused = explained(folder, number, data, Experiment.from_mapping(asked))
        for line in refused:
            print(f"refused: {line}")
        if not refused:
            print("nothing would be refused")
        raise typer.Exit(REFUSED_CODE if refused else 0)
    running = partial(say, f"client {number}", "running")
    raise typer.Exit(supervise.join(folder, number, data, running, port_of(metrics_port)))


@command("export", "deploy export federation/clients/0 --id 0 --out model", group)
def export_command(
    folder: Dir,
    number: Annotated[int, typer.Option("--id", help="Which client.")],
    out: NewModel,
    run: Annotated[
        str | None,
        typer.Option("--run", help="Name of the run, a folder in the client's memory; by default the last one."),
    ] = None,
    own: Annotated[
        bool, typer.Option("--own", help="The client's own model, also where the server sends an averaged one.")
    ] = False,
    data: Annotated[
        str | None, typer.Option("--data", help="The client's data, as for `deploy client`; client.yaml may say it.")
    ] = None,
    examples: Shown = 0,
    onnx: Onnx = False,
    as_json: Json = False,
) -> None:
    """Make a model of a client's last run, at the client."""
    need_flower()
    from protofed.deploy.client_export import exported
    from protofed.deploy.supervise import owner_at, place_of

    refuse_existing(out)
    owner = owner_at(place_of(folder, number), number).with_data(data)
    write_export(exported(owner, run, own, examples), out, onnx, as_json)


@command("run", "deploy run federation experiment.yaml", group)
def run_command(
    folder: Dir,
    config: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="The experiment, as YAML.")],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Run folder; one that is not finished is continued.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run an experiment with all clients."""
    need_flower()
    from protofed.deploy import federation_runs
    from protofed.deploy.federation import FederationFolder
    from protofed.deploy.server import check
    from protofed.runs.folder import fresh_path
    from protofed.runs.progress import progress
    from protofed.runs.result import Result

    federation = FederationFolder.open(folder)
    path = out or fresh_path(config.stem, federation.folder / "runs")
    experiment = federation_runs.experiment_of(federation, read_yaml(config), path)
    federation_runs.check(federation, experiment, path)
    check(experiment)
    shown = progress(quiet)

    def run() -> Result:
        federation_runs.play(federation, experiment, path, shown, quiet)
        return Result.read(path)

    finish(run, shown, path, as_json, f"protofed deploy run {folder} {config} --out {path}")


@command("status", "deploy status federation", group)
def status_command(folder: Dir, as_json: Json = False) -> None:
    """Show who is connected, and what has been run."""
    need_flower()
    from protofed.deploy import federation_runs
    from protofed.deploy.federation import FederationFolder

    found = federation_runs.status(FederationFolder.open(folder))
    if as_json:
        print(json.dumps(found, indent=2))
        raise typer.Exit(0 if found["running"] else 1)
    print(f"server at {found['address']}: {'running' if found['running'] else 'not running'}")
    for line in found["warnings"]:
        print(f"warning: {line}")
    for client, state in found["clients"].items():
        print(f"client {client}: {state}")
    for run in found["runs"]:
        print(f"run {run['id']}: {run['status']}, began {run['began']}")
    raise typer.Exit(0 if found["running"] else 1)


@command("flower-app", "flower-app app --method fedproto --clients 3")
@experiment_flags()
def flower_app_command(
    flags: dict[str, Any],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the app.")],
    set_: Set = None,
    config: Config = None,
) -> None:
    """Write a Flower app of an experiment, for `flwr run DIR`."""
    need_flower()
    from protofed.data.splits import check_split
    from protofed.deploy.flower_app import write_app
    from protofed.deploy.server_settings import Settings

    experiment = experiment_from(read_yaml(config) if config else {}, flags, set_)
    check_split(experiment.split)
    write_app(folder, experiment, Settings())
    print(f"run it with: flwr run {folder}")
    print("note: Flower's nodes run whatever app their SuperLink sends; `protofed deploy client` runs none")


@command("flower-baseline", "flower-baseline fedproto --method fedproto")
def flower_baseline_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="New folder for the baseline.")],
    method: Annotated[str, typer.Option(help="The method: fedproto or mp-fedcl.")],
) -> None:
    """Write a method as a directory in the form of Flower's baselines, without ProtoFed."""
    from protofed.deploy.flower_baseline import write_baseline

    write_baseline(folder, method)
    print(f"how to run it: {folder / 'README.md'}")


def simulate_command(experiment: Experiment, path: Path, quiet: bool, as_json: bool) -> None:
    """A run in Flower's simulation."""
    need_flower()
    from protofed.deploy.simulation import simulate

    again = f"protofed resume {path}"
    _follow(experiment, path, quiet, as_json, lambda each: simulate(experiment, path, each), again)


def _follow(
    experiment: Experiment,
    path: Path,
    quiet: bool,
    as_json: bool,
    play: Callable[[Callable[[Round], None]], None],
    again: str,
) -> None:
    """Play, showing every round, then the result."""
    from protofed.deploy.processes import interruptible
    from protofed.deploy.server import check
    from protofed.methods import method_class
    from protofed.runs.progress import Standing, progress, told_score
    from protofed.runs.result import Result

    check(experiment)
    shown = progress(quiet)
    standing = Standing(experiment.method, experiment.seed, experiment.rounds, 0, "on Flower")
    shown.tell(standing)

    def each(played: Round) -> None:
        score = told_score(method_class(experiment.method).score, played.accuracy)
        left = played.seconds * (experiment.rounds - played.round)
        shown.tell(dataclasses.replace(standing, done=played.round, loss=played.loss, score=score, seconds_left=left))

    def run() -> Result:
        with interruptible():
            play(each)
        return Result.read(path)

    finish(run, shown, path, as_json, again)
