"""A finished run's model with its head trained anew on Gaussians of the clients' features (CCVR, arXiv 2106.05001)."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.evaluation.accuracy import averaged_model
from protofed.methods import CALIBRATES
from protofed.methods.server.class_gaussians import Calibrating, moments
from protofed.models.linear_head import is_linear
from protofed.randomness import generator
from protofed.runs.folder import RunFolder
from protofed.runs.result import Result
from protofed.serving.export import Exported, export_run, restored


@dataclass(frozen=True)
class Calibration:
    """Accuracies of the head in percent of the test images, before and after."""

    method: str
    before: float
    after: float
    bytes_up: int  # of a client: counts, sums and sums of products of each class's features

    def to_json(self) -> str:
        """What `--json` prints."""
        return json.dumps(dataclasses.asdict(self), indent=2) + "\n"


def calibrate(folder: RunFolder, how: Calibrating) -> tuple[Exported, Calibration]:
    """The averaged model of a run with a calibrated head.

    Args:
        folder: that of the run.
        how: a method that calibrates, with its parameters.

    Raises:
        UserError: the run has no averaged model with a linear head, was private, or its clients are elsewhere.
    """
    if folder.over_network:
        raise UserError("DIR", str(folder.path), "its clients are elsewhere: run a method that calibrates among them")
    run = restored(folder)
    if run.privacy is not None:
        why = f"it promises an ε (--privacy {run.experiment.privacy}), and statistics of features have no noise"
        hint = f"--method {CALIBRATES} --privacy client calibrates within its ε"
        raise UserError("DIR", str(folder.path), why, hint=hint)
    group = run.engine.groups[0]
    state = averaged_model(run.method, group, run.broadcast)
    if state is None or len(run.engine.groups) > 1:
        raise UserError("DIR", str(folder.path), f"{run.method.name} has no averaged model of all clients")
    if not is_linear(group.module):
        raise UserError("DIR", str(folder.path), "the head of its model is not linear")
    ended = Result.read(folder.path).stopped if folder.result.exists() else None
    before = export_run(run, None, ended)
    one, classes = {name: tensor.unsqueeze(0) for name, tensor in state.items()}, len(run.federation.classes)
    total: dict[str, Tensor] = {}
    size = 0
    for row in range(len(group.members)):
        sums = moments(*run.engine.embed(group, [row], one), classes)
        size = sum(value.nbytes for value in sums.values())
        total = {name: value.sum(0) + total.get(name, torch.zeros(())) for name, value in sums.items()}
    head = how.calibrated(state, total, partial(generator, run.experiment.seed, "calibration"))
    run.broadcast = dataclasses.replace(run.broadcast, weights={**run.broadcast.weights, **head})
    after = export_run(run, None, ended)
    then, now = (float(made.predictor.card.held_out["head"]) for made in (before, after))
    return after, Calibration(run.method.name, then, now, size)
