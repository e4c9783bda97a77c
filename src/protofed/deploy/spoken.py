"""An experiment as servers and clients of several versions speak of it: what differs from the defaults, and no more.

An option at its default changes nothing, so whoever has not got it yet need not hear of it. One that is asked for and
that is not known is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, TypeVar

from protofed.errors import RefusedError, UserError
from protofed.experiment import Experiment, options
from protofed.internal.version import VERSION

T = TypeVar("T")

DECIDED_HERE = {*options("machine")} - {"data_dir"}
"""Options that each side decides for itself; clients of a simulation read files from the folder of its user."""
LONGEST = 40
"""Characters of a version."""


def spoken(experiment: Experiment) -> dict[str, Any]:
    """What is said of an experiment, and what a client holds a run to: the options that are not at their defaults."""
    usual = asdict(Experiment())
    asked = {name: value for name, value in asdict(experiment).items() if name not in DECIDED_HERE}
    return {name: value for name, value in asked.items() if value != usual[name]}


def understood(facts: Mapping[str, Any]) -> Experiment:
    """The experiment that a message names.

    Raises:
        RefusedError: it has an option, or a value of one, that this version does not know.
    """
    said = facts["experiment"]
    if unknown := [name for name in said if name not in options()]:
        raise RefusedError(f"it does not know the option {', '.join(unknown)}: {_versions(facts)}")
    return looked_up(facts, lambda: Experiment.from_mapping(said))


def looked_up(facts: Mapping[str, Any], look: Callable[[], T]) -> T:
    """What is behind something that a message names.

    Raises:
        RefusedError: this version has nothing of that name.
    """
    try:
        return look()
    except UserError as error:
        raise RefusedError(f"{error} ({_versions(facts)})") from None


def _versions(facts: Mapping[str, Any]) -> str:
    """Of both sides: the older one must be upgraded."""
    theirs = str(facts.get("version", "an older one"))[:LONGEST]
    return f"protofed {VERSION} is installed here, {theirs} at the server"
