"""The commands of the tutorials run in their order, with a single round, and each does what the page says."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import protofed
from tests.docs.test_docs import ROOT, blocks

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
SHORT = (
    (r"--rounds \d+", "--rounds 1"),
    (r"--eval-every \d+", "--eval-every 1"),
    (r"--seeds \d+", "--seeds 1 --jobs 1"),
)
"""What of a command is made smaller."""


FIRST = {
    "first-comparison": ("runs:", "report:", "report.html"),
    "own-data": ("healthy", "north", "mp-fedcl", "exported:", "nearest"),
    "own-method": ("small-features", "own/own/head"),
}
"""The tutorials that need no data, and what their commands print."""


def shell(lines: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Commands in one shell, where each must work."""
    for pattern, short in SHORT:
        lines = re.sub(pattern, short, lines)
    python = f'python() {{ "{sys.executable}" "$@"; }}\nprotofed() {{ python -m protofed "$@"; }}\n'
    path = os.pathsep.join([str(Path(protofed.__file__).parents[1]), *sys.path])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", python + lines],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )


def script(page: str) -> str:
    """All blocks of a page in their order; Python runs, and a method is saved under the name that commands use."""
    text = (ROOT / f"docs/tutorials/{page}.md").read_text(encoding="utf-8")
    parts = []
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL):
        saved = "cat > small_features.py" if page == "own-method" else "python -"
        parts.append(block if language == "sh" else f"{saved} <<'END_OF_BLOCK'\n{block}END_OF_BLOCK\n")
    return "".join(parts)


@pytest.mark.slow
@pytest.mark.parametrize("page", FIRST)
def test_a_tutorial_that_needs_no_data_runs(page: str, tmp_path: Path) -> None:
    done = shell(script(page), tmp_path)
    assert done.returncode == 0, done.stderr
    assert [word for word in FIRST[page] if word not in done.stdout] == []


@pytest.mark.slow
def test_the_tutorial_of_two_machines_runs(tmp_path: Path) -> None:
    """On one machine, with a port that is free; what stops the processes runs also if a command fails."""
    pytest.importorskip("flwr")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    lines = script("two-machines").replace("18433", port)
    *_, stop = lines.strip().splitlines()
    assert stop == "kill %1 %2 %3"
    done = shell(f"set -m\ntrap 'kill %1 %2 %3; wait' EXIT\n{lines.replace(stop, '')}", tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/result.json").exists()


def patients(folder: Path) -> None:
    """Files in the form of UCI's, with made-up patients."""
    folder.mkdir()
    for name in HOSPITALS:
        lines = [
            f"{40 + n % 30},{n % 2},{n % 4 + 1},{120 + n},200,0,{n % 3},{150 - n},1,0.5,-9,-9,-9,{n % 5 % 3}\n"
            for n in range(40)
        ]
        (folder / f"processed.{name}.data").write_text("".join(lines))


@pytest.mark.network
def test_two_hospitals_and_a_server(tmp_path: Path) -> None:
    """From nothing to predictions at each, in fewer than twelve commands."""
    install, *parts = blocks("docs/tutorials/two-hospitals.md", "sh")
    assert install.startswith("pip install")
    lines = "".join(parts)
    assert lines.count("\nprotofed ") < 12
    *_, stop, wait = lines.strip().splitlines()
    assert (stop, wait) == ("kill $(jobs -p)", "wait")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = f"deploy init federation --port {free.getsockname()[1]}"
    lines = lines.replace(f"{stop}\n{wait}\n", "").replace("deploy init federation", port)
    done = shell(f"set -m\ntrap 'kill %1 %2 %3; wait' EXIT\n{lines}", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "20 rounds" in done.stdout
    assert done.stdout.count("exported: model-") == 2
    for number in range(1, 7):
        assert done.stdout.count(f"new.csv[{number}]") == 2
    for site in ("anna", "luke"):
        assert [
            path.name for path in (tmp_path / site).iterdir() if path.is_file() and b"PRIVATE" in path.read_bytes()[:40]
        ] == ["key"]
    assert not list((tmp_path / "federation").rglob("key"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "package"), [("hospitals", "protofed"), ("series", "aeon"), ("text", "orangecontrib")]
)
def test_the_commands_of_a_tutorial_run(page: str, package: str, tmp_path: Path) -> None:
    if find_spec(package) is None:
        pytest.skip(f"the data are in {package}")
    patients(tmp_path / "data")
    done = shell("".join(blocks(f"docs/tutorials/{page}.md", "sh")), tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("classes", "own test", "global/all/head", "exported:", "nearest example", "before", "report.html"):
        assert word in done.stdout, word
    assert {"compared", "run", "model", "mine"} <= {made.name for made in tmp_path.iterdir()}
