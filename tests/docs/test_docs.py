"""The code in the documentation runs as printed, and a copied number is the one measured."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from protofed.methods.base import Method
from tests.support.command_line import succeed
from tools.methods_matrix import PAGE, text

ROOT = Path(__file__).parents[2]


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(encoding="utf-8"), flags=re.DOTALL)


@pytest.mark.slow
def test_the_python_example_of_the_readme_runs_as_printed(tmp_path: Path) -> None:
    example = blocks("README.md", "python")[0]
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()[1:]] == ["fedavg", "fedproto"]


@pytest.mark.parametrize(
    ("page", "block", "spec", "setting"),
    [
        ("docs/tutorials/own-method.md", 0, "small_features.py:SmallFeatures", "weight=0.1"),
        ("docs/adding-a-method.md", 0, "cosine_pull.py:CosinePull", "strength=1.0"),
        ("docs/adding-a-method.md", 1, "mixed.py:Mixed", "strength=0.1"),
        ("docs/adding-a-method.md", 1, "apart.py:Apart", "pushes=5"),
    ],
)
def test_the_methods_of_the_documentation_run_in_both_engines(
    page: str, block: int, spec: str, setting: str, tmp_path: Path
) -> None:
    (tmp_path / spec.split(":", maxsplit=1)[0]).write_text(blocks(page, "python")[block], encoding="utf-8")
    results = []
    for engine in ("sequential", "stacked"):
        common = ["--rounds", "2", "--train-size", "200", "--clients", "3", "--alpha", "1", "--precision", "float64"]
        succeed(tmp_path, "run", "--method", spec, "--set", setting, "--engine", engine, "--out", engine, *common)
        rounds = (tmp_path / engine / "rounds.jsonl").read_text(encoding="utf-8").splitlines()
        results.append([re.search(r'"accuracy": \{[^}]*\}', line) for line in rounds])
    assert [found and found.group() for found in results[0]] == [found and found.group() for found in results[1]]


def test_the_page_names_all_that_a_method_may_say() -> None:
    page = (ROOT / "docs/adding-a-method.md").read_text(encoding="utf-8")
    table = page.partition("## What a method may say")[2].partition("`model(x)`")[0]
    said = {*dir(Method), *Method.__annotations__, *(item.name for item in fields(Method))}
    members = {name for name in said if not name.startswith("_")}
    named = set(re.findall(r"`(\w+)`", table))
    assert named == members - {"exchanges_public", "unit_features"}  # which two kinds of methods say


def test_the_commands_of_the_readme_are_in_the_makefile() -> None:
    targets = re.findall(r"^make (\w+)", "".join(blocks("README.md", "sh")), flags=re.MULTILINE)
    assert targets == ["demo", "test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{target}:", makefile, flags=re.MULTILINE) for target in targets)


def test_the_table_of_precisions_is_what_was_measured() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    found = json.loads((ROOT / "docs" / "results" / "precision.json").read_text(encoding="utf-8"))
    columns = ("float32", "tf32", "bf16")
    rows = re.findall(
        r"^\| ((?:own|global)/\w+/[\w-]+) \| (.*) \|$", page.partition("### Precision")[2], flags=re.MULTILINE
    )
    assert len(rows) == 4
    for score, cells in rows:
        measured = [found[column][score] for column in columns]
        assert cells == " | ".join(f"{one['mean']:.1f}±{one['std']:.1f}" for one in measured)


PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those that a page names itself."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    made = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return made | {*re.findall(r'<a id="([\w-]+)"></a>', text)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        goal = (page.parent / path).resolve() if path else page
        assert goal.is_file(), link  # the site has no page for a folder
        if anchor:
            assert anchor in anchors(goal), link


def test_the_matrix_of_methods_is_that_of_the_methods() -> None:
    assert PAGE.read_text(encoding="utf-8") == text()
