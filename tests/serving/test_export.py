"""From run folders of every kind to models that can be loaded and asked."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.models import build
from protofed.models.encoder import Encoder, EncoderCard
from protofed.prototypes import nearest_class
from protofed.runs.folder import RunFolder
from protofed.runs.result import Result
from protofed.runs.run import new_run
from protofed.serving.add_class import read_held_out
from protofed.serving.card import Rule
from protofed.serving.export import export
from tests.support.command_line import everything_in, succeed
from tests.support.exported_runs import arrays, digits, plan, play
from tests.support.killed import KillAfter, Killed
from tests.support.nets import one_of_each_kind

RULES: tuple[Rule, ...] = get_args(Rule)


def cut_off(path: Path, after: int, **settings: Any) -> RunFolder:
    """The folder of a run of five rounds that ended too early."""
    with pytest.raises(Killed):
        play(path, plan(rounds=5, **settings), KillAfter(after))
    return RunFolder.open(path)


@one_of_each_kind
def test_every_method_is_exported_and_asked(method: str, tmp_path: Path) -> None:
    folder = play(tmp_path / "run", plan(method))
    export(folder).write(tmp_path / "model")
    model, result = protofed.load(tmp_path / "model"), Result.read(folder.path)
    images, _ = digits()
    for rule in RULES:
        found = model.predict(images, rule, reject=0.05)
        assert len(found) == len(images)
        assert bool(found.distances.isfinite().all())
        assert set(found.classes) <= {*"0123456789", None}
        assert all(row["margin"] >= 0 for row in found.rows())
    card = model.card
    assert card.method["name"] == method
    assert card.rounds == {"played": 1, "planned": 1, "stopped": "rounds", "complete": True}
    assert card.accuracy == {name: found.last for name, found in result.accuracy.items()}
    assert card.shared["bytes_up"] == result.bytes_up

    # Where the run has asked the same model the same, the card says the same.
    whose = card.whose.split()
    kind, client = ("own" if whose[0] == "client" else "global"), int(whose[-1]) if whose[1:] else 0
    for rule in RULES:
        of_run = result.accuracy.get(f"{kind}/all/{rule}")
        if of_run is not None and card.held_out["unknown_images"] == 0:
            assert card.held_out[rule] == pytest.approx(of_run.per_client[client])


def test_a_model_answers_as_its_client_did(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", plan("fedproto", rounds=2))
    model = export(folder, client=1).predictor
    run = new_run(folder.experiment())
    run.restore(folder)
    images, _ = digits(60)
    group = run.engine.groups[0]
    features, logits = run.engine.forward(group, group.own.take([1]), group.inputs(images))
    references = run.method.references(run.broadcast)
    assert references is not None
    by_rule = {"nearest": nearest_class(features, references)[0], "head": logits.argmax(-1)[0]}
    for rule in RULES:
        assert model.predict(images, rule).top[:, 0].tolist() == by_rule[rule].tolist()
    assert model.card.whose == "client 1"


def test_whose_prototype_it_is_comes_from_the_pool(tmp_path: Path) -> None:
    """Of four clients two take part in the last round, each with up to two prototypes a class."""
    folder = play(tmp_path / "run", plan(clients=4, participation=0.5, rounds=2))
    run = new_run(folder.experiment())
    run.restore(folder)
    who, sets = run.history[-1].participants, run.broadcast.prototypes["pool"]
    flat = export(folder).predictor.pool.flat()
    assert len(flat["vectors"]) == int(sets.filled.sum())
    rows = zip(*(flat[name].tolist() for name in ("clients", "classes", "numbers", "counts")), strict=True)
    for vector, (client, label, number, count) in zip(flat["vectors"], rows, strict=True):
        row = who.index(client)
        assert torch.equal(vector, sets.vectors[row, label, number])
        assert count == sets.counts[row, label, number]


@pytest.mark.parametrize("method", ["fedproto", "fpl"])
def test_prototypes_that_the_server_made_are_nobodys(method: str, tmp_path: Path) -> None:
    pool = export(play(tmp_path / "run", plan(method))).predictor.pool
    assert set(pool.clients[pool.prototypes.filled].tolist()) == {-1}


def test_a_bounded_pool_is_of_clusters(tmp_path: Path) -> None:
    """Three clusters stand where three clients would."""
    pool = export(play(tmp_path / "run", plan(params={"pool_size": 3}))).predictor.pool
    assert set(pool.clients[pool.prototypes.filled].tolist()) == {-1}
    assert set(pool.numbers[pool.prototypes.filled].tolist()) == {0, 1, 2}


def test_without_prototypes_of_the_method_they_are_class_means(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", plan("fedavg"))
    everyone, alone = export(folder).predictor, export(folder, client=2).predictor
    counts = new_run(folder.experiment()).federation.counts
    pool = everyone.pool
    for client in range(3):
        held = torch.where(pool.clients == client, pool.prototypes.counts, 0).sum(1)
        assert held.tolist() == counts[client].tolist()
    assert set(alone.pool.flat()["clients"].tolist()) == {2}
    assert "computed at export" in everyone.card.prototypes["source"]


def test_classes_that_a_client_never_saw_are_unknown(tmp_path: Path) -> None:
    experiment = plan("local", train_size=None, split="ways", ways=3, half_width=0, shots=30, rounds=3)
    card = export(play(tmp_path / "run", experiment)).predictor.card
    assert card.held_out["unknown_images"] > card.held_out["images"] > 0
    assert card.refusal["nearest"]["unknown"][10] > card.refusal["nearest"]["known"][10]


def test_a_run_that_was_cut_off_says_so_and_stays_as_it_is(tmp_path: Path) -> None:
    folder = cut_off(tmp_path / "run", after=3, checkpoint_every=2)
    before = {path: path.read_bytes() for path in everything_in(tmp_path) if path.is_file()}
    card = export(folder).predictor.card
    assert card.rounds == {"played": 2, "planned": 5, "stopped": "cut off", "complete": False}
    assert {path: path.read_bytes() for path in everything_in(tmp_path) if path.is_file()} == before


def test_a_resumed_run_is_exported_like_an_uninterrupted_one(tmp_path: Path) -> None:
    threads = torch.get_num_threads()
    whole = export(play(tmp_path / "whole", plan(rounds=5, threads=threads)))
    cut_off(tmp_path / "cut", after=3, checkpoint_every=2, threads=threads)
    succeed(tmp_path, "resume", "cut", "--quiet")
    resumed = export(RunFolder.open(tmp_path / "cut"))
    assert resumed.predictor.card == whole.predictor.card
    for name, tensor in whole.predictor.state.items():
        assert torch.equal(tensor, resumed.predictor.state[name])
    for name, tensor in whole.predictor.pool.flat().items():
        assert torch.equal(tensor, resumed.predictor.pool.flat()[name])


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    folder = cut_off(tmp_path / "early", after=1, checkpoint_every=2)
    with pytest.raises(UserError, match="before its first checkpoint"):
        export(folder)
    folder = cut_off(tmp_path / "short", after=3, checkpoint_every=2)
    folder.rounds.write_text("")
    with pytest.raises(UserError, match="has 0 rounds, its checkpoint 2"):
        export(folder)
    with pytest.raises(UserError, match=r"'digits' for --data: .* names its data itself"):
        export(folder, data="digits")
    with pytest.raises(UserError, match=r"'3' for --client: .* from 0 to 2"):
        export(play(tmp_path / "run", plan()), client=3)


def over_flower(folder: RunFolder, classes: str = "0123456789", clients: int = 3) -> RunFolder:
    """The same folder as if its clients had been elsewhere."""
    shapes = [[1, 8, 8]] * clients
    label = {"run": "ab", "classes": list(classes), "domains": ["digits"], "shapes": shapes, "brings": True}
    (folder.path / "flower.json").write_text(json.dumps(label))
    return folder


@pytest.mark.parametrize("method", ["fedavg", "mp-fedcl", "fedplcc"])
def test_a_federations_run_is_exported_with_images_of_its_classes(method: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    here = play(tmp_path / "run", plan(method))
    model = export(here).predictor
    there = export(over_flower(here), data=f"npz:{arrays(tmp_path / 'some.npz', 0, 120)}").predictor
    assert there.card.classes == model.card.classes
    assert there.card.whose == "averaged"
    assert 0 < there.card.held_out["images"] < model.card.held_out["images"]
    for name, tensor in model.state.items():
        assert torch.equal(tensor, there.state[name])
    same = there.pool.flat()["vectors"].equal(model.pool.flat()["vectors"])
    assert same == (method != "fedavg")  # which shares no prototypes: they are class means, here of these images
    assert method != "fedavg" or bool((there.pool.clients == -1).all())


def test_what_cannot_be_exported_of_a_federation(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    folder = over_flower(play(tmp_path / "averaged", plan("fedavg")))
    with pytest.raises(UserError, match=r"images are at its clients(?s:.*) --data"):
        export(folder)
    with pytest.raises(UserError, match="clients keep their own models"):
        export(folder, client=0, data="digits")
    with pytest.raises(UserError, match=r"for classes: here there are also 2, 3, "):
        export(over_flower(folder, "01"), data="digits")
    with pytest.raises(UserError, match="clients keep their own models"):
        export(over_flower(play(tmp_path / "own", plan("fedproto"))), data="digits")


def test_only_so_many_features_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protofed.serving.export.MOST", 40)
    export(play(tmp_path / "run", plan())).write(tmp_path / "model")
    assert read_held_out(tmp_path / "model", 256)["features"].shape == (40, 256)
    assert (tmp_path / "model" / "held-out.safetensors").stat().st_size < 45_000


def test_mixed_architectures_are_exported_by_client(tmp_path: Path) -> None:
    folder = play(tmp_path / "run", plan("fedproto", model="cnn,cnn-18,cnn-22"))
    models = []
    for client in range(3):
        export(folder, client).write(tmp_path / f"model-{client}")
        models.append(protofed.load(tmp_path / f"model-{client}"))
    assert [model.card.model for model in models] == ["cnn", "cnn-18", "cnn-22"]
    assert [len(model.predict(digits(5)[0])) for model in models] == [5, 5, 5]


@pytest.mark.parametrize(("method", "params"), [("fednh", {}), ("moon", {"projection": True})])
def test_what_a_method_adds_to_a_model_is_loaded(method: str, params: dict[str, Any], tmp_path: Path) -> None:
    export(play(tmp_path / "run", plan(method, params=params, precision="float64"))).write(tmp_path / "model")
    model = protofed.load(tmp_path / "model")
    assert model.card.extended_by == method
    assert ("head.prototypes" in model.state, "projection.0.weight" in model.state) == (method == "fednh", bool(params))
    assert all(tensor.dtype == torch.float32 for tensor in model.state.values())


def test_an_encoder_comes_along(tmp_path: Path) -> None:
    module = build("cnn", (1, 8, 8), 1, 0)
    card = EncoderCard("cnn", 1, 8, [0.3], [0.4], 50, "nothing")
    state = {name: tensor for name, tensor in module.state_dict().items() if not name.startswith("head.")}
    Encoder(card, state, torch.device("cpu")).write(tmp_path / "encoder.safetensors")
    folder = play(tmp_path / "run", plan("fedavg", model="head", encoder=str(tmp_path / "encoder.safetensors")))
    export(folder).write(tmp_path / "model")
    (tmp_path / "encoder.safetensors").unlink()
    model = protofed.load(tmp_path / "model")
    assert model.card.shape == (1, 8, 8)
    images, labels = digits(400)
    hits = model.predict(images, "head").top[:, 0] == labels[: len(images)]
    assert 100 * float(hits.double().mean()) == pytest.approx(model.card.held_out["head"])


def test_a_model_of_ones_own_has_to_be_named(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from torch import nn\n"
        "def Mine(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, classes))\n"
    )
    spec = f"{tmp_path}/mine.py:Mine"
    export(play(tmp_path / "run", plan(model=spec))).write(tmp_path / "model")
    with pytest.raises(UserError, match="your own code"):
        protofed.load(tmp_path / "model")
    assert len(protofed.load(tmp_path / "model", spec).predict(digits(3)[0])) == 3


def test_loading_needs_no_training_code(tmp_path: Path) -> None:
    export(play(tmp_path / "run", plan())).write(tmp_path / "model")
    program = (
        "import sys, numpy, protofed\n"
        "protofed.load('model').predict(numpy.zeros((2, 8, 8), 'uint8'))\n"
        "print([name for name in sys.modules if name.startswith(('protofed.engines', 'protofed.methods', "
        "'protofed.runs.run'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    ).stdout
    assert done.strip() == "[]"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"classes": ["a", "a"]}, "every name once"),
        ({"model": "evil.py:Evil"}, "your own code"),
        ({"extended_by": "evil.py:Evil"}, "your own code"),
        ({"extended_by": "fednh"}, "fednh"),
        ({"shape": [1, 10**9, 10**9]}, "at most"),
        ({"shape": [1, 0, 8]}, "each 1 or more"),
        ({"shape": []}, "1 to 4 sizes"),
        ({"dtype": "int64"}, "token ids"),
        ({"preparation": {"kind": "pixels", "mean": [0.5], "std": [0.0]}}, "above 0"),
        ({"preparation": {"kind": "pixels", "mean": [0.5] * 2, "std": [1.0] * 2}}, "one per channel"),
        ({"preparation": None}, "it must name kind"),
        ({"encoding": {"kind": "code"}}, "it must be one of"),
        ({"feature_size": 7}, "7 numbers each"),
        ({"head_classes": 9}, "of another shape"),
        ({"refusal": {"nearest": {"threshold": [1.0]}}}, "101 numbers"),
        ({"training": {}}, "training batch_size"),
        ({"surprise": 1}, "surprise"),
    ],
)
def test_a_card_is_somebodys_word(change: dict[str, Any], says: str, tmp_path: Path) -> None:
    export(play(tmp_path / "run", plan())).write(tmp_path / "model")
    path = tmp_path / "model" / "card.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(UserError, match=says):
        protofed.load(tmp_path / "model")


@pytest.mark.parametrize("name", ["card.json", "model.safetensors", "prototypes.safetensors"])
def test_damaged_files_are_refused(name: str, tmp_path: Path) -> None:
    export(play(tmp_path / "run", plan())).write(tmp_path / "model")
    path = tmp_path / "model" / name
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match="cannot be read"):
        protofed.load(tmp_path / "model")


def test_onnx_gives_the_same_features(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    made = export(play(tmp_path / "run", plan("fedavg", model="cnn")))
    made.write(tmp_path / "model", onnx=True)
    images, _ = digits(7)
    session = runtime.InferenceSession(tmp_path / "model" / "model.onnx")
    found = session.run(["features", "logits"], {"images": images.float().numpy()})
    for ours, theirs in zip(made.predictor.outputs(images), found, strict=True):
        torch.testing.assert_close(torch.from_numpy(theirs), ours, atol=1e-5, rtol=1e-4)
