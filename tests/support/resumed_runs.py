"""Runs that are saved after some rounds, for others to go on from."""

from __future__ import annotations

from pathlib import Path

from protofed.runs.folder import RunFolder
from protofed.runs.run import Run


def saved(run: Run, folder: Path) -> RunFolder:
    """A run's folder with the rounds that it has played and a checkpoint of the last."""
    kept = RunFolder.create(folder, run.experiment)
    for line in run.history:
        kept.append_round(line)
    kept.checkpoint.save(run.server_state(), run.engine.groups)
    return kept
