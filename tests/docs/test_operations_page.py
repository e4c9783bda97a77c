"""docs/operations.md lists every kind of event that the code writes, and no other."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from protofed.deploy.client import HANDLERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
WRITERS = {"write", "write_some", "record"}
"""Functions that write an event, whose kind is `kind` or the first argument."""


def texts(node: ast.AST) -> Iterator[str]:
    """A kind as it is given: a text, or one of two; those of messages are variables."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts(node.body)
        yield from texts(node.orelse)


def written(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict):  # a line that is made in two steps
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == "kind":
                    yield from texts(value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITERS:
            given = [word.value for word in node.keywords if word.arg == "kind"]
            for value in given or (node.args[:1] if node.func.attr == "record" else []):
                yield from texts(value)


def test_the_page_has_the_kinds_of_the_code() -> None:
    code = {kind for path in (ROOT / "src/protofed/deploy").glob("*.py") for kind in written(path.read_text("utf-8"))}
    table = PAGE.partition("| kind | side | when |")[2].partition("\n\n")[0]
    first, *rows = re.findall(r"^\| (`.*?) \|", table, flags=re.MULTILINE)
    told = {kind for row in rows for kind in re.findall(r"`([^`]+)`", row)}
    assert told == code
    assert {*re.findall(r"`([^`]+)`", first)} <= {*HANDLERS}  # messages, by their own kinds
    assert len(code) > 15
