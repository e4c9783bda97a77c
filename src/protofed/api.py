"""The Python interface: `protofed.run(...)`, `compare(...)`, `sweep(...)` and `resume(...)`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar, Unpack

from protofed.data.federation import Federation
from protofed.data.federation_file import FILE, KIND, write_federation
from protofed.data.splits import SplitFunction, named_split
from protofed.errors import UserError
from protofed.experiment import Experiment, Options
from protofed.experiment import options as options_of
from protofed.internal.plugins import SESSION, give, name_of, only_here, refuse_while_importing
from protofed.methods import named_method
from protofed.methods.base import Method
from protofed.models import ModelSpec, named_model
from protofed.report.plots import plot
from protofed.runs.failure import forget_failure
from protofed.runs.folder import RunFolder, run_folders
from protofed.runs.progress import Asking, CallbackError, OnRound, Progress, progress
from protofed.runs.result import Result
from protofed.runs.run import new_run
from protofed.studies.comparison import Comparison, ComparisonStudy
from protofed.studies.continued import given_again
from protofed.studies.kinds import kind_of
from protofed.studies.study import SEEDS, Finding, Study
from protofed.studies.sweeps import Sweep, SweepStudy

__all__ = ["compare", "resume", "run", "sweep"]

AnyMethod = str | Method | type[Method]
"""A method by its name, as an object with its parameters, or as a class."""
FindingT = TypeVar("FindingT", bound=Finding)
StudyT = TypeVar("StudyT", bound=Study[Any])


def run(
    method: AnyMethod = Experiment.method,
    *,
    model: ModelSpec = Experiment.model,
    split: str | SplitFunction = Experiment.split,
    federation: Federation | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    on_round: OnRound | None = None,
    **options: Unpack[Options],
) -> Result:
    """Run one experiment and return its result.

    Args:
        method: a name that `protofed methods` lists, `path/to/file.py:ClassName`, or a class or object of your own.
        model: a name that `protofed models` lists, `path/to/file.py:Name`, or what makes one: a class of nn.Module or a
            function, called with (shape, classes).
        split: a name that `protofed splits` lists, `path/to/file.py:name`, or a function of your own; see `SPLITS`.
        federation: your own clients instead of a dataset that is divided; `out` holds a copy.
        out: a folder to write, which `protofed resume` and the rest of the command line understand.
        quiet: show no progress.
        on_round: is called with each `Round` when it has been played; returning True ends the run,
            as does a true of NumPy's or torch's; anything else lets it go on.
        **options: fields of `Experiment`.

    Returns:
        Accuracies, bytes and seconds, the rounds and the trained models.

    Raises:
        UserError: an option is wrong.
        DivergedError: a loss is no longer finite.

    Example:
        >>> import protofed
        >>> tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 3, "device": "cpu"}
        >>> result = protofed.run("fedavg", on_round=lambda played: played.round == 2, **tiny)
        >>> result.score, result.stopped, len(result.history), list(result.models)
        ('global/all/head', 'callback', 2, [0, 1, 'global'])
    """
    refuse_while_importing("protofed.run")
    spec, params = named_method(method)
    if isinstance(method, Method) and options.get("params"):
        raise UserError("params", options["params"], "a Method object has its parameters already")
    folder = None if out is None else Path(out)
    named = _named(options, model, split, federation, folder) | ({"params": params} if params else {})
    prepared = new_run(Experiment.from_mapping({**named, "method": spec}))
    opened = None if folder is None else RunFolder.create(folder, prepared.experiment)
    _keep(federation, folder)
    with _shown(quiet, 1, on_round) as shown:
        result = prepared.play(opened, shown)
    return result.with_run(prepared.ended() if folder is None else None, (method, model, split, federation))


def compare(
    methods: AnyMethod | Sequence[AnyMethod],
    seeds: int = SEEDS,
    *,
    model: ModelSpec = Experiment.model,
    split: str | SplitFunction = Experiment.split,
    federation: Federation | None = None,
    tune: Mapping[str, Sequence[Any]] | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    on_round: OnRound | None = None,
    **options: Unpack[Options],
) -> Comparison:
    """Run several methods with several seeds on the same data.

    Args:
        methods: names, classes and objects, as `run` takes them; one of them, or several.
        seeds: how many seeds each method is run with, from `Experiment.seed` on.
        model: as for `run`.
        split: as for `run`.
        federation: as for `run`.
        tune: values by name, such as {"lr": [0.01, 0.1]}, of which each method's own are chosen on validation data,
            with as many trials for each method, before the test; names are options of local training or parameters.
        jobs: how many runs go on at a time, in processes of their own; unless given, what uses all cores or fits on the
            GPU, and 1 if the method, model or split is of this script or session, or with `on_round`.
        out: a folder to write, with one folder for each run.
        quiet: show no progress.
        on_round: as for `run`; True ends the run that the round is of.
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
    refuse_while_importing("protofed.compare")
    folder = None if out is None else Path(out)
    several = _several(methods)
    names, params_of = _methods(several)
    with _place(folder, federation) as place:
        experiment = Experiment.from_mapping(_named(options, model, split, federation, place))
        number = _jobs(jobs, [*names, experiment.model, experiment.split], on_round)
        study = ComparisonStudy(names, experiment, seeds, number, params_of=params_of, tune=tune or {})
        held = (*several, model, split, federation)
        return _played(_begun(study, folder, federation), folder, held, quiet, on_round)


