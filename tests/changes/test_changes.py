"""The changes of docs/where-to-change.md: each patch is short, applies, and does what its check asks for.

NAME.patch is a change of src/, NAME.py its check: a script that fails where the change has not been made.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "where-to-change.md"
CHANGES = sorted(path.stem for path in HERE.glob("*.patch"))
LONGEST = 40
"""Lines of a patch, headers included."""


def entries() -> list[str]:
    """What the page says of each change."""
    return re.findall(r"^- \*\*.*?(?=^- |^$)", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)


def copied(change: str, folder: Path) -> Path:
    """A copy of src/ with a change in it."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        ["git", "apply", HERE / f"{change}.patch"],
        cwd=folder,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)},  # git skips files outside of a repository
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder / "src"


def checked(change: str, source: Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """A change's check in a new process and an empty folder, of the source that is given."""
    folder.mkdir()
    paths = os.pathsep.join(map(str, (source, ROOT)))
    return subprocess.run(
        [sys.executable, "-m", f"tests.changes.{change}"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_there_are_twenty_changes_and_the_page_names_each_once() -> None:
    named = [re.findall(r"\(\.\./tests/changes/(\w+)\.patch\)", entry) for entry in entries()]
    assert len(CHANGES) == 20
    assert sorted(named) == [[change] for change in CHANGES]


def test_every_check_has_a_patch() -> None:
    scripts = {path.stem for path in HERE.glob("*.py")} - {"__init__", "test_changes"}
    assert sorted(scripts) == CHANGES


def test_the_page_is_short() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 150
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_short_applies_and_is_where_the_page_says(change: str, tmp_path: Path) -> None:
    patch = (HERE / f"{change}.patch").read_text(encoding="utf-8")
    assert len(patch.splitlines()) <= LONGEST
    source = copied(change, tmp_path)
    files = re.findall(r"^\+\+\+ b/src/(\S+)$", patch, flags=re.MULTILINE)
    for name in files:
        before = ROOT / "src" / name
        assert not before.exists() or before.read_bytes() != (source / name).read_bytes()
        compile((source / name).read_text(encoding="utf-8"), name, "exec")
    (entry,) = (entry for entry in entries() if f"/{change}.patch)" in entry)
    assert [name for name in files if f"`{name.removeprefix('protofed/')}`" not in entry] == []


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_does_what_its_check_asks_for(change: str, tmp_path: Path) -> None:
    changed = checked(change, copied(change, tmp_path), tmp_path / "changed")
    assert changed.returncode == 0, changed.stderr
    assert checked(change, ROOT / "src", tmp_path / "unchanged").returncode != 0
