"""Runs of a whole federation: begun, followed and listed from the server's machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protofed.deploy import follow_run
from protofed.deploy.federation import FederationFolder
from protofed.deploy.flower_app import write_app
from protofed.deploy.processes import CONNECTION, commands
from protofed.deploy.server_settings import Settings, check_out
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.server.round import Round


def check(federation: FederationFolder, experiment: Experiment, out: Path) -> None:
    """Refuse an experiment of another number of clients, or one that its folder is not for."""
    if experiment.clients != federation.clients:
        raise UserError("--clients", experiment.clients, f"the federation has {federation.clients}")
    check_out(out, experiment)


def play(federation: FederationFolder, experiment: Experiment, out: Path, each: Callable[[Round], None]) -> None:
    """A run of the whole federation, from its beginning or from where its folder says."""
    settings = Settings(
        str(out.resolve()),
        federation.minimum,
        federation.deadline,
        federation.wait,
        str(federation.server / "nodes.json"),
    )
    apps = federation.server / "apps"
    app = apps / f"{out.name}-{len(list(apps.glob('*'))) if apps.exists() else 0}"
    machine: dict[str, Any] = {"data_dir": None, "device": "cpu", "threads": 1, "engine": "sequential", "width": None}
    write_app(app, dataclasses.replace(experiment, **machine), settings)
    follow_run.play(federation.home, app, out, each)


def status(federation: FederationFolder) -> dict[str, Any]:
    """Who is there, and which runs there have been; an error where no server answers."""
    nodes = federation.nodes()
    with commands(federation.home) as ask:
        found = ask("supernode", "list", CONNECTION)["nodes"]
        runs = ask("list", CONNECTION)["runs"]
    online = {int(node["node-id"]): str(node["status"]) for node in found}
    return {
        "address": federation.address,
        "clients": {client: online.get(node, "unknown") for client, node in nodes.items()},
        "runs": [{"id": run["run-id"], "status": run["status"], "began": run["pending-at"]} for run in runs],
    }
