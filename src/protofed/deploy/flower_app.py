"""The directory that `flwr run` takes: a thin app around what is installed, with the experiment beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from protofed.deploy.server_settings import Settings, toml
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_folder
from protofed.internal.version import VERSION

PACKAGE = "protofed_app"

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "protofed-app"
version = "{version}"
description = {description}
dependencies = ["protofed[flower]"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "protofed"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

[tool.flwr.app.config]
{settings}
"""
SERVER = '''\
"""The server of this app."""

from pathlib import Path

from protofed.deploy.server import server_app

app = server_app(Path(__file__).parent)
'''
CLIENT = '''\
"""The clients of this app."""

from protofed.deploy.flower_client import app

__all__ = ["app"]
'''


def write_app(folder: Path, experiment: Experiment, settings: Settings) -> None:
    """A new directory; an existing one is never written over."""
    if folder.exists():
        raise UserError("DIR", str(folder), "it exists already", hint="name a new folder")
    told = "\n".join(f"{name} = {toml(value)}" for name, value in dataclasses.asdict(settings).items())
    what = toml(f"{experiment.method} with {experiment.number_of_clients} clients, {experiment.rounds} rounds")
    project = PROJECT.format(version=VERSION, description=what, package=PACKAGE, settings=told)
    files = {"__init__.py": "", "server.py": SERVER, "client.py": CLIENT, "experiment.yaml": experiment.to_yaml()}

    def fill(draft: Path) -> None:
        (draft / PACKAGE).mkdir()
        (draft / "pyproject.toml").write_text(project, encoding="utf-8")
        for name, text in files.items():
            (draft / PACKAGE / name).write_text(text, encoding="utf-8")

    write_folder(folder, fill)
