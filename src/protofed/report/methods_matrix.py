"""All methods beside each other: what each sends, keeps and needs, found out from the methods themselves."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Collection
from functools import cache
from pathlib import Path

import torch

from protofed.data import Client, Federation, Samples
from protofed.engines.base import Engine
from protofed.engines.private import made_up_upload
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Upload
from protofed.methods import METHODS, build_method
from protofed.methods.base import Method
from protofed.models.linear_head import is_head
from protofed.runs.setup import prepare
from protofed.trust.summation import summed

WITH_NORM, WITHOUT = "resnet10", "cnn"
"""A model with BatchNorm, of which a method says what it shares, and one that --privacy example can train."""
COLUMNS = (
    "method",
    "up",
    "down",
    "stays at the client",
    "model",
    "architectures",
    "needs",
    "secure sums",
    "private",
    "over a network",
    "lines",
    "paper",
)
SAID = ("up", "down", "paper")
"""Columns of free text."""


def matrix() -> list[dict[str, str]]:
    """A row per method of ours, in the order of the registry."""
    return [_row(name) for name in METHODS]


def _row(name: str) -> dict[str, str]:
    method, engine = build_method(name, {}), _engine(name, WITH_NORM)
    state = engine.groups[0].own.initial
    shared = method.shared(state)
    one = any(part in shared or method.does_without(part) for part in state if not is_head(part))
    needs = ["public images"] if method.exchanges_public or method.uses_public else []
    needs += ["a frozen encoder"] if not method.phases(1) else []
    needs += ["a linear head"] if method.linear_head else []
    sent = _sent(engine)
    found = (
        *(name, method.up, method.down, ", ".join(_stays(engine, sent or Upload())) or "nothing"),
        "personal" if method.score.startswith("own") else "global",
        "one" if one else "mixed",
        ", ".join(needs),
        "yes" if _sums(method) else "no",
        ", ".join(kind for kind in ("client", "example") if _promises(name, kind)) or "no",
        "yes" if sent is not None else "no",
        *(str(sum(_length(module) for module in _own_modules(name))), method.paper),
    )
    return dict(zip(COLUMNS, found, strict=True))


def _engine(name: str, model: str, **more: object) -> Engine:
    """That of two clients with two samples each; a UserError if there can be none."""
    samples = Samples.of(torch.arange(2 * 3 * 8 * 8).view(2, 3, 8, 8).to(torch.uint8), torch.tensor([0, 1]))
    federation = Federation((Client.of(samples, samples),) * 2, ("a", "b"))
    given = {"model": model, "engine": "sequential", "device": "cpu", "clients": 2, "public": "digits", **more}
    return prepare(Experiment(method=name, **given), federation=federation).engine  # type: ignore[arg-type]


def _sent(engine: Engine) -> Upload | None:
    """What clients send, as a server knows it over a network: made up from models alone; None if it cannot."""
    try:
        return made_up_upload(engine, engine.groups[0], classes=2)[1]
    except Exception:  # whatever a method raises without data
        return None


def _stays(engine: Engine, sent: Upload) -> list[str]:
    """What a client has trained and does not send, and what it keeps besides."""
    method, state = engine.method, engine.groups[0].own.initial
    norms = {name for name in state if f"{name.rpartition('.')[0]}.running_mean" in state}
    phases, learnt = method.phases(1), {name for name, _ in engine.groups[0].module.named_parameters()} | norms
    trained = {name for name in learnt if any(phase.trains(name) for phase in phases)}
    left = trained - sent.weights.keys()
    parts = {
        "all weights": trained,
        "head": {name for name in trained if is_head(name)},
        "body": {name for name in trained if not is_head(name)},
        "BatchNorm": norms,
    }
    found = [next((part for part, names in parts.items() if names == left), "a part of its own")] if left else []
    found += ["its last model"] if method.keeps_previous else []
    return [*found, "memory"] if engine.groups[0].own.first_memory else found


def _sums(method: Method) -> bool:
    """Whether the server needs sums only, as for `--secure` and `--privacy client`."""
    try:
        summed(method, "--secure")
    except UserError:
        return False
    return True


def _promises(name: str, privacy: str) -> bool:
    """Whether a run with --privacy may begin."""
    try:
        _engine(name, WITHOUT, privacy=privacy, clip=1.0, noise=1.0)
    except UserError:
        return False
    return True


# Lines.

ROOT = Path(__file__).parents[1]


def _own_modules(name: str) -> Collection[str]:
    """The module of a method, and those that no other method's module imports, directly or by others."""
    used = {other: _reached(_module(other)) for other in METHODS}
    users = Counter(module for modules in used.values() for module in modules)
    return [
        _module(name),
        *(module for module in used[name] if users[module] == 1 and module not in map(_module, used)),
    ]


def _module(method: str) -> str:
    return f"methods.{METHODS[method].partition(':')[0]}"


def _reached(module: str) -> set[str]:
    found: set[str] = set()
    ahead = [module]
    while ahead:
        new = set(_imports(ahead.pop())) - found
        found |= new
        ahead += new
    return found


@cache
def _imports(module: str) -> tuple[str, ...]:
    """The modules of ours that a module imports from."""
    tree = ast.parse(_file(module).read_text(encoding="utf-8"))
    named = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    ours = [place.removeprefix("protofed.") for place in named if place.startswith("protofed.")]
    return tuple(place for place in ours if _file(place).exists())


def _file(module: str) -> Path:
    return ROOT.joinpath(*module.split(".")).with_suffix(".py")


def _length(module: str) -> int:
    return len(_file(module).read_text(encoding="utf-8").splitlines())
