"""A tiny run, by the command line, for the checks in tests/changes."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import succeed

SMALL = (
    *("--method", "fedavg", "--dataset", "digits", "--model", "cnn", "--device", "cpu", "--engine", "sequential"),
    *("--train-size", "120", "--clients", "2", "--rounds", "1", "--quiet"),
)


def played(*flags: str, out: str = "run") -> Path:
    """The folder of a run in the current folder; `flags` go before those of a small one."""
    succeed(Path(), "run", *SMALL, *flags, "--out", out)
    return Path(out)
