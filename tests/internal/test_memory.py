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


@pytest.mark.parametrize(("held", "goes"), [(memory.KEPT + 1, True), (memory.KEPT, False)])
def test_what_refers_to_itself_goes_once_a_process_holds_much(
    held: int, goes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "resident", lambda: held)
    gc.disable()
    try:
        kept = weakref.ref(Knot())
        memory.let_go()
        assert (kept() is None) == goes
    finally:
        gc.enable()
