"""The files of this repository, and a copy of them with a history of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def git(folder: Path, *words: str) -> str:
    """What git says."""
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def held() -> list[str]:
    """The files that git tracks, or would: those that it does not ignore."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository")
    listed = git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    return sorted({name for name in listed if (ROOT / name).is_file()})


def copied(folder: Path) -> Path:
    """A repository of one commit with the same files."""
    for name in held():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "All files")
    return folder
