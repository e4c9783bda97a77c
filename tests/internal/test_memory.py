"""Memory of earlier runs is given back."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest
import torch

from protofed.internal import memory


class Knot:
    """Refers to itself, as what a run is made of does."""

    def __init__(self) -> None:
        self.me = self


@pytest.mark.skipif(sys.platform != "linux", reason="what a process holds is known on Linux")
def test_what_a_process_holds() -> None:
    before = memory.resident()
    block = torch.ones(2**26)  # 256 MiB
    assert memory.resident() - before > 2**27
    del block


@pytest.mark.parametrize(
    ("held", "left", "goes"),
    [
        (memory.KEPT + 1, 0, True),
        (memory.KEPT, 0, False),
        (2 * memory.KEPT, 2 * memory.KEPT, False),  # it was looked through, and that is what is in use
        (2 * memory.KEPT + memory.GROWTH + 1, 2 * memory.KEPT, True),
    ],
)
def test_what_refers_to_itself_goes_once_a_process_holds_much_more(
    held: int, left: int, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "resident", lambda: held)
    monkeypatch.setattr(memory, "_left", [left])
    gc.disable()
    try:
        kept = weakref.ref(Knot())
        memory.let_go()
        assert (kept() is None) == goes
    finally:
        gc.enable()
    assert memory._left == [held if goes else left]
