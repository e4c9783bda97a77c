"""Every method has a page, a short file and a full entry in the list."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from protofed.methods import METHODS, describe, method_class, parameters
from protofed.methods.base import Method
from protofed.methods.fedavg import FedAvg

ROOT = Path(__file__).parent.parent.parent


def test_all_40_methods_are_there() -> None:
    assert len(METHODS) == 40


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_a_page_a_short_file_and_a_full_entry(name: str) -> None:
    cls = method_class(name)
    assert cls.name == name
    source = Path(inspect.getfile(cls))
    assert len(source.read_text(encoding="utf-8").splitlines()) <= 90
    page = (ROOT / "docs/methods" / f"{name}.md").read_text(encoding="utf-8")
    assert f"src/protofed/methods/{source.name}" in page
    about = describe(name)
    assert all(about[key] for key in ("description", "paper", "up", "down", "score"))
    assert name == "local" or about["link"].startswith("https://")
    assert about["link"] in page
    assert ("[linear head]" in page) == cls.linear_head
    told = {parameter for parameter in parameters(cls) if f"`{parameter}`" in page}
    assert name == "sp-fedcl" or told | inherited(cls) >= parameters(cls).keys()


def inherited(cls: type[Method]) -> set[str]:
    """What a descendant has from FedAvg as it is there; FedAvg's page tells it."""
    if not issubclass(cls, FedAvg) or cls is FedAvg:
        return set()
    theirs = parameters(FedAvg)
    return {name for name, one in parameters(cls).items() if name != "averaging" and one == theirs.get(name)}
