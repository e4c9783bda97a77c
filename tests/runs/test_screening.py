"""What every engine asks of uploads before anything is computed from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from protofed.errors import LostError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Trained, Turn
from protofed.methods.fccl_plus import FCCLPlus
from protofed.methods.fedavg import FedAvg
from protofed.prototypes import Prototypes
from protofed.runs.run import new_run
from protofed.server.pipeline import UNSOUND
from protofed.trust.screening import FAR, capped, refusals


def believed(declared: bool = True, lengths: bool = True, **changes: Any) -> dict[int, str]:
    """What is refused of four uploads, after some numbers of the second were changed."""
    weights = {"w": torch.ones(4, 3), "seen": torch.ones(4, dtype=torch.int64), "norm.running_var": torch.ones(4, 2)}
    sets = {
        "means": Prototypes(torch.ones(4, 2, 1, 3), torch.full((4, 2, 1), 5.0)),
        "more": Prototypes(torch.ones(4, 2, 1, 3), torch.full((4, 2, 1), 5.0)),
    }
    numbers = {"samples": torch.full((4,), 10)}
    for name, change in changes.items():
        target = {"w": weights["w"], "vectors": sets["means"].vectors, "counts": sets["means"].counts} | numbers
        target |= {"spread": weights["norm.running_var"], "seen": weights["seen"]}
        target[name][1] = change
    sent = Broadcast({"w": torch.zeros(3), "seen": torch.tensor(0), "norm.running_var": torch.ones(2)})
    return refusals(Upload(weights, sets, numbers), sent, [10, 10, 10, 10] if declared else None, lengths)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"w": float("nan")}, "not finite"),
        ({"vectors": float("inf")}, "not finite"),
        ({"counts": -1.0}, "less than nothing"),
        ({"counts": 6.0}, "more samples"),
        ({"samples": 11}, "more samples"),
        ({"samples": 0}, "less than nothing"),
        ({"samples": -200, "declared": False}, "less than nothing"),
        ({"w": float("nan"), "lengths": False}, "not finite"),
        ({"counts": 4.5}, "not whole"),
        ({"spread": -1e-6}, "below zero"),
        ({"seen": -1}, "no training does"),
        ({"seen": 2**40, "declared": False}, "no training does"),
        ({"w": FAR * 1.01}, "update is far longer"),
        ({"vectors": -FAR * 1.01}, "prototypes are far longer"),
    ],
)
def test_an_upload_that_cannot_be_true_is_refused_with_the_reason(changes: dict[str, Any], reason: str) -> None:
    found = believed(**changes)
    assert list(found) == [1]
    assert reason in found[1]


def test_what_may_be_true_is_believed() -> None:
    assert believed() == {}
    assert believed(w=FAR * 0.99, vectors=0.0, counts=1.0, samples=1) == {}
    assert refusals(Upload(), Broadcast(), [3]) == {}
    nothing = Upload({"w": torch.zeros(3, 2)}, {}, {"samples": torch.ones(3)})
    nothing.weights["w"][0] = 5  # where most have not moved, no length is known
    assert refusals(nothing, Broadcast({"w": torch.zeros(2)}), None, lengths=True) == {}
    assert believed(w=FAR * 2, vectors=FAR * 2, lengths=False) == {}  # what others have sent does not matter
    assert refusals(Upload({"w": torch.zeros(0, 3)}), Broadcast(), []) == {}


def test_prototypes_of_a_class_that_was_not_named_are_refused() -> None:
    sets = {"means": Prototypes(torch.ones(3, 2, 1, 3), torch.tensor([[[5.0], [0.0]], [[5.0], [5.0]], [[1.0], [2.0]]]))}
    named = torch.tensor([[True, False], [True, False], [True, True]])
    found = refusals(Upload({}, sets), Broadcast(), None, named=named)
    assert found == {1: "it has prototypes of classes that it did not name"}
    assert refusals(Upload({}, sets), Broadcast(), None) == {}


def test_nobodys_prototypes_stand_for_more_than_thrice_what_most_have() -> None:
    counts = torch.tensor([[[5.0, 4.0], [1.0, 0.0]], [[6.0, 2.0], [2.0, 0.0]], [[9e5, 1.0], [1e5, 0.0]]])
    found = capped(Upload({}, {"means": Prototypes(torch.ones(3, 2, 2, 3), counts)})).prototypes["means"].counts
    assert torch.equal(found[:2], counts[:2])
    assert found[2].tolist() == [[26.0, 1.0], [2.0, 0.0]]  # 30 in all, but for what is lost by rounding, in its shares
    held = Upload({}, {"means": Prototypes(torch.ones(2, 2, 1, 3), torch.tensor([[[0.0], [0.0]], [[9.0], [0.0]]]))})
    assert torch.equal(capped(held).prototypes["means"].counts, held.prototypes["means"].counts)


@dataclass(frozen=True)
class Liar(FedAvg):
    """The first client of a round sends what is not a number."""

    every: bool = False

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        sent = super().upload(trained, turn)
        bad = {name: tensor.clone() for name, tensor in sent.weights.items()}
        for tensor in bad.values():
            tensor[: None if self.every else 1] = float("nan")
        return Upload(bad, sent.prototypes, sent.numbers)


OPTIONS: dict[str, Any] = {"device": "cpu", "train_size": 120, "clients": 3, "alpha": 1.0, "engine": "stacked"}


def test_a_refused_upload_is_counted_and_the_round_goes_on() -> None:
    run = new_run(Experiment.from_mapping(OPTIONS | {"rounds": 2}), method=Liar())
    line = run.play_round()
    assert line.left_out == {0: "refused: it holds a number that is not finite"}
    assert (line.participants, len(line.losses or ())) == ([1, 2], 2)
    assert all(bool(tensor.isfinite().all()) for tensor in run.broadcast.weights.values())


def test_with_client_level_privacy_it_is_counted_too() -> None:
    pytest.importorskip("dp_accounting")
    asked = {"rounds": 2, "privacy": "client", "clip": 1.0, "noise": 1.0}
    run = new_run(Experiment.from_mapping(OPTIONS | asked), method=Liar())
    assert run.play_round().left_out == {0: "refused: it holds a number that is not finite"}
    assert all(bool(tensor.isfinite().all()) for tensor in run.broadcast.weights.values())
    alone = new_run(Experiment.from_mapping(OPTIONS | asked), method=Liar(every=True)).play_round()
    assert len(alone.left_out) == 3  # and the round goes on, with nothing but noise


def test_what_is_made_of_public_images_is_checked_too() -> None:
    class NotANumber(FCCLPlus):
        def public_upload(self, features: Tensor, logits: Tensor) -> Upload:
            sent = super().public_upload(features, logits)
            numbers = {name: tensor.clone() for name, tensor in sent.numbers.items()}
            for tensor in numbers.values():
                tensor[:1] = float("nan")
            return Upload(sent.weights, sent.prototypes, numbers)

    asked = {"rounds": 1, "public": "digits", "engine": "sequential", "clients": 3, "lr": 0.001}
    run = new_run(Experiment.from_mapping(OPTIONS | asked), method=NotANumber(public_images=64, public_batch=32))
    line = run.play_round()
    assert line.left_out == {0: "of public images: refused: it holds a number that is not finite"}
    assert line.participants == [0, 1, 2]  # what it trains afterwards, from what the others agreed on, is welcome
    assert all(bool(tensor.isfinite().all()) for tensor in run.state().values())


def test_a_round_of_lies_alone_ends_the_run() -> None:
    run = new_run(Experiment.from_mapping(OPTIONS | {"rounds": 1}), method=Liar(every=True))
    with pytest.raises(LostError, match="every upload of round 1 was refused"):
        run.play_round()


def test_weights_that_give_no_finite_output_are_not_sent() -> None:
    """Each number is finite, and so is the mean."""

    class Huge(FedAvg):
        def upload(self, trained: Trained, turn: Turn) -> Upload:
            sent = super().upload(trained, turn)
            return Upload({name: 1e30 * torch.sign(tensor) for name, tensor in sent.weights.items()}, {}, sent.numbers)

    run = new_run(Experiment.from_mapping(OPTIONS | {"rounds": 2, "defence": "norm-clip"}), method=Huge())
    before = dict(run.broadcast.weights)
    line = run.play_round()
    assert line.left_out == dict.fromkeys(range(3), f"refused: {UNSOUND}")
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.broadcast.weights.items())
    assert run.engine.sound(run.broadcast)
