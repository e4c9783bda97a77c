"""Studies that vary one experiment: methods × seeds × every combination of swept values, which may be none."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self
from urllib.parse import quote

import yaml

from protofed.errors import UserError, missing_value, unknown
from protofed.experiment import Experiment, absolute_name, options, with_absolute_paths
from protofed.internal.schema import check_type
from protofed.internal.yaml_files import read_yaml
from protofed.methods import METHODS, build_method, method_class, parameters
from protofed.studies.study import SEEDS, FindingT, Study, check_seeds
from protofed.studies.workers import Task, run_name, share_cores

Grid = Mapping[str, Sequence[Any]]
"""What is swept: names of options or of methods' parameters, and their values."""
Setting = dict[str, Any]
"""One value for each swept name that concerns a method."""

OPTIONS = {*options()}
_NOT_SWEPT = {"method": "name several with --method", "seed": "see --seeds", "params": "name the parameter itself"}


@dataclass(frozen=True)
class GridStudy(Study[FindingT]):
    """Every combination × method × seed is a run.

    A method that lacks a swept parameter has the same run for all its values: it is there once.
    """

    form: ClassVar[Mapping[str, Any]] = {
        **{"grid": dict, "score": str | None},
        **{"methods": list, "params_of": dict, "seeds": int, "jobs": int | None},
    }
    """What the YAML file has beside the experiment, in this order."""

    methods: Sequence[str] = ()
    experiment: Experiment = field(default_factory=Experiment)  # what the runs share
    seeds: int = SEEDS
    jobs: int | None = None
    grid: Grid = field(default_factory=dict)
    score: str | None = None  # the accuracy that is shown; unless given, the one that each method's paper reports
    params_of: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # what a method alone has, by its name

    def __post_init__(self) -> None:
        if not self.methods:
            raise missing_value("--method", "name at least one")
        check_seeds(self.seeds)
        object.__setattr__(self, "grid", check_values("--grid", self.grid))

    @classmethod
    def read(cls, path: Path, as_written: bool = False) -> dict[str, Any]:
        """The fields that a YAML file names, the experiment's still by their names: flags may add to them."""
        values = read_yaml(path, as_written)
        asked = {name: check_type(name, values.pop(name), kind) for name, kind in cls.form.items() if name in values}
        if "methods" in asked:
            asked["methods"] = [str(name) for name in asked["methods"]]
        for grid in {"grid", "tune"} & {*asked}:
            asked[grid] = {str(name): check_type(f"--{grid} {name}", v, list) for name, v in asked[grid].items()}
        if "params_of" in asked:
            asked["params_of"] = {str(m): check_type(f"params_of: {m}", v, dict) for m, v in asked["params_of"].items()}
        return {**asked, "experiment": values}

    @classmethod
    def open(cls, folder: Path) -> Self:
        """The study that a folder was begun with."""
        asked = cls.read(cls.config(folder), as_written=True)
        return cls(**{**asked, "experiment": Experiment.from_mapping(asked["experiment"])})

    def to_yaml(self) -> str:
        """The YAML that `open` reads back, in any folder."""
        values = dataclasses.asdict(with_absolute_paths(self.experiment))
        del values["method"]
        asked = {name: getattr(self, name) for name in self.form} | {"methods": list(map(absolute_name, self.methods))}
        asked["params_of"] = {absolute_name(name): dict(params) for name, params in self.params_of.items()}
        if not self.params_of:
            del asked["params_of"]
        return yaml.safe_dump({**asked, **values}, sort_keys=False, allow_unicode=True)

    def with_threads(self) -> Self:
        """The same with the CPU threads of a run decided."""
        runs = math.prod(map(len, self.grid.values())) * len(self.methods) * self.seeds
        return dataclasses.replace(self, experiment=share_cores(self.experiment, runs, self.jobs))

    def size(self) -> int | None:
        """How many runs it has; none if a user's own method, which is a file with code, would have to be asked."""
        params = [name for name in self.grid if not is_option(name)]
        if params and not all(method in METHODS for method in self.methods):
            return None
        settings = 0
        for method in self.methods:
            known = parameters(method_class(method)) if params else ()
            lacks = {name for name in params if bare_name(name) not in known}
            settings += math.prod(len(values) for name, values in self.grid.items() if name not in lacks)
        return settings * self.seeds

    def tasks(self, folder: Path | None) -> list[Task]:
        """The runs, those of each setting in a folder of its own."""
        return [task_of(run, setting, folder) for setting, run in self.runs]

    @cached_property
    def runs(self) -> list[tuple[Setting, Experiment]]:
        """Each run with its setting, checked as far as that is possible without data."""
        check_names("--grid", self.grid, self.methods, self.experiment, OPTIONS - {*_NOT_SWEPT})
        return varied(self.grid, self.methods, self.seeds, self.experiment, self.params_of)


