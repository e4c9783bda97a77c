"""A finished run's head, trained anew on Gaussians of the clients' features."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import protofed
from protofed.errors import UserError
from protofed.methods.ccvr import CCVR
from protofed.runs.folder import RunFolder
from protofed.serving.calibrate import calibrate
from tests.support.user_nets import CosineHead, LogitsOnly, Shape

SMALL: dict[str, Any] = {"clients": 4, "alpha": 0.1, "model": "cnn", "device": "cpu", "threads": 1, "lr": 0.05}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    path = tmp_path_factory.mktemp("runs") / "run"
    protofed.run("fedavg", out=path, quiet=True, rounds=15, **SMALL)
    return RunFolder.open(path)


def test_only_the_head_changes_and_the_same_seed_gives_the_same(folder: RunFolder) -> None:
    one, found = calibrate(folder, CCVR())
    again, same = calibrate(folder, CCVR())
    assert found == same
    before = folder.checkpoint.load([])
    assert before is not None
    for name, tensor in one.predictor.state.items():
        assert torch.equal(tensor, again.predictor.state[name])
        assert torch.equal(tensor, before.broadcast.weights[name]) == (not name.startswith("head."))
    assert found.before == pytest.approx(100 * right(folder))
    assert found.after == pytest.approx(float(one.predictor.card.held_out["head"]))


def right(folder: RunFolder) -> float:
    """The part of all test images that the run's averaged model answered correctly at its end."""
    return float(protofed.resume(folder.path).accuracy["global/all/head"].last) / 100


def test_it_mends_a_head_that_label_skew_has_bent(folder: RunFolder) -> None:
    _, found = calibrate(folder, CCVR(server_lr=0.05))
    assert found.after > found.before


def test_a_client_would_send_sums_of_each_class(folder: RunFolder) -> None:
    _, found = calibrate(folder, CCVR(virtual=5))
    assert found.bytes_up == 8 * 10 * (1 + 50 + 50 * 50)


class Cosine(LogitsOnly):
    """Its classifier has a `head.weight` of two axes, and is not linear."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__(shape, classes, CosineHead)


def test_what_cannot_be_calibrated_is_said(tmp_path: Path) -> None:
    for method, model in (("fedproto", "cnn"), ("fednh", "cnn"), ("fedavg", f"{__name__}:Cosine")):
        options = {**SMALL, "model": model}
        protofed.run(method, out=tmp_path / method, quiet=True, rounds=1, train_size=120, **options)
        with pytest.raises(UserError, match=r"no averaged model|not linear"):
            calibrate(RunFolder.open(tmp_path / method), CCVR())


@pytest.mark.parametrize(
    "private",
    [
        {"privacy": "client", "clip": 1.0, "noise": 0.5, "participation": 0.5},
        {"privacy": "example", "clip": 1.0, "noise": 0.5},
    ],
)
def test_a_private_run_is_not_calibrated_with_statistics_that_have_no_noise(
    private: dict[str, Any], tmp_path: Path
) -> None:
    protofed.run("fedavg", out=tmp_path / "run", quiet=True, rounds=1, train_size=120, **SMALL, **private)
    why = rf"it promises an ε \(--privacy {private['privacy']}\)"
    with pytest.raises(UserError, match=why) as error:
        calibrate(RunFolder.open(tmp_path / "run"), CCVR())
    assert "--method ccvr --privacy client" in str(error.value.hint)
