"""The errors a user can cause; the command line prints them as one line, without a traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import NamedTuple

LONGEST = 1000
"""Characters of a value that an error shows."""


class UserError(ValueError):
    """Wrong input: names the argument, what it was and what it may be."""

    def __init__(self, argument: str, value: object, allowed: str) -> None:
        super().__init__(f"{argument}: {_shown(value)} is not usable; {allowed}")


class DivergedError(RuntimeError):
    """A loss stopped being finite: names the client, the round and the step."""

    client: int | None = None
    round: int | None = None  # from 1

    @classmethod
    def at(cls, client: int, round: int, step: int, loss: float) -> DivergedError:
        """Where it happened, all counted from 1 but the client."""
        error = cls(f"the loss of client {client} became {loss} in round {round}, step {step}")
        error.client, error.round = client, round
        return error


class LostError(RuntimeError):
    """Another process of a run that several share has failed or is gone."""


class RefusedError(Exception):
    """A message that is not what it should be, or asks for what is not allowed; the text says why."""


class HopelessError(RuntimeError):
    """A run that is played elsewhere has failed, and would fail again."""


class Failure(NamedTuple):
    """An error of another process, in a form that can be sent."""

    kind: type[Exception]
    text: str

    def error(self) -> Exception:
        """The error again; not by its __init__, which would phrase the text anew."""
        return self.kind.__new__(self.kind, self.text)


def _shown(value: object) -> str:
    """A value as Python writes it, if it can and the line stays one."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits, or lists in lists in lists
        return f"a {type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def unknown(argument: str, value: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not in a list, with a suggestion for a likely misspelling."""
    names = sorted(known)
    close = difflib.get_close_matches(value, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UserError(argument, value, f"{hint}known: {', '.join(names)}")
