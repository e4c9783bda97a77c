"""Tiny runs to export, and images to ask about."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from protofed.data import load
from protofed.experiment import Experiment
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import new_run


def plan(method: str = "mp-fedcl", **settings: Any) -> Experiment:
    """Three clients, one round, 150 images."""
    given: dict[str, Any] = {"method": method, "device": "cpu", "train_size": 150, "clients": 3, "rounds": 1}
    if method == "fccl-plus":
        given |= {"public": "digits", "params": {"public_images": 64, "public_batch": 32}}
    return Experiment.from_mapping(given | settings)


def play(path: Path, experiment: Experiment, progress: Progress | None = None) -> RunFolder:
    """The folder of a run."""
    run = new_run(experiment)
    folder = RunFolder.create(path, run.experiment)
    run.play(folder, progress or Progress())
    return folder


def digits(number: int = 20) -> tuple[Tensor, Tensor]:
    """Test images of the digits, and their labels."""
    test = load("digits").test
    return test.x[:number], test.labels[:number]


def arrays(path: Path, first: int, last: int, labels: bool = True) -> Path:
    """Training images of the digits as an .npz."""
    train = load("digits").train
    named = {"images": train.x[first:last].numpy()}
    if labels:
        named["labels"] = train.labels[first:last].numpy()
    np.savez(path, **named)  # type: ignore[arg-type]  # numpy's stub takes the names for options
    return path
