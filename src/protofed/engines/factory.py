"""The engine of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from protofed.data.federation import Federation
from protofed.engines.autotune import fastest
from protofed.engines.base import Engine
from protofed.engines.client_group import Group
from protofed.engines.sequential import Sequential
from protofed.engines.stacked import Stacked
from protofed.errors import UserError, misused
from protofed.experiment import Experiment
from protofed.methods.base import Method

ENGINES: dict[str, type[Engine]] = {"sequential": Sequential, "stacked": Stacked}


def make_engine(
    experiment: Experiment,
    method: Method,
    federation: Federation,
    groups: Sequence[Group],
    device: torch.device,
    public: Tensor | None,
) -> tuple[Engine, str]:
    """The engine of a run, and why it was taken."""

    def make(kind: type[Engine], width: int | None) -> Engine:
        return kind(dataclasses.replace(experiment, width=width), method, federation, groups, device, public)

    if experiment.engine not in ("auto", *ENGINES):
        raise UserError("--engine", experiment.engine, "it is for a single `protofed run`")
    if experiment.secure:
        raise misused(
            "--secure", "it is for runs over a network", hint="take --engine flower-sim, or `protofed deploy`"
        )
    if experiment.width is not None and experiment.engine == "sequential":
        raise UserError(
            "--width", experiment.width, "it is for the stacked engine, and sequential takes one client at a time"
        )
    if experiment.engine == "auto" and experiment.width is None:
        return fastest(experiment, groups, device, make)
    kind = Stacked if experiment.engine == "auto" else ENGINES[experiment.engine]
    return make(kind, experiment.width), "as asked"
