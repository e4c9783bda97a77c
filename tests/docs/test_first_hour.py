"""The example of the first hour runs as it is."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import protofed

SCRIPT = Path(__file__).parents[2] / "examples" / "first_hour.py"


@pytest.mark.slow
def test_the_first_hour_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, tmp_path / "here"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(protofed.__file__).parents[1]), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [line[:2] for line in done.stdout.splitlines() if line[1:2] == "."] == [f"{n}." for n in range(1, 8)]
    made = {path.name for path in (tmp_path / "here").iterdir()}
    assert {"compared", "swept", "report.html", "figures", "comparison.pdf", "sweep.pdf"} <= made
    assert "best lr 0." in done.stdout  # Optuna is one of the tests' packages
    if find_spec("nbclient") and find_spec("ipykernel"):  # which are the notebook's
        assert "a notebook shows image/png, text/html, text/plain" in done.stdout
        assert "first-hour.ipynb" in made
    resumed = subprocess.run(
        [sys.executable, "-m", "protofed", "resume", "here/compared", "--json"],  # whose method is in the script
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(protofed.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert '"method": "small"' in resumed.stdout
