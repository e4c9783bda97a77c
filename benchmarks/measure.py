"""Seconds, memory, how busy the GPU is, and the least time that the arithmetic and the memory traffic allow."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.plain import Local

LONG = 10.0
"""What takes more seconds than this is measured once."""


class Peak(NamedTuple):
    """What a GPU can do at most: FLOP/s of dense arithmetic by precision, and bytes/s of its memory."""

    flops: Mapping[str, float]
    bandwidth: float


H200_FLOAT32, H200_TF32, H200_BF16 = 67e12, 494e12, 989e12
H200_BANDWIDTH = 4.8e12
PEAKS = {"H200": Peak({"float32": H200_FLOAT32, "tf32": H200_TF32, "bf16": H200_BF16}, H200_BANDWIDTH)}


class Deadline:
    """When to stop measuring."""

    def __init__(self, seconds: float | None) -> None:
        self.end = None if seconds is None else time.monotonic() + seconds

    def passed(self) -> bool:
        """Whether the time is used up."""
        return self.end is not None and time.monotonic() >= self.end


class Flags(NamedTuple):
    """Torch's settings that a run may change for the whole process; every contender gets its own back."""

    matmul_tf32: bool
    conv_tf32: bool
    tune: bool
    deterministic: bool
    threads: int

    @classmethod
    def now(cls) -> Flags:
        """As they are."""
        return cls(
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.backends.cudnn.benchmark,
            torch.are_deterministic_algorithms_enabled(),
            torch.get_num_threads(),
        )

    def set(self) -> None:
        """Make them so."""
        torch.backends.cuda.matmul.allow_tf32 = self.matmul_tf32
        torch.backends.cudnn.allow_tf32 = self.conv_tf32
        torch.backends.cudnn.benchmark = self.tune
        torch.use_deterministic_algorithms(self.deterministic)
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)


@dataclass
class Contender:
    """Something to be timed: `play` is one repeat, `brief` a shorter piece of it for the profiler."""

    play: Callable[[], object]
    warm_up: Callable[[], object] | None = None
    brief: Callable[[], object] | None = None


def race(
    makers: Mapping[str, Callable[[], Contender]], repeats: int, deadline: Deadline, device: torch.device
) -> dict[str, dict[str, Any]]:
    """Each contender's median seconds; repeats take turns, so that a slow moment of the machine hits all of them."""
    before = Flags.now()
    contenders: dict[str, tuple[Contender, Flags, int]] = {}
    for name, make in makers.items():
        before.set()
        held = _allocated(device)
        contender = make()
        if contender.warm_up is not None:
            contender.warm_up()
        contenders[name] = contender, Flags.now(), _allocated(device) - held

    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    memory = {}
    for number in range(repeats):
        for name, (contender, flags, resident) in contenders.items():
            if number and (deadline.passed() or max(seconds[name]) > LONG):
                continue
            flags.set()
            taken, extra = timed(contender.play, device)
            seconds[name].append(taken)
            memory[name] = resident + extra
    found: dict[str, dict[str, Any]] = {}
    for name, (contender, flags, _) in contenders.items():
        found[name] = {"seconds": statistics.median(seconds[name]), "repeats": seconds[name]}
        if device.type == "cuda":
            flags.set()
            found[name]["memory"] = memory[name]
            if contender.brief is not None:
                found[name]["busy"] = busy(contender.brief, device)
    before.set()
    contenders.clear()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return found


def timed(play: Callable[[], object], device: torch.device) -> tuple[float, int]:
    """Seconds, and bytes of GPU memory beyond those held before."""
    synchronise(device)
    held = _allocated(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = time.perf_counter()
    play()
    synchronise(device)
    taken = time.perf_counter() - began
    return taken, torch.cuda.max_memory_allocated(device) - held if device.type == "cuda" else 0


def busy(play: Callable[[], object], device: torch.device) -> float:
    """The part of the time in which a kernel runs: kernels from a profile, the time without one."""
    seconds, _ = timed(play, device)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        play()
        synchronise(device)
    kernels = [
        (event.time_range.start, event.time_range.end)
        for event in profile.events() or []
        if event.device_type.name == "CUDA"
        and not event.name.startswith(("Memcpy", "Memset"))
        and not getattr(event, "is_user_annotation", False)
    ]
    return min(1.0, covered(kernels) / 1e6 / seconds)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of the union of intervals."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(intervals):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def floor(loop: Local, who: Sequence[int], device: torch.device) -> dict[str, float]:
    """FLOPs and bytes of a round of the plain loop, and the seconds that they take at least on this GPU.

    FLOPs are counted on one batch. A step moves each parameter eight times (read forward and backward; gradient
    written; the optimiser reads weight, gradient and momentum and writes two of them), and what autograd keeps twice
    (written forward, read backward).
    """
    settings = loop.settings
    sizes = [len(loop.data[k][1]) for k in who]
    steps = settings.epochs * sum(-(-size // settings.batch_size) for size in sizes)
    model = loop.models[who[0]]
    x, y = (part[: settings.batch_size].clone() for part in loop.data[who[0]])
    flops, kept = _cost_of_step(loop, model, x, y)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    images = sum(sizes)
    work = images / len(x) * (settings.epochs * flops + loop.passes * _forward_flops(loop, model, x))
    traffic = steps * 8 * weights + settings.epochs * images / len(x) * 2 * kept
    found = {"steps": steps, "flops": work, "bytes": traffic}
    for name, peak in PEAKS.items():
        if device.type == "cuda" and name in torch.cuda.get_device_name(device):
            found["seconds"] = max(work / peak.flops[settings.precision], traffic / peak.bandwidth)
    return found


def _cost_of_step(loop: Local, model: torch.nn.Module, x: Tensor, y: Tensor) -> tuple[int, int]:
    """FLOPs of a training step, and the bytes that autograd keeps for its backward pass, parameters apart."""
    from torch.utils.flop_counter import FlopCounterMode

    parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    optimiser = torch.optim.SGD(model.parameters(), 0.0)
    model.train()
    loop.losses = []
    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        loop.step(model, optimiser, x, y)
    return int(counter.get_total_flops()), sum(kept.values())


def _forward_flops(loop: Local, model: torch.nn.Module, x: Tensor) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        loop.embed(model, x)
    return int(counter.get_total_flops())


def synchronise(device: torch.device) -> None:
    """Wait until the device has done everything."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def high_water() -> float:
    """The most memory this process has had, in bytes (Linux)."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return float(status.split("VmHWM:")[1].split()[0]) * 1024


def _allocated(device: torch.device) -> int:
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
