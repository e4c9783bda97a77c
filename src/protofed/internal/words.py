"""Numbers in sentences."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """A number of things, one or several."""
    return f"{number} {what}{'s' * (number != 1)}"
