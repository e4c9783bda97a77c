"""Which engine is fastest: measured once for a model on a machine, and remembered."""

from __future__ import annotations

import json
import math
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import torch

from protofed.engines.base import Engine
from protofed.engines.client_group import Group
from protofed.engines.sequential import Sequential
from protofed.engines.stacked import Stacked
from protofed.experiment import Experiment
from protofed.internal.atomic_files import cache_folder, write_file

STEPS, GPU_STEPS, TRIALS = 2, 24, 3
"""Steps of a trial, on a GPU enough to forget what a round takes besides, and how many trials; the first warms up."""
CLIENTS = 32
"""Most clients in it: more do not change who wins."""
PATIENCE = 0.5
"""After so many seconds an option is not tried once more."""

MARGIN = 0.9
"""What is to replace the first option has to be faster by more than a measurement errs."""

Make = Callable[[type[Engine], int | None], Engine]
Option = tuple[type[Engine], int | None]
"""An engine and its width."""


def fastest(experiment: Experiment, groups: Sequence[Group], device: torch.device, make: Make) -> tuple[Engine, str]:
    """The fastest engine for the largest group of clients, and why it was taken."""
    group = max(groups, key=lambda group: len(group.members))
    clients = max(1, round(experiment.participation * len(group.members)))
    options = _options(device)
    key = _key(experiment, group, device, min(clients, CLIENTS))
    with _remembered() as known:
        if set(known.get(key, {})) != set(options):
            measure = _measure_gpu if device.type == "cuda" else _measure
            known[key] = measure(options, group, min(clients, CLIENTS), make)
        seconds = dict(known[key])
    simplest = next(iter(options))
    best = min(seconds, key=seconds.__getitem__)
    kind, width = options[best if seconds[best] < MARGIN * seconds[simplest] else simplest]
    told = ", ".join(f"{name} {1000 * took:.3g} ms" for name, took in sorted(seconds.items(), key=lambda x: x[1]))
    return make(kind, width), f"measured for a client and step: {told}"


def _options(device: torch.device) -> dict[str, Option]:
    """What there is to choose from on a device."""
    if device.type == "cuda":
        return {"all at once": (Stacked, None), "each on a stream": (Stacked, 1)}
    return {"one after the other": (Sequential, None), "all at once": (Stacked, None)}


def _measure(options: Mapping[str, Option], group: Group, clients: int, make: Make) -> dict[str, float]:
    """Seconds for each client and step; the shortest of a few trials, or the second of two that take long."""
    found = {}
    for name, (kind, width) in options.items():
        rows = list(range(min(2, clients)))
        first = make(kind, width).trial(group, rows, 1)
        rows = list(range(min(clients, max(2, int(PATIENCE / (STEPS * first))))))
        engine = make(kind, width)
        began = time.perf_counter()
        found[name] = engine.trial(group, rows, STEPS)
        for _ in range(TRIALS):
            if time.perf_counter() - began < PATIENCE:
                found[name] = min(found[name], engine.trial(group, rows, STEPS))
    return found


def _measure_gpu(options: Mapping[str, Option], group: Group, clients: int, make: Make) -> dict[str, float]:
    """The same on a GPU, where the first trial records; what does not fit into its memory takes forever."""

    def seconds(engine: Engine) -> float:
        rows = list(range(clients))
        engine.trial(group, rows, GPU_STEPS)
        return min(engine.trial(group, rows, GPU_STEPS) for _ in range(TRIALS - 1))

    found = {}
    for name, (kind, width) in options.items():
        try:
            found[name] = seconds(make(kind, width))
        except torch.OutOfMemoryError:
            found[name] = math.inf
        torch.cuda.empty_cache()  # of its recordings
    return found


def _key(experiment: Experiment, group: Group, device: torch.device, clients: int) -> str:
    """What the measurement depends on, in words."""
    machine = (
        torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or platform.machine()
    )
    numbers = sum(value.numel() for value in group.own.initial.values())
    shape = "x".join(str(side) for side in group.x.shape[1:])
    work = (experiment.method, experiment.model, f"{numbers} numbers", shape, f"batch {experiment.batch_size}")
    tools = (f"{torch.get_num_threads()} threads", f"torch {torch.__version__}", experiment.precision)
    return ", ".join((machine, *tools, *work, f"{clients} clients"))


@contextmanager
def _remembered() -> Iterator[dict[str, dict[str, float]]]:
    """What was measured before on this machine; what is added is kept, unless that cannot be written."""
    file = cache_folder("engines.json")
    known: dict[str, dict[str, float]] = {}
    with suppress(OSError, ValueError):
        known = dict(json.loads(file.read_text(encoding="utf-8")))
    before = dict(known)
    yield known
    if known != before:
        with suppress(OSError):
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, lambda draft: draft.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8"))
