"""Servers and clients of several versions: what is at its default is not said, and what is not known is named."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from protofed.deploy import spoken as room
from protofed.deploy.client import Failed
from protofed.deploy.connections import Connections
from protofed.deploy.ledger import digest
from protofed.deploy.server_settings import Settings
from protofed.deploy.spoken import spoken, understood
from protofed.deploy.wire import OLDEST, PROTOCOL, Packet, seal
from protofed.experiment import Experiment
from protofed.internal.version import VERSION
from tests.deploy.test_owner import BASE, at, message, refusal, taken
from tests.support.loopback import Loopback, in_simulation

DEFAULTS = Path(__file__).parents[1] / "golden/protocol.json"


def test_what_is_at_its_default_is_not_said() -> None:
    assert spoken(Experiment()) == {}
    said = spoken(replace(BASE, secure=True, params={"k": 3}))
    assert said == {"method": "fedproto", "train_size": 200, "clients": 2, "rounds": 3, "model": "cnn"} | {
        "alpha": 1.0,
        "secure": True,
        "params": {"k": 3},
    }
    assert spoken(understood({"experiment": json.loads(json.dumps(said))})) == said
    facts = Connections(Loopback(in_simulation(1)), BASE, Settings(), "a").facts(more=1)
    assert (facts["experiment"], facts["version"], facts["more"]) == (spoken(BASE), VERSION, 1)


def test_a_run_may_go_on_on_another_machine(tmp_path: Path) -> None:
    """Where and how it is played is nobody else's business; what is played is what it began with."""
    client = at(tmp_path)
    taken(client, message())
    taken(client, message(replace(BASE, device="cpu", engine="sequential", motion=False, checkpoint_every=9), 1))
    assert refusal(client, message(replace(BASE, momentum=0.9), 2)) == "the run began with another experiment"


def asks_for(said: Any, **more: Any) -> Packet:
    """A message of a server of another version, which names an experiment so."""
    packet = message()
    return seal(json.dumps(json.loads(packet.text) | {"experiment": said, **more}), packet.data)


def test_an_option_that_is_not_known_is_named_with_both_versions(tmp_path: Path) -> None:
    assert refusal(at(tmp_path), asks_for({"proximal": 0.1}, version="0.9.0")) == (
        f"it does not know the option proximal: protofed {VERSION} is installed here, 0.9.0 at the server"
    )
    assert refusal(at(tmp_path), asks_for({"proximal": 0.1})).endswith("an older one at the server")
    long = refusal(at(tmp_path), asks_for({"proximal": 0.1}, version="x\n" * 10**5))
    assert len(long) < 200
    assert long.isprintable()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"method": "fedx"}, "'fedx' for --method"),
        ({"method": "fedproto", "params": {"novelty": 1}}, "'novelty' for --set"),
        ({"model": "cnn,resnet-9000"}, "'resnet-9000' for --model"),
        ({"dataset": "digits-2"}, "'digits-2' for --dataset"),
        ({"split": "by-weather"}, "'by-weather' for --split"),
        ({"optimiser": "lion"}, "'lion' for --optimiser"),
        ({"metrics": 7}, "'7' for --metrics"),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_both_versions(
    change: dict[str, Any], named: str, tmp_path: Path
) -> None:
    said = refusal(at(tmp_path), asks_for(spoken(BASE) | change, version="0.9.0"), "query.hello")
    assert f"invalid value {named}" in said
    assert said.endswith(f"(protofed {VERSION} is installed here, 0.9.0 at the server)")


def test_who_brings_data_needs_no_dataset_of_the_servers(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", images=np.zeros((40, 1, 8, 8), dtype=np.uint8), labels=np.arange(40) % 2)
    newer = spoken(replace(BASE, train_size=None)) | {"dataset": "digits-2", "split": "by-weather"}
    client = at(tmp_path, data=str(tmp_path / "mine.npz"))
    assert isinstance(client.answer("query.hello", asks_for(newer)), Packet)
    part = at(tmp_path, data="digits")
    assert "'by-weather' for --split" in refusal(part, asks_for(newer), "query.hello")


@pytest.mark.parametrize("said", [None, [], ["method"], "fedproto", 7])
def test_what_is_no_experiment_ends_no_client(said: Any, tmp_path: Path) -> None:
    assert isinstance(at(tmp_path).answer("query.hello", asks_for(said)), Failed)


def test_a_digest_does_not_change_with_an_option_at_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that is upgraded within a run finds the experiment that the run began with."""
    before = digest(spoken(BASE))
    monkeypatch.setattr(room, "asdict", lambda experiment: asdict(experiment) | {"proximal": 0.0})
    assert digest(room.spoken(BASE)) == before
    assert digest(room.spoken(replace(BASE, lr=0.5))) != before


def test_defaults_are_those_of_the_protocol() -> None:
    """What is not said has them on both sides: whoever changes one begins a new protocol.

    `python -m tests.deploy.test_versions` writes them anew, with the options that have come since.
    """
    agreed = json.loads(DEFAULTS.read_text())
    assert agreed["protocol"] == PROTOCOL, "write the defaults of the new protocol"
    here = defaults()
    changed = [name for name, value in agreed["defaults"].items() if name in here and here[name] != value]
    assert not changed, f"{changed} have other defaults now: raise PROTOCOL, and OLDEST with it"
    assert OLDEST <= PROTOCOL


def defaults() -> dict[str, Any]:
    """Of the options that are said."""
    every: dict[str, Any] = json.loads(json.dumps(asdict(Experiment())))
    return {name: value for name, value in every.items() if name not in room.DECIDED_HERE}


if __name__ == "__main__":
    DEFAULTS.write_text(json.dumps({"protocol": PROTOCOL, "defaults": defaults()}, indent=1) + "\n")
