"""Files that say which rows are whose: what is read, what is written, and what is refused."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protofed.data import index_files
from protofed.data.index_files import Division, check_rows, read_division, write_division
from protofed.errors import UserError

ROWS = st.lists(st.lists(st.integers(0, 999), min_size=1, max_size=8), min_size=1, max_size=6)


def written(tmp_path: Path, said: object, name: str = "rows.json") -> str:
    path = tmp_path / name
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    return f"indices:{path}"


def lists(division: Division) -> tuple[list[list[int]], list[list[int]] | None]:
    test = None if division.test is None else [rows.tolist() for rows in division.test]
    return [rows.tolist() for rows in division.train], test


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(train=ROWS, pooled=st.booleans(), data=st.data())
def test_what_is_written_is_read_again(
    tmp_path: Path, train: list[list[int]], pooled: bool, data: st.DataObject
) -> None:
    test = data.draw(st.lists(st.lists(st.integers(0, 99), min_size=1), min_size=len(train), max_size=len(train)))
    path = tmp_path / "rows.json"
    write_division(
        Division([torch.tensor(rows) for rows in train], [torch.tensor(rows) for rows in test], pooled), path
    )
    again = read_division(f"indices:{path}")
    assert (*lists(again), again.pooled) == (train, test, pooled)


@settings(max_examples=60, deadline=None)
@given(train=ROWS, total=st.integers(1, 1100))
def test_rows_are_checked_as_plain_python_would(train: list[list[int]], total: int) -> None:
    """Each row at most once, and none that is not there."""
    together = [row for rows in train for row in rows]
    fine = max(together) < total and len(set(together)) == len(together)
    division = Division([torch.tensor(rows) for rows in train])
    if fine:
        check_rows("indices:x", division, total, 5)
    else:
        with pytest.raises(UserError, match="--split"):
            check_rows("indices:x", division, total, 5)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.recursive(
        st.none() | st.booleans() | st.integers(-3, 2**70) | st.floats() | st.text(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["train", "test", "pooled", "0", "1"]), inner, max_size=3)
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused_in_one_line(tmp_path: Path, said: object) -> None:
    try:
        division = read_division(written(tmp_path, said))
    except UserError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert all(len(rows) and rows.dtype == torch.int64 for rows in division.train)
    assert len(refusal.splitlines()) <= 1


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("[[0, 1], [2]", "it is no JSON"),
        ('{"train": [[0]], "train": [[1]]}', "a key is there twice"),
        ("[" * 100_000, "nested too deeply"),
        ([], "its client must be a list of lists"),
        ([[0], []], "the rows of client 1 are none"),
        ([[0], [1.0]], "the rows of client 1 must be a list of whole numbers"),
        ([[True]], "whole numbers"),
        ([[-1]], "name -1: rows are from 0"),
        ([[2**40]], "rows are from 0"),
        ({"train": [[0]], "tset": [[0]]}, "it holds 'tset'"),
        ({"train": [[0], [1]], "test": [[0]]}, "its train is of 2 clients, and its test of 1"),
        ({"train": [[0]], "pooled": True}, "test must say"),
        ({"train": [[0]], "test": [[1]], "pooled": "yes"}, "pooled must be true or false"),
        ({"0": [1], "2": [3]}, "the clients' numbers from 0 to 1"),
        (7, "a list of the rows of each client"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, said: object, why: str) -> None:
    with pytest.raises(UserError, match="for --split: ") as caught:
        read_division(written(tmp_path, said))
    assert why in str(caught.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = written(tmp_path, [[0], [1]])
    read_division(name)
    monkeypatch.setattr(index_files, "LARGEST", 9)
    with pytest.raises(UserError, match="at most 9 are read"):
        read_division(name)


@pytest.mark.parametrize(
    ("division", "why"),
    [
        (Division([torch.tensor([0, 10])]), "train row 10 of client 0, and rows are from 0 to 9"),
        (Division([torch.tensor([0]), torch.tensor([0])]), "row 0 is there for two clients"),
        (Division([torch.tensor([0])], [torch.tensor([4])]), "test row 4 of client 0, and rows are from 0 to 3"),
        (Division([torch.tensor([0])], [torch.tensor([2, 2])]), "name one twice"),
        (Division([torch.tensor([0])], [torch.tensor([0])], pooled=True), "row 0 is there twice"),
        (Division([torch.tensor([0])], [torch.tensor([14])], pooled=True), "rows are from 0 to 13"),
    ],
)
def test_rows_that_do_not_fit_the_dataset(division: Division, why: str) -> None:
    with pytest.raises(UserError) as caught:
        check_rows("indices:rows.json", division, train=10, test=4)
    assert why in str(caught.value)


def test_two_clients_may_be_tested_on_one_row() -> None:
    check_rows("x", Division([torch.tensor([0]), torch.tensor([1])], [torch.tensor([3]), torch.tensor([3])]), 10, 4)


def test_fedlabs_dict_of_clients(tmp_path: Path) -> None:
    """As FedLab's partitioners make it: JSON has text for keys, a pickle has numbers and arrays."""
    partition = {1: np.array([4, 2]), 0: [0, 1], 2: np.array([3], dtype=np.int32)}
    as_json = written(tmp_path, {str(client): np.asarray(rows).tolist() for client, rows in partition.items()})
    path = tmp_path / "rows.pkl"
    path.write_bytes(pickle.dumps(partition))
    for name in (as_json, f"indices:{path}"):
        assert lists(read_division(name)) == ([[0, 1], [4, 2], [3]], None)


def test_a_pickle_that_would_call_something_is_refused(tmp_path: Path) -> None:
    class Calls:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return Path.touch, (tmp_path / "called",)  # type: ignore[return-value]

    path = tmp_path / "rows.pickle"
    path.write_bytes(pickle.dumps({0: Calls()}))
    with pytest.raises(UserError, match="which arrays do not need"):
        read_division(f"indices:{path}")
    assert not (tmp_path / "called").exists()