def varied(
    grid: Grid,
    methods: Sequence[str],
    seeds: int,
    experiment: Experiment,
    params_of: Mapping[str, Mapping[str, Any]],
) -> list[tuple[Setting, Experiment]]:
    """An experiment with every combination of values, every method and every seed; each run with its setting."""
    runs: dict[tuple[str, str], tuple[Setting, Experiment]] = {}
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        common = with_values(experiment, point)
        swept = {bare_name(name) for name in point if not is_option(name)}
        rest = {method: {k: v for k, v in params.items() if k not in swept} for method, params in params_of.items()}
        for run in runs_of(methods, seeds, common, rest):
            setting = {name: v for name, v in point.items() if is_option(name) or bare_name(name) in run.params}
            runs.setdefault((folder_name(setting), run_name(run)), (setting, run))
    return list(runs.values())


def task_of(run: Experiment, setting: Setting, folder: Path | None) -> Task:
    """A run of a study, in the folder of its setting."""
    path = None if folder is None else folder / folder_name(setting) / run_name(run)
    return Task(run, path, text_of(setting))


def with_values(experiment: Experiment, setting: Setting) -> Experiment:
    """An experiment with the values of a setting."""
    chosen = {bare_name(name): value for name, value in setting.items() if is_option(name)}
    params = {bare_name(name): value for name, value in setting.items() if not is_option(name)}
    values = {**dataclasses.asdict(experiment), **chosen, "params": {**experiment.params, **params}}
    return Experiment.from_mapping(values)


def check_names(
    flag: str, grid: Grid, methods: Sequence[str], experiment: Experiment, allowed: Collection[str]
) -> None:
    """Every varied name must be an allowed option or a parameter of a method, and not both, and is there once."""
    owners = {name: method for method in methods for name in parameters(method_class(method))}
    for name in grid:
        bare = bare_name(name)
        if sum((bare, is_option(name)) == (bare_name(other), is_option(other)) for other in grid) > 1:
            raise UserError(flag, name, "it is there twice", hint="give all its values at once")
        if not is_option(name) and bare in experiment.params:
            raise UserError("--set", bare, "it is varied", hint="leave it out")
        if bare in _NOT_SWEPT:
            raise UserError(flag, name, "it cannot be varied", hint=_NOT_SWEPT[bare])
        known = {*allowed, *owners} if name == bare else {*allowed} if is_option(name) else {*owners}
        if is_option(name) and bare in OPTIONS and bare not in known:
            raise UserError(flag, name, "it cannot be varied here", hint=f"it may be {', '.join(sorted(allowed))}")
        if bare not in known:
            raise unknown(flag, bare, known, see="protofed run --help" if {*known} & {*allowed} else None)
        if name in OPTIONS and name in owners:
            why = f"it is an option and a parameter of {owners[name]}"
            raise UserError(flag, name, why, hint=f"write option.{name} or params.{name}")


def check_values(flag: str, grid: Grid) -> dict[str, list[Any]]:
    """What is varied, as lists of different values."""
    for name, values in grid.items():
        if isinstance(values, str) or not values:
            raise UserError(flag, name, "it must have a list of values")
        for value in values:
            if sum(value == other for other in values) > 1:
                raise UserError(flag, name, f"{value} is there twice")
    return {name: list(values) for name, values in grid.items()}


def runs_of(
    methods: Sequence[str], seeds: int, experiment: Experiment, params_of: Mapping[str, Mapping[str, Any]]
) -> list[Experiment]:
    """An experiment with every method and seed; a parameter goes to every method that has it, and some method must.

    `params_of` are those that a method has whatever the others have.
    """
    classes = {method: method_class(method) for method in methods}
    names = [classes[method].name for method in methods]
    doubled = {name for name in names if names.count(name) > 1}
    if doubled:
        raise UserError("--method", ",".join(methods), f"more than one is called {', '.join(sorted(doubled))}")
    known = {method: parameters(found) for method, found in classes.items()}
    everything = {name for names in known.values() for name in names}
    for name in experiment.params:
        if name not in everything:
            raise unknown("--set", name, everything)
    runs = []
    for method in methods:
        values = {name: value for name, value in experiment.params.items() if name in known[method]}
        values |= params_of.get(method, {})
        build_method(method, values)
        for seed in range(experiment.seed, experiment.seed + seeds):
            runs.append(dataclasses.replace(experiment, method=method, params=values, seed=seed))
    return runs


def text_of(setting: Setting) -> str:
    """A setting for people."""
    return " ".join(f"{name}={value}" for name, value in setting.items())


def folder_name(setting: Setting) -> str:
    """The same as a folder's name, different for different settings whatever they hold; "" for the study's own."""
    return ",".join(f"{name}={quote(str(value), safe=' +:')}" for name, value in setting.items())


def is_option(name: str) -> bool:
    """Whether a swept name is an option's; one that is also a parameter's is swept as option.NAME or params.NAME."""
    return name.startswith("option.") or name in OPTIONS


def is_of_data(name: str) -> bool:
    """Whether a swept name decides what runs are trained and tested on: only runs on the same are compared."""
    return is_option(name) and bare_name(name) in options("data")


def bare_name(name: str) -> str:
    """A varied name without the word that says what it is of."""
    return name.removeprefix("option.").removeprefix("params.")