def sweep(
    grid: Mapping[str, Sequence[Any]],
    methods: AnyMethod | Sequence[AnyMethod] = (Experiment.method,),
    seeds: int = SEEDS,
    *,
    model: ModelSpec = Experiment.model,
    split: str | SplitFunction = Experiment.split,
    federation: Federation | None = None,
    score: str | None = None,
    jobs: int | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
    on_round: OnRound | None = None,
    **options: Unpack[Options],
) -> Sweep:
    """Run every combination of values with several methods and seeds.

    Args:
        grid: values by name, such as {"alpha": [0.1, 1], "k": [1, 2, 4]}; names are fields of `Experiment` or
            parameters of the methods.
        methods: names, classes and objects, as `run` takes them; one of them, or several.
        seeds: how many seeds each combination is run with.
        model: as for `run`.
        split: as for `run`.
        federation: as for `run`; options about data have then nothing to vary.
        score: the accuracy that counts, such as "own/all/nearest"; unless given, that of each method's paper.
        jobs: how many runs go on at a time; see `compare`.
        out: a folder to write, with one folder for each run.
        quiet: show no progress.
        on_round: as for `compare`.
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
    refuse_while_importing("protofed.sweep")
    folder = None if out is None else Path(out)
    several = _several(methods)
    names, params_of = _methods(several)
    _check_grid(grid, federation)
    with _place(folder, federation) as place:
        experiment = Experiment.from_mapping(_named(options, model, split, federation, place))
        number = _jobs(jobs, [*names, experiment.model, experiment.split], on_round)
        study = SweepStudy(names, experiment, seeds, number, grid, score, params_of)
        held = (*several, model, split, federation)
        return _played(_begun(study, folder, federation), folder, held, quiet, on_round)


def resume(
    folder: str | Path,
    *,
    method: AnyMethod | Sequence[AnyMethod] = (),
    model: ModelSpec | None = None,
    split: SplitFunction | None = None,
    jobs: int | None = None,
    retry_failed: bool = False,
    quiet: bool = False,
    on_round: OnRound | None = None,
) -> Any:
    """Go on with a run, comparison or sweep from its last checkpoint, as `protofed resume` does.

    Args:
        folder: what it was begun with as `out`.
        method: the methods of your own that no other process finds: those of a notebook, or made in a function.
        model: likewise the model.
        split: likewise the split.
        jobs: how many runs go on at a time; unless given, as before.
        retry_failed: also play runs of a comparison or sweep again that have failed, from their last checkpoints.
        quiet: show no progress.
        on_round: as for `run`.

    Returns:
        What `run`, `compare` or `sweep` would have returned: Result, Comparison or Sweep.

    Raises:
        UserError: the folder holds nothing to go on with, or needs an object of yours that was not given.

    Example:
        >>> import protofed
        >>> protofed.resume("digits").stopped
        'rounds'
    """
    refuse_while_importing("protofed.resume")
    path, methods = Path(folder), _several(method)
    specs = given_again(path, methods, model, split)
    if kind := kind_of(path):
        held = (*methods, model, split)
        for failed in run_folders(path, trials=True) if retry_failed else []:
            forget_failure(failed)
        return _played(kind.open(path), path, held, quiet, on_round, _jobs(jobs, specs, on_round))
    opened = RunFolder.open(path)
    if opened.result.exists():
        return Result.read(path)
    if opened.over_network:
        raise UserError("folder", str(path), "its clients are elsewhere; continue with the command line")
    run = new_run(opened.experiment())
    run.restore(opened.claim())
    with _shown(quiet, 1, on_round) as shown:
        return run.play(opened, shown).with_run(None, (*methods, model, split))


def _named(
    options: Options, model: ModelSpec, split: str | SplitFunction, federation: Federation | None, place: Path | None
) -> dict[str, Any]:
    """The options of an experiment, with names for all objects; a federation is, or will be, in a folder, if any."""
    named = {**options, "model": named_model(model), "split": named_split(split)}
    if federation is None:
        return named
    if not isinstance(federation, Federation):
        raise UserError("federation", type(federation).__name__, "it must be a protofed.Federation")
    for name, value in (("dataset", options.get("dataset")), ("split", split)):
        if value not in (None, Experiment.split):
            raise UserError(name, value, "a federation has its data, which is divided already")
    dataset = name_of(federation, "federation") if place is None else f"{KIND}{place.resolve() / FILE}"
    give(dataset, federation)
    return named | {"dataset": dataset, "split": "custom", "clients": federation.total}


@contextmanager
def _place(folder: Path | None, federation: Federation | None) -> Iterator[Path | None]:
    """Where worker processes find a federation: the study's folder or, without one, another while it is played."""
    if folder is not None or federation is None:
        yield folder
        return
    with TemporaryDirectory(prefix="protofed-") as place:
        _keep(federation, Path(place))
        yield Path(place)


