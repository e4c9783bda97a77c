"""Which engine is fastest: measured once for a model on a machine, and remembered."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from protofed.engines.base import Engine
from protofed.engines.group import Group
from protofed.engines.sequential import Sequential
from protofed.engines.stacked import Stacked
from protofed.experiment import Experiment

STEPS = 2
"""Steps of a measurement, after as many to warm up."""
CLIENTS = 32
"""Most clients in it: more do not change who wins."""
PATIENCE = 2.0
"""Seconds that a measurement of one engine may take, if fewer clients (two at least) make it shorter."""

Make = Callable[[type[Engine], int | None], Engine]


def fastest(experiment: Experiment, groups: Sequence[Group], device: torch.device, make: Make) -> tuple[Engine, str]:
    """The fastest engine for the largest group of clients, and why it was taken.

    On a CPU that is one client after the other, or all at once; on a GPU all at once, or each on a stream of its own.
    """
    group = max(groups, key=lambda group: len(group.members))
    clients = min(len(group.members), max(1, round(experiment.participation * len(group.members))), CLIENTS)
    if clients == 1 and device.type != "cuda":
        return make(Sequential, None), "no two clients of an architecture train at once"
    options: list[tuple[type[Engine], int | None]] = [(Stacked, 1), (Stacked, None)]
    if device.type != "cuda":
        options[0] = (Sequential, None)
    key = _key(experiment, group, device, clients)
    with _remembered() as known:
        if key not in known:
            known[key] = _measure(options, group, clients, make)
        seconds = {option: known[key][_name(option)] for option in options}
    best = min(seconds, key=seconds.__getitem__)
    told = ", ".join(f"{_name(option)} {1000 * took:.3g} ms" for option, took in seconds.items())
    return make(*best), f"measured for a client and step: {told}"


def _measure(
    options: Sequence[tuple[type[Engine], int | None]], group: Group, clients: int, make: Make
) -> dict[str, float]:
    """Seconds for each client and step."""
    found = {}
    for option in options:
        engine = make(*option)
        rows = list(range(min(clients, len(group.members))))
        first = engine.trial(group, rows[:2], 1)  # to warm up, and to see how long it will take
        rows = rows[: max(2, min(clients, int(PATIENCE / (2 * STEPS * first))))]
        engine.trial(group, rows, STEPS)
        found[_name(option)] = engine.trial(group, rows, STEPS)
    return found


def _name(option: tuple[type[Engine], int | None]) -> str:
    kind, width = option
    return kind.name if width is None else f"{kind.name}, {width} at a time"


def _key(experiment: Experiment, group: Group, device: torch.device, clients: int) -> str:
    """What the measurement depends on, in words."""
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    numbers = sum(value.numel() for value in group.own.initial.values())
    shape = "x".join(str(side) for side in group.images.shape[1:])
    work = (experiment.method, experiment.model, f"{numbers} numbers", shape, f"batch {experiment.batch_size}")
    tools = (f"{torch.get_num_threads()} threads", f"torch {torch.__version__}", experiment.precision)
    return ", ".join((machine, *tools, *work, f"{clients} clients"))


@contextmanager
def _remembered() -> Iterator[dict[str, dict[str, float]]]:
    """What was measured before on this machine; what is added is kept, unless that cannot be written."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "protofed"
    file = folder / "engines.json"
    known: dict[str, dict[str, float]] = {}
    with suppress(OSError, ValueError):
        known = dict(json.loads(file.read_text(encoding="utf-8")))
    before = dict(known)
    yield known
    if known != before:
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            draft = folder / f".engines-{os.getpid()}-{time.monotonic_ns()}"
            draft.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
            draft.replace(file)
