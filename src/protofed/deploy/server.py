"""The server's side of a run over a network: from its beginning, or from where its folder says."""

from __future__ import annotations

import dataclasses
import json
import secrets
from pathlib import Path

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from protofed.data import Client, Federation, Preparation, Samples, Shape, check_name
from protofed.data.splits import check_split
from protofed.deploy.asynchronous_remote import AsynchronousRemote
from protofed.deploy.connections import AWAY, Connections
from protofed.deploy.follow_run import HINT, HOPELESS
from protofed.deploy.remote import Remote
from protofed.deploy.secure_remote import Secure
from protofed.deploy.server_settings import Settings, check_out, elsewhere
from protofed.deploy.wire import OLDEST, PROTOCOL
from protofed.engines.private import check_over_a_network, made_up_upload, privacy_over_a_network
from protofed.errors import DivergedError, HopelessError, LostError, UserError, missing_value, misused
from protofed.evaluation.names import SHOTS, asked_metrics
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.internal.digests import json_with_digest, yaml_with_digest
from protofed.internal.yaml_files import read_yaml
from protofed.methods import build_method, method_class
from protofed.models import factory_of
from protofed.runs.folder import RunFolder, make_folder
from protofed.runs.network_label import NetworkLabel, read_network_label, too_large
from protofed.runs.progress import Progress
from protofed.runs.run import Run
from protofed.runs.setup import prepare
from protofed.server.participation import participants
from protofed.trust.screening import SLOTS, Schema
from protofed.trust.summation import summed

STAND_IN = "digits"
"""Stands at the server for the public dataset, whose files clients have: it needs none."""


def serve(grid: Grid, experiment: Experiment, settings: Settings, progress: Progress | None = None) -> None:
    """A run, from its beginning or from where its folder says."""
    check(experiment)
    experiment = dataclasses.replace(experiment, checkpoint_every=1)  # clients cannot go back further
    path = Path(settings.out)
    check_out(path, experiment)
    folder = RunFolder(path)
    label = folder.network_label
    old = read_network_label(label, experiment.number_of_clients) if label.exists() else None
    if old and old["protocol"] is not None and not OLDEST <= old["protocol"] <= PROTOCOL:
        why = f"its messages are of protocol {old['protocol']}, and this version speaks {OLDEST} to {PROTOCOL}"
        raise UserError("--out", settings.out, why, hint="go on with a version that speaks it")
    clients = Connections(grid, experiment, settings, old["run"] if old else secrets.token_hex(8))
    if old:
        clients.go_on(old)
    members = clients.members()
    there = clients.wait(len(members), settings.wait, members)
    clients.protocol = clients.protocol or clients.settle()
    if clients.layout is None:
        clients.settle_layout()
    there = [number for number in there if number in clients.known]
    if len(there) < settings.minimum:
        others = clients.absent(set(members) - set(there))
        reasons = [f"client {number}: {why}" for number, why in sorted(others.items()) if why != AWAY]
        lack = f"{len(there)} of at least {settings.minimum} clients came within {settings.wait:g} s"
        raise LostError("; ".join([lack, *reasons]))
    said = old or _label(clients)
    if len(said["classes"]) == 1:
        why = f"all clients' samples are of the class {said['classes'][0]!r}, and a model tells two or more apart"
        raise misused("--data", why)
    if too_large(said):
        named = {number: (len(client.classes), list(client.shape)) for number, client in sorted(clients.known.items())}
        raise UserError(
            "classes and samples", named, "together they are too many", hint="leave out who names what it should not"
        )
    clients.classes, clients.brings = said["classes"], said["brings"]
    run = _prepared(experiment, clients, said)
    if not old:
        make_folder(path, label.name, json_with_digest(json.dumps(said)))
    if not (path / "config.yaml").exists():
        write_text(path / "config.yaml", yaml_with_digest(run.clients.trained_on(run.experiment).to_yaml()))
    if old:
        run.restore(folder.claim())
    run.play(folder, progress or Progress())


