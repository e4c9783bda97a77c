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
from protofed.engines.rehearsal import cannot_batch
from protofed.engines.sequential import Sequential
from protofed.engines.stacked import Stacked
from protofed.errors import UserError, misused
from protofed.experiment import Experiment
from protofed.methods.base import Method

ENGINES = ("auto", "sequential", "stacked")
"""Those of one process."""


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

    def rehearsing(kind: type[Engine], small: Federation, groups: Sequence[Group]) -> Engine:
        short = dataclasses.replace(experiment, width=None, epochs=1, steps=None)
        return kind(short, method, small, groups, device, public)

    if experiment.engine not in ENGINES:
        raise UserError("--engine", experiment.engine, "it is for a single `protofed run`")
    if experiment.secure:
        raise misused(
            "--secure", "it is for runs over a network", hint="take --engine flower-sim, or `protofed deploy`"
        )
    if experiment.width is not None and experiment.engine == "sequential":
        raise UserError(
            "--width", experiment.width, "it is for the stacked engine, and sequential takes one client at a time"
        )
    if experiment.engine == "sequential":
        return make(Sequential, None), "as asked"
    if not method.phases(experiment.epochs) and experiment.engine == "auto":
        return make(Sequential, None), "clients do not train"
    free = experiment.engine == "auto" and experiment.width is None
    if free and experiment.hides_examples:
        return make(Sequential, None), "--privacy example needs it"
    why = None if experiment.width == 1 else cannot_batch(method, federation, groups, rehearsing)
    if free:
        return fastest(experiment, groups, device, make) if why is None else (make(Sequential, None), why)
    if why is not None:
        raise UserError("--engine", "stacked", why, hint="--engine sequential trains it")
    return make(Stacked, experiment.width), "as asked"
