"""Asynchronous rounds: FedBuff by loops, the synchronous run where all are waited for, and a run that is resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS
from protofed.methods.base import Clock
from protofed.prototypes import Prototypes
from protofed.randomness import generator
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run
from protofed.server.asynchronous import InFlight, discount, rebased
from protofed.server.pipeline import Pooling
from tests.reference import asynchronous as slow
from tests.support.command_line import invoke, refused, succeed
from tests.support.nets import Noisy, Plain, assert_same_run, gap, play
from tests.support.resumed_runs import saved

SLOW: dict[str, Any] = {"participation": 1.0, "delays": "1,1,3,1.5,4", "async_": 2, "epochs": 1}
ENGINES = ("sequential", "stacked")
KINDS = ("fedavg", "mp-fedcl", "fedproto", "fedpcl", "fedper", "fednh", "moon")
"""A mean of weights, a pool; a mean of prototypes; a part of the weights; what the server makes; a last model."""
of_each_kind = pytest.mark.parametrize(
    "method", [pytest.param(name, marks=[] if name in KINDS[:2] else [pytest.mark.slow]) for name in KINDS]
)
REFUSED = (
    *("local", "fedsc", "fesem", "fccl-plus", "fedcda", "fednova", "scaffold", "feddyn", "fedheal", "fedgh", "fedtgp"),
    *("fedncm", "fed3r", "fedcof", "fedpac", "ccvr"),
)


@pytest.mark.parametrize("engine", ENGINES)
@of_each_kind
def test_where_all_are_waited_for_it_is_the_synchronous_run(method: str, engine: str) -> None:
    """Equal to the bit: nothing is rebased, and every client's prototypes are replaced."""
    given: dict[str, Any] = {"participation": 1.0, "epochs": 1, "model": Noisy}
    whole = play(method, None, engine, **given)
    for delays in (None, "1,1,3,1.5,4"):
        found = play(method, None, engine, **given, async_=5, delays=delays)
        assert gap(found.state(), whole.state()) == 0
        assert [line.per_client for line in found.history] == [line.per_client for line in whole.history]
        assert [line.staleness for line in found.history] == [[0] * 5] * 3
    assert [line.clock for line in found.history] == [4.0, 8.0, 12.0]
    assert [line.clock for line in whole.history] == [None] * 3


@of_each_kind
def test_the_engines_agree(method: str) -> None:
    one, other = (play(method, None, engine, rounds=5, **SLOW) for engine in ENGINES)
    assert_same_run(one, other)


def test_a_mean_is_fedbuffs() -> None:
    """Against a list of events, with turns of single clients by an engine of their own."""
    run = play("fedavg", {}, rounds=6, model=Plain, **SLOW)
    other = play("fedavg", {}, rounds=0, model=Plain, **SLOW | {"async_": None, "delays": None}).engine

    def turn(member: int, begun: int, sent: slow.State) -> slow.State:
        outcome = other.round([member], Broadcast(sent), Clock(begun, 6, (member,), 5, 0))
        return {name: tensor[0] for name, tensor in outcome.uploads.weights.items()}

    def places(number: int) -> list[int]:
        return torch.randperm(5, generator=generator(0, "arrivals", number)).tolist()

    sizes = [len(client.train) for client in run.federation.clients]
    first = dict(other.initial_broadcast().weights)
    steps = slow.fedbuff(turn, first, [1, 1, 3, 1.5, 4], sizes, 2, 6, places)
    assert [line.clock for line in run.history] == [step.time for step in steps]
    assert [line.participants for line in run.history] == [step.who for step in steps]
    assert [line.staleness for line in run.history] == [step.staleness for step in steps]
    assert max(age for step in steps for age in step.staleness) > 1
    for name, value in steps[-1].weights.items():
        assert_close(run.broadcast.weights[name], value, atol=1e-12, rtol=0, msg=name)