def _keep(federation: Federation | None, folder: Path | None) -> None:
    """Write a federation into the folder whose experiment names it."""
    if federation is not None and folder is not None:
        write_federation(federation, folder / FILE)


def _begun(study: StudyT, folder: Path | None, federation: Federation | None) -> StudyT:
    """A study that is ready to be played."""
    begun = study.begin(folder)
    _keep(federation, folder)
    return begun


def _several(methods: AnyMethod | Sequence[AnyMethod]) -> list[AnyMethod]:
    """One method need not be in a list."""
    return [methods] if isinstance(methods, str | Method | type) else list(methods)


def _methods(methods: Sequence[AnyMethod]) -> tuple[list[str], dict[str, dict[str, Any]]]:
    """The names of methods, and the parameters that objects bring."""
    found = [named_method(method) for method in methods]
    return [name for name, _ in found], {name: params for name, params in found if params}


def _check_grid(grid: Mapping[str, Any], federation: Federation | None) -> None:
    about_data = [name for name in grid if name.removeprefix("option.") in options_of("data")]
    if federation is not None and about_data:
        raise UserError("grid", about_data[0], "it is about data, which a federation has already")


def _jobs(jobs: int | None, specs: Sequence[str], on_round: OnRound | None) -> int | None:
    """How many runs go on at a time: what only this process has keeps them here."""
    session = [spec for spec in specs if spec.startswith(SESSION)]
    if jobs not in (None, 1) and (session or on_round is not None):
        what = f"{session[0].removeprefix(SESSION)} is of this session" if session else "on_round is called here"
        raise UserError("jobs", jobs, f"{what}, so all runs are made in this process: leave it out")
    return 1 if jobs is None and (on_round is not None or any(map(only_here, specs))) else jobs


@contextmanager
def _shown(quiet: bool, runs: int, on_round: OnRound | None) -> Iterator[Progress]:
    """Show how far runs are while they are played."""
    shown = progress(quiet, runs)
    try:
        yield shown if on_round is None else Asking(shown, on_round)
    except CallbackError as error:
        raise error.__cause__ or error from None  # as the caller's function raised it
    finally:
        shown.end()


def _played(
    study: Study[FindingT],
    folder: Path | None,
    held: Sequence[object],
    quiet: bool,
    on_round: OnRound | None,
    jobs: int | None = None,
) -> FindingT:
    """What a study that was begun comes to; its results hold the user's objects that they are made of."""
    with _shown(quiet, study.total(folder), on_round) as shown:
        found = study.play(folder, shown, jobs)
    for result in found.results:
        result.with_run(None, held)
    if folder is not None:
        plot(found, folder)
    return found
