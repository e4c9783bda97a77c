"""Attacks: what attackers hold and send, that honest clients are left alone, and that runs with them resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from protofed.data.samples import Samples
from protofed.deploy.server import check
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Clock
from protofed.prototypes import Prototypes
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import new_run
from protofed.trust.attacker import Attack, AttackMemory, triggered
from protofed.trust.attacks import ATTACKS, REVERSED, SCALED, find_attack
from protofed.trust.tailored_attacks import TAILORED
from tests.support.killed import KillAfter, Killed

SENT = Broadcast(
    {"w": torch.tensor([1.0, 1.0]), "seen": torch.tensor(3)},
    {"global": Prototypes(torch.tensor([[[5.0, 0]], [[0, 7.0]]]), torch.ones(2, 1))},
)
WEIGHTS = {"w": torch.tensor([[2.0, 1.0], [1.0, 3.0], [0.0, 0.0]]), "seen": torch.tensor([4, 5, 6])}
VECTORS = torch.tensor([[[[1.0, 2]], [[3.0, 4]]], [[[5.0, 6]], [[0.0, 0]]], [[[7.0, 8]], [[9.0, 1]]]])
COUNTS = torch.tensor([[[2.0], [3.0]], [[4.0], [0.0]], [[1.0], [1.0]]])
UPLOADS = Upload(WEIGHTS, {"means": Prototypes(VECTORS, COUNTS)}, {"samples": torch.tensor([5, 4, 2])})
CLOCK = Clock(0, 3, (4, 6, 7), 10, 0)


def attacked(name: str, who: tuple[int, ...] = (6, 7), memory: AttackMemory | None = None) -> Upload:
    return ATTACKS[name](who, 0).send(UPLOADS, SENT, CLOCK, {} if memory is None else memory)


@pytest.mark.parametrize("name", sorted(ATTACKS))
def test_honest_clients_send_what_they_have(name: str) -> None:
    found = attacked(name)
    for before, after in zip(UPLOADS.client(0).flat().values(), found.client(0).flat().values(), strict=True):
        assert torch.equal(before, after)
    assert attacked(name, who=(1, 2)) is UPLOADS  # who does not take part


def test_signs_are_flipped_around_what_was_sent() -> None:
    found = attacked("sign-flip")
    assert found.weights["w"][1].tolist() == [1.0, 1 - REVERSED * 2]
    assert found.weights["seen"].tolist() == [4, 5, 6]
    assert torch.equal(found.prototypes["means"].vectors[2], -VECTORS[2])


def test_prototypes_are_scaled_or_drawn_and_weights_are_not() -> None:
    assert torch.equal(attacked("scaled-prototypes").prototypes["means"].vectors[1], SCALED * VECTORS[1])
    drawn = attacked("random-prototypes")
    torch.testing.assert_close(drawn.prototypes["means"].vectors.norm(dim=-1), VECTORS.norm(dim=-1))
    assert not torch.allclose(drawn.prototypes["means"].vectors[2], VECTORS[2])
    for found in (drawn, attacked("scaled-prototypes")):
        assert torch.equal(found.weights["w"], WEIGHTS["w"])
        assert torch.equal(found.prototypes["means"].counts, COUNTS)


def test_a_group_moves_one_class_onto_another() -> None:
    vectors, counts = attacked("collusion").prototypes["means"]
    assert vectors[1, 0].tolist() == vectors[2, 0].tolist() == [[9.0, 1.0]]  # the only prototype of class 1 it has
    assert (counts[1:, 0] > 0).all()
    assert (counts.flatten(1).sum(1) <= COUNTS.flatten(1).sum(1)).all()  # it claims no more than it has
    assert vectors[2, 1].tolist() == [[9.0, 1.0]]


def test_a_free_rider_echoes() -> None:
    found = attacked("free-rider")
    assert found.weights["w"][2].tolist() == [1.0, 1.0]
    assert found.prototypes["means"].vectors[1].tolist() == [[[5.0, 0.0]], [[0.0, 7.0]]]
    first = ATTACKS["free-rider"]((6,), 0).send(UPLOADS, Broadcast(SENT.weights), CLOCK, {})
    assert first.prototypes["means"].present[1].tolist() == [False, False]


def test_what_was_sent_first_is_sent_again() -> None:
    memory: AttackMemory = {}
    attack = ATTACKS["stale-replay"]((6,), 0)
    first = attack.send(UPLOADS, SENT, CLOCK, memory)
    assert torch.equal(first.weights["w"], WEIGHTS["w"])
    wide = Prototypes(VECTORS.repeat(1, 1, 2, 1) + 1, COUNTS.repeat(1, 1, 2))
    later = Upload({"w": WEIGHTS["w"] + 1, "seen": WEIGHTS["seen"]}, {"means": wide}, UPLOADS.numbers)
    found = attack.send(later, SENT, CLOCK, memory)
    assert found.weights["w"].tolist() == [[3.0, 2.0], [1.0, 3.0], [1.0, 1.0]]
    assert found.prototypes["means"].counts[1].tolist() == [[4.0, 0.0], [0.0, 0.0]]
    assert found.prototypes["means"].counts[0].tolist() == [[2.0, 2.0], [3.0, 3.0]]


def test_poisoned_data() -> None:
    train = Samples.of(torch.zeros(4, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 2, 9]))
    assert ATTACKS["label-flip"]((0,), 0).poison(train, 10).labels.tolist() == [9, 8, 7, 0]
    marked = ATTACKS["backdoor"]((0,), 0).poison(train, 10)
    assert marked.labels.tolist() == [1, 1, 1, 9]
    assert marked.x.flatten(1).sum(1).tolist() == [4 * 255, 0, 4 * 255, 0]
    assert int(train.x.sum()) == 0  # others may hold the same tensor
    assert triggered(torch.zeros(3, 28, 28)).sum() == 3 * 7 * 7 * 255


def test_features_have_no_corner_to_mark() -> None:
    features = Samples.of(torch.zeros(2, 5, 1, 1), torch.tensor([0, 1]))
    with pytest.raises(UserError, match="pictures"):
        ATTACKS["backdoor"]((0,), 0).poison(features, 2)


def test_attackers_are_drawn_by_the_seed() -> None:
    found = find_attack("sign-flip", 0.2, 20, 3)
    assert isinstance(found, Attack)
    assert len(found.who) == 4
    again = find_attack("sign-flip", 0.2, 20, 3)
    other = find_attack("sign-flip", 0.2, 20, 4)
    assert again == found != other
    assert find_attack("none", 0.2, 20, 3) is None
    with pytest.raises(UserError, match="sign-flip"):
        find_attack("sign-flop", 0.2, 20, 3)
    with pytest.raises(UserError, match="--attackers"):
        find_attack("sign-flip", 0.01, 20, 3)


TINY: dict[str, Any] = {
    **{"model": "mlp", "device": "cpu", "train_size": 240, "clients": 5, "alpha": 1.0, "rounds": 4, "lr": 0.05},
    **{"engine": "sequential", "attackers": 0.4, "min_size": 5},
}


KINDS = ["fedavg", "fedproto", "mp-fedcl", "fedplcc", "fedsc"]
NEW = {attack.name for attack in TAILORED}


@pytest.mark.parametrize(
    ("name", "method"),
    [
        *((name, method) for name in sorted(ATTACKS.keys() - NEW) for method in KINDS),
        *((name, "mp-fedcl") for name in sorted(NEW)),  # which sends weights and several prototypes of a class
    ],
)
def test_every_attack_on_every_kind_of_upload_ends_and_is_defended(name: str, method: str) -> None:
    params = {"lambda1": 1.0} if method == "fedplcc" else {}
    own = {"method": method, "params": params, "attack": name, "defence": "outliers", "rounds": 2, "train_size": 120}
    run = new_run(Experiment.from_mapping(TINY | {"model": "cnn"} | own))
    run.play(None, Progress())
    line = run.history[-1]
    assert set(line.suspected or ()) <= set(range(5))
    assert not any(one.left_out for one in run.history)  # an attack that screening stops shows nothing
    assert (line.backdoor is not None) == ATTACKS[name].backdoor


def test_accuracies_are_those_of_honest_clients() -> None:
    run = new_run(Experiment.from_mapping(TINY | {"method": "local", "attack": "label-flip"}))
    assert run.attack is not None
    line = run.play_round()
    each = line.per_client["own/own/head"]
    honest = [value for member, value in enumerate(each) if member not in run.attack.who]
    assert line.accuracy["own/own/head"] == pytest.approx(sum(honest) / 3)


def test_a_resumed_run_remembers_what_attackers_remember(tmp_path: Path) -> None:
    experiment = Experiment.from_mapping(TINY | {"method": "fedcda", "attack": "stale-replay"})
    whole = new_run(experiment)
    whole.play(None, Progress())
    cut = new_run(experiment)
    folder = RunFolder.create(tmp_path / "run", cut.experiment)
    with pytest.raises(Killed):
        cut.play(folder, KillAfter(2))
    resumed = new_run(experiment)
    resumed.restore(folder)
    assert resumed.pipeline.attacking is not None
    assert cut.pipeline.attacking is not None
    assert resumed.pipeline.attacking.memory.keys() == cut.pipeline.attacking.memory.keys() != set()
    resumed.play(folder, Progress())
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name


def test_attacks_are_for_one_process_and_data_that_stays() -> None:
    with pytest.raises(UserError, match="not for runs over a network"):
        check(Experiment.from_mapping({"attack": "sign-flip", "engine": "flower-sim"}))
    with pytest.raises(UserError, match="does not drift"):
        new_run(Experiment.from_mapping(TINY | {"attack": "sign-flip", "drift": "sudden"}))
