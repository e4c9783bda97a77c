"""The clients' models between their turns: a store against a dict of dicts, in memory and in a file."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import protofed.engines.client_models as module
from protofed.data import Client, Federation
from protofed.data.preparation import Preparation
from protofed.engines.client_models import Layout, Records, Store
from protofed.errors import UserError
from tests.support.nets import Plain, images, play

CLIENTS = 7
ROOM = {"memory": 1e9, "file": 0.0}
INITIAL = {
    "weight": torch.randn(3, 2),
    "double": torch.randn(3, dtype=torch.float64),
    "half": torch.randn(3).half(),
    "batches": torch.tensor(7),
    "mask": torch.tensor([True, False, True]),
    "nothing": torch.empty(0, 4),
}


def models(clients: int, seed: int) -> dict[str, Tensor]:
    """Random models of that form."""
    rng = torch.Generator().manual_seed(seed)
    return {
        name: torch.randint(0, 99, (clients, *value.shape), generator=rng).to(value.dtype)
        for name, value in INITIAL.items()
    }


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> None:
    assert list(a) == list(b)
    assert_close(a, b, atol=0, rtol=0)


@settings(max_examples=30, deadline=None)
@given(
    turns=st.lists(st.lists(st.integers(0, CLIENTS - 1), min_size=1, unique=True), max_size=5),
    asked=st.lists(st.integers(0, CLIENTS - 1), min_size=1),
    place=st.sampled_from(list(ROOM)),
)
def test_a_store_gives_back_what_was_put_last_and_the_initial_model_before(
    turns: list[list[int]], asked: list[int], place: str
) -> None:
    store = Store(INITIAL, CLIENTS, ROOM[place])
    expected = dict.fromkeys(range(CLIENTS), INITIAL)
    for seed, rows in enumerate(turns):
        trained = models(len(rows), seed)
        store.put(rows, trained)
        expected |= {row: {name: value[k] for name, value in trained.items()} for k, row in enumerate(rows)}
    found = store.take(asked)
    same(found, {name: torch.stack([expected[row][name] for row in asked]) for name in INITIAL})
    assert store.trained == store.changed == {row for rows in turns for row in rows}
    for value in found.values():
        value.zero_()  # a copy
    same(store.take(asked), {name: torch.stack([expected[row][name] for row in asked]) for name in INITIAL})


@pytest.mark.parametrize("place", ROOM)
def test_the_initial_model_is_not_the_caller_s(place: str) -> None:
    mine = {name: value.clone() for name, value in INITIAL.items()}
    store = Store(mine, CLIENTS, ROOM[place])
    mine["weight"].zero_()
    same(store.initial, INITIAL)
    same(store.take([3]), {name: value.unsqueeze(0) for name, value in INITIAL.items()})


@given(clients=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=10, deadline=None)
def test_packing_and_unpacking_leave_aligned_tensors(clients: int, seed: int) -> None:
    layout = Layout(INITIAL)
    packed = layout.pack(models(clients, seed))
    assert packed.shape == (clients, layout.size // 8)
    assert layout.size - 8 < sum(value.nbytes for value in INITIAL.values()) <= layout.size
    unpacked = layout.unpack(packed, INITIAL)
    same(unpacked, models(clients, seed))
    assert all(value.is_contiguous() and value.data_ptr() % 16 == 0 for value in unpacked.values())


def test_only_who_trained_takes_room_in_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "states"
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda: path.open("w+b"))
    store = Store({"w": torch.zeros(100_000)}, 1000, room=0)
    store.take(range(50))
    assert path.stat().st_size == 0
    store.put([900, 3], {"w": torch.ones(2, 100_000)})
    assert torch.equal(store.take([3])["w"], torch.ones(1, 100_000))
    assert path.stat().st_blocks * 512 < 4 * 400_000  # of 1,000 times 400,000


def test_a_full_disk_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(INITIAL, CLIENTS, room=0)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Records, "__setitem__", full)
    with pytest.raises(UserError, match=r"TMPDIR: .*No space left on device"):
        store.put([0], models(1, 0))


def test_records_that_are_not_there_are_not_made_up(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        records = Records(file, 16)
        records[[1]] = torch.tensor([[5, 6]])
        assert records[[1, 0]].tolist() == [[5, 6], [0, 0]]
        with pytest.raises(EOFError):
            records[[2]]


@pytest.mark.parametrize("method", ["fedavg", "moon"])
def test_many_clients_and_few_in_a_round_are_the_same_from_a_file(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """2,000 clients, 20 a round: Moon's keep their last model, which comes from the store."""
    pool = images(12, (1, 4, 4), 3, seed=1)
    data = images(8000, (1, 4, 4), 3, seed=0)
    clients = [
        Client(
            data.take(torch.arange(4 * k, 4 * k + 4)),
            pool,
            torch.tensor([k % 12]),
            None,
            Preparation("pixels", (0.5,), (0.3,)),
        )
        for k in range(2000)
    ]
    federation = Federation(tuple(clients), ("a", "b", "c"))
    options: dict[str, Any] = {
        "engine": "stacked",
        "participation": 0.01,
        "model": Plain,
        "clients": federation,
        "epochs": 1,
    }
    runs = []
    for part in (0.25, 0.0):
        monkeypatch.setattr(module, "PART", part)
        runs.append(play(method, rounds=3, eval_every=3, **options))
    memory, file = (run.engine.groups[0].own for run in runs)
    assert isinstance(memory._states, Tensor)
    assert isinstance(file._states, Records)
    assert 20 < len(memory.trained) <= 60
    same(memory.take(range(2000)), file.take(range(2000)))
    for one, other in zip(runs[0].history, runs[1].history, strict=True):
        assert replace(one, seconds=0) == replace(other, seconds=0)
    assert len(runs[0].history[-1].per_client["own/all/head"]) == 2000
