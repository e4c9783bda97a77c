"""What results ask of higher layers is there: the linter sees no import by name."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

import protofed
from protofed.internal import higher

SOURCE = Path(protofed.__file__).parent
ASKED = {
    name: path.relative_to(SOURCE).parts[0]
    for path in SOURCE.rglob("*.py")
    for name in re.findall(r'\bask\("(\w+)"', path.read_text(encoding="utf-8"))
}
"""Each name, and a layer that asks for it."""
LAYERS = re.findall(
    r'^  "(\w+)",$', (SOURCE.parents[1] / "importlinter.toml").read_text(encoding="utf-8"), re.MULTILINE
)


def test_what_is_asked_for_is_what_is_named() -> None:
    assert ASKED.keys() == higher._WHERE.keys()


@pytest.mark.parametrize("name", higher._WHERE)
def test_it_is_a_function_of_a_higher_layer(name: str) -> None:
    place = higher._WHERE[name]
    assert callable(getattr(import_module(f"protofed.{place}"), name))
    assert LAYERS.index(place.partition(".")[0]) < LAYERS.index(ASKED[name])
