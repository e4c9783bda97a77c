"""A client's own model answers by its method's own rule, also when it was exported; an averaged one by its head."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import protofed
from protofed.errors import UserError
from protofed.methods import METHODS, method_class
from protofed.methods.fedproto import FedProto
from protofed.runs.folder import RunFolder
from protofed.runs.result import Result
from protofed.runs.run import Run
from protofed.serving.card import ModelCard
from protofed.serving.export import export, restored
from protofed.serving.onboard import onboard
from protofed.serving.onnx import _Network
from protofed.serving.predictor import Predictor
from tests.support.command_line import invoke, refused, succeed
from tests.support.exported_runs import arrays, digits, plan, play

CAREFUL = '''
"""A rule that looks at all that a client knows."""

from dataclasses import dataclass

import torch

from protofed.methods.fedproto import FedProto


@dataclass(frozen=True)
class Careful(FedProto):
    """Logits less the distance to the received class means, by counts, turns and a memory of its own."""

    name = "careful"
    rule = "careful"

    weight: float = 1.0

    def memory(self, weights, classes):
        """A bias of each class."""
        return {"bias": torch.zeros(classes)}

    def remember(self, trained, turn):
        """Which changes from turn to turn."""
        return {"bias": turn.memory["bias"] + turn.counts.to(turn.memory["bias"].dtype) / 50}

    def answer(self, output, turn):
        """Everything counts, so that whatever is missing shows."""
        means = turn.received.prototypes["global"]
        far = (output.features.unsqueeze(-2) - means.class_mean()).norm(dim=-1)
        known = torch.where(turn.counts > 0, 0.0, -5.0) * turn.taken
        return output.logits - self.weight * far + known + turn.memory["bias"] + turn.lr * turn.clock.rounds
'''


@pytest.fixture(scope="module")
def careful(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("own") / "careful.py"
    path.write_text(CAREFUL)
    return f"{path}:Careful"


def right(run: Run, client: int, model: Predictor, rule: str | None = None) -> int:
    """How many of a client's own test images are taken for what they are."""
    member = run.federation.members[client]
    images, labels = member.pool.x[member.own], member.pool.labels[member.own]
    return int((model.predict(images, rule, top=1).top[:, 0] == labels).sum())


def assert_answers_as_the_run_did(folder: RunFolder, rule: str, tmp_path: Path, method: str | None) -> None:
    run, result = restored(folder), Result.read(folder.path)
    accuracy = result.accuracy[f"own/own/{rule}"].per_client
    differs = []
    for client, member in run.federation.members.items():
        made, path = export(folder, client), tmp_path / f"client-{client}"
        made.write(path)
        loaded = protofed.load(path, method=method)
        assert (loaded.card.rule, loaded.card.rules) == (rule, (rule, "nearest", "head"))
        for model in (made.predictor, loaded, result.predictor(client)):
            assert right(run, client, model) == round(accuracy[client] / 100 * len(member.own))
        differs.append(right(run, client, loaded, "head") != right(run, client, loaded))
        images = member.pool.x
        by_rule, by_head = (loaded.outputs(images, one)[1] for one in (rule, "head"))
        assert not torch.allclose(by_rule, by_head)
        assert rule in loaded.card.held_out
        assert rule in loaded.card.refusal
    assert any(differs)  # the head would not have done


@pytest.mark.parametrize("method", [name for name in METHODS if method_class(name).rule])
def test_the_answers_are_those_of_the_run(method: str, tmp_path: Path) -> None:
    folder = play(tmp_path / "run", plan(method, rounds=3, alpha=0.2, train_size=200, lr=0.05))
    assert_answers_as_the_run_did(folder, method_class(method).rule, tmp_path, None)
    export(folder).write(tmp_path / "global")
    averaged = protofed.load(tmp_path / "global")
    assert (averaged.card.whose, averaged.card.rule, averaged.card.rules) == ("averaged", None, ("nearest", "head"))
    assert not (tmp_path / "global" / "turn.safetensors").exists()


def test_a_rule_of_ones_own_finds_all_that_the_client_knew(careful: str, tmp_path: Path) -> None:
    """The method leaves the model as it is; without an averaged one, the largest client's is exported."""
    folder = play(tmp_path / "run", plan(careful, rounds=3, alpha=0.2, train_size=200, params={"weight": 0.3}))
    assert_answers_as_the_run_did(folder, "careful", tmp_path, careful)
    assert export(folder).predictor.card.rule == "careful"
    assert any(tmp_path.glob("client-0/turn.safetensors"))
    with pytest.raises(UserError, match=r"answers by careful, a rule of the method .*Careful, which is your own code"):
        protofed.load(tmp_path / "client-0")
    with pytest.raises(UserError, match="the method fedproto, is not what this rule needs"):
        protofed.load(tmp_path / "client-0", method=FedProto())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a method that has a rule, and a client's model."""
    folder = tmp_path_factory.mktemp("rule")
    play(folder / "run", plan("fedrod", rounds=2, alpha=0.2))
    said = succeed(folder, "export", "run", "--out", "model", "--client", "1").out
    assert "answers by: both-heads, the rule of fedrod" in said
    assert "\nboth-heads: " in said
    arrays(folder / "new.npz", 200, 240)
    return folder