def check(experiment: Experiment) -> None:
    """Refuse what is unknown, or cannot be done over a network."""
    method = build_method(experiment.method, experiment.params)
    for model in experiment.model.split(","):
        factory_of(model)
    for dataset in experiment.datasets:
        check_name(dataset)
    check_split(experiment.split)
    experiment.number_of_clients  # noqa: B018 - refuses a split whose number of clients nobody has said
    asked_metrics(experiment, None)
    if method.exchanges_public and experiment.public is None:
        raise missing_value("--public", f"{method.name} needs a public dataset, such as digit-domains")
    for name in elsewhere(experiment):
        raise UserError(f"--{name}", getattr(experiment, name), "it is not for runs over a network")
    if experiment.secure:
        summed(method, "--secure")
        if experiment.defence != "none":
            raise UserError("--defence", experiment.defence, "with --secure the server sees nobody's own upload")
        if (number := len(participants(experiment, experiment.number_of_clients, 0))) < 2:
            raise misused("--secure", f"a sum over {number} client hides nothing", hint="raise --participation")
    if experiment.hides_clients:
        check_over_a_network(experiment, method)


def _label(clients: Connections) -> NetworkLabel:
    """What those who are there when a run begins say of their samples; it holds for the run, whoever comes."""
    known = [client for _, client in sorted(clients.known.items())]
    shapes = [clients.known.get(number, known[0]).shape for number in range(clients.experiment.number_of_clients)]
    return {
        "run": clients.run,
        "protocol": clients.protocol,
        "layout": clients.layout or "",
        "brings": known[0].brings,
        "classes": list(dict.fromkeys(name for client in known for name in client.classes)),
        "domains": clients.domains(()),
        "shapes": [list(shape) for shape in shapes],
        "tokens": [shape.tokens for shape in shapes],
        "masked": [shape.masked for shape in shapes],
    }


def _prepared(experiment: Experiment, clients: Connections, said: NetworkLabel) -> Run:
    """A run whose clients stand for those that are elsewhere."""
    shapes = map(Shape, said["shapes"], said["tokens"], said["masked"])
    stand_ins = [_stand_in(shape) for shape in shapes]
    looks = method_class(experiment.method).uses_public  # then the server's own images are what the method is about
    public = experiment.public if looks or experiment.public is None else STAND_IN
    plain = experiment.without_privacy()  # the noise of which is no engine's business here
    local = dataclasses.replace(
        plain, engine="sequential", width=None, device="cpu", secure=False, public=public, data_dir=None
    )
    federation = Federation(tuple(stand_ins), tuple(said["classes"]), tuple(said["domains"]))
    by_size = {*SHOTS} & {*asked_metrics(experiment, federation.classes)}
    if by_size and said["brings"]:
        why = f"{', '.join(sorted(by_size))} would need everybody's number of samples of each class, which nobody tells"
        raise UserError("--metrics", experiment.metrics, why)
    setup = prepare(local, federation=federation)
    group = setup.engine.groups[0]
    upload = made_up_upload(setup.engine, group, len(said["classes"]))[1].reorder(torch.tensor([0]))
    privacy = privacy_over_a_network(
        experiment, setup.engine, lambda number: participants(experiment, experiment.number_of_clients, number)
    )
    setup = dataclasses.replace(setup, experiment=experiment, privacy=privacy)
    if experiment.secure:
        remote: Remote = Secure(setup, clients, upload)
    else:
        sent = made_up_upload(setup.engine, group, classes=1)[1]
        means = all(found.vectors.shape[-2] == 1 for found in sent.prototypes.values())
        kind = Remote if experiment.async_ is None else AsynchronousRemote
        remote = kind(setup, clients, Schema.of(upload.client(0), slots=1 if means else SLOTS))
    return Run(setup, remote)


def _stand_in(shape: Shape) -> Client:
    """A client with two meaningless samples."""
    samples = Samples.of(shape.example(2), torch.zeros(2, dtype=torch.int64))
    return Client.of(samples, samples, preparation=Preparation(tokens=shape.tokens, masked=shape.masked))


def server_app(folder: Path) -> ServerApp:
    """The ServerApp of a directory that `protofed flower-app` wrote."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        torch.set_num_threads(1)
        try:
            serve(grid, Experiment.from_mapping(read_yaml(folder / "experiment.yaml")), Settings.of(context.run_config))
        except (UserError, DivergedError) as error:
            said = f"{error}{HINT}{error.hint}" if error.hint else str(error)
            raise HopelessError(f"{HOPELESS}{said}") from error

    return app
