"""A user's own code by name."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path

import pytest

from protofed.errors import UserError
from protofed.internal.plugins import give, is_code, load_code, name_of, only_here, refuse_while_importing
from protofed.methods.fedavg import FedAvg


class Outer:
    """Something with a place."""

    class Inner:
        """And inside it."""


def test_what_a_module_holds_is_named_by_it() -> None:
    for found, name in (
        (Outer, "Outer"),
        (Outer.Inner, "Outer.Inner"),
        (test_what_a_module_holds_is_named_by_it, None),
    ):
        spec = name_of(found, "unused")
        assert spec == f"tests.internal.test_plugins:{name or found.__name__}"
        assert load_code("--method", spec) is found
        assert is_code(spec)
        assert not only_here(spec)
    assert name_of(FedAvg, "fedavg") == "protofed.methods.fedavg:FedAvg"


def test_what_nobody_else_finds_is_named_for_this_session() -> None:
    one, two = partial(int), partial(float)
    assert (name_of(one, "a b"), name_of(two, "a b"), name_of(one, "a b")) == (
        "session:ab",
        "session:ab-2",
        "session:ab",
    )
    assert load_code("--model", "session:ab-2") is two
    assert only_here("session:ab")
    del two
    gc.collect()
    with pytest.raises(UserError, match=r"only there it can go on: protofed.resume\(DIR, model=…\)"):
        load_code("--model", "session:ab-2")


def test_a_name_stands_for_what_it_is_given_to() -> None:
    give("/nowhere/file.py:Name", Outer)
    assert load_code("--method", "/nowhere/file.py:Name") is Outer


def test_a_file_of_ones_own_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "its_own.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    its_own = __import__("its_own")
    assert name_of(its_own.Thing, "thing") == f"{tmp_path.resolve()}/its_own.py:Thing"
    assert load_code("--method", f"{tmp_path}/its_own.py:Thing").__name__ == "Thing"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("no.such.module:Name", "no.such.module cannot be imported here"),
        ("protofed.methods.fedavg:Nope", "has no Nope"),
    ],
)
def test_what_is_not_there_is_one_error(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_code("--method", spec)


def test_a_file_that_is_imported_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import protofed\nclass Thing: pass\nprotofed.run('local')\n")
    with pytest.raises(UserError, match="if __name__"):
        load_code("--method", f"{tmp_path}/script.py:Thing")
    refuse_while_importing("protofed.run")  # it is not imported any more
