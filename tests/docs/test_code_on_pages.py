"""Every command on every page exists, with its flags; every block of Python is Python and finds what it imports."""

from __future__ import annotations

import ast
import importlib
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from protofed.cli import app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])


def fenced(page: Path, language: str) -> list[str]:
    """The blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(block: str) -> Iterator[list[str]]:
    """The words of each call of protofed."""
    for line in block.replace("\\\n", " ").splitlines():
        if line.startswith("protofed "):
            yield shlex.split(re.sub(r"\s#.*|\s*[&|>].*$", "", line).replace("…", " ").replace("[OPTIONS]", ""))[1:]


@cache
def command_line() -> Any:
    """All commands, made once."""
    return typer.main.get_command(app)


def unknown(words: list[str]) -> list[str]:
    """What of a call the command line does not know."""
    command = command_line()
    while hasattr(command, "commands"):
        if not words or words[0].startswith("-"):
            return []
        name, *words = words
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)}
    return [word for word in words if re.match(r"--\w", word) and word.partition("=")[0] not in {*known, "--help"}]


def called(page: Path) -> list[list[str]]:
    return [words for language in ("sh", "") for block in fenced(page, language) for words in commands(block)]


@pytest.mark.parametrize("page", [page for page in PAGES if called(page)], ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_page_exist(page: Path) -> None:
    assert [(words[:2], wrong) for words in called(page) if (wrong := unknown(words))] == []


def test_a_command_that_is_not_there_is_found() -> None:
    assert unknown(["run", "--method", "fedavg", "--colour", "red"]) == ["--colour"]
    assert unknown(["deploy", "begin"]) == ["begin"]
    assert next(commands("protofed run --seed 1 \\\n  --no-such x   # why\n")) == [
        "run",
        "--seed",
        "1",
        "--no-such",
        "x",
    ]


@pytest.mark.parametrize(
    "page", [page for page in PAGES if fenced(page, "python")], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_python_of_a_page_is_python(page: Path) -> None:
    """What the pages of the interface print are signatures, whose examples run elsewhere."""
    if "api" in page.parts:
        return
    for block in fenced(page, "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("protofed"):
                module = importlib.import_module(str(node.module))
                assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []
