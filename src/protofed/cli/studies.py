"""What the commands that play a study share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from protofed.cli.common import experiment_from, finish, whole
from protofed.errors import UserError
from protofed.internal.yaml_files import parse_yaml

if TYPE_CHECKING:
    from protofed.runs.progress import Progress
    from protofed.studies.grid import GridStudy
    from protofed.studies.study import Study

    StudyT = TypeVar("StudyT", bound=GridStudy[Any])


def study_from(
    kind: type[StudyT], config: Path | None, flags: Mapping[str, Any], set_: list[str] | None, **given: Any
) -> StudyT:
    """Flags over the file over the defaults; of `given`, what is none was not used."""
    asked = kind.read(config) if config else {"experiment": {}}
    asked |= {name: value for name, value in given.items() if value is not None}
    return kind(**{**asked, "experiment": experiment_from(asked["experiment"], flags, set_)})


def grid_from(flag: str, pairs: list[str] | None) -> dict[str, list[Any]] | None:
    """What --grid or --tune says: names, with dashes as in flags or not, and values as --set reads them."""
    if not pairs:
        return None
    grid: dict[str, list[Any]] = {}
    for pair in pairs:
        text, equals, values = pair.partition("=")
        name = text.replace("-", "_")
        if not equals or not name:
            raise UserError(flag, pair, "it must be NAME=VALUE,VALUE, as in lr=0.01,0.1")
        if name in grid:
            raise UserError(flag, pair, f"{text} is there twice", hint="give all its values at once")
        try:
            grid[name] = [parse_yaml(value) for value in values.split(",")]
        except (yaml.YAMLError, ValueError, RecursionError):
            raise UserError(flag, pair, "its values cannot be read") from None
    return grid


def play_study(
    study: Study[Any],
    folder: Path,
    jobs: str | None,
    quiet: bool,
    as_json: bool,
    log: Callable[[Progress], Progress] = lambda shown: shown,
) -> None:
    """Play what a study that was begun lacks, with `--jobs` runs at a time if that was used, and show the outcome."""
    from protofed.runs.progress import progress

    number = whole("--jobs", jobs, study.jobs)
    shown = log(progress(quiet, study.total(folder)))

    finish(lambda: study.play(folder, shown, number), shown, folder, as_json)
