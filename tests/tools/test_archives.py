"""The source archive holds what the repository holds; archives are tried in an environment of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.support.package_index import PackageIndex
from tests.support.repository import ROOT, held
from tools import installed


def test_the_source_archive_holds_every_file_of_the_repository(tmp_path: Path) -> None:
    files = held()
    words = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        names = sorted(member.name.partition("/")[2] for member in opened.getmembers() if member.isfile())
    assert names == sorted([*files, "PKG-INFO"])


def test_the_tutorial_is_played_with_less() -> None:
    lines = installed.commands(installed.TUTORIAL.read_text(encoding="utf-8"))
    assert [line.split()[:2] for line in lines.splitlines() if line.startswith("protofed")] == [
        ["protofed", "compare"],
        ["protofed", "report"],
    ]
    assert "--rounds 1 " in lines
    assert "--seeds 1 " in lines


@pytest.mark.slow
@pytest.mark.parametrize("there", [True, False])
def test_an_archive_is_tried_with_nothing_but_what_it_brings(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The module of the wheel is found, and of what this environment has, nothing is."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    index = PackageIndex(tmp_path)
    index.add("whole", "1.0")
    (archive,) = tmp_path.glob("*.whl")
    module = "whole" if there else "numpy"
    page = f"```sh\npython -c 'import {module}; print({module}.version)' > made\n```\n"
    if there:
        assert installed.play(archive, page, ("--no-index",)) == ["made"]
    else:
        with pytest.raises(subprocess.CalledProcessError):
            installed.play(archive, page, ("--no-index",))
