"""Client-level privacy over a network: by a server that is trusted, and under the masks of secure aggregation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protofed.deploy import client
from protofed.deploy.owner import Owner
from protofed.deploy.server import check, serve
from protofed.deploy.server_settings import Settings
from protofed.errors import LostError, UserError
from protofed.experiment import Experiment
from protofed.runs.run import new_run
from protofed.server.participation import participants
from protofed.trust.accounting import Release, epsilon
from tests.deploy.test_rounds import QUICK, lines, sequential
from tests.deploy.test_secure import asked as asked_of_four
from tests.deploy.test_secure import silent, state
from tests.support.federation_processes import federation
from tests.support.loopback import Loopback, facts_of, in_simulation, with_folder

accounted = pytest.importorskip("dp_accounting", reason="ε needs dp-accounting")

KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {"clip": 0.02},  # below what a client changes
    "fedproto": {},
    "fednh": {"model": "mlp"},
}


def asked(method: str, **more: Any) -> Experiment:
    small: dict[str, Any] = {"clients": 3, "train_size": 120, "model": "linear", "min_size": 5, "batch_size": 8}
    small |= {"privacy": "client", "clip": 0.5, "noise": 1.0, "secure": False, "rounds": 2}
    return asked_of_four(method, **small | KINDS[method] | more)


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of which every number is 0, and clients that train by the seed."""
    monkeypatch.setattr("protofed.trust.integer_noise.discrete_gaussian", lambda size, *_: np.zeros(size, np.int64))
    monkeypatch.setattr("protofed.trust.integer_noise.SURE", 0.0)  # or too few would hold a class
    monkeypatch.setattr(client, "private_seed", lambda: Experiment.seed)


def play(path: Path, experiment: Experiment, grid: Loopback | None = None) -> Path:
    serve(grid or Loopback(in_simulation(experiment.number_of_clients)), experiment, Settings(str(path), **QUICK))
    return path


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("method", KINDS)
def test_without_its_noise_a_run_equals_the_sequential_one(method: str, secure: bool, tmp_path: Path) -> None:
    """Clips bind here: it is the same mechanism."""
    path = play(tmp_path / "run", asked(method, secure=secure))
    local = sequential(asked(method, noise=0.0))
    unclipped = sequential(asked(method, noise=0.0, clip=None))
    moved = 0.0
    for name, value in state(path).items():
        expected = local.broadcast.flat()[name.removeprefix("server/")]
        torch.testing.assert_close(value.double(), expected.double(), rtol=0, atol=1e-6)
        moved += float((value.double() - unclipped.broadcast.flat()[name.removeprefix("server/")].double()).abs().sum())
    assert moved > 0.01
    for line, here in zip(lines(path), local.history, strict=True):
        assert line["participants"] == list(here.participants)
        assert line["losses"] == [0.0] * 3  # nobody tells: no noise is on them


@pytest.mark.parametrize("secure", [False, True])
def test_epsilon_is_the_accountants_for_the_central_mechanism(secure: bool, tmp_path: Path) -> None:
    experiment = asked("fedavg", secure=secure, noise=1.3)
    path = play(tmp_path / "run", experiment)
    expected = [epsilon([Release(1.3, 1.0, number)], experiment.delta) for number in (1, 2)]
    assert [line["epsilon"] for line in lines(path)] == expected
    here = new_run(asked("fedavg", noise=1.3))
    assert here.privacy is not None
    assert [here.privacy.epsilon(number) for number in (1, 2)] == expected
    said = json.loads((path / "result.json").read_text())
    assert (said["privacy"], said["epsilon"], said["delta"]) == ("client", expected[-1], experiment.delta)


@pytest.mark.parametrize("secure", [False, True])
def test_noise_is_no_seeds_and_of_the_size_that_is_counted(secure: bool, tmp_path: Path) -> None:
    """Of the weights after a round: between two runs of one seed twice the variance, over the number of clients²."""
    experiment = asked("fedavg", secure=secure, rounds=1, clip=0.01, noise=5.0)
    first, second = (state(play(tmp_path / name, experiment)) for name in ("first", "second"))
    apart = torch.cat([(first[name] - second[name]).flatten() for name in first])
    least = 2 if secure else 3  # of three clients, of whom the noise of two is counted
    deviation = 0.01 * 5.0 / 3 * (3 / least) ** 0.5
    assert len(apart) > 600
    trained = 2 * 0.01  # what the difference of two clipped trainings may add to the length, at most
    length = float(apart.norm()) / len(apart) ** 0.5
    assert abs(length / (2**0.5 * deviation) - 1) < 5 / (2 * len(apart)) ** 0.5 + trained / (
        deviation * len(apart) ** 0.5
    )


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("step", ["query.shares", "train.masked", "query.agree", "query.unmask"])
def test_sums_are_exact_whoever_leaves(step: str, tmp_path: Path) -> None:
    """Divided by the clients that were expected, however many came."""
    path = play(
        tmp_path / "run",
        asked("fedavg", secure=True, rounds=1),
        Loopback(in_simulation(3), silent(2, step, in_round=1)),
    )
    helped = step in ("query.agree", "query.unmask")
    grid = Loopback(in_simulation(3), None if helped else silent(2, "train", in_round=1))
    plain = play(tmp_path / "plain", asked("fedavg", rounds=1), grid)
    for name, value in state(path).items():
        torch.testing.assert_close(value, state(plain)[name], rtol=0, atol=1e-6)
    assert lines(path)[0]["participants"] == lines(plain)[0]["participants"] == ([0, 1, 2] if helped else [0, 1])


