"""What results ask of higher layers is there: the linter sees no import by name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import protofed
from protofed.internal import higher

SOURCE = Path(protofed.__file__).parent
ASKING = {path: text for path in SOURCE.rglob("*.py") if "higher import ask" in (text := path.read_text("utf-8"))}
ASKED = {
    name: path.relative_to(SOURCE).parts[0]
    for path, text in ASKING.items()
    for name in re.findall(r'\bask\("(\w+)"', text)
}
"""Each name, and a layer that asks for it."""
CONTRACT = (Path(__file__).parents[2] / "importlinter.toml").read_text("utf-8")
LAYERS = re.findall(r'^  "(\w+)",$', CONTRACT, re.MULTILINE)
"""Highest first."""


def test_what_is_asked_for_is_what_is_named() -> None:
    assert ASKED.keys() == higher._WHERE.keys()


@pytest.mark.parametrize("name", higher._WHERE)
def test_it_is_a_function_of_a_higher_layer(name: str) -> None:
    place = higher._WHERE[name]
    assert callable(getattr(import_module(f"protofed.{place}"), name))
    assert LAYERS.index(place.partition(".")[0]) < LAYERS.index(ASKED[name])
