"""What happened at a client: a line of JSON for every message, with what was asked, what left, and what was refused."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

LARGEST = 10_000_000
"""Bytes after which a new file is begun; the one before is kept."""


class Events:
    """Appends to a file that its owner alone may read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, **what: Any) -> None:
        """One event; keys without a value are left out."""
        if self.path.exists() and self.path.stat().st_size > LARGEST:
            self.path.replace(self.path.with_suffix(".1.jsonl"))
        if not self.path.exists():
            self.path.touch(mode=0o600)
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, **{name: value for name, value in what.items() if value is not None}})
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
