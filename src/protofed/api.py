"""The Python interface: `protofed.run(...)`, `protofed.compare(...)` and `protofed.sweep(...)`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Unpack

from protofed.data.federation import Federation
from protofed.errors import UserError
from protofed.experiment import Experiment, Options
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

__all__ = ["compare", "run", "sweep"]


def run(
    method: str | Method = Experiment.method,
    *,
    model: str | ModelSpec = Experiment.model,
    federation: Federation | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Result:
    """Run one experiment and return its result.

    Args:
        method: a name that `protofed methods` lists, `path/to/file.py:ClassName`, or a Method object.
        model: a name that `protofed models` lists, or a callable (shape, classes) -> nn.Module.
        federation: your own clients instead of a dataset that is divided. With an object here, as `method` or as
            `model`, a run lives in memory only.
        out: a folder to write, which `protofed resume` and the rest of the command line understand.
        progress: what is told of the run as it goes on; nothing is shown unless given.
        **options: fields of `Experiment`.

    Returns:
        Accuracies, bytes and seconds.

    Raises:
        UserError: an option is wrong, or `out` is given with an object.
        DivergedError: a loss is no longer finite.

    Example:
        >>> import protofed
        >>> tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 1, "device": "cpu"}
        >>> result = protofed.run("fedavg", **tiny)
        >>> result.score, len(result.accuracy[result.score].per_client)
        ('global/all/head', 2)
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
    model: str = Experiment.model,
    jobs: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Run several methods with several seeds on the same data.

    Args:
        methods: names of methods, or `path/to/file.py:ClassName`.
        seeds: how many seeds each method is run with, from `Experiment.seed` on.
        model: a name that `protofed models` lists.
        jobs: how many runs go on at a time, in processes of their own; unless given, what uses all cores or fits on the
            GPU.
        out: a folder to write, with one folder for each run.
        progress: what is told of the runs as they go on.
        **options: fields of `Experiment`; a parameter in `params` goes to every method that has it.

    Returns:
        Every run's result, and a row with means and standard deviations for each method.

    Raises:
        UserError: an option is wrong.

    Example:
        >>> import protofed
        >>> tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 1, "device": "cpu", "threads": 1}
        >>> found = protofed.compare(["fedavg", "fedproto"], seeds=2, jobs=1, **tiny)
        >>> [(row.method, row.score, len(row.accuracy[row.score].values)) for row in found.rows]
        [('fedavg', 'global/all/head', 2), ('fedproto', 'own/own/nearest', 2)]
    """
    folder = None if out is None else Path(out)
    study = ComparisonStudy(methods, Experiment.from_mapping({**options, "model": model}), seeds, jobs).begin(folder)
    return study.play(folder, progress or Progress())


def sweep(
    grid: Mapping[str, Sequence[Any]],
    methods: Sequence[str] = (Experiment.method,),
    seeds: int = SEEDS,
    *,
    model: str = Experiment.model,
    score: str | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    progress: Progress | None = None,
    **options: Unpack[Options],
) -> Sweep:
    """Run every combination of values with several methods and seeds.

    Args:
        grid: values by name, such as {"alpha": [0.1, 1], "k": [1, 2, 4]}; names are fields of `Experiment` or
            parameters of the methods.
        methods: names of methods, or `path/to/file.py:ClassName`.
        seeds: how many seeds each combination is run with.
        model: a name that `protofed models` lists.
        score: the accuracy that counts, such as "own/all/nearest"; unless given, the one that each method's paper
            reports.
        jobs: how many runs go on at a time; see `compare`.
        out: a folder to write, with one folder for each run.
        progress: what is told of the runs as they go on.
        **options: fields of `Experiment`.

    Returns:
        A cell for each combination and method.

    Raises:
        UserError: an option or a name of the grid is wrong.

    Example:
        >>> import protofed
        >>> tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 1, "device": "cpu", "threads": 1}
        >>> found = protofed.sweep({"lr": [0.01, 0.1]}, ["fedavg"], seeds=1, jobs=1, **tiny)
        >>> [(cell.method, cell.setting) for cell in found.cells]
        [('fedavg', {'lr': 0.01}), ('fedavg', {'lr': 0.1})]
    """
    folder = None if out is None else Path(out)
    study = SweepStudy(methods, Experiment.from_mapping({**options, "model": model}), seeds, jobs, grid, score).begin(
        folder
    )
    found = study.play(folder, progress or Progress())
    if folder is not None:
        plot(found, folder)
    return found
