"""The commands of the tutorials run in their order, with a single round, and each does what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import protofed
from tests.docs.test_docs import blocks

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SHORT = (
    (r"--rounds \d+", "--rounds 1"),
    (r"--eval-every \d+", "--eval-every 1"),
    (r"--seeds \d+", "--seeds 1 --jobs 1"),
)
"""What of a command is made smaller."""


def patients(folder: Path) -> None:
    """Files in the form of UCI's, with made-up patients."""
    folder.mkdir()
    for name in HOSPITALS:
        lines = [
            f"{40 + n % 30},{n % 2},{n % 4 + 1},{120 + n},200,0,{n % 3},{150 - n},1,0.5,-9,-9,-9,{n % 5 % 3}\n"
            for n in range(40)
        ]
        (folder / f"processed.{name}.data").write_text("".join(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "package"), [("hospitals", "protofed"), ("series", "aeon"), ("text", "orangecontrib")]
)
def test_the_commands_of_a_tutorial_run(page: str, package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"the data are in {package}")
    patients(tmp_path / "data")
    lines = "".join(blocks(f"docs/tutorials/{page}.md", "sh"))
    for pattern, short in SHORT:
        lines = re.sub(pattern, short, lines)
    python = f'python() {{ "{sys.executable}" "$@"; }}\nprotofed() {{ python -m protofed "$@"; }}\n'
    path = os.pathsep.join([str(Path(protofed.__file__).parents[1]), *sys.path])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", python + lines],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for word in ("classes", "own test", "global/all/head", "exported:", "nearest example", "before", "report.html"):
        assert word in done.stdout, word
    assert {"compared", "run", "model", "mine"} <= {made.name for made in tmp_path.iterdir()}
