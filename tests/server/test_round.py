"""The record of a round: what is written is read back, and what is not a round's is one error."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed.errors import UserError
from protofed.prototypes import Prototypes
from protofed.prototypes.describe import counted, describe
from protofed.runs.folder import RunFolder
from protofed.server.round import KEYS, Round
from tests.support.made_rounds import a_round

numbers = st.floats(allow_nan=False, allow_infinity=False)
members = st.lists(st.integers(0, 99), unique=True)
names = st.sampled_from(["own/own/head", "global/all/head", "own/all/nearest"])


@st.composite
def rounds(draw: st.DrawFn) -> Round:
    """Any round that a run may write."""
    who = draw(members)
    scores = draw(st.dictionaries(names, st.lists(numbers, min_size=1), max_size=3))
    return a_round(
        draw(st.integers(1, 10**6)),
        seconds=draw(numbers),
        loss=draw(numbers),
        participants=who,
        losses=draw(st.none() | st.lists(numbers, min_size=len(who), max_size=len(who))),
        accuracy={name: draw(numbers) for name in scores},
        per_client=scores,
        diagnostic=list(scores)[:1],
        left_out=draw(st.dictionaries(st.integers(0, 99), st.text())),
        suspected=draw(st.none() | members),
        epsilon=draw(st.none() | st.just(math.inf) | st.floats(0, 1e6)),
        tested=draw(st.none() | members),
        most_clusters=draw(st.none() | st.integers(0, 99)),
        backdoor=draw(st.none() | st.floats(0, 100)),
        prototypes={"global": {"each": [1, 2], "padded": 0.5, "drift": draw(st.none() | numbers)}},
    )


@given(rounds())
def test_what_is_written_is_read_back(played: Round) -> None:
    line = json.dumps(played.to_json(), allow_nan=False)
    assert Round.from_json(json.loads(line), played.round) == played


vectors = st.lists(st.floats(width=32), min_size=2, max_size=2)


@given(vectors, vectors)
def test_a_round_of_a_model_that_diverges_is_written_and_read_back(now: list[float], then: list[float]) -> None:
    """Prototypes of any size, also infinite ones, which losses that are still finite may have."""
    sets = [{"global": Prototypes(torch.tensor(one).view(1, 1, 2), torch.ones(1, 1))} for one in (now, then)]
    played = a_round(1, prototypes=describe(sets[0], sets[1]), clusters=counted(sets[0]))
    with TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        folder.append_round(played)
        assert folder.played() == [played]


@given(st.sampled_from([math.inf, -math.inf, math.nan]), st.sampled_from(["seconds", "loss", "backdoor", "clock"]))
def test_a_round_that_no_reader_would_take_is_not_written(value: float, name: str) -> None:
    with TemporaryDirectory() as place:
        folder = RunFolder(Path(place))
        with pytest.raises(ValueError, match="not JSON compliant"):
            folder.append_round(a_round(1, **{name: value}))
        assert folder.played() == []


def test_fields_that_say_nothing_are_absent_and_infinity_is_null() -> None:
    assert tuple(a_round(1).to_json()) == KEYS
    more = a_round(1, epsilon=math.inf, left_out={3: "late"}, suspected=[]).to_json()
    assert {name: more[name] for name in more if name not in KEYS} == {
        "left_out": {"3": "late"},
        "suspected": [],
        "epsilon": None,
    }


def test_keys_of_later_versions_are_ignored() -> None:
    assert Round.from_json({**a_round(1).to_json(), "new": [1]}, 1) == a_round(1)


def test_without_its_evaluation_a_round_is_one_that_had_none() -> None:
    tested = a_round(2, accuracy={"a": 1.0}, per_client={"a": [1.0]}, tested=[0], backdoor=3.0, interval={"a": 1.0})
    assert tested.without_evaluation() == a_round(2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"left_out": {"three": "late"}}, "left_out in line 1.*clients are numbers"),
        ({"left_out": {"3": 4}}, "left_out in line 1"),
        ({"left_out": []}, "left_out in line 1"),
        ({"epsilon": "much"}, "epsilon in line 1"),
        ({"suspected": [0.5]}, "suspected in line 1"),
        ({"losses": [1.0, 2.0]}, "a loss of each"),
        ({"round": 2}, "it must be 1"),
    ],
)
def test_what_is_not_a_rounds_is_one_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Round.from_json({**a_round(1).to_json(), **change}, 1)
