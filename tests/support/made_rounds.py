"""Lines of rounds.jsonl."""

from __future__ import annotations

from typing import Any


def a_round(number: int) -> dict[str, Any]:
    """A round of one client that was not evaluated."""
    none: dict[str, Any] = {name: {} for name in ("accuracy", "per_client", "per_domain", "interval")}
    more = {"bytes_up": 0, "bytes_down": 0, "scalars_up": {"weights": 0, "prototypes": 0}}
    more |= {"participants": [0], "losses": [1.0], "prototypes": {}, "clusters": {}}
    return {"round": number, "seconds": 1.0, "loss": 1.0, **more, **none, "diagnostic": []}
