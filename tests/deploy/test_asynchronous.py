"""Asynchronous rounds over a network: those who answer are aggregated, and nobody waits for the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flwr.app import Message
from safetensors.torch import load_file

from protofed.deploy.ledger import LEDGER
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.errors import LostError, UserError
from protofed.experiment import Experiment
from tests.deploy.test_rounds import QUICK, assert_same, lines, sequential
from tests.engines.test_alone import experiment
from tests.support.loopback import Loopback, facts_of, in_simulation, with_folder


class Slow(Loopback):
    """Clients whose turns end when the server asks in the `until`th round, or never; others answer at once."""

    def __init__(self, nodes: dict[int, dict[str, Any]], until: dict[int, int]) -> None:
        super().__init__(nodes)
        self.until, self.round, self.held = until, 0, list[Message]()

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """As far as the server has come is known from what it asks."""
        messages = list(messages)
        group = messages[0].metadata.group_id
        self.round = int(group) if group.isdigit() else 0
        return super().push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """What has come for these; the rest stays, as with Flower's own grid."""
        wanted = set(message_ids)
        self.held += self.answers
        self.answers = []
        found = [one for one in self.held if one.metadata.reply_to_message_id in wanted and self._done(one)]
        self.held = [one for one in self.held if one not in found]
        return found

    def _done(self, answer: Message) -> bool:
        node, kind = answer.metadata.src_node_id, answer.metadata.message_type
        return kind != "train" or self.round >= self.until.get(node, 0)


def asked(method: str = "fedproto", **more: Any) -> Experiment:
    return replace(experiment(method), **{"async_": 2, "rounds": 6} | more)


def told(path: Path, key: str) -> list[Any]:
    return [line[key] for line in lines(path)]


@pytest.mark.parametrize("method", ["fedproto", pytest.param("mp-fedcl", marks=pytest.mark.slow)])
def test_where_all_are_waited_for_it_is_the_synchronous_run(method: str, tmp_path: Path) -> None:
    serve(Slow(in_simulation(4), {}), asked(method, async_=4, rounds=3), Settings(str(tmp_path / "run")))
    assert_same(tmp_path / "run", sequential(asked(method, async_=None, rounds=3)))
    assert told(tmp_path / "run", "staleness") == [[0, 0, 0, 0]] * 3


def test_a_late_answer_counts_when_it_comes(tmp_path: Path) -> None:
    """The turn that client 3 begins in the first round ends in the fifth; nobody waits, and it is not discarded."""
    grid = Slow(in_simulation(4), {103: 5})
    serve(grid, asked(eval_every=2), Settings(str(tmp_path / "run")))
    participants, ages = told(tmp_path / "run", "participants"), told(tmp_path / "run", "staleness")
    first = next(number for number, who in enumerate(participants) if 3 in who)
    assert first >= 4
    assert ages[first][participants[first].index(3)] == first
    assert all(len(who) == 2 for who in participants)
    assert all("left_out" not in line for line in lines(tmp_path / "run"))
    pool = load_file(tmp_path / "run/checkpoint/state.safetensors")
    assert {name.split("/")[2] for name in pool if name.startswith("flight/pool/")} == {"0", "1", "2", "3"}
    assert [bool(one) for one in told(tmp_path / "run", "accuracy")] == [False, True] * 3
    assert 3 not in lines(tmp_path / "run")[1]["tested"]  # who is on a turn is not asked
    assert len(lines(tmp_path / "run")[-1]["per_client"]["own/own/nearest"]) == 4


def test_who_vanishes_keeps_nobody(tmp_path: Path) -> None:
    grid = Slow(in_simulation(4), {101: 100})
    serve(grid, asked(), Settings(str(tmp_path / "run"), wait=0.3))
    participants = told(tmp_path / "run", "participants")
    assert len(participants) == 6
    assert not any(1 in who for who in participants)


def test_where_too_few_are_left_those_who_answer_are_enough(tmp_path: Path) -> None:
    """Four are to be waited for; one never answers, and is told so when its deadline is over."""
    grid = Slow(in_simulation(4), {101: 100})
    serve(grid, asked(async_=4, rounds=1), Settings(str(tmp_path / "run"), minimum=3, **QUICK))
    (line,) = lines(tmp_path / "run")
    assert line["participants"] == [0, 2, 3]
    assert line["left_out"] == {"1": "no answer within 0.3 s"}
    with pytest.raises(LostError, match="round 1 failed 3 times: fewer than 4 answered"):
        serve(grid, asked(async_=4, rounds=1), Settings(str(tmp_path / "other"), minimum=4, **QUICK))


class Killed(Slow):
    """Ends the server in its fourth round."""

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """As before, until then."""
        numbers = super().push_messages(messages)
        if self.round == 4:
            raise RuntimeError("killed")
        return numbers


def test_a_server_that_is_started_again_goes_on_with_its_pool(tmp_path: Path) -> None:
    """Turns that were going on are lost; what clients sent before is not."""
    settings, nodes = Settings(str(tmp_path / "run")), {100 + k: with_folder(tmp_path, k) for k in range(4)}
    with pytest.raises(RuntimeError, match="killed"):
        serve(Killed(nodes, {}), asked(eval_every=6), settings)
    assert len(lines(tmp_path / "run")) == 3
    serve(Slow(nodes, {100: 100, 101: 100}), asked(eval_every=6), settings)
    assert told(tmp_path / "run", "participants")[3:] == [[2, 3]] * 3
    pool = load_file(tmp_path / "run/checkpoint/state.safetensors")
    assert {name.split("/")[2] for name in pool if name.startswith("flight/pool/")} == {"0", "1", "2", "3"}


def test_turns_are_counted_by_the_client(tmp_path: Path) -> None:
    """At most one a round, as an owner who allows so many rounds takes it to be."""
    nodes = {100 + k: with_folder(tmp_path, k, turns=6) for k in range(4)}
    grid = Slow(nodes, {})
    serve(grid, asked(eval_every=6), Settings(str(tmp_path / "run")))
    turns = [one.metadata.dst_node_id for one in grid.asked if one.metadata.message_type == "train"]
    for number in range(4):
        (ledger,) = (tmp_path / f"client-{number}").rglob(LEDGER)
        assert json.loads(ledger.read_text())["turns"] == turns.count(100 + number) <= 6
    assert {facts_of(one)["experiment"]["async_"] for one in grid.asked} == {2}


def test_delays_are_not_for_real_clients(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="for --delays: it is not for runs over a network"):
        serve(Slow(in_simulation(4), {}), asked(delays="1,2"), Settings(str(tmp_path / "run")))
