"""What files say gets in only if it is of the declared form."""

from __future__ import annotations

import operator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import UserError
from protofed.internal.schema import Bounds, fits, made, read_json, require


class Pair(TypedDict):
    """Two numbers."""

    a: int
    b: float


@dataclass(frozen=True)
class Thing:
    """A name, and perhaps numbers."""

    name: str
    numbers: list[float] = field(default_factory=list)
    folder: str | None = None


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1, int),
        (1, float),
        (1.5, int | float | None),
        (None, str | None),
        (True, bool),
        ([1, 2.5], list[float]),
        (["a"], tuple[str, ...]),
        ({"a": [1]}, dict[str, list[int]]),
        ({"a": object()}, dict[str, Any]),
        ("x", Literal["x", "y"]),
        ({"a": 1, "b": 2, "c": 3}, Pair),
    ],
)
def test_what_fits(value: Any, kind: Any) -> None:
    assert fits(value, kind)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, int),
        (1.0, int),
        (2**63, int),
        (float("nan"), float),
        (float("-inf"), float),
        (10**400, float),
        ("1", float),
        ("abc", list[str]),
        ([1, None], list[int]),
        ({1: 2}, dict[str, int]),
        ([], Literal["x"]),
        ({"a": 1}, Pair),
        (None, str),
    ],
)
def test_what_does_not_fit(value: Any, kind: Any) -> None:
    assert not fits(value, kind)


def test_a_dataclass_is_made_of_what_a_file_says() -> None:
    assert made("file", Thing, {"name": "a", "numbers": [1]}, folder="here") == Thing("a", [1], "here")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "'\\[\\]' for file: .*names and values"),
        ({}, "missing value for name in file: "),
        ({"name": 3}, "'3' for name in file: .*str"),
        ({"name": "a", "numbers": ["b"]}, r"'\['b'\]' for numbers in file: "),
        ({"name": "a", "nubmers": []}, "'nubmers' for file: (?s:.*)did you mean 'numbers'"),
    ],
)
def test_what_a_file_says_wrongly_is_named(values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        made("file", Thing, values)


def test_a_value_that_cannot_be_shown_is_still_an_error() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    for value in (16**10_000, deep, "x" * 10**6):
        with pytest.raises(UserError) as caught:
            require("file", {"a": value, "b": "no"}, Pair)
        assert len(str(caught.value)) < 2000


@pytest.mark.parametrize("content", [b"", b"\xff", b"{", b"[" * 10_000, b"9" * 5000])
def test_what_is_no_json_is_one_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.json"):
        read_json(tmp_path / "a.json")
    with pytest.raises(UserError, match="absent"):
        read_json(tmp_path / "absent")


HOLDS = {"at_least": operator.ge, "above": operator.gt, "at_most": operator.le, "below": operator.lt}
NUMBERS = st.integers(-3, 3)


@given(st.dictionaries(st.sampled_from(list(HOLDS)), NUMBERS), NUMBERS)
def test_a_number_is_accepted_exactly_within_its_bounds(limits: dict[str, int], value: int) -> None:
    within = all(HOLDS[name](value, limit) for name, limit in limits.items())
    with nullcontext() if within else pytest.raises(UserError, match=f"'{value}' for x: "):
        Bounds(**limits).check("x", value)


def test_nothing_is_within_any_bounds() -> None:
    Bounds(at_least=1, below=1).check("x", None)


@pytest.mark.parametrize(
    ("bounds", "words"),
    [
        (Bounds(at_least=1), "1 or more"),
        (Bounds(above=0), "above 0"),
        (Bounds(at_most=1), "at most 1"),
        (Bounds(below=0.5), "below 0.5"),
        (Bounds(at_least=-1, at_most=1), "from -1 to 1"),
        (Bounds(above=0, at_most=1), "above 0 and at most 1"),
        (Bounds(at_least=0, below=1), "at least 0 and below 1"),
        (Bounds(above=0, below=1), "above 0 and below 1"),
    ],
)
def test_bounds_are_said_in_words(bounds: Bounds, words: str) -> None:
    assert str(bounds) == words
