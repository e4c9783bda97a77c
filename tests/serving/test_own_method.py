"""A user's own method that changes the model is exported, and used again where the user names it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.methods import build_method
from protofed.methods.fednh import FedNH
from protofed.runs.folder import RunFolder
from protofed.runs.run import new_run
from protofed.serving.export import export
from protofed.serving.onboard import Start, onboard
from tests.support.command_line import invoke, refused, succeed
from tests.support.exported_runs import arrays, digits, plan, play

WARM = '''
"""FedAvg with a classifier by cosines, whose temperature is learnt."""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.functional import normalize

from protofed.methods.fedavg import FedAvg


class CosineHead(nn.Module):
    def __init__(self, size, classes, warmth):
        super().__init__()
        self.directions = nn.Parameter(torch.randn(classes, size))
        self.warmth = nn.Parameter(torch.tensor(warmth))

    def forward(self, features):
        return self.warmth * normalize(features, dim=-1) @ normalize(self.directions, dim=-1).mT


@dataclass(frozen=True)
class Warm(FedAvg):
    """Cosines, times a learnt number."""

    warmth: float = 5.0

    def extend(self, module, classes):
        """Another classifier; what it is made of depends on a parameter."""
        module.head = CosineHead(module.feature_size, classes, self.warmth)
        return module


@dataclass(frozen=True)
class Plain(FedAvg):
    """Leaves the model as it is."""
'''

SHORT = '''
from dataclasses import dataclass

from torch import nn

from protofed.methods.fedavg import FedAvg
from protofed.models.output import Output


class Flat(nn.Module):
    feature_size = 64

    def __init__(self, classes):
        super().__init__()
        self.scores = nn.Linear(64, classes, bias=False)

    def forward(self, x):
        features = x.flatten(1)
        return Output(features, self.scores(features), ())


@dataclass(frozen=True)
class Short(FedAvg):
    """A linear classifier of pixels, whatever the model was."""

    name = "short"

    def extend(self, module, classes):
        """Without the model."""
        return Flat(classes)
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the method, a run of it, its model, and images."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "warm.py").write_text(WARM)
    play(folder / "run", plan(f"{folder}/warm.py:Warm", rounds=2, params={"warmth": 7.0}))
    succeed(folder, "export", "run", "--out", "model")
    arrays(folder / "new.npz", 200, 300)
    arrays(folder / "examples.npz", 0, 5, labels=False)
    return folder


@pytest.fixture
def spec(place: Path) -> str:
    return f"{place}/warm.py:Warm"


def test_it_answers_as_the_run_did(place: Path, spec: str) -> None:
    model = protofed.load(place / "model", method=spec)
    assert {name for name in model.state if name.startswith("head.")} == {"head.directions", "head.warmth"}
    assert model.card.extended_by == spec
    folder = RunFolder.open(place / "run")
    run = new_run(folder.experiment())
    run.restore(folder)
    images, _ = digits(30)
    group = run.engine.groups[0]
    averaged = {name: tensor.unsqueeze(0) for name, tensor in run.broadcast.weights.items()}
    _, logits = run.engine.forward(group, averaged, group.inputs(images))
    torch.testing.assert_close(model.outputs(images)[1], logits[0])
    assert float(model.state["head.warmth"]) == pytest.approx(7, abs=1)  # where it began, and was trained
    assert float(model.state["head.warmth"]) != 7


def test_both_engines_train_it_alike(spec: str) -> None:
    """Its head has a parameter that is a single number."""
    losses = []
    for engine in ("sequential", "stacked"):
        run = new_run(plan(spec, engine=engine, precision="float64"))
        losses.append(run.play_round().losses)
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)


def test_a_method_object_serves_as_well(place: Path, spec: str) -> None:
    images, _ = digits()
    by_name = protofed.load(place / "model", method=spec)
    by_object = protofed.load(place / "model", method=build_method(spec, {"warmth": 1.0}))
    for one, other in zip(by_name.outputs(images), by_object.outputs(images), strict=True):
        assert torch.equal(one, other)


def test_predict_and_add_class_take_it_by_name(place: Path, spec: str, tmp_path: Path) -> None:
    asked = (str(place / "new.npz"), "--rule", "head", "--json")
    rows = json.loads(succeed(tmp_path, "predict", str(place / "model"), *asked, "--method", spec).out)["predictions"]
    assert len(rows) == 100
    examples = ("--data", str(place / "examples.npz"), "--out", "larger")
    succeed(tmp_path, "add-class", str(place / "model"), "eleven", *examples, "--method", spec)
    again = json.loads(succeed(tmp_path, "predict", "larger", *asked, "--method", spec).out)["predictions"]
    assert again == rows  # the classifier knows the new class as little as before
    assert protofed.load(tmp_path / "larger", method=spec).card.classes[-1] == "eleven"


@pytest.mark.parametrize("start", ["pretrained", "random"])
def test_a_client_that_comes_later_has_the_same_head(place: Path, spec: str, start: Start, tmp_path: Path) -> None:
    command = ("onboard", str(place / "model"), "--data", str(place / "new.npz"), "--method", spec, "--json")
    found = json.loads(succeed(tmp_path, *command, "--start", start, "--epochs", "1", "--out", "client").out)
    assert found["start"] == start
    joined = protofed.load(tmp_path / "client", method=spec)
    assert joined.state.keys() == protofed.load(place / "model", method=spec).state.keys()
    assert float(joined.state["head.warmth"]) == pytest.approx(7, abs=1)
    assert float(joined.state["head.warmth"]) != 7


def test_another_architecture_is_without_it(place: Path, spec: str, tmp_path: Path) -> None:
    made, _ = onboard(protofed.load(place / "model", method=spec), place / "new.npz", 1, model="mlp-fedpcl")
    made.write(tmp_path / "client")
    assert "head.weight" in protofed.load(tmp_path / "client").state


@pytest.mark.parametrize("command", ["predict", "onboard", "add-class"])
def test_without_its_name_the_error_says_what_to_do(place: Path, command: str, tmp_path: Path) -> None:
    """And nothing that the card names is run: the method's file would leave a mark."""
    shutil.copytree(place / "model", tmp_path / "model")
    (tmp_path / "trap.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n{WARM}")
    card = tmp_path / "model" / "card.json"
    card.write_text(json.dumps(json.loads(card.read_text()) | {"extended_by": f"{tmp_path}/trap.py:Warm"}))
    more = {
        "predict": (str(place / "new.npz"),),
        "onboard": ("--data", str(place / "new.npz")),
        "add-class": ("eleven", "--data", str(place / "examples.npz"), "--out", "larger"),
    }[command]
    outcome = invoke(tmp_path, command, "model", *more)
    said = refused(outcome)
    assert "missing value for --method: " in said
    assert said.endswith("trap.py:Warm, which is your own code\nhint: name its file\n")
    assert not (tmp_path / "mark").exists()


