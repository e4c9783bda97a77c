"""Flower's own processes: started offline and without telemetry, and stopped with everything they have started."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from protofed.errors import LostError

PATIENCE = 60.0
"""Seconds until a process must be ready."""
GRACE = 10.0
"""Seconds that processes have to end by themselves."""
CONNECTION = "protofed"
"""What our SuperLink is called in Flower's configuration."""


def environment(home: Path) -> dict[str, str]:
    """Offline, silent, and with its state in a folder of ours."""
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray on loopback
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    return os.environ | quiet


def connect(home: Path, address: str, authority: Path | None) -> None:
    """Tell Flower's commands where the SuperLink is."""
    home.mkdir(parents=True, exist_ok=True)
    how = "insecure = true" if authority is None else f'root-certificates = "{authority}"'
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{how}\n'
    (home / "config.toml").write_text(text, encoding="utf-8")


def free_port() -> int:
    """One that nobody on this machine listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], home: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its children in a group of their own; none of them is left at the end."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            env=environment(home),
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its group."""
    for number, seconds in ((signal.SIGTERM, GRACE), (signal.SIGKILL, GRACE)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            process.poll()
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                process.wait()
                return
            time.sleep(0.05)


def until_listening(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    """Wait until a process accepts connections."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    raise LostError(f"{Path(str(process.args[0])).name} does not listen on {host}:{port}; see {log}")  # type: ignore[index]  # a list of words


def flwr(home: Path, *words: str) -> dict[str, Any]:
    """What one of Flower's commands says, as JSON."""
    command = [tool("flwr"), *words, "--format", "json"]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, check=False)
    start = done.stdout.find("{")
    try:
        said: dict[str, Any] = json.loads(done.stdout[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        said = {}
    if done.returncode or not said.get("success"):
        why = said.get("error-message") or done.stderr or done.stdout
        raise LostError(f"flwr {words[0]} failed: {' '.join(why.split())[-300:]}")
    return said


def tool(name: str) -> str:
    """One of Flower's commands, from where this Python is."""
    return str(Path(sys.executable).parent / name)