def test_a_pool_holds_everybodys_last_prototypes() -> None:
    """After each round it is that of the clients that ever sent some, each as it was sent last."""
    run = play("sp-fedcl", {}, rounds=0, model=Plain, **SLOW)
    run.experiment = replace(run.experiment, rounds=6)
    last: dict[int, torch.Tensor] = {}
    for number in range(6):
        played = run.play_round()
        pool, before = run.broadcast.prototypes["pool"].vectors, dict(last)
        last |= dict.fromkeys(played.participants, torch.empty(0))
        assert len(pool) == len(last)
        for place, member in enumerate(sorted(last)):
            same = member in before and torch.equal(pool[place], before[member])
            assert same == (member not in played.participants), (number, member)
            last[member] = pool[place].clone()
    assert sorted(last) == [0, 1, 2, 3, 4]


def test_steps_weigh_less_and_variances_stay_above_0() -> None:
    then = Broadcast({"w": torch.tensor([1.0]), "bn.running_var": torch.tensor([9.0]), "n": torch.tensor(3)})
    now = Broadcast({"w": torch.tensor([5.0]), "bn.running_var": torch.tensor([0.5]), "n": torch.tensor(6)})
    sent = Upload({"w": torch.tensor([[3.0]]), "bn.running_var": torch.tensor([[1.0]]), "n": torch.tensor([4])})
    found = rebased(sent, then, now, 3)
    assert discount(3) == 0.5
    assert found.weights["w"].item() == 5.0 + 0.5 * (3.0 - 1.0)
    assert found.weights["bn.running_var"].item() == 0.5 + 0.5 * (1.0 - 0.5)
    assert found.weights["n"].item() == 4
    assert rebased(sent, then, now, 0) is sent


def test_what_was_sent_is_kept_no_longer_than_its_turns() -> None:
    """Of so many rounds, no more broadcasts than clients."""
    turns = InFlight()
    turns.begin([0, 1, 2], 0, Broadcast())
    for number in range(1, 50):
        turns.end([1])
        turns.begin([1], number, Broadcast())
        assert set(turns.sent) == {0, number}
    turns.end([0, 2])
    assert set(turns.sent) == {49}
    run = play("fedavg", {}, rounds=8, model=Plain, **SLOW)
    assert len(run.clients.turns.sent) <= 3  # type: ignore[attr-defined]  # two of five clients are free


@of_each_kind
@pytest.mark.parametrize("engine", [pytest.param("sequential", marks=pytest.mark.slow), "stacked"])
def test_a_resumed_run_equals_an_uninterrupted_one(method: str, engine: str, tmp_path: Path) -> None:
    """Turns that were going on go on: who, since when, until when, and from what."""
    given: dict[str, Any] = {"model": Noisy, **SLOW}
    whole, cut, resumed = (play(method, None, engine, rounds=0, **given) for _ in range(3))
    for run, rounds in ((whole, 7), (cut, 4), (resumed, 0)):
        run.experiment = replace(run.experiment, rounds=7)
        for _ in range(rounds):
            run.play_round()
    resumed.restore(saved(cut, tmp_path / "run"))
    for _ in range(3):
        resumed.play_round()
    assert gap(resumed.state(), whole.state()) == 0
    for one, other in zip(resumed.history, whole.history, strict=True):
        assert replace(one, seconds=0) == replace(other, seconds=0)


def test_an_attackers_step_is_that_of_an_upload() -> None:
    """Signs are flipped, and what is too far is rejected, whatever the age."""
    run = play("fedproto", {}, rounds=5, **SLOW, attack="scaled-prototypes", attackers=0.2)
    assert run.attack is not None
    found = {member for line in run.history for member in line.left_out}
    assert found <= set(run.attack.who)
    assert all(torch.isfinite(tensor).all() for tensor in run.broadcast.flat().values())


@pytest.mark.parametrize("method", METHODS)
def test_a_method_says_whether_it_can(method: str) -> None:
    """Those whose server averages weights, or holds prototypes side by side."""

    def prepared() -> Run:
        return play(method, None, rounds=0, **SLOW)

    if method not in REFUSED:
        assert prepared().pipeline.pooling == Pooling()
        return
    with pytest.raises(UserError, match=f"'{method}' for --method with --async: its server does more"):
        prepared()


