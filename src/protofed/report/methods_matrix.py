"""All methods beside each other: what each sends, keeps and needs, found out from the methods themselves."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from pathlib import Path

from protofed.errors import UserError
from protofed.methods import METHODS, build_method, method_class
from protofed.methods.base import Method
from protofed.models import build
from protofed.trust.summation import summed

EXAMPLE = ("resnet10", (3, 32, 32), 10)
"""A model with BatchNorm, of which a method says what it shares."""
COLUMNS = (
    "method",
    "up",
    "down",
    "stays at the client",
    "model",
    "architectures",
    "needs",
    "secure sums",
    "lines",
    "paper",
)

SHORT = ("method", "stays at the client", "model", "architectures", "needs", "secure sums", "lines", "up")
"""What fits a terminal; what is sent comes last, since it is text."""


def matrix() -> list[dict[str, str]]:
    """A row per method of ours, in the order of the registry."""
    return [_row(name) for name in METHODS]


def _row(name: str) -> dict[str, str]:
    method, kind = build_method(name, {}), method_class(name)
    state = build(*EXAMPLE, generator_key=0, extend=method.extend).state_dict()
    shared = method.shared(state)
    stays = [_named({*state} - shared, state)] if shared != {*state} else []
    stays += ["its last model"] if method.keeps_previous else []
    stays += ["memory"] if method.memory(state, EXAMPLE[2]) else []
    body = [name for name in state if not name.startswith("head.")]
    public = method.exchanges_public or method.uses_public
    lines = len(Path(inspect.getfile(kind)).read_text(encoding="utf-8").splitlines())
    found = (
        *(name, kind.up, kind.down, ", ".join(stays) or "nothing"),
        "personal" if kind.score.startswith("own") else "global",
        "one" if any(name in shared or method.does_without(name) for name in body) else "mixed",
        "public images" if public else "a frozen encoder" if not method.phases(1) else "",
        "yes" if _sums(method) else "no",
        *(str(lines), kind.paper),
    )
    return dict(zip(COLUMNS, found, strict=True))


def _named(names: Collection[str], state: Collection[str]) -> str:
    """What some of a model's parameters and buffers are."""
    if len(names) == len(state):
        return "all weights"
    parts = {
        "head": {name for name in state if name.startswith("head.")},
        "body": {name for name in state if not name.startswith("head.")},
        "BatchNorm": {name for name in state if f"{name.rpartition('.')[0]}.running_mean" in state},
    }
    return next((part for part, some in parts.items() if some == {*names}), "a part of its own")


def _sums(method: Method) -> bool:
    """Whether the server needs sums only, as for `--secure` and `--privacy client`."""
    try:
        summed(method, "--secure")
    except UserError:
        return False
    return True
