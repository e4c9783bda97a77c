"""Errors of users: one template, a hint of its own, and every call in the package keeps to it."""

from __future__ import annotations

import ast
import pickle
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import protofed
from protofed.errors import LONGEST, DivergedError, Failure, UserError, listed, missing_value, misused, unknown

NAMES = [f"name{number}" for number in range(12)]
PLACES = {"UserError": 2, "BusyError": 2, "missing_value": 1, "misused": 1}
"""What makes an error, and where its reason stands among the arguments; that of `unknown` is its own."""


class Call:
    """A call in the package that makes an error."""

    def __init__(self, where: str, node: ast.Call, name: str, around: ast.AST) -> None:
        self.where, self.node, self.name, self.around = f"{where}:{node.lineno}", node, name, around

    @property
    def reasons(self) -> list[ast.expr]:
        """What is written for a reason: in the call, or assigned to a name before."""
        if self.name not in PLACES:
            return []
        given = self.node.args[PLACES[self.name]]
        return [given] if not isinstance(given, ast.Name) else list(_assigned(given.id, self.around))


def _assigned(name: str, around: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(around):
        if isinstance(node, ast.Assign):
            to, given = node.targets[0], node.value
            pairs: Iterable[tuple[ast.expr, ast.expr]] = [(to, given)]
            if isinstance(to, ast.Tuple) and isinstance(given, ast.Tuple):
                pairs = zip(to.elts, given.elts, strict=True)
            yield from (value for target, value in pairs if isinstance(target, ast.Name) and target.id == name)


def _calls() -> Iterator[Call]:
    folder = Path(protofed.__file__).parent
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        for node in ast.walk(tree):
            name = getattr(node.func, "id", "") if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and name in {*PLACES, "unknown"}:
                around = [one for one in functions if any(child is node for child in ast.walk(one))]
                yield Call(str(path.relative_to(folder)), node, name, around[-1])


def _written(expression: ast.expr) -> list[str]:
    """A text that is written out, if it is one; a value that is put in counts as x."""
    if isinstance(expression, ast.JoinedStr):
        return ["".join(str(one.value) if isinstance(one, ast.Constant) else "x" for one in expression.values)]
    return [expression.value] if isinstance(expression, ast.Constant) and isinstance(expression.value, str) else []


CALLS = list(_calls())


def test_the_calls_are_found() -> None:
    assert len(CALLS) > 200
    assert sum(len(_written(reason)) for call in CALLS for reason in call.reasons) > 180


@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.where)
def test_every_error_of_the_package_keeps_to_the_template(call: Call) -> None:
    argument, *rest = call.node.args
    assert _written(argument) != [""]
    if call.name in ("UserError", "BusyError", "unknown"):
        literal = rest[0].value if isinstance(rest[0], ast.Constant) else ""
        assert literal is not None
        assert not isinstance(literal, bool)
    for text in (text for reason in call.reasons for text in _written(reason)):
        assert text
        assert not text[0].isupper(), text
        assert not text.endswith("."), text
        assert "is not usable" not in text


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (0.0, "invalid value '0.0' for --x: why"),
        ("a b", "invalid value 'a b' for --x: why"),
        ("it's", "invalid value 'it's' for --x: why"),
        ("", "invalid value '' for --x: why"),
        ("two\nlines\x1b[1m", r"invalid value 'two\nlines\x1b[1m' for --x: why"),
        (True, "invalid value 'true' for --x: why"),
        (None, "missing value for --x: why"),
        ([3, 28], "invalid value '[3, 28]' for --x: why"),
        ("n" * (LONGEST + 1), f"invalid value '{'n' * LONGEST}…' for --x: why"),
        pytest.param(10**5000, "invalid value (int, too large to show) for --x: why", id="too large"),
    ],
)
def test_a_value_is_shown_as_it_is_written(value: object, line: str) -> None:
    error = UserError("--x", value, "why")
    assert str(error) == line
    assert error.hint is None


def test_a_reason_of_several_lines_is_told_in_one() -> None:
    assert str(UserError("--x", 1, "two\n  lines")) == "invalid value '1' for --x: two lines"


def test_what_has_no_value_is_told_alike() -> None:
    assert str(missing_value("--x", "name one")) == "missing value for --x: name one"
    assert str(misused("--x", "not here", hint="try --y")) == "invalid use of --x: not here"
    assert misused("--x", "not here", hint="try --y").hint == "try --y"


@pytest.mark.parametrize("error", [UserError("--x", 1, "why", hint="do"), DivergedError("it diverged", "do")])
def test_python_shows_the_hint_below_the_error(error: UserError | DivergedError) -> None:
    assert error.hint == "do"
    assert "".join(traceback.format_exception_only(error)).endswith(f"{error}\nhint: do\n")


@pytest.mark.parametrize(
    ("value", "known", "see", "reason", "hint"),
    [
        ("on", ["one", "two"], None, "it must be one of one, two", "did you mean 'one'?"),
        ("x", ["one", "two"], None, "it must be one of one, two", None),
        ("x", ["one"], None, "there is only one", None),
        ("x", [], None, "there are none", None),
        ("--rounds", ["--out", "--json"], "x --help", "it must be one of --json, --out", "`x --help` lists them all"),
        ("--methd", ["--out", "--method"], None, "it must be one of --method, --out", "did you mean '--method'?"),
        ("x", ["one", "two"], "a list", "it must be one of one, two", "`a list` lists them all"),
        ("name", NAMES, "a list", "there is none of that name", "did you mean 'name9'? `a list` lists them all"),
        ("x", NAMES, "a list", "there is none of that name", "`a list` lists them all"),
        ("x", NAMES, None, f"it must be one of {', '.join(sorted(NAMES)[:8])} and 4 more", None),
    ],
)
def test_an_unknown_name(value: str, known: list[str], see: str | None, reason: str, hint: str | None) -> None:
    error = unknown("--x", value, known, see=see)
    assert str(error) == f"invalid value '{value}' for --x: {reason}"
    assert error.hint == hint


def test_long_lists_are_cut() -> None:
    assert listed(NAMES[:8]) == "name0, name1, name2, name3, name4, name5, name6, name7"
    assert listed(NAMES) == f"{listed(NAMES[:8])} and 4 more"


@pytest.mark.parametrize("error", [UserError("--x", 1, "why", hint="do"), DivergedError("nan"), RuntimeError("other")])
def test_an_error_of_another_process_is_the_same_here(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(Failure.of(error))).error()
    assert type(again) is type(error)
    assert str(again) == str(error)
    assert getattr(again, "hint", None) == getattr(error, "hint", None)
    assert getattr(again, "__notes__", []) == getattr(error, "__notes__", [])
