"""A release: what has to be true before, and what comes out, rehearsed in a copy of the repository."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from protofed.internal.version import VERSION
from tests.support.repository import copied, git
from tools import release
from tools.constraints import pins


def test_the_notes_of_a_release_are_its_part_of_the_changelog() -> None:
    parts = {"2.0.0 (unreleased)": "- next", "1.0.0 (2026-01-31)": "- one\n- two", "0.9.0 (2025-01-01)": "- old"}
    text = "# Changelog\n\n" + "\n".join(f"## {title}\n\n{part}\n" for title, part in parts.items())
    assert release.notes(text, "1.0.0") == "- one\n- two\n"
    assert release.notes(text, "0.9.0") == "- old\n"
    for version in ("2.0.0", "1.0", "3.0.0"):
        with pytest.raises(ValueError, match="no dated section"):
            release.notes(text, version)


def test_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"abc")
    (tmp_path / "SHA256SUMS").write_text(release.sums([tmp_path / "a.whl"]))
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "a.whl: OK\n"


def test_a_release_is_of_the_version_that_is_tagged() -> None:
    with pytest.raises(ValueError, match="the tag is v0"):
        release.check("v0.0.0")


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy in which the version is dated."""
    folder = copied(tmp_path_factory.mktemp("release"))
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(
        re.sub(rf"^## {VERSION} \(.*\)$", f"## {VERSION} (2026-01-31)", changelog.read_text(), flags=re.M)
    )
    git(folder, "commit", "--all", "--allow-empty", "--quiet", "--message", "The version has a date")
    return folder


def make(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the Makefile's recipe with what is installed here."""
    tools = folder / "build" / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    scripts = {"pip": "exit 0", "python": f'exec "{sys.executable}" "$@"', "twine": f'"{sys.executable}" -m twine "$@"'}
    for name, line in scripts.items():
        (tools / name).write_text(f"#!/bin/sh\n{line}\n")
        (tools / name).chmod(0o755)
    (folder / ".venv").mkdir(exist_ok=True)
    (folder / ".venv/.tests-installed").touch()
    return subprocess.run(
        ["make", f"BIN={tools}", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src")},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_a_release_is_built_checked_and_described(repository: Path) -> None:
    if find_spec("twine") is None:
        pytest.skip("needs the extra release")
    done = make(repository, "release", f"TAG=v{VERSION}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2  # of twine
    dist, beside = repository / "dist", repository / "dist/release"
    wheel, source = f"protofed-{VERSION}-py3-none-any.whl", f"protofed-{VERSION}.tar.gz"
    assert {path.name for path in dist.iterdir()} == {wheel, source, "release"}
    assert {path.name for path in beside.iterdir()} == {
        "notes.md",
        "SHA256SUMS",
        "sbom.cdx.json",
        "licences.md",
        "requirements.txt",
        "requirements-flower.txt",
    }
    assert (beside / "notes.md").read_text() in (repository / "CHANGELOG.md").read_text()
    checked = subprocess.run(["sha256sum", "-c", "release/SHA256SUMS"], cwd=dist, capture_output=True, check=False)
    assert checked.returncode == 0
    assert json.loads((beside / "sbom.cdx.json").read_text())["bomFormat"] == "CycloneDX"
    digests = tuple(hashlib.sha256((dist / name).read_bytes()).hexdigest() for name in (wheel, source))
    *others, own = pins((beside / "requirements.txt").read_text())
    assert (own.name, own.version, own.hashes) == ("protofed", VERSION, digests)
    assert others == pins((repository / "requirements/base.txt").read_text())
    assert f"\nprotofed[flower]=={VERSION} \\\n" in (beside / "requirements-flower.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("wrong", ["changed", "undated", "tag"])
def test_nothing_is_built_of_what_may_not_be_released(wrong: str, repository: Path) -> None:
    start = git(repository, "rev-parse", "HEAD").strip()
    tag, reason = f"v{VERSION}", "the tag is v9.9.9"
    if wrong == "changed":
        (repository / "README.md").write_text("other")
        reason = "not committed:\n M README.md"
    elif wrong == "undated":
        changelog = repository / "CHANGELOG.md"
        changelog.write_text(changelog.read_text().replace("(2026-01-31)", "(unreleased)"))
        git(repository, "commit", "--all", "--quiet", "--message", "No date")
        reason = f"no dated section on {VERSION}"
    else:
        tag = "v9.9.9"
    (repository / "dist").mkdir(exist_ok=True)
    (repository / "dist/old").touch()
    done = make(repository, "release", f"TAG={tag}")
    git(repository, "reset", "--quiet", "--hard", start)
    assert done.returncode != 0
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert (repository / "dist/old").exists()  # the recipe begins with the check
