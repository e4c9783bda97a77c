"""The errors a user can cause; the command line prints them as one line, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Wrong input: names the argument, what it was and what it may be."""

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        super().__init__(f"{argument}: {value!r} is not usable; {allowed}")


class DivergedError(RuntimeError):
    """A loss stopped being finite: names the client, the round and the step."""


class LostError(RuntimeError):
    """Another process of a run that several share has failed or is gone."""


def unknown(argument: str, value: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a list, with a suggestion for a likely misspelling."""
    names = sorted(known)
    close = difflib.get_close_matches(value, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(argument, value, f"{hint}known: {', '.join(names)}")
