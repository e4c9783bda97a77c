"""Every public name has a docstring of one form, and its example runs as printed."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import protofed
from tests.support.command_line import succeed
from tools.api_page import COMMANDS, MODULES, Public, public

NAMES = [item for module in MODULES for item in public(module)]


def named(item: Public) -> str:
    """As an address."""
    return f"{item.module}.{item.name}"


def parameters(item: Public) -> list[str]:
    """What a call takes; the fields of Experiment have a help of their own."""
    if item.declared or item.name == "Experiment":
        return []
    given = inspect.signature(item.found).parameters.values()
    return [f"**{each.name}" if each.kind is each.VAR_KEYWORD else each.name for each in given]


@pytest.mark.parametrize("item", NAMES, ids=named)
def test_a_docstring_has_its_sections(item: Public) -> None:
    sections = item.sections
    first = sections[""].split("\n")[0]
    assert first.endswith("."), first
    assert ">>> " in sections.get("Example", "")
    assert list(item.entries("Args")) == parameters(item)
    if inspect.isfunction(item.found) and inspect.signature(item.found).return_annotation not in (None, "None"):
        assert sections.get("Returns")


def test_what_the_package_offers_is_public() -> None:
    offered = [name for name in protofed.__all__ if name != "__version__"]
    listed = [(item.name, id(item.found)) for item in NAMES]
    assert [name for name in offered if (name, id(getattr(protofed, name))) not in listed] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the commands of the page were given."""
    path = tmp_path_factory.mktemp("examples")
    for command in COMMANDS:
        succeed(path, *command.split()[1:])
    return path


def test_examples_run_as_printed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    finder, parser, runner = doctest.DocTestFinder(), doctest.DocTestParser(), doctest.DocTestRunner(verbose=False)
    told: list[str] = []
    for item in NAMES:
        if item.declared:  # a constant's docstring is only in its source
            tests = [parser.get_doctest(item.doc, {}, named(item), item.module, 0)]
        else:
            tests = finder.find(item.found, named(item), globs={})
        assert sum(len(test.examples) for test in tests), named(item)
        for test in tests:
            runner.run(test, out=told.append)
    assert not runner.failures, "".join(told)
