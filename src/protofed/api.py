"""The Python interface: `protofed.run(...)` and `protofed.compare(...)`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofed import comparison
from protofed.comparison import Comparison
from protofed.data.federation import Federation
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.methods.base import Method
from protofed.models import ModelSpec
from protofed.results.folder import RunFolder
from protofed.results.progress import Progress
from protofed.results.result import Result
from protofed.runner import Run


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
    prepared = Run(
        experiment,
        method=method if isinstance(method, Method) else None,
        federation=federation,
        models=None if isinstance(model, str) else [model],
    )
    folder = None if out is None else RunFolder.create(Path(out), prepared.experiment)
    return prepared.play(folder, progress or Progress())


def compare(
    methods: Sequence[str],
    seeds: int = comparison.SEEDS,
    *,
    jobs: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods with several seeds on the same data; `options` are the fields of `Experiment`.

    `jobs` runs go on at a time, in processes of their own; unless given, what uses all cores or fits on the GPU.
    """
    experiment = comparison.share_cores(Experiment.from_mapping(options), len(methods) * seeds, jobs)
    runs = comparison.plan(methods, seeds, experiment)
    for first in runs[::seeds]:
        Run(first)  # wrong input must not leave a folder behind
    folder = None if out is None else comparison.create_folder(Path(out), methods, seeds, jobs, experiment)
    return comparison.compare(runs, folder, progress or Progress(), jobs)
