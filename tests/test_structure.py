"""The shape of the source tree, as docs/architecture.md promises it; import-linter checks the layers (make lint)."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src/protofed"
LONGEST = 60
"""Lines of a function."""


def trees() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def test_few_modules_are_at_the_root() -> None:
    assert len(list(PACKAGE.glob("*.py"))) <= 8


def test_no_function_is_too_long() -> None:
    functions = [
        (f"{path}:{node.name}", (node.end_lineno or 0) - node.lineno + 1)
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [name for name, lines in functions if lines > LONGEST] == []


def test_one_name_stands_for_one_thing() -> None:
    classes = Counter(node.name for tree in trees().values() for node in tree.body if isinstance(node, ast.ClassDef))
    assert [name for name, times in classes.items() if times > 1] == []


def test_tests_mirror_the_packages() -> None:
    packages = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("__init__.py")}
    missing = [str(path) for path in packages if not (ROOT / "tests" / path).is_dir()]
    assert sorted(missing) == ["report/html", "report/page"]  # tests/report/test_html.py and tests/browser
