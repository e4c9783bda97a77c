"""No module but the registry and the methods' own files knows a method by its name, its module or its class."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from protofed.methods import METHODS

PACKAGE = Path(__file__).parents[2] / "src/protofed"

CLASSES = {entry.partition(":")[2] for entry in METHODS.values()} | {"PrototypePool"}

FOR_ALL = {"base", "convergence", "optimisers"}
"""Modules of methods/ that say what a method is, of no particular one."""

ELSEWHERE = {
    ("experiment.py", "mp-fedcl"),  # the default of a run
    ("evaluation/motion.py", "local"),
    ("evaluation/snapshot.py", "local"),  # prototypes of a client's own, in the file's form
    ("report/plots.py", "local"),
}
"""Where a method's name may stand, or is a word for something else."""


def knowledge(tree: ast.AST) -> Iterator[str]:
    """What a module holds of particular methods; of texts, such as docstrings and help, only those that are names."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name for name in _imported(node) if name)
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in CLASSES:
                yield name
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            parts = [part.strip() for part in node.value.split(",")]
            if all(part in METHODS for part in parts):
                yield node.value


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    """Modules of methods/ that are a method's, and classes of methods."""
    for one in node.names:
        path = one.name if isinstance(node, ast.Import) else f"{node.module}.{one.name}"
        module = path.removeprefix("protofed.methods.").split(".")[0] if path.startswith("protofed.methods.") else ""
        if (PACKAGE / "methods" / f"{module}.py").is_file() and module not in FOR_ALL:
            yield module
        elif one.name in CLASSES:
            yield one.name


@pytest.mark.parametrize(
    "source",
    [
        "from protofed.methods.fedproto import FedProto",
        "from protofed.methods.prototype_pool import PrototypePool",
        "from protofed.methods import moon",
        "import protofed.methods.fccl_plus",
        "def f():\n    from protofed.methods.fednh import W",
        "isinstance(method, registry.FedSC)",
        "method.name == 'fednh'",
        "NAMES = 'fedavg, fedproto'",
    ],
)
def test_knowledge_is_found(source: str) -> None:
    assert list(knowledge(ast.parse(source)))


@pytest.mark.parametrize(
    "source",
    [
        "from protofed.methods.base import Method, PublicExchange",
        "from protofed.methods import METHODS, build_method",
        "'''FedProto's distance, as in fedproto.'''",
        "Option(help='A method, such as fedavg.')",
    ],
)
def test_what_is_about_all_methods_or_only_told_is_no_knowledge(source: str) -> None:
    assert list(knowledge(ast.parse(source))) == []


def test_only_the_registry_and_methods_know_methods() -> None:
    paths = [path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py"))]
    known = {
        (path.as_posix(), name)
        for path in paths
        if path.parts[0] != "methods"
        for name in knowledge(ast.parse((PACKAGE / path).read_text(encoding="utf-8")))
    }
    assert known == ELSEWHERE
