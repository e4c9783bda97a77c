"""The Python interface: `protofed.run(...)`, `protofed.compare(...)` and `protofed.sweep(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from protofed.data.federation import Federation
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.methods.base import Method
from protofed.models import ModelSpec
from protofed.report.plots import plot
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.runs.run import new_run
from protofed.studies.comparison import Comparison, ComparisonStudy
from protofed.studies.study import SEEDS
from protofed.studies.sweeps import Sweep, SweepStudy


def run(
    method: str | Method = Experiment.method,
    *,
    model: str | ModelSpec = Experiment.model,
    federation: Federation | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Result:
    """Run one experiment and return what came out.

    `options` are the fields of `Experiment`. `method` may be a Method object, `model` a callable
    (shape, classes) -> nn.Module, and `federation` your own clients; with these, a run lives in memory only.
    With `out`, a run folder is written, which `protofed resume` and the command line understand.
    """
    named: dict[str, Any] = {"method": method, "model": model}
    objects = {name: value for name, value in named.items() if not isinstance(value, str)}
    if federation is not None:
        objects["federation"] = federation
        options.setdefault("dataset", "custom")
    if out is not None and objects:
        raise UserError(
            "out", str(out), f"a run folder is run again by name, so {', '.join(objects)} cannot be an object"
        )
    if isinstance(method, Method) and options.get("params"):
        raise UserError("params", options["params"], "a Method object has its parameters already")
    names = {
        name: value if isinstance(value, str) else getattr(value, "name", "custom") for name, value in named.items()
    }
    experiment = Experiment.from_mapping({**options, **names})
    prepared = new_run(
        experiment,
        method=method if isinstance(method, Method) else None,
        federation=federation,
        models=None if isinstance(model, str) else [model],
    )
    folder = None if out is None else RunFolder.create(Path(out), prepared.experiment)
    return prepared.play(folder, progress or Progress())


def compare(
    methods: Sequence[str],
    seeds: int = SEEDS,
    *,
    jobs: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods with several seeds on the same data; `options` are the fields of `Experiment`.

    `jobs` runs go on at a time, in processes of their own; unless given, what uses all cores or fits on the GPU.
    """
    folder = None if out is None else Path(out)
    study = ComparisonStudy(methods, Experiment.from_mapping(options), seeds, jobs).begin(folder)
    return study.play(folder, progress or Progress())


def sweep(
    grid: Mapping[str, Sequence[Any]],
    methods: Sequence[str] = (Experiment.method,),
    seeds: int = SEEDS,
    *,
    score: str | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Sweep:
    """Run every combination of values, such as {"alpha": [0.1, 1], "k": [1, 2, 4]}, with several methods and seeds.

    Names are fields of `Experiment`, which `options` are too, or parameters of the methods. `score` is the accuracy
    that counts, such as "own/all/nearest"; unless given, the one that each method's paper reports.
    """
    folder = None if out is None else Path(out)
    study = SweepStudy(methods, Experiment.from_mapping(options), seeds, jobs, grid, score).begin(folder)
    found = study.play(folder, progress or Progress())
    if folder is not None:
        plot(found, folder)
    return found
