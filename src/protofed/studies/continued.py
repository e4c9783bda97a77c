"""What a folder was begun with that is of a user's own, given again by the user who goes on with it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from protofed.data.splits import SplitFunction, named_split
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.plugins import SESSION, give, is_code
from protofed.methods import named_method
from protofed.methods.base import Method
from protofed.models import ModelSpec, named_model
from protofed.runs.folder import RunFolder
from protofed.studies.grid import GridStudy
from protofed.studies.kinds import kind_of


def given_again(
    folder: Path,
    methods: Sequence[str | Method | type[Method]],
    model: ModelSpec | None,
    split: SplitFunction | None,
) -> list[str]:
    """Let the folder's names stand for these objects, as long as their user holds them.

    Returns:
        All names of methods, models and splits in the folder.

    Raises:
        UserError: the folder has no name for one of them.
    """
    known = _names(folder)
    for method in methods:
        _bind("method", known["method"], named_method(method)[0], method if isinstance(method, type) else type(method))
    if model is not None:
        _bind("model", known["model"], named_model(model), model)
    if split is not None:
        _bind("split", known["split"], named_split(split), split)
    return [name for names in known.values() for name in names]


def _names(folder: Path) -> dict[str, list[str]]:
    """What a run or a study calls its methods, models and splits."""
    kind = kind_of(folder)
    study = None if kind is None else kind.open(folder)
    if study is None:
        experiment = RunFolder.open(folder).experiment()
        methods = [experiment.method]
    elif isinstance(study, GridStudy):
        experiment, methods = study.experiment, list(study.methods)
    else:
        experiment, methods = Experiment(), []
    return {"method": methods, "model": experiment.model.split(","), "split": [experiment.split]}


def _bind(flag: str, specs: Sequence[str], now: str, found: Any) -> None:
    """Give an object, which is called `now` in this session, the folder's name for it."""
    for spec in specs:
        if spec == now or (is_code(spec) and {*_labels(spec)} & {*_labels(now), getattr(found, "name", None)}):
            give(spec, found)
            return
    raise UserError(flag, now, f"the folder was begun with {', '.join(specs) or 'none'}")


def _labels(spec: str) -> tuple[str, str]:
    """What an object is called, wherever it is; in a session perhaps with a number."""
    name = spec.rpartition(":")[2]
    return name, re.sub(r"-\d+$", "", name) if spec.startswith(SESSION) else name
