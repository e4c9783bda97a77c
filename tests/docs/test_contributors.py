"""What contributors and packagers get: workflows whose commands exist, a citation, a release."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from protofed.internal.version import VERSION
from tools import identity, release
from tools.lowest import PYPROJECT, lowest

ROOT = PYPROJECT.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github").rglob("*.yml"))
TARGETS = {found[1] for found in re.finditer(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)}
PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "docs/releases.md")]


def jobs(path: Path) -> list[dict[str, Any]]:
    """The jobs of a workflow."""
    return list(yaml.safe_load(path.read_text())["jobs"].values())


def test_there_are_workflows_for_changes_nights_and_releases() -> None:
    assert [path.stem for path in WORKFLOWS] == ["nightly", "release", "tests"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_command_of_a_workflow_is_one_of_the_makefile(path: Path) -> None:
    commands = []
    for job in jobs(path):
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            choices = job.get("strategy", {}).get("matrix", {}).get("command", [""])
            if "run" in step:
                commands += [step["run"].replace("${{ matrix.command }}", choice) for choice in choices]
        assert "timeout-minutes" in job or "needs" in job
    assert commands
    for command in commands:
        found = re.fullmatch(r"make ([a-z-]+)( TAG=\$\{\{ github\.ref_name \}\})?", command)
        assert found, command
        assert found[1] in TARGETS, command


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_may_no_more_than_it_must(path: Path) -> None:
    whole = yaml.safe_load(path.read_text())
    assert whole["permissions"] == {"contents": "read"}
    writing = [job for job in jobs(path) if "write" in job.get("permissions", {}).values()]
    assert not writing or path.stem == "release"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_what_the_host_reads_is_yaml(path: Path) -> None:
    assert isinstance(yaml.safe_load(path.read_text()), dict)
    if path.parent.name == "ISSUE_TEMPLATE" and path.name != "config.yml":
        form = yaml.safe_load(path.read_text())
        assert {"name", "description", "body"} <= {*form}
        assert {one["type"] for one in form["body"]} <= {"textarea", "input", "checkboxes", "markdown", "dropdown"}


def test_the_hooks_before_a_commit_are_commands_of_the_makefile() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {hook["entry"].removeprefix("make ") for hook in repository["hooks"]} <= TARGETS


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_what_contributors_read_leads_somewhere(path: Path) -> None:
    text = path.read_text()
    for link in re.findall(r"\]\(([^)#]+)", text):
        assert link.startswith("https://") or (path.parent / link).exists(), link
    for command in re.findall(r"`make ([a-z-]+)`", text):
        assert command in TARGETS, command
    assert max(map(len, text.splitlines())) <= 120


def test_who_and_where_is_said_in_one_file() -> None:
    assert identity.CITATION.read_text() == identity.citation()
    assert identity.PAPER.read_text() == identity.paper()
    made = {"CITATION.cff", "paper/paper.md", "identity.yaml"}
    held = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    texts = [name for name in held if name.endswith((".md", ".yml", ".yaml", ".cff", ".toml")) and name not in made]
    for name in texts:
        assert not re.search(r"\bOWNER/|PLACEHOLDER|10\.0000/", (ROOT / name).read_text()), name


def test_what_the_paper_cites_is_listed() -> None:
    cited = {*re.findall(r"@([a-z]+\d{4}[a-z]*)", (ROOT / "paper/paper.md").read_text())}
    assert cited == {*re.findall(r"@\w+\{(\w+),", (ROOT / "paper/paper.bib").read_text())}


def test_the_notes_of_a_release_are_its_part_of_the_changelog() -> None:
    parts = {"2.0.0 (unreleased)": "- next", "1.0.0 (2026-01-31)": "- one\n- two", "0.9.0 (2025-01-01)": "- old"}
    text = "# Changelog\n\n" + "\n".join(f"## {title}\n\n{part}\n" for title, part in parts.items())
    assert release.notes(text, "1.0.0") == "- one\n- two\n"
    assert release.notes(text, "0.9.0") == "- old\n"
    for version in ("2.0.0", "1.0", "3.0.0"):
        with pytest.raises(ValueError, match="no dated section"):
            release.notes(text, version)


def test_every_package_that_is_needed_has_a_licence_and_is_in_the_bill() -> None:
    packages = release.needed()
    names = {package.name.lower() for package in packages}
    direct = {line.partition("==")[0].lower() for line in lowest(PYPROJECT.read_text()).splitlines()}
    assert direct <= names
    assert "pytest" not in names
    table = release.licences(packages)
    assert all(f"| {package.name} | {package.version} | " in table for package in packages)
    bill = json.loads(json.dumps(release.bill_of_materials(packages)))
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/protofed@{VERSION}"
    assert len({one["bom-ref"] for one in bill["components"]}) == len(packages)


def test_the_lowest_versions_are_those_of_the_project() -> None:
    assert (
        lowest('[project]\ndependencies = ["torch>=2.6", "scikit-learn>=1.4"]\n') == "torch==2.6\nscikit-learn==1.4\n"
    )


def test_checksums_are_those_that_sha256sum_reads(tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"abc")
    (tmp_path / "SHA256SUMS").write_text(release.sums([tmp_path / "a.whl"]))
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "a.whl: OK\n"


def test_a_release_is_of_the_version_that_is_tagged() -> None:
    with pytest.raises(ValueError, match="the tag is"):
        release.write("v0.0.0")
