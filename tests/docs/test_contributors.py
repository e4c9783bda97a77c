"""What contributors and packagers get: workflows whose commands exist, metadata, complete lists."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from protofed.internal.version import VERSION
from tools import identity
from tools.lowest import PYPROJECT, lowest

ROOT = PYPROJECT.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github").rglob("*.yml"))
TARGETS = {*" ".join(re.findall(r"^([a-z -]+):", (ROOT / "Makefile").read_text(), re.M)).split()}
PAGES = [
    ROOT / name for name in ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "docs/releases.md", "docs/users/contributors.md")
]
PROJECT = tomllib.loads(PYPROJECT.read_text())["project"]
PRINT_ONLY = {"bench", "licences", "sbom", "test-install", "test-lowest", "release"}
"""Targets that run a module of tools or benchmarks and write nothing that is kept in the repository."""


def jobs(path: Path) -> list[dict[str, Any]]:
    """The jobs of a workflow."""
    return list(yaml.safe_load(path.read_text())["jobs"].values())


def test_there_are_workflows_for_changes_nights_releases_and_the_site() -> None:
    assert [path.stem for path in WORKFLOWS] == ["nightly", "release", "site", "tests"]


def test_every_python_that_the_metadata_names_is_tested() -> None:
    (tested,) = [job for job in jobs(ROOT / ".github/workflows/tests.yml") if "strategy" in job]
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert tested["strategy"]["matrix"]["python"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


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
    assert not writing or path.stem in ("release", "site")


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


@pytest.mark.parametrize("name", identity.MADE)
def test_who_and_where_is_what_identity_yaml_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == identity.MADE[name](text), "make identity"
    other = {**identity.identity(), "repository": "https://example.org/other", "site": "https://example.org/elsewhere"}
    other["authors"] = [{"given": "A", "family": 'B "C"', "orcid": "1", "affiliation": "D"}]
    monkeypatch.setattr(identity, "identity", lambda: other)
    changed = identity.MADE[name](text)
    assert changed != text
    assert identity.MADE[name](changed) == changed
    if name == "pyproject.toml":
        about = tomllib.loads(changed)["project"]
        assert about["authors"] == [{"name": 'A B "C"'}]
        assert about["urls"]["Documentation"] == "https://example.org/elsewhere"


def test_no_other_file_names_them() -> None:
    made = {*identity.MADE, "identity.yaml"}
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    names = [name for name in listed if name.endswith((".md", ".yml", ".yaml", ".cff", ".toml")) and name not in made]
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8")
        assert not re.search(r"\bOWNER/|PLACEHOLDER|10\.0000/", text), name


def test_the_version_is_in_one_place() -> None:
    assert "version" in PROJECT["dynamic"]
    assert f"\nversion: {VERSION}\n" in (ROOT / "CITATION.cff").read_text()  # written by make identity
    texts = [
        *(ROOT / "src").rglob("*.py"),
        *(ROOT / "tools").glob("*.py"),
        ROOT / "Makefile",
        ROOT / "mkdocs.yml",
        PYPROJECT,
    ]
    assert [path.name for path in texts if f'"{VERSION}"' in path.read_text(encoding="utf-8")] == ["version.py"]


def test_the_paper_has_the_parts_that_its_journal_wants() -> None:
    _, head, body = (ROOT / "paper/paper.md").read_text(encoding="utf-8").split("---\n", 2)
    assert {"title", "tags", "authors", "affiliations", "date", "bibliography"} == {*yaml.safe_load(head)}
    assert re.findall(r"^# (.*)$", body, re.M) == [
        "Summary",
        "Statement of need",
        "State of the field",
        "Software design",
        "Research impact statement",
        "AI usage disclosure",
        "Acknowledgements",
        "References",
    ]
    assert 750 <= len(body.split()) <= 1750


def test_what_commands_write_is_listed_for_contributors() -> None:
    recipes = re.findall(r"^([a-z -]+):[^=\n]*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.M)
    running = {
        target
        for targets, recipe in recipes
        for target in targets.split()
        if re.search(r"python\)? -m (tools|benchmarks)\b|mkdocs build", recipe, re.I)
    }
    page = (ROOT / "docs/users/contributors.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*) \| `make ([a-z-]+)` \|$", page, re.M)
    assert {target for _, target in rows} == running - PRINT_ONLY
    assert running > PRINT_ONLY
    for written, _ in rows:
        for name in re.findall(r"`([\w./-]+)`", written):
            assert (ROOT / name).exists() or name in ("Options", "build/site"), name


def test_every_package_has_a_reason() -> None:
    page = (ROOT / "docs/dependencies.md").read_text(encoding="utf-8").lower()
    texts = [*PROJECT["dependencies"], *(text for extra in PROJECT["optional-dependencies"].values() for text in extra)]
    names = {Requirement(text).name.lower() for text in texts} - {"protofed"}
    assert [name for name in names if not re.search(rf"\b{re.escape(name)}\b", page)] == []
    extras = {*PROJECT["optional-dependencies"]} - {"test"}
    assert extras == {*re.findall(r"`([\w-]+)`", " ".join(re.findall(r"^\| (`.*?) \|", page, re.M)))}


INSTALLING = [
    path
    for pattern in ("*.md", "docs/**/*.md", "examples/*.py", "src/**/*.py")
    for path in ROOT.glob(pattern)
    if "pip install" in path.read_text(encoding="utf-8") and path.name != "CHANGELOG.md"
]


@pytest.mark.parametrize("path", INSTALLING, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_a_page_has_installed_is_there(path: Path) -> None:
    """Extras exist; the project comes from a clone, as no index has it, or, with an extra, is there already."""
    for words in re.findall(r"pip install ([^`\n&]*)", path.read_text(encoding="utf-8")):
        for name, extras in re.findall(r"""(?:^|[ '"])(protofed|\.)(?:\[([\w,]+)\])?(?=$|[ '",.)])""", words):
            assert {*filter(None, extras.split(","))} <= {*PROJECT["optional-dependencies"], "NAME"}, words
            assert name == "." or extras, words


def test_what_warns_is_listed() -> None:
    page = (ROOT / "docs/deprecations.md").read_text(encoding="utf-8").partition("## What warns now")[2]
    rows = [
        row for row in page.splitlines() if row.startswith("| ") and not row.startswith(("| since", "| – | nothing"))
    ]
    warning = [
        path for path in (ROOT / "src").rglob("*.py") if "DeprecationWarning" in path.read_text(encoding="utf-8")
    ]
    assert bool(rows) == bool(warning)


def test_what_the_paper_cites_is_listed() -> None:
    cited = {*re.findall(r"@([a-z]+\d{4}[a-z]*)", (ROOT / "paper/paper.md").read_text())}
    assert cited == {*re.findall(r"@\w+\{(\w+),", (ROOT / "paper/paper.bib").read_text())}


def test_the_lowest_versions_are_those_of_the_project() -> None:
    assert (
        lowest('[project]\ndependencies = ["torch>=2.6", "scikit-learn>=1.4"]\n') == "torch==2.6\nscikit-learn==1.4\n"
    )
