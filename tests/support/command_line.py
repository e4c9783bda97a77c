"""The command line as a user meets it: in this process for speed, in one of its own where that matters."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protofed.cli import main
from protofed.cli.common import GETTING_READY
from protofed.deploy.processes import end_with_parent
from protofed.internal.digests import parse_json

TINY = (
    *("--method", "fedproto", "--model", "cnn", "--device", "cpu"),
    *("--train-size", "150", "--clients", "3", "--rounds", "3"),
)
"""A run of a fraction of a second."""


TEMPLATE = re.compile(r"error: (invalid value '.*' for |missing value for |invalid use of )[^:]+: [^A-Z\s].*[^.\s]")
"""The first line of everything that is said of wrong input."""


class Outcome(NamedTuple):
    """What a command left behind: exit code, standard output, standard error."""

    code: int
    out: str
    err: str


def invoke(folder: Path, *arguments: str) -> Outcome:
    """`protofed ARGUMENTS` in a folder, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, chdir(folder), redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["protofed", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
    code = ended.value.code
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def refused(outcome: Outcome) -> str:
    """What is said of wrong input: an error in the one template and maybe a hint, a line each, and nothing else."""
    assert (outcome.code, outcome.out) == (2, ""), outcome
    said = outcome.err.removeprefix(f"{GETTING_READY}\n")
    line, *hints = said.splitlines()
    assert TEMPLATE.fullmatch(line), line
    assert not re.search(r"'(None|True|False)'", line), line
    assert len(hints) <= 1
    assert all(hint.startswith("hint: ") for hint in hints)
    return said


def succeed(folder: Path, *arguments: str) -> Outcome:
    """As `invoke`, and it must work."""
    outcome = invoke(folder, *arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def start(folder: Path, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """`python -m protofed ARGUMENTS` in a process of its own; one thread, so that two runs give the same bits."""
    return subprocess.Popen(
        [sys.executable, "-m", "protofed", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - it calls nothing but the system; killed tests leave nothing behind
        **({"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options),
    )


def finish(process: subprocess.Popen[str]) -> Outcome:
    """Wait for it to end by itself."""
    with process:
        try:
            out, err = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    return Outcome(process.returncode, out, err)


def rounds_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's rounds.jsonl."""
    return [parse_json(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def result_of(folder: Path) -> dict[str, Any]:
    """A run's result.json without the seconds, which alone may differ between equal runs."""
    values: dict[str, Any] = parse_json((folder / "result.json").read_text())
    del values["seconds"]
    return values


def everything_in(folder: Path) -> set[Path]:
    """Every file and folder below a folder."""
    return set(folder.rglob("*"))
