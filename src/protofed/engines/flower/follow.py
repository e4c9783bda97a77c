"""A run that Flower plays, seen from outside: started, followed through its folder, and stopped."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from protofed.engines.flower.processes import CONNECTION, commands
from protofed.errors import LostError

LOOK = 0.5
"""Seconds between two looks at the run folder."""
ASK = 1.0
"""Seconds between two questions to the SuperLink."""


def play(home: Path, app: Path, out: Path, each: Callable[[dict[str, Any]], None], *options: str) -> None:
    """Play a run to its end; `each` sees the line of every new round. An interruption stops it there too."""
    seen = _rounds(out)
    with commands(home) as ask:
        number = str(ask("run", str(app), CONNECTION, *options)["run-id"])
        try:
            status, asked = "", time.monotonic()
            while not status.startswith("finished"):
                time.sleep(LOOK)
                seen = _show(out, seen, each)
                if time.monotonic() - asked > ASK:
                    (run,) = ask("list", "--run-id", number, CONNECTION)["runs"]
                    status, asked = str(run["status"]), time.monotonic()
            _show(out, seen, each)
        except BaseException:
            ask("stop", number, CONNECTION)
            raise
    if status != "finished:completed":
        raise LostError(f"the run has {status.replace(':', ', ')}")


def _rounds(out: Path) -> int:
    path = out / "rounds.jsonl"
    return len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0


def _show(out: Path, seen: int, each: Callable[[dict[str, Any]], None]) -> int:
    """Show the rounds that are new; a line that is still being written waits."""
    path = out / "rounds.jsonl"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    for line in lines[seen:]:
        each(json.loads(line))
    return max(seen, len(lines))
