"""The form of what JSON and YAML files say: only values of the types that are declared get in."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints, is_typeddict

from protofed.errors import UserError, missing_value, unknown
from protofed.internal.digests import parse_json

T = TypeVar("T")

LARGEST = 2**63
"""No whole number that is counted, sent or shown reaches it."""


def fits(value: Any, kind: Any) -> bool:  # noqa: PLR0911 - a line a kind
    """Whether a value is of a declared type, all the way down; whole numbers serve as floats, which must be finite."""
    inside, origin = get_args(kind), get_origin(kind) or kind
    if origin is Any:
        return True
    if origin is types.UnionType:
        return any(fits(value, one) for one in inside)
    if origin is Literal:
        return value in inside
    if origin in (list, tuple, Sequence) and inside:
        return isinstance(value, list | tuple) and all(fits(one, inside[0]) for one in value)
    if origin in (dict, Mapping) and inside:
        return isinstance(value, origin) and all(fits(k, inside[0]) and fits(v, inside[1]) for k, v in value.items())
    if is_typeddict(origin):
        hints = get_type_hints(origin).items()
        return isinstance(value, dict) and all(name in value and fits(value[name], one) for name, one in hints)
    if isinstance(value, bool):
        return origin is bool
    if origin is float:
        return isinstance(value, int | float) and abs(value) <= sys.float_info.max
    if origin is int:
        return isinstance(value, int) and abs(value) < LARGEST
    return isinstance(value, origin)


def check_type(name: str, value: Any, kind: Any) -> Any:
    """The value of an option or a parameter, if it is of the declared type; a path serves as text, an int as a float.

    Raises:
        UserError: it is not; the error names it.
    """
    if isinstance(value, Path):
        value = str(value)
    inside = _choices(kind)
    if fits(value, kind):
        return float(value) if float in inside and isinstance(value, int) and int not in inside else value
    raise _misfit(name, value, kind)


def _choices(kind: Any) -> tuple[Any, ...]:
    """The types of which a value may be."""
    return get_args(kind) if get_origin(kind) is types.UnionType else (kind,)


def _misfit(name: str, value: Any, kind: Any) -> UserError:
    """The error for a value that is not of a type; None, which may stand for nothing given, is not asked for."""
    wanted = next(one for one in _choices(kind) if one is not type(None))
    if get_origin(wanted) is Literal:
        return unknown(name, value, [str(choice) for choice in get_args(wanted)])
    if wanted is float and isinstance(value, int | float) and not isinstance(value, bool):
        return UserError(name, value, "it must be a finite number")
    if wanted is int and isinstance(value, int) and not isinstance(value, bool):
        return UserError(name, value, f"it must be below {LARGEST}")
    outer = dict if is_typeddict(wanted) else get_origin(wanted) or wanted
    if isinstance(value, outer) and outer is not wanted:  # what is inside does not fit
        return UserError(name, value, f"it must be of type {wanted}, with finite numbers")
    return UserError(name, value, f"it must be of type {outer.__name__.lower()}")


@dataclass(frozen=True)
class Bounds:
    """Where a number may lie; None leaves a side open."""

    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None

    def __str__(self) -> str:
        given = {name: limit for name, limit in vars(self).items() if limit is not None}
        if given.keys() == {"at_least"}:
            return f"{self.at_least} or more"
        if given.keys() == {"at_least", "at_most"}:
            return f"from {self.at_least} to {self.at_most}"
        return " and ".join(f"{name.replace('_', ' ')} {limit}" for name, limit in given.items())

    def check(self, name: str, value: Any) -> None:
        """Accept a value that lies within, and None, which no bound is about.

        Raises:
            UserError: it lies outside; the error names it and the bounds.
        """
        if value is not None and not (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
            and (self.below is None or value < self.below)
        ):
            raise UserError(name, value, f"it must be {self}")


def require(what: str, values: Any, form: type) -> None:
    """Raise unless a mapping has what a dataclass or a TypedDict has to have, and of the declared types."""
    if not isinstance(values, Mapping):
        raise UserError(what, values, "it must hold names and values")
    for name, kind in get_type_hints(form).items():
        if name not in values:
            if name in _needed(form):
                raise missing_value(f"{name} in {what}", "it does not say any")
        elif not fits(values[name], kind):
            raise _misfit(f"{name} in {what}", values[name], kind)


def made(what: str, kind: type[T], values: Any, **more: Any) -> T:
    """A dataclass from what a file says, which may name nothing else; `more` is not the file's to say."""
    require(what, {**values, **more} if isinstance(values, Mapping) else values, kind)
    names = [item.name for item in dataclasses.fields(kind) if item.name not in more]  # type: ignore[arg-type]
    for name in values:
        if name not in names:
            raise unknown(what, str(name), names)
    return kind(**values, **more)


def read_json(path: Path) -> Any:
    """What a JSON file holds, but for its digest; whatever is wrong with it is one error, which names it."""
    try:
        return parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError("FILE", str(path), f"it cannot be read as JSON: {error}") from None


def _needed(form: type) -> set[str]:
    if dataclasses.is_dataclass(form):
        absent = dataclasses.MISSING
        return {f.name for f in dataclasses.fields(form) if f.default is absent and f.default_factory is absent}
    return set(form.__required_keys__)  # type: ignore[attr-defined]  # a TypedDict
