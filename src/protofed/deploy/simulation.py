"""`--engine flower-sim`: the same app in Flower's simulation, on Ray, on this machine only."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from protofed.deploy.flower_app import write_app
from protofed.deploy.follow_run import play
from protofed.deploy.processes import SIMULATION, connect, free_port, running, tool, until_listening
from protofed.deploy.server_settings import Settings
from protofed.errors import misused
from protofed.experiment import Experiment, with_absolute_paths
from protofed.server.round import Round


def simulate(experiment: Experiment, out: Path, each: Callable[[Round], None]) -> None:
    """A run with one simulated node a client; everything it needs is gone afterwards, except the run folder."""
    if find_spec("ray") is None:  # Flower would only say that something failed
        why = "the simulation needs the package ray"
        raise misused("--engine flower-sim", why, hint="pip install 'protofed[simulation]'")
    with tempfile.TemporaryDirectory(prefix="protofed-") as place:
        folder, port = Path(place), free_port()
        home, log = folder / "home", folder / "superlink.log"
        settings = Settings(str(out.resolve()), experiment.number_of_clients, deadline=86_400.0, wait=300.0)
        write_app(folder / "app", with_absolute_paths(experiment), settings)
        connect(home, f"127.0.0.1:{port}", None)
        link = [tool("flower-superlink"), "--simulation", "--insecure", "--disable-runtime-dependency-installation"]
        nodes = f"num-supernodes={experiment.number_of_clients} client-resources-num-cpus=1"
        with running([*link, "--host", "127.0.0.1", "--port", str(port)], home, log, {SIMULATION: "1"}) as process:
            until_listening(process, "127.0.0.1", port, log)
            play(home, folder / "app", out, each, "--federation-config", nodes)