@pytest.mark.parametrize(
    ("method", "params"),
    [("mp-fedcl", {"averaging": "prototypes"}), ("fedproto", {"weighting": "literal"}), ("fedavg", {"norm": "total"})],
)
def test_a_parameter_may_say_that_it_cannot(method: str, params: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="--method with --async"):
        play(method, params, rounds=0, model=Plain, **SLOW)


def test_prototypes_stay_with_their_client() -> None:
    pooling, clock = Pooling(), Clock(0, 3, (1, 4), 5)

    def upload(*values: float) -> Upload:
        vectors = torch.tensor(values).view(-1, 1, 1, 1)
        return Upload(prototypes={"a/b": Prototypes(vectors, torch.ones(len(values), 1, 1, dtype=torch.int64))})

    pooling.apply(upload(1, 2), Broadcast(), clock)
    uploads, _ = pooling.apply(upload(3), Broadcast(), clock._replace(who=(0,)))
    assert uploads.prototypes["a/b"].vectors.flatten().tolist() == [3, 1, 2]
    again = Pooling()
    again.restore(pooling.state())
    uploads, _ = again.apply(upload(5), Broadcast(), clock._replace(who=(4,)))
    assert uploads.prototypes["a/b"].vectors.flatten().tolist() == [3, 1, 5]


def test_delays_are_dealt_out_and_every_round_waits_for_the_slowest() -> None:
    assert Experiment(delays="1,1,1,1,10").turn_seconds(10) == [1.0] * 8 + [10.0] * 2
    assert Experiment().turn_seconds(3) == [1.0] * 3
    run = play("fedproto", {}, rounds=3, participation=0.4, delays="1,2,4,8,16", model=Plain)
    seconds = [max(2.0**member for member in line.participants) for line in run.history]
    assert [line.clock for line in run.history] == [sum(seconds[: number + 1]) for number in range(3)]


TINY = ("--method", "fedproto", "--train-size", "120", "--clients", "4", "--device", "cpu", "--rounds", "3")


def test_on_the_command_line(tmp_path: Path) -> None:
    succeed(tmp_path, "run", *TINY, "--async", "2", "--delays", "1,9", "--out", "run", "--quiet")
    lines = [run.clock for run in RunFolder(tmp_path / "run").read_rounds(3)]
    assert lines == [1.0, 2.0, 3.0]
    assert "async_: 2" in (tmp_path / "run/config.yaml").read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--async", "0"), "invalid value '0' for --async: it must be 1 or more"),
        (("--async", "5"), "invalid value '5' for --async: there are 4 clients"),
        (("--async", "two"), "invalid value 'two' for --async: it must be of type int"),
        (("--delays", "1,x"), "invalid value '1,x' for --delays: they must be numbers above 0"),
        (("--delays", "0"), "invalid value '0' for --delays: they must be numbers above 0"),
        (("--delays", "inf"), "invalid value 'inf' for --delays: they must be numbers above 0"),
        (("--delays", "1,1,1,1,1"), "invalid value '1,1,1,1,1' for --delays: there are 4 clients to assign them to"),
        (("--async", "2", "--participation", "0.5"), "with --async every client trains all the time"),
        (("--async", "2", "--drift", "sudden"), "with --async what a client holds would change within its turn"),
        (("--async", "2", "--defence", "median"), "with --async uploads of several ages are not compared"),
        (("--async", "2", "--privacy", "client", "--clip", "1"), "with --async what a round costs is not known"),
        (("--async", "2", "--secure"), "with --async the server needs each client's own upload"),
    ],
)
def test_what_does_not_go_together_is_one_line(tmp_path: Path, flags: tuple[str, ...], said: str) -> None:
    assert said in refused(invoke(tmp_path, "run", *TINY, *flags))
