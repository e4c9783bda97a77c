"""Where the time of a round goes: sections, measured and shown in a trace while a profile is taken."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, record_function

from protofed.internal.atomic_files import write_text
from protofed.internal.digests import json_with_digest

WARM_UP = 2
"""So many first rounds are told apart: they record steps and fill caches."""
TRACED = 3
"""At most so many rounds after those are in the trace, because it is large; they are slower, so they are not timed."""


class Profile:
    """Within `with`, sections are measured; at its end profile.json and trace.json are in the folder."""

    def __init__(self, folder: Path, device: torch.device, rounds: int) -> None:
        """`rounds` is how many there will be: of a short run the last is traced."""
        self.folder, self.device = folder, device
        self.rounds: list[dict[str, float]] = []
        """Of every round the seconds of each section."""
        self.traced: list[int] = []
        """Which rounds are in the trace."""
        self._first_traced = min(WARM_UP, rounds - 1)
        self._open: list[str] = []  # the innermost section last
        self._seconds: dict[str, float] = {}  # of this round
        self._since = 0.0
        self._trace: torch.profiler.profile | None = None

    def __enter__(self) -> Profile:
        global _active  # noqa: PLW0603 - sections are in places that know of no profile
        _active = self
        return self

    def __exit__(self, *error: object) -> None:
        global _active  # noqa: PLW0603
        _active = None
        if self._trace is not None:
            if len(self.traced) < TRACED:
                self._trace.stop()
            self._trace.export_chrome_trace(str(self.folder / "trace.json"))
        if self.rounds:
            write_text(self.folder / "profile.json", json_with_digest(json.dumps(self.report(), indent=2)))

    @contextmanager
    def round(self) -> Iterator[None]:
        """A round; what is in none of its sections is `other`."""
        if len(self.rounds) == self._first_traced:
            os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # it would announce itself on stderr
            gpu = [ProfilerActivity.CUDA] if self.device.type == "cuda" else []
            self._trace = torch.profiler.profile(activities=[ProfilerActivity.CPU, *gpu], acc_events=True)
            self._trace.start()
        self._seconds = {}
        with self.section("other"):
            yield
        self.rounds.append(self._seconds)
        if self._trace is not None and len(self.traced) < TRACED:
            self.traced.append(len(self.rounds))
            if len(self.traced) == TRACED:
                self._trace.stop()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """Time in here is the section's, unless a section within it takes it."""
        with record_function(name):
            self._count()
            self._open.append(name)
            try:
                yield
            finally:
                self._count()
                self._open.pop()

    @property
    def in_round(self) -> bool:
        """Whether a round is being measured."""
        return bool(self._open)

    def report(self) -> dict[str, Any]:
        """What profile.json says: the rounds after warm-up, without the traced ones where there are others."""
        played = range(1, len(self.rounds) + 1)
        later = played[WARM_UP:]
        measured = [number for number in later if number not in self.traced] or later or played
        return {
            "device": str(self.device),
            **self._summary(measured),
            "warm_up": self._summary(played[:WARM_UP]),
            "traced": self.traced,
        }

    def _summary(self, numbers: Sequence[int]) -> dict[str, Any]:
        rounds = [self.rounds[number - 1] for number in numbers]
        names = dict.fromkeys(name for seconds in self.rounds for name in seconds if name != "other")
        seconds = {name: sum(found.get(name, 0.0) for found in rounds) for name in [*names, "other"]}
        total = sum(seconds.values())
        sections = {
            name: {"seconds": spent, "per_round": spent / len(rounds), "share": spent / total}
            for name, spent in seconds.items()
        }
        return {"rounds": list(numbers), "seconds": total, "sections": sections}

    def _count(self) -> None:
        """What passed since the last change is the innermost section's."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        now = time.perf_counter()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now


_active: Profile | None = None


def section(name: str) -> AbstractContextManager[None]:
    """A named part of a round; nothing, unless a profile is taken."""
    return _active.section(name) if _active is not None and _active.in_round else nullcontext()


def profiled_round() -> AbstractContextManager[None]:
    """A round; nothing, unless a profile is taken."""
    return nullcontext() if _active is None else _active.round()
