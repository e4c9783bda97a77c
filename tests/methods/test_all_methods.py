"""Every method sends what it says and begins with cross-entropy, and what several add and learn shows in runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods import METHODS, build_method
from protofed.methods.base import Method
from protofed.methods.fednh import W
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedsc import FedSC
from protofed.methods.local import Local
from protofed.methods.server.cross_round import Cache
from tests.support import relation_runs
from tests.support.loss_cases import Case
from tests.support.nets import Norm, federation, gap, own, play
from tests.support.server_runs import played
from tests.support.trained_clients import trained
from tests.support.turns import turn_of


# FedRCL's pairs are there at once, and so is how often a client has each class.
@pytest.mark.parametrize("name", [name for name in METHODS if name not in ("fedrcl", "fedlc", "fedrod", "fedetf")])
def test_without_prototypes_and_at_the_received_weights_the_loss_is_cross_entropy(name: str) -> None:
    case = Case(3)
    assert_close(case.loss(build_method(name, {}), Broadcast(case.module.state_dict())), case.ce)


@pytest.mark.parametrize("name", METHODS)
def test_an_upload_holds_what_the_method_says_it_sends(name: str) -> None:
    method, clients = build_method(name, {}), trained(4)
    clients = clients._replace(weights={**clients.weights, "head.weight": torch.ones(3, 2)})
    upload = method.upload(clients, turn_of(clients, method))
    words = {"weights": bool(upload.weights), "prototypes": bool(upload.prototypes)}
    assert words == {"weights": "weights" in method.up, "prototypes": "prototypes" in method.up or "means" in method.up}
    if upload.weights:
        assert_close(dict(upload.weights), {name: clients.weights[name] for name in upload.weights})
        body = {name for name in clients.weights if name != "head.weight"}
        part = {"weights of the body": body, "weights of the base": body, "weights of the head": {"head.weight"}}
        assert upload.weights.keys() == part.get(method.up, clients.weights.keys())
        assert upload.numbers["samples"].tolist() == [5, 1, 2]
    else:
        assert not upload.numbers


# FedRep, FedBABU, Ditto and FedPAC have more epochs, FedPCL and FCCL+ another optimiser, FedNH another head, FedNTD a
# teacher, FedRCL pairs, FedLC margins, FedRoD two heads, FedETF a fixed one.
MORE_EPOCHS = ("fedrep", "fedbabu", "ditto", "fedpac")
OTHERWISE = (*MORE_EPOCHS, "fedpcl", "fccl-plus", "fednh", "fedntd", "fedrcl", "fedlc", "fedrod", "fedetf")


@pytest.mark.parametrize(
    "method", [name for name in METHODS if name not in OTHERWISE and build_method(name, {}).phases(1)]
)
def test_the_first_round_is_cross_entropy_from_the_common_start(method: str) -> None:
    run, plain = play(method, rounds=1, epochs=1, batch_size=64), play("local", rounds=1, epochs=1, batch_size=64)
    assert run.history[0].loss == plain.history[0].loss  # one step: FedProx has not moved yet
    assert gap(own(run), own(plain)) < 1e-12


@pytest.mark.parametrize("method", [FedSC(), FedPCL(), FedPCL(reading="code")])
def test_the_first_round_of_fedsc_and_fedpcl_is_cross_entropy(method: Method) -> None:
    one: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch_size": 64}
    assert relation_runs.play(method, **one).history[0].loss == relation_runs.play(Local(), **one).history[0].loss


@pytest.mark.parametrize("method", ["fedavg", "fedproto", "mp-fedcl", "sp-fedcl", "dp-fedcl"])
def test_methods_learn(method: str) -> None:
    """After 12 rounds on three clients that know all four classes, far better than a guess by its own rule."""
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = play(method, clients=clients, engine="stacked", rounds=12, participation=1.0, model=Norm, lr=0.1)
    before, after = run.history[0].accuracy, run.history[-1].accuracy
    score = type(run.method).score
    assert after[score] > 75
    assert after[score] >= before[score]


def test_what_the_methods_add_takes_part_in_those_runs() -> None:
    plain = {rounds: own(play("fedavg", engine="stacked", rounds=rounds)) for rounds in (3, 4)}
    assert gap(own(played("fesem", "stacked")), plain[3]) > 1e-4
    assert gap(own(played("fedcda", "stacked")), plain[4]) > 1e-4
    assert len(set(played("fesem", "stacked").broadcast.kept["assignment"].tolist()) - {-1}) > 1
    head, start = played("fednh", "stacked").broadcast.weights, play("fednh", rounds=0).broadcast.weights
    assert float((head[W] - start[W]).abs().max()) > 1e-3
    assert float((head["head.scale"] - start["head.scale"]).abs().max()) > 1e-5
    kept = Cache.unpack(played("fedcda", "stacked", smoothness=100.0).broadcast.kept)
    newest = (kept.turns - 1) % kept.slots
    assert bool((kept.chosen != newest)[kept.turns > 0].any())  # somebody's older model was selected
