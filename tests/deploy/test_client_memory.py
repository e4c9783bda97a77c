"""What a client of a network keeps in its files: its model, what its method remembers, and how many turns it had."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from protofed.deploy.client_memory import KEPT, FolderMemory, last_round, recall, remember
from protofed.engines.client_group import Group
from protofed.methods.base import Method
from protofed.methods.fedavg import FedAvg
from tests.methods.contract.dynamic_regulariser import DynamicRegulariser
from tests.methods.contract.running_means import RunningMeans
from tests.support.nets import federation
from tests.support.whole_runs import run_of


def alone(method: Method, rounds: int) -> Group:
    """The only client of a group, after some rounds."""
    clients = federation(({0: 12, 1: 5},), test=20)
    return run_of(method, "sequential", rounds, clients=clients, participation=1.0, eval_every=99).engine.groups[0]


@pytest.mark.parametrize("method", [FedAvg(), DynamicRegulariser(), RunningMeans()], ids=lambda method: method.name)
def test_a_client_that_was_started_again_remembers(method: Method, tmp_path: Path) -> None:
    memory, group, fresh = FolderMemory(tmp_path / "client"), alone(method, 2), alone(method, 0)
    remember(memory, group, 1)
    recall(FolderMemory(tmp_path / "client"), fresh, 1)
    assert_close(fresh.own.take([0]), group.own.take([0]), atol=0, rtol=0)
    assert_close(fresh.own.memory([0]), group.own.memory([0]), atol=0, rtol=0)
    assert fresh.own.memory([0]).keys() == group.own.first_memory.keys()
    assert int(fresh.taken[0]) == 2
    assert bool(group.own.first_memory) == any(bool(value.any()) for value in group.own.memory([0]).values())


def test_it_goes_back_to_what_it_remembered_before_a_round(tmp_path: Path) -> None:
    memory, states = FolderMemory(tmp_path / "client"), {}
    for number in range(KEPT + 2):
        group = alone(DynamicRegulariser(), number + 1)
        remember(memory, group, number)
        states[number] = group.own.memory([0])
    assert sorted(memory.rounds()) == list(range(2, KEPT + 2))
    last = last_round(memory, before=KEPT + 1)
    assert last == KEPT
    recall(memory, group, last)
    assert_close(group.own.memory([0]), states[last], atol=0, rtol=0)
    assert any(not torch.equal(value, states[KEPT + 1][name]) for name, value in group.own.memory([0]).items())
