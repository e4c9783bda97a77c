"""Which values the papers' tables give to the parameters of a method."""

from __future__ import annotations

from typing import Any, NamedTuple

from protofed.studies.papers import find_target, target_names


class PaperValue(NamedTuple):
    """A parameter's value, and the tables that have it, each with its datasets."""

    parameter: str
    value: Any
    tables: dict[str, list[str]]


def paper_values(method: str) -> list[PaperValue]:
    """Every value of a parameter of a method behind a published number; figures also have values of ours."""
    found: dict[tuple[str, str], PaperValue] = {}
    for name in target_names():
        for cell in find_target(name).cells:
            if cell.trial is None or cell.published is None or cell.trial.values["method"] != method:
                continue
            for parameter, value in cell.trial.values["params"].items():
                of = found.setdefault((parameter, str(value)), PaperValue(parameter, value, {}))
                datasets = of.tables.setdefault(name, [])
                if cell.dataset not in datasets:
                    datasets.append(cell.dataset)
    return sorted(found.values(), key=lambda one: one.parameter)
