"""A client exports its model of a run over a network: the one that a run in one process has of that client."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protofed import load
from protofed.data import load as load_data
from protofed.deploy.client_export import OWN_DATA, exported, runs_of
from protofed.deploy.owner import Owner
from protofed.deploy.received import RECEIVED
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.experiment import Experiment
from protofed.serving.export import Exported, export
from tests.support.command_line import invoke
from tests.support.exported_runs import arrays, digits, play
from tests.support.loopback import Loopback, with_folder

PERSONAL = (
    "local",
    "fedproto",
    "fedper",
    "fedrep",
    "fedpcl",
    "fedbn",
    "ditto",
    "fedrod",
    "lg-fedavg",
    "fedgh",
    "fedpac",
)
WHOLE = ("fedavg", "mp-fedcl", "fesem", "fedbabu")


def asked(method: str, **more: Any) -> Experiment:
    given: dict[str, Any] = {"train_size": 150, "alpha": 0.5, "clients": 3, "rounds": 2, "model": "cnn"}
    machine: dict[str, Any] = {"engine": "sequential", "device": "cpu", "threads": 1}
    return Experiment.from_mapping({"method": method, **given, **machine, **more})


def federation(place: Path, **says: Any) -> Loopback:
    return Loopback({100 + k: with_folder(place, k, **says) for k in range(3)})


def owner(place: Path, number: int) -> Owner:
    return Owner.read(place / f"client-{number}/client.yaml").with_data(None)


def assert_alike(ours: Exported, theirs: Exported) -> None:
    """The same weights and, where clients learn whose prototypes they are, the same prototypes; the same answers."""
    one, other = ours.predictor, theirs.predictor
    assert one.state.keys() == other.state.keys()
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    images, _ = digits()
    for rule in one.card.rules:
        assert one.predict(images, rule).classes == other.predict(images, rule).classes
    assert one.card.rules == other.card.rules
    assert (one.card.whose, one.card.classes, one.card.rounds) == (
        other.card.whose,
        other.card.classes,
        other.card.rounds,
    )


@pytest.mark.parametrize("method", [*PERSONAL, *WHOLE])
def test_it_is_the_model_that_a_run_in_one_process_exports(method: str, tmp_path: Path) -> None:
    experiment = asked(method)
    serve(federation(tmp_path), experiment, Settings(out=str(tmp_path / "run")))
    local = play(tmp_path / "local", experiment)
    for number in range(3):
        assert_alike(exported(owner(tmp_path, number), own=True), export(local, number))
    if method in WHOLE and method != "fesem":  # whose averaged model is that of the largest client's cluster
        assert exported(owner(tmp_path, 0)).predictor.card.whose == "averaged"


def test_without_a_whole_model_it_is_the_clients_own(tmp_path: Path) -> None:
    experiment = asked("fedproto")
    serve(federation(tmp_path), experiment, Settings(out=str(tmp_path / "run")))
    card = exported(owner(tmp_path, 1)).predictor.card
    assert card.whose == "client 1"
    assert card.prototypes["source"] == "shared by the method"
    assert 0 < card.held_out["nearest"] <= 100


def test_it_is_of_the_clients_own_data_and_names_no_path(tmp_path: Path) -> None:
    experiment = asked("fedproto", train_size=None, rounds=1)
    nodes = {
        100 + k: with_folder(tmp_path, k, data=str(arrays(tmp_path / f"{k}.npz", 200 * k, 200 * k + 200)))
        for k in range(3)
    }
    serve(Loopback(nodes), experiment, Settings(out=str(tmp_path / "run")))
    made = exported(owner(tmp_path, 2), examples=1)
    unnamed = exported(replace(owner(tmp_path, 2), data=None))  # `deploy client --data`, and not said again
    assert unnamed.predictor.card.held_out == made.predictor.card.held_out
    assert made.predictor.card.data["dataset"] == OWN_DATA
    assert made.predictor.card.held_out["images"] == len(load_data(f"npz:{tmp_path / '2.npz'}").test)
    assert str(tmp_path) not in made.predictor.card.to_json()
    assert made.predictor.examples is not None
    theirs = np.load(tmp_path / "2.npz")["images"]
    for image in made.predictor.examples.x.numpy():
        assert (theirs == image[0]).all((1, 2)).any()


def test_the_model_of_a_run_that_was_cut_off(tmp_path: Path) -> None:
    experiment = asked("fedper", rounds=4)
    grid = federation(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        serve(stopped(grid), experiment, Settings(out=str(tmp_path / "run")))
    made = exported(owner(tmp_path, 0))
    assert made.predictor.card.rounds == {"played": 2, "planned": 4, "stopped": "cut off", "complete": False}
    local = play(tmp_path / "local", replace(experiment, rounds=2))
    assert all(
        torch.equal(value, export(local, 0).predictor.state[name]) for name, value in made.predictor.state.items()
    )


def stopped(grid: Loopback) -> Loopback:
    """A server that is stopped when it begins its third round."""
    push = grid.push_messages

    def until(messages: Any) -> list[str]:
        known = list(messages)
        if any(message.metadata.group_id == "3" for message in known):
            raise KeyboardInterrupt
        return push(known)

    grid.push_messages = until  # type: ignore[method-assign]
    return grid


def test_on_the_command_line(tmp_path: Path) -> None:
    for method in ("fedavg", "ditto"):
        experiment = asked(method, rounds=1)
        serve(federation(tmp_path), experiment, Settings(out=str(tmp_path / method)))
    place, runs = "client-1", runs_of(owner(tmp_path, 1))
    assert len(runs) == 2
    done = invoke(tmp_path, "deploy", "export", place, "--id", "1", "--out", "model", "--json")
    assert done.code == 0, done.err
    card = json.loads(done.out)
    assert (card["method"]["name"], card["whose"], card["rule"]) == ("ditto", "averaged", None)
    done = invoke(tmp_path, "deploy", "export", place, "--id", "1", "--out", "mine", "--own")
    assert done.code == 0, done.err
    assert "answers by: personal" in done.out
    assert load(tmp_path / "mine").card.whose == "client 1"
    done = invoke(tmp_path, "deploy", "export", place, "--id", "1", "--out", "first", "--run", runs[1], "--json")
    assert json.loads(done.out)["method"]["name"] == "fedavg"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--id", "1", "--run", "nosuch"], "for --run: there is only"),
        (["--id", "0"], "is of client 1"),
        (["--id", "1", "--examples", "-1"], "for --examples: it must be 0 or more"),
        (["--id", "1", "--data", "nowhere.npz"], "for --data: there is no nowhere.npz"),
    ],
)
def test_wrong_words_are_refused(words: list[str], says: str, tmp_path: Path) -> None:
    experiment = asked("local", rounds=1)
    serve(federation(tmp_path), experiment, Settings(out=str(tmp_path / "run")))
    done = invoke(tmp_path, "deploy", "export", "client-1", "--out", "model", *words)
    assert done.code == 2
    assert says in done.err
    assert len(done.err.splitlines()) <= 2
    assert not (tmp_path / "model").exists()


def test_a_client_without_a_run_says_so(tmp_path: Path) -> None:
    with_folder(tmp_path, 0)
    done = invoke(tmp_path, "deploy", "export", "client-0", "--id", "0", "--out", "model")
    assert (done.code, "this client has taken part in no run" in done.err) == (2, True)


def test_simulated_clients_keep_nothing_more(tmp_path: Path) -> None:
    """Their models are in the run folder, and what they were sent would be written for each of them."""
    experiment = asked("fedavg", rounds=1)
    nodes = {100 + k: {"partition-id": k, "num-partitions": 3} for k in range(3)}
    grid = Loopback(nodes)
    serve(grid, experiment, Settings(out=str(tmp_path / "run")))
    assert not any(RECEIVED in str(context.state) for context in grid.contexts.values())