def test_another_method_than_the_models_is_refused(place: Path) -> None:
    with pytest.raises(UserError, match=r"'head\.[a-z]+' .* as fednh extends it"):
        protofed.load(place / "model", method=FedNH())


def test_a_method_that_leaves_the_model_as_it_is_need_not_be_named(place: Path, tmp_path: Path) -> None:
    made = export(play(tmp_path / "run", plan(f"{place}/warm.py:Plain")))
    made.write(tmp_path / "model")
    assert made.predictor.card.extended_by is None
    assert len(protofed.load(tmp_path / "model").predict(digits(3)[0])) == 3
    assert len(protofed.load(tmp_path / "model", method=f"{place}/warm.py:Plain").predict(digits(3)[0])) == 3


@pytest.mark.parametrize("params", [None, {"warmth": "hot"}, {"heat": 1.0}])
def test_parameters_in_a_card_are_checked(place: Path, spec: str, params: object, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "model")
    card = tmp_path / "model" / "card.json"
    values = json.loads(card.read_text())
    card.write_text(json.dumps(values | {"method": values["method"] | {"params": params}}))
    with pytest.raises(UserError, match=r"params|warmth|heat"):
        protofed.load(tmp_path / "model", method=spec)


def test_a_method_may_leave_out_layers(tmp_path: Path) -> None:
    """Then the file holds fewer numbers than the model that the card names has."""
    (tmp_path / "short.py").write_text(SHORT)
    spec = f"{tmp_path}/short.py:Short"
    export(play(tmp_path / "run", plan(spec))).write(tmp_path / "model")
    model = protofed.load(tmp_path / "model", method=spec)
    assert model.card.feature_size == 64
    assert len(model.predict(digits(3)[0], "head")) == 3


def test_onnx_has_the_methods_head(place: Path, spec: str, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    succeed(tmp_path, "export", str(place / "run"), "--out", "model", "--onnx")
    images, _ = digits(7)
    session = runtime.InferenceSession(tmp_path / "model" / "model.onnx")
    found = session.run(["features", "logits"], {"images": images.float().numpy()})
    for ours, theirs in zip(protofed.load(tmp_path / "model", method=spec).outputs(images), found, strict=True):
        torch.testing.assert_close(torch.from_numpy(theirs), ours, atol=1e-5, rtol=1e-4)
