"""Runs of a whole federation: begun and listed on the server's machine, by who may read the federation's folder."""

from __future__ import annotations

import dataclasses
import logging
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.deploy.events import EVENTS, Events
from protofed.deploy.federation import FederationFolder
from protofed.deploy.membership import warnings
from protofed.deploy.processes import hangup, is_running, logged, told_to_end
from protofed.deploy.server_settings import Settings, check_out
from protofed.errors import LostError, UserError
from protofed.experiment import SYNCHRONOUS, Experiment
from protofed.internal.atomic_files import full_disk_is_said
from protofed.internal.schema import read_json
from protofed.runs.folder import RunFolder

if TYPE_CHECKING:
    from protofed.runs.progress import Progress


LOG = logging.getLogger("flwr")

DEFENCE = "default"
"""What judges uploads, unless an experiment names something else: clients over a network may be strangers."""


def check(federation: FederationFolder, experiment: Experiment, out: Path) -> None:
    """Refuse an experiment of another number of clients, or one that its folder is not for."""
    if not federation.members():
        raise UserError("DIR", str(federation.folder), "it has no clients", hint="`protofed deploy admit` lets some in")
    if experiment.number_of_clients != (begun := clients_of(federation, out)):
        raise UserError("--clients", experiment.number_of_clients, f"the federation has {begun}")
    check_out(out, experiment)


def experiment_of(federation: FederationFolder, asked: Mapping[str, Any], out: Path) -> Experiment:
    """The experiment that is asked for; the default defence judges its uploads, unless it names another.

    A run that goes on keeps the defence that it began with.

    Raises:
        UserError: it is none.
    """
    clients = max(1, clients_of(federation, out))
    if (out / "config.yaml").is_file():
        usual = RunFolder(out).experiment().defence
    else:
        usual = "none" if undefended(asked) else DEFENCE
    return Experiment.from_mapping({"clients": clients, "defence": usual, **asked})


def undefended(asked: Mapping[str, Any]) -> str | None:
    """Why no defence can judge the uploads of an experiment; None if one can."""
    if asked.get("secure"):
        return "with secure the server sees nobody's own upload"
    if asked.get("privacy") == "client":
        return "with privacy: client a defence would let one client change more than its own part"
    if asked.get("async_") is not None:
        return f"with async_ {SYNCHRONOUS['defence']}"
    return None


def clients_of(federation: FederationFolder, out: Path) -> int:
    """How many clients a run is of: as many as there were numbers when it began, whoever came or left later."""
    folder = RunFolder(out)
    if not folder.over_network:
        return max(federation.members(), default=-1) + 1
    if (out / "config.yaml").is_file():
        return folder.experiment().number_of_clients
    said = read_json(folder.network_label)  # it was killed before its first round
    shapes = said.get("shapes") if isinstance(said, dict) else None
    return len(shapes) if isinstance(shapes, list) else 0


def play(federation: FederationFolder, experiment: Experiment, out: Path, progress: Progress, quiet: bool) -> None:
    """A run of the whole federation, from its beginning or from where its folder says.

    Raises:
        LostError: the server is not running, or clients are missing; the run can go on.
    """
    from protofed.deploy import link  # and Flower
    from protofed.deploy.recorded import RecordedProgress, RecordedRun
    from protofed.deploy.server import serve  # and torch
    from protofed.runs.run import Interrupted

    _require_server(federation)
    files = str(federation.nodes_file), str(federation.members_file.path)
    settings = Settings(str(out.resolve()), federation.minimum, federation.deadline, federation.wait, *files)
    machine: dict[str, Any] = {"data_dir": None, "device": "cpu", "threads": 1, "engine": "sequential", "width": None}
    recorded = RecordedRun(Events(federation.server / EVENTS), experiment, out.resolve(), federation.nodes)
    with (
        full_disk_is_said(),
        logged(federation.server / "runs.log", "run", warn=not quiet),
        told_to_end(signal.SIGTERM, *hangup()) as told,
    ):

        def check() -> None:
            if told:
                raise KeyboardInterrupt
            _require_server(federation)

        for line in warnings(federation):
            LOG.warning("%s", line)
        if (why := undefended(dataclasses.asdict(experiment))) is not None:
            LOG.warning("no defence judges uploads: %s", why)
        state = link.open_state(federation.database)
        with link.new_run(state, check, Interrupted) as grid, recorded.playing(grid) as asking:
            serve(asking, dataclasses.replace(experiment, **machine), settings, RecordedProgress(progress, recorded))


def _require_server(federation: FederationFolder) -> None:
    if not is_running(federation.log):
        raise LostError(f"the server is not running: start it with `protofed deploy server {federation.folder}`")


def status(federation: FederationFolder) -> dict[str, Any]:
    """Whether the server runs, who is connected, and which runs there have been."""
    found: dict[str, Any] = {"address": federation.address, "running": is_running(federation.log)}
    found["warnings"] = warnings(federation)
    if not federation.database.exists():
        return found | {"clients": dict.fromkeys(federation.members(), "registered"), "runs": []}
    from protofed.deploy import link

    with logged(federation.server / "runs.log", "status"):
        state = link.open_state(federation.database)
        nodes = {node.node_id: node.status for node in state.get_node_info()}
        runs = state.get_run_info(order_by="pending_at", ascending=True)
        states = state.get_run_status({run.run_id for run in runs})
    ended = {number: ":".join(filter(None, (one.status, one.sub_status))) for number, one in states.items()}
    return found | {
        "clients": {client: nodes.get(node, "unknown") for client, node in federation.nodes().items()},
        "runs": [{"id": run.run_id, "status": ended[run.run_id], "began": run.pending_at} for run in runs],
    }
