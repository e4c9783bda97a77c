"""Rounds that nobody has played."""

from __future__ import annotations

from typing import Any

from protofed.server.round import Round


def a_round(number: int, **more: Any) -> Round:
    """A round of one client that was not evaluated, unless `more` says otherwise."""
    given: dict[str, Any] = {
        "round": number,
        "seconds": 1.0,
        "loss": 1.0,
        "losses": [1.0],
        "participants": [0],
        "bytes_up": 0,
        "bytes_down": 0,
        "scalars_up": {"weights": 0, "prototypes": 0},
        "prototypes": {},
        "clusters": {},
    }
    return Round(**{**given, **more})
