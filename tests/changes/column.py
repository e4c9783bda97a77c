"""The table of a run says how much its clients differ."""

from pathlib import Path

from tests.support.changed_source import SMALL
from tests.support.command_line import succeed

assert "std of clients" in succeed(Path(), "run", *SMALL, "--out", "run").out
