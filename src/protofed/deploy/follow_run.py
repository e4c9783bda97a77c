"""A run that Flower plays, seen from outside: started, followed through its folder, and stopped."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from protofed.deploy.processes import CONNECTION, commands
from protofed.errors import HopelessError, LostError
from protofed.runs.folder import RunFolder
from protofed.server.round import Round

LOOK = 0.5
"""Seconds between two looks at the run folder."""
ASK = 1.0
"""Seconds between two questions to the SuperLink."""
HOPELESS = "it would fail again: "
"""What the text of such an error begins with at the server: of errors Flower passes on nothing else."""
HINT = " hint: "
"""What is between an error and its hint in that text."""


def play(home: Path, app: Path, out: Path, each: Callable[[Round], None], *options: str) -> None:
    """Play a run to its end; `each` sees every new round. An interruption stops it there too."""
    seen = len(RunFolder(out).played())
    with commands(home) as ask:
        number = str(ask("run", str(app), CONNECTION, *options)["run-id"])
        try:
            run, asked = {"status": ""}, time.monotonic()
            while not run["status"].startswith("finished"):
                time.sleep(LOOK)
                seen = _show(out, seen, each)
                if time.monotonic() - asked > ASK:
                    (run,) = ask("list", "--run-id", number, CONNECTION)["runs"]
                    asked = time.monotonic()
            _show(out, seen, each)
        except BaseException:
            ask("stop", number, CONNECTION)
            raise
    if run["status"] != "finished:completed":
        details = " ".join(run["status-details"].split())
        why = details.partition(" failed with exception: ")[2] or details
        if why.startswith(HOPELESS):
            why, _, hint = why.removeprefix(HOPELESS).partition(HINT)
            raise HopelessError(f"the run has failed: {why}", hint or None)
        raise LostError(f"the run has {run['status'].replace(':', ', ')}: {why}")


def _show(out: Path, seen: int, each: Callable[[Round], None]) -> int:
    """Show the rounds that are new; a line that is still being written waits."""
    rounds = RunFolder(out).played()
    for played in rounds[seen:]:
        each(played)
    return max(seen, len(rounds))
