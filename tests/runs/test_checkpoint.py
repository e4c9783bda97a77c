"""Checkpoints: in the background, only what changed, whole or not at all."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

import protofed.runs.checkpoint as module
from protofed.engines.client_models import Records
from protofed.errors import UserError
from protofed.internal import tensor_files
from protofed.runs.checkpoint import Checkpoint, ServerState
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress, Standing
from protofed.runs.run import Run
from tests.support.nets import CLASSES, Norm, Plain, federation, gap, play

SIZE = 8 * (64 * 6 + 6 + 6 * CLASSES + CLASSES)  # bytes of a Plain net


def save(checkpoint: Checkpoint, run: Run, rounds: int) -> None:
    checkpoint.save(ServerState(run.broadcast, rounds), run.engine.groups)


def loaded(folder: Path, like: Run, **settings: Any) -> dict[str, Tensor]:
    """The state that a new process finds in a checkpoint."""
    run = play(like.method.name, rounds=0, clients=like.federation, **settings)
    found = Checkpoint(folder).load(run.engine.groups)
    assert found is not None
    run.broadcast = found[0]
    return run.state()


@pytest.mark.parametrize("method", ["fedproto", "mp-fedcl", "fesem"])
def test_a_checkpoint_comes_back_as_it_was(tmp_path: Path, method: str) -> None:
    run = play(method, model=Norm, rounds=2)
    assert Checkpoint(tmp_path / "c").load(run.engine.groups) is None
    with Checkpoint(tmp_path / "c") as checkpoint:
        save(checkpoint, run, 2)
    assert gap(loaded(tmp_path / "c", run, model=Norm), run.state()) == 0
    assert {path.name for path in (tmp_path / "c").iterdir()} == {"state.safetensors", "clients-0.bin"}


def test_a_checkpoint_is_of_the_moment_at_which_it_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = play("fedproto", model=Plain, rounds=2)
    expected = run.state()
    go = threading.Event()

    def write(*state: Any) -> None:
        go.wait(60)
        save_file(*state)

    monkeypatch.setattr(tensor_files, "save_file", write)
    checkpoint = Checkpoint(tmp_path / "c")
    save(checkpoint, run, 2)  # it returns while the writer waits
    run.play_round()
    assert not checkpoint.file.exists()
    go.set()
    checkpoint.wait()
    assert gap(loaded(tmp_path / "c", run, model=Plain), expected) == 0
    assert gap(run.state(), expected) > 1e-4


@settings(max_examples=10, deadline=None)
@given(turns=st.lists(st.lists(st.integers(0, 4), unique=True), min_size=1, max_size=6), at_once=st.integers(1, 3))
def test_only_what_changed_is_written_and_never_over_what_is_named(
    tmp_path_factory: pytest.TempPathFactory, turns: list[list[int]], at_once: int
) -> None:
    """A checkpoint is good until the moment in which its successor takes its place."""
    folder = tmp_path_factory.mktemp("some") / "c"
    run = play("fedproto", model=Plain, rounds=0)
    own = run.engine.groups[0].own
    checkpoint = Checkpoint(folder)
    written: list[int] = []
    expected: dict[str, Tensor] | None = None
    keep = Records.__setitem__

    def note(records: Records, rows: Sequence[int], packed: Tensor) -> None:
        written.extend(rows)
        keep(records, rows, packed)

    replace = os.replace

    def look_first(draft: Path, path: Path) -> None:
        if expected is not None:
            assert gap(loaded(folder, run, model=Plain), expected) == 0
        replace(draft, path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "AT_ONCE", at_once * SIZE)
        patch.setattr(Records, "__setitem__", note)
        patch.setattr(os, "replace", look_first)
        for number, rows in enumerate(turns):
            written.clear()
            if rows:
                own.put(rows, {name: torch.randn(len(rows), *v.shape).to(v) for name, v in own.initial.items()})
            save(checkpoint, run, number)
            checkpoint.wait()
            assert len(written) == len(rows)
            expected = run.state()
            assert gap(loaded(folder, run, model=Plain), expected) == 0
    if any(turns):
        assert (folder / "clients-0.bin").stat().st_size <= 10 * SIZE


def test_clients_that_never_trained_are_not_in_it(tmp_path: Path) -> None:
    run = play("fedproto", model=Plain, rounds=1, participation=0.4)
    with Checkpoint(tmp_path / "c") as checkpoint:
        save(checkpoint, run, 1)
    assert (tmp_path / "c/clients-0.bin").stat().st_size == 2 * SIZE
    assert gap(loaded(tmp_path / "c", run, model=Plain), run.state()) == 0


class Broken(Exception):
    """What a disk may do."""


@pytest.mark.parametrize(("what", "last"), [("save_file", 1), ("Records", 1), ("save_file", 3)])
def test_an_error_of_the_writer_is_an_error_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, last: int
) -> None:
    """At the next checkpoint or, of the last one, at the end; what was there before stays."""
    run = play("fedproto", model=Plain, rounds=0)
    run.experiment = dataclasses.replace(run.experiment, rounds=3, motion=False)
    folder = RunFolder.create(tmp_path / "run", run.experiment)

    def fail(*_: object) -> None:
        raise Broken

    class BreakAfter(Progress):
        def tell(self, standing: Standing) -> None:
            if standing.done == last - 1 and standing.loss is not None:
                folder.checkpoint.wait()
                monkeypatch.setattr(where, what, fail)

    where = tensor_files if what == "save_file" else module
    if last == 1:
        monkeypatch.setattr(where, what, fail)
    with pytest.raises(Broken):
        run.play(folder, BreakAfter())
    assert len(run.history) == min(last + 1, 3)
    assert not folder.result.exists()
    found = Checkpoint(tmp_path / "run/checkpoint").load(play("fedproto", model=Plain, rounds=0).engine.groups)
    assert (None if found is None else found[1]) == (None if last == 1 else last - 1)


def test_what_was_begun_is_written_although_the_run_fails(tmp_path: Path) -> None:
    run = play("fedproto", model=Plain, rounds=1)
    checkpoint = Checkpoint(tmp_path / "c")

    def fail() -> None:
        with checkpoint:
            save(checkpoint, run, 1)
            raise Broken

    with pytest.raises(Broken):
        fail()
    assert checkpoint.file.exists()


def test_clients_or_a_model_of_another_kind_are_refused(tmp_path: Path) -> None:
    run = play("fedproto", model=Plain, rounds=1)
    with Checkpoint(tmp_path / "run/c") as checkpoint:
        checkpoint.folder.parent.mkdir()
        save(checkpoint, run, 1)
    fewer = play("fedproto", model=Plain, rounds=0, clients=federation([{0: 9}, {1: 9}], test=20))
    for other in (play("fedproto", model=Norm, rounds=0), fewer):
        with pytest.raises(UserError, match=r"run.*its checkpoint cannot be read: it is of other clients or another"):
            Checkpoint(tmp_path / "run/c").load(other.engine.groups)


@pytest.mark.parametrize("keep", [None, 0, SIZE + 8])
def test_lost_models_are_refused(tmp_path: Path, keep: int | None) -> None:
    run = play("fedproto", model=Plain, rounds=1)
    with Checkpoint(tmp_path / "c") as checkpoint:
        save(checkpoint, run, 1)
    clients = tmp_path / "c/clients-0.bin"
    if keep is None:
        clients.unlink()
    else:
        clients.write_bytes(clients.read_bytes()[:keep])
    with pytest.raises(UserError, match="its checkpoint cannot be read"):
        Checkpoint(tmp_path / "c").load(play("fedproto", model=Plain, rounds=0).engine.groups)


def test_a_damaged_checkpoint_is_not_gone_on_from(tmp_path: Path) -> None:
    run = play("mp-fedcl", rounds=1)
    with Checkpoint(tmp_path / "c") as checkpoint:
        save(checkpoint, run, 1)
    whole = checkpoint.file.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1  # a number of the server's, which is still one
    for data in (bytes(flipped), whole.replace(b'"rounds":"1"', b'"rounds":"2"'), whole[:100], b""):
        checkpoint.file.write_bytes(data)
        with pytest.raises(UserError, match="its checkpoint cannot be read"):
            Checkpoint(tmp_path / "c").load(run.engine.groups)
    with pytest.raises(UserError, match="its checkpoint cannot be read"):
        Checkpoint(tmp_path / "c").rounds()