def test_predict_answers_by_it_unless_told_otherwise(place: Path) -> None:
    def asked(*more: str) -> Any:
        return json.loads(succeed(place, "predict", "model", "new.npz", "--json", *more).out)["predictions"]

    by_rule = asked("--rule", "both-heads")
    assert asked() == by_rule
    assert asked("--rule", "head") != by_rule
    assert asked("--rule", "nearest") != by_rule
    assert "both-heads" in succeed(place, "predict", "model", "new.npz").out
    assert "refused: " in succeed(place, "predict", "model", "new.npz", "--reject", "0.1").out
    said = refused(invoke(place, "predict", "model", "new.npz", "--rule", "personal"))
    assert "'personal' for --rule" in said
    assert "both-heads" in said


def test_a_newcomer_is_told_to_take_the_averaged_model(place: Path) -> None:
    said = refused(invoke(place, "onboard", "model", "--data", "new.npz"))
    assert "the model is client 1's own and answers by both-heads, which a newcomer does not train" in said
    assert "hint: export the averaged one, without --client" in said
    made, _ = onboard(protofed.load(place / "model"), place / "new.npz", 1, model="mlp-fedpcl")  # takes prototypes only
    assert made.predictor.card.rule is None


def test_a_new_class_leaves_it_as_it_is(place: Path, tmp_path: Path) -> None:
    examples = arrays(tmp_path / "examples.npz", 0, 5, labels=False)
    more = ("eleven", "--data", str(examples), "--out", str(tmp_path / "larger"))
    succeed(place, "add-class", "model", *more)
    images, _ = digits()
    before, after = (protofed.load(path).predict(images) for path in (place / "model", tmp_path / "larger"))
    assert before.classes == after.classes


def test_what_it_needs_is_somebodys_word(careful: str, tmp_path: Path) -> None:
    export(play(tmp_path / "run", plan(careful)), 0).write(tmp_path / "model")
    path = tmp_path / "model" / "turn.safetensors"
    whole = load_file(path)
    changes = {
        "memory/bias": torch.zeros(3),
        "vectors/global": torch.zeros(2, 2),
        "clock": torch.zeros(2, dtype=torch.int64),
        "strange/part": torch.zeros(1),
    }
    for name, value in changes.items():
        save_file({**whole, name: value}, path)
        with pytest.raises(UserError, match="not what this rule needs"):
            protofed.load(tmp_path / "model", method=careful)
    for name in ("memory/bias", "slots/global", "counts"):
        save_file({other: tensor for other, tensor in whole.items() if other != name}, path)
        with pytest.raises(UserError, match="not what this rule needs"):
            protofed.load(tmp_path / "model", method=careful)
    path.unlink()
    with pytest.raises(UserError, match="cannot be read"):
        protofed.load(tmp_path / "model", method=careful)


@pytest.mark.parametrize("change", [{"rule": "head"}, {"rule": ""}, {"extended_by": None}, {"rule": 3}])
def test_a_card_with_a_rule_is_checked(place: Path, change: dict[str, Any]) -> None:
    card = ModelCard.read(place / "model" / "card.json")
    with pytest.raises((UserError, TypeError)):
        replace(card, **change)


def test_the_network_of_onnx_answers_by_it(place: Path) -> None:
    """What is written as ONNX, before it is; the packages for that may be missing."""
    model, (images, _) = protofed.load(place / "model"), digits(7)
    with torch.no_grad():
        found = _Network(model)(images.float())
    for mine, theirs in zip(model.outputs(images, "both-heads"), found, strict=True):
        torch.testing.assert_close(theirs, mine, atol=1e-5, rtol=1e-4)


def test_onnx_answers_by_it(place: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    succeed(tmp_path, "export", str(place / "run"), "--client", "1", "--out", "model", "--onnx")
    images, _ = digits(7)
    session = runtime.InferenceSession(tmp_path / "model" / "model.onnx")
    found = session.run(["features", "logits"], {"images": images.float().numpy()})
    ours = protofed.load(tmp_path / "model").outputs(images, "both-heads")
    for mine, theirs in zip(ours, found, strict=True):
        torch.testing.assert_close(torch.from_numpy(theirs), mine, atol=1e-5, rtol=1e-4)