def test_a_round_is_summed_once(tmp_path: Path) -> None:
    """A server that says it lost a sum would have two of them, with noise for one."""

    def crash(answer: Any) -> list[Any]:
        if (answer.metadata.message_type, answer.metadata.src_node_id) == ("query.unmask", 102):
            raise KeyboardInterrupt
        return [answer]

    nodes = {100 + k: with_folder(tmp_path, k, min_samples=1) for k in range(3)}
    experiment = asked("fedavg", secure=True)
    with pytest.raises(KeyboardInterrupt):
        play(tmp_path / "run", experiment, Loopback(nodes, crash))
    with pytest.raises(LostError, match="a second sum costs more than was counted"):
        play(tmp_path / "run", experiment, Loopback(nodes))


def test_a_run_stops_before_its_budget_is_exceeded(tmp_path: Path) -> None:
    costs = [epsilon([Release(1.0, 1.0, number)], 1e-5) for number in (1, 2)]
    path = play(tmp_path / "run", asked("fedavg", secure=True, epsilon=sum(costs) / 2, rounds=5))
    assert [line["epsilon"] for line in lines(path)] == costs[:1]
    assert json.loads((path / "result.json").read_text())["stopped"] == "privacy budget"


@pytest.mark.usefixtures("quiet")
def test_who_is_drawn_by_chance_is_nobodys_business(tmp_path: Path) -> None:
    """Rounds of some clients, and of none; the lower ε of sampling holds as nobody is told who takes part."""
    chance: dict[str, Any] = {"participation": 0.4, "rounds": 4, "seed": 4, "eval_every": 1}
    experiment = asked("fedavg", **chance)
    drawn = [participants(experiment, 3, number) for number in range(4)]
    assert [] in drawn
    assert max(map(len, drawn)) > 1
    grid = Loopback(in_simulation(3))
    path = play(tmp_path / "run", experiment, grid)
    assert [line["participants"] for line in lines(path)] == drawn
    assert all(line["accuracy"] for line in lines(path))
    assert {tuple(facts_of(one)["clock"][1]) for one in grid.asked if "clock" in facts_of(one)} == {()}
    assert lines(path)[-1]["epsilon"] == epsilon([Release(1.0, 0.4, 4)], experiment.delta)
    local = sequential(asked("fedavg", **chance, noise=0.0))
    for name, value in state(path).items():
        torch.testing.assert_close(value, local.broadcast.flat()[name.removeprefix("server/")], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"noise": 0.0}, "over a network it needs noise"),
        ({"privacy": "example"}, "--privacy.*not for runs over a network"),
        ({"secure": True, "participation": 0.9}, "--participation.*the server knows who takes part"),
        ({"clip": 1e10}, "--clip.*would wrap"),
        ({"defence": "median"}, "--defence"),
    ],
)
def test_what_cannot_be_had_is_said_before_anything_is_sent(change: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        check(asked("fedavg", **change))


def test_a_method_that_needs_each_upload_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"'mp-fedcl' for --method with --privacy client: .*each client's own upload"):
        check(replace(asked("fedavg"), method="mp-fedcl"))


def test_a_client_adds_nothing_without_its_noise() -> None:
    experiment = asked("fedavg", secure=True, noise=0.0)
    assert not Owner(0, secure="required").objections(asked("fedavg", secure=True))
    assert Owner(0).objections(asked("fedavg", privacy="example")) == ["privacy example: not over a network"]
    grid = Loopback(in_simulation(3))
    with pytest.raises(UserError, match="needs noise"):
        serve(grid, experiment, Settings("nowhere", **QUICK))
    assert not grid.asked


@pytest.mark.network
def test_processes_over_tls_add_noise_under_their_masks(tmp_path: Path) -> None:
    """Keys and certificates are those of `deploy init`; every owner requires masks."""
    told: dict[str, Any] = {"method": "fedavg", "dataset": "digits", "train_size": 300, "alpha": 0.5, "model": "linear"}
    told |= {"rounds": 2, "eval_every": 2, "secure": True, "privacy": "client", "clip": 0.5, "noise": 1.0, "clients": 3}
    with federation(tmp_path, 3, minimum=3) as made:
        for number in range(3):
            with (made.folder / "clients" / str(number) / "client.yaml").open("a") as file:
                file.write("\nsecure: required\n")
        outcome = made.run("run", **told)
        assert outcome.code == 0, outcome.err
        assert len(list(made.folder.glob("clients/*/memory/sums.json"))) == 3
        refused = made.run("open", **told | {"secure": False})
        assert refused.code == 1
        assert "no secure aggregation: it is required" in refused.err + refused.out
    expected = [epsilon([Release(1.0, 1.0, number)], Experiment.delta) for number in (1, 2)]
    assert [line["epsilon"] for line in lines(tmp_path / "run")] == expected
    assert f"ε = {expected[-1]:.2f}, δ = 1e-05, client-level" in outcome.out
