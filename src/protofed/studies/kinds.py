"""The kinds of study, and which one a folder is of."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from protofed.studies.choose_k import ChoiceStudy
from protofed.studies.comparison import ComparisonStudy
from protofed.studies.reproduction import ReproductionStudy
from protofed.studies.study import Study
from protofed.studies.sweeps import SweepStudy

KINDS: tuple[type[Study[Any]], ...] = (ComparisonStudy, ReproductionStudy, SweepStudy, ChoiceStudy)


def kind_of(folder: Path) -> type[Study[Any]] | None:
    """The kind of study that a folder was begun with, if it is the folder of a study."""
    return next((kind for kind in KINDS if kind.config(folder).is_file()), None)
