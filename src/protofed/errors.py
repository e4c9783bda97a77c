"""The errors a user can cause; the command line prints one line, a second with a hint, and no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Self

LONGEST = 1000
"""Characters of a value that an error shows."""

MANY = 8
"""Names that an error shows at most."""


class HintedError(Exception):
    """An error that may say what to do about it: in `hint`, which Python shows as a note below the error."""

    hint: str | None = None

    def __init__(self, text: str, hint: str | None = None) -> None:
        super().__init__(text)
        if hint:
            self.hint = hint
            self.add_note(f"hint: {hint}")

    @classmethod
    def told(cls, text: str, hint: str | None = None) -> Self:
        """An error with this very text; not by its own __init__, which might phrase it anew."""
        error = cls.__new__(cls, text)
        HintedError.__init__(error, text, hint)
        return error


class UserError(HintedError, ValueError):
    """Wrong input: names the argument, its value and the reason; a hint may say what would do."""

    reason = ""

    def __init__(self, argument: str, value: object, reason: str, *, hint: str | None = None) -> None:
        what = "missing value" if value is None else f"invalid value {_shown(value)}"
        self.reason = " ".join(reason.split())  # one line, whoever gave it
        super().__init__(f"{what} for {argument}: {self.reason}", hint)


class DivergedError(HintedError, RuntimeError):
    """A loss stopped being finite: names the method, the client, the round and the step."""

    client: int | None = None
    round: int | None = None  # from 1
    where: str = ""  # without the method

    @classmethod
    def at(cls, who: str, client: int, round: int, step: int, loss: float, hint: str | None = None) -> DivergedError:
        """Where it happened to whom, all counted from 1 but the client."""
        where = f"the loss of client {client} became {loss} in round {round}, step {step}"
        error = cls(f"{who} diverged: {where}", hint)
        error.client, error.round, error.where = client, round, where
        return error


class LostError(HintedError, RuntimeError):
    """Another process of a run that several share has failed or is gone."""


class NotWrittenError(LostError, OSError):
    """Something could not be written, for want of room or of the right to; what was written before is whole."""


class RefusedError(Exception):
    """A message that is not what it should be, or asks for what is not allowed; the text says why."""


class HopelessError(HintedError, RuntimeError):
    """A run that is played elsewhere has failed, and would fail again."""


class Failure(NamedTuple):
    """An error of another process, in a form that can be sent."""

    kind: type[Exception]
    text: str
    hint: str | None = None

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """What there is to send of an error."""
        return cls(type(error), str(error), error.hint if isinstance(error, HintedError) else None)

    def error(self) -> Exception:
        """The error again."""
        if issubclass(self.kind, HintedError):
            return self.kind.told(self.text, self.hint)
        return self.kind.__new__(self.kind, self.text)


def missing_value(argument: str, reason: str, *, hint: str | None = None) -> UserError:
    """The error for an argument that was not given."""
    return UserError.told(f"missing value for {argument}: {reason}", hint)


def misused(flag: str, reason: str, *, hint: str | None = None) -> UserError:
    """The error for a flag, which has no value to show, that does not fit the rest."""
    return UserError.told(f"invalid use of {flag}: {reason}", hint)


def unknown(argument: str, value: object, known: Iterable[str], *, see: str | None = None) -> UserError:
    """The error for a name that is not in a list: short lists are shown, of long ones the command that does (`see`)."""
    names = sorted(known)
    if not names:
        reason = "there are none"
    elif len(names) <= MANY or see is None:
        reason = f"it must be one of {listed(names)}" if names[1:] else f"there is only {names[0]}"
    else:
        reason = "there is none of that name"
    return UserError(argument, value, reason, hint=suggestion(str(value), names, see) if names else None)


def suggestion(value: str, names: Sequence[str], see: str | None = None) -> str | None:
    """A hint: the name that was probably meant, and the command that lists them all."""
    bare = {name.lstrip("-"): name for name in names}  # or all options would be alike
    close = [f"did you mean {bare[name]!r}?" for name in difflib.get_close_matches(value.lstrip("-"), bare, n=1)]
    return " ".join([*close, *([f"`{see}` lists them all"] if see else [])]) or None


def listed(names: Sequence[str]) -> str:
    """Names in one line, cut where they are many."""
    more = f" and {len(names) - MANY} more" if len(names) > MANY else ""
    return f"{', '.join(names[:MANY])}{more}"


def _shown(value: object) -> str:
    """A value between quotes, as a user would write it, if it can be shown in one line."""
    try:
        text = str(value).lower() if isinstance(value, bool) else str(value)
    except (ValueError, RecursionError):  # a number of too many digits, or lists in lists in lists
        return f"({type(value).__name__}, too large to show)"
    cut = text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
    return f"'{''.join(one if one.isprintable() else ascii(one)[1:-1] for one in cut)}'"
