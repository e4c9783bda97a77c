"""A resumed run is the uninterrupted one: what clients and server keep is in the checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from protofed.methods import METHODS
from protofed.methods.base import Method
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedper import FedPer
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedproc import FedProc
from protofed.methods.fedrcl import FedRCL
from protofed.methods.fedrep import FedRep
from protofed.methods.fedsc import FedSC
from protofed.methods.moon import Moon
from protofed.runs.progress import Progress
from protofed.runs.run import new_run
from tests.support import cluster_runs, relation_runs, server_runs, whole_runs
from tests.support.nets import Noisy, federation, gap, play
from tests.support.resumed_runs import saved

EVERY_OTHER = [
    (name, {}) if n % 2 else pytest.param(name, {}, marks=pytest.mark.slow) for n, name in enumerate(METHODS)
]
"""`make test` resumes the methods that it does not take over the network (tests/deploy/test_rounds.py)."""


@pytest.mark.parametrize(("method", "params"), [*EVERY_OTHER, ("fedproto", {"initial": "own"})])
@pytest.mark.parametrize("engine", [pytest.param("sequential", marks=pytest.mark.slow), "stacked"])
def test_a_resumed_run_equals_an_uninterrupted_one(
    method: str, params: dict[str, str], engine: str, tmp_path: Path
) -> None:
    """What clients and server keep is in the checkpoint: weights, heads, previous models, centres, caches."""
    whole, cut, resumed = (play(method, params, engine, rounds=0, model=Noisy, epochs=1) for _ in range(3))
    for run, rounds in ((whole, 4), (cut, 2), (resumed, 0)):
        run.experiment = replace(run.experiment, rounds=4)
        for _ in range(rounds):
            run.play_round()
    resumed.restore(saved(cut, tmp_path / "run"))
    for _ in range(2):
        resumed.play_round()
    assert gap(resumed.state(), whole.state()) == 0
    assert [line.per_client for line in resumed.history] == [line.per_client for line in whole.history]


@pytest.mark.parametrize(
    "method",
    [Moon(), pytest.param(Moon(projection=True), id="moon projection"), FedPer(), FedRep(), FedRCL()],
    ids=lambda method: method.name,
)
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_clients_go_on_with_their_own_models(method: Method, engine: str, tmp_path: Path) -> None:
    whole = whole_runs.played(method, engine)
    begun, resumed = (whole_runs.run_of(method, engine, rounds) for rounds in (2, 0))
    resumed.restore(saved(begun, tmp_path / "run"))
    resumed.play_round()
    assert gap(resumed.state(), whole.state()) < 1e-14  # a checkpoint's tensors lie differently in memory
    assert resumed.history[-1].per_client == whole.history[-1].per_client


@pytest.mark.parametrize("method", [FedPLCC(lambda1=0.5), FedProc()], ids=lambda method: method.name)
def test_clusters_and_schedules_go_on_where_they_were(method: Method, tmp_path: Path) -> None:
    """The clusters' weights come back from the checkpoint, and the schedule goes on where it was."""
    whole, cut, resumed = (cluster_runs.start(method) for _ in range(3))
    whole.play(None, Progress())
    for _ in range(2):
        cut.play_round()
    folder = saved(cut, tmp_path / "run")
    resumed.restore(folder)
    assert len(resumed.history) == 2
    resumed.play(folder, Progress())
    assert gap(resumed.state(), whole.state()) == 0
    assert [line.loss for line in resumed.history] == [line.loss for line in whole.history]


@pytest.mark.parametrize("method", [FedSC(), FedPCL()])
def test_relations_go_on_to_the_same_state(tmp_path: Path, method: Method) -> None:
    whole, cut, again = (relation_runs.play(method, rounds=rounds) for rounds in (3, 2, 0))
    again.restore(saved(cut, tmp_path / "run"))
    again.play_round()
    assert gap(again.state(), whole.state()) == 0
    assert len(again.history) == 3


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("method", "params"), [("fesem", {}), ("fednh", {}), ("fedcda", {"smoothness": 100.0})])
def test_servers_go_on_with_what_they_keep(tmp_path: Path, method: str, params: dict[str, Any], engine: str) -> None:
    whole = server_runs.played(method, engine, **params)
    first = play(method, params, engine, rounds=2)
    second = new_run(whole.experiment, federation=federation(), models=[Noisy])
    second.restore(saved(first, tmp_path / "run"))
    assert len(second.history) == 2
    while not second.over():
        second.play_round()
    assert gap(second.state(), whole.state()) == 0
    assert [line.per_client for line in second.history] == [line.per_client for line in whole.history]
