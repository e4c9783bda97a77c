"""Initial weights from a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.models import build
from protofed.models.encoder import Encoder, EncoderCard
from protofed.models.start import start_from
from protofed.runs.run import new_run
from tests.support.command_line import result_of, succeed


def tiny(**settings: Any) -> Experiment:
    given: dict[str, Any] = {"method": "fedavg", "model": "resnet10", "train_size": 60, "clients": 2, "rounds": 1}
    return Experiment(**{**given, "split": "iid", "device": "cpu", "engine": "sequential", **settings})


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights of a network for three colours and other classes, with buffers that are not the initial ones."""
    state = build("resnet10", (3, 32, 32), 7, 99).state_dict()
    path = tmp_path_factory.mktemp("start") / "weights.safetensors"
    save_file({name: value + 0.5 if "running" in name else value for name, value in state.items()}, path)
    return path


def test_all_but_stem_and_head_come_from_the_file(file: Path) -> None:
    given, plain, run = load_file(file), new_run(tiny()), new_run(tiny(start=str(file)))
    drawn, found = plain.engine.groups[0].own.initial, run.engine.groups[0].own.initial
    anew = [name for name in found if name.split(".")[0] in ("stem", "head")]
    assert "stem.0.weight" in anew
    assert "head.bias" in anew
    for name, tensor in found.items():
        assert torch.equal(tensor, drawn[name] if name in anew else given[name]), name
    assert run.engine.groups[0].drawn_anew == anew
    assert all(torch.equal(run.broadcast.weights[name], tensor) for name, tensor in found.items())


def test_the_stem_is_drawn_anew_even_where_it_would_fit(file: Path) -> None:
    module = build("resnet10", (3, 32, 32), 7, 1)
    before = module.state_dict()["stem.0.weight"].clone()
    start_from(file, module)
    assert torch.equal(module.state_dict()["stem.0.weight"], before)


def test_what_has_another_shape_is_left_as_drawn_and_named(file: Path, tmp_path: Path) -> None:
    tensors = load_file(file)
    tensors["stages.0.0.first.0.weight"] = torch.zeros(3)
    del tensors["stages.3.0.second.1.bias"]
    save_file(tensors, tmp_path / "other.safetensors")
    anew = new_run(tiny(start=str(tmp_path / "other.safetensors"))).engine.groups[0].drawn_anew
    kept = [name for name in anew if name.startswith("stages.")]
    assert kept == ["stages.0.0.first.0.weight", "stages.3.0.second.1.bias"]


def test_a_method_may_add_to_the_model_afterwards(file: Path) -> None:
    found = new_run(tiny(method="moon", params={"projection": True}, start=str(file))).engine.groups[0].own.initial
    assert torch.equal(found["body.stages.0.0.first.0.weight"], load_file(file)["stages.0.0.first.0.weight"])


def test_an_encoder_is_a_start_and_the_result_says_so(tmp_path: Path) -> None:
    module = build("cnn", (1, 8, 8), 3, 4)
    state = {name: value for name, value in module.state_dict().items() if not name.startswith("head.")}
    card = EncoderCard("cnn", 1, 8, [0.0], [1.0], 50, "nothing")
    Encoder(card, state, torch.device("cpu")).write(tmp_path / "e.safetensors")
    flags = ("--train-size", "60", "--clients", "2", "--rounds", "1", "--device", "cpu", "--split", "iid", "--quiet")
    said = succeed(tmp_path, "run", "--model", "cnn", "--start", "e.safetensors", *flags, "--out", "run").out
    assert "but for head.weight, head.bias" in " ".join(said.split())
    assert result_of(tmp_path / "run")["drawn_anew"] == ["head.weight", "head.bias"]
    assert f"start: {tmp_path.resolve()}/e.safetensors" in (tmp_path / "run" / "config.yaml").read_text()


@pytest.mark.parametrize("damage", ["missing", "truncated", "text", "another model"])
def test_a_file_that_gives_nothing_is_refused(file: Path, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "start.safetensors"
    match damage:
        case "truncated":
            path.write_bytes(file.read_bytes()[:-1000])
        case "text":
            path.write_text("weights")
        case "another model":
            save_file({"conv1.weight": torch.zeros(3)}, path)
    with pytest.raises(UserError, match=r"'.*start.safetensors' for --start"):
        new_run(tiny(start=str(path)))
