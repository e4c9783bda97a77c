"""`protofed encoder` as a user meets it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protofed.models.encoder import Encoder
from tests.support.command_line import everything_in, invoke, refused, result_of, succeed

TRAIN = ("encoder", "train", "--model", "cnn", "--image-size", "8", "--train-size", "100", "--epochs", "2", "--quiet")


def test_train_then_run_on_its_features(tmp_path: Path) -> None:
    said = succeed(tmp_path, *TRAIN, "--out", "mine.safetensors").out
    card = Encoder.read(tmp_path / "mine.safetensors", torch.device("cpu")).card
    assert f"accuracy: {card.accuracy}" in said
    assert card.epochs == 2
    fit = ("--train-size", "100", "--clients", "3", "--rounds", "1", "--device", "cpu", "--quiet", "--out", "run")
    said = succeed(tmp_path, "run", "--encoder", "mine.safetensors", "--model", "head", *fit).out
    assert "head on features of cnn (digits)" in said
    assert result_of(tmp_path / "run")["encoder"]["source"] == "digits"


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    for name, seed in (("a", "3"), ("b", "3"), ("c", "4")):
        succeed(tmp_path, *TRAIN, "--seed", seed, "--out", f"{name}.safetensors")
    a, b, c = ((tmp_path / f"{name}.safetensors").read_bytes() for name in "abc")
    assert a == b
    assert a != c


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("train", "--epochs", "0"), "'0' for --epochs"),
        (("train", "--model", "evil.py:Evil"), "'evil.py:Evil' for --model"),
        (("train", "--dataset", "digitz"), "did you mean 'digits'"),
        (("train", "--out", "there"), "it exists already"),
        (("train", "--out", "no/such.safetensors"), "there is no folder no that"),
        (("import", "missing.pth"), "'missing.pth' for FILE"),
        (("import", "missing.pth", "--out", "there"), "it exists already"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    before = everything_in(tmp_path)
    outcome = invoke(tmp_path, "encoder", *arguments)
    assert says in refused(outcome)
    assert everything_in(tmp_path) == before
    assert (tmp_path / "there").read_text() == "mine"
