"""Small datasets and a split with every parameter set."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from protofed.data import Dataset, Samples, Split

PLAIN = Split("iid", alpha=0.5, min_size=1, balance=True, ways=3, half_width=2, shots=10, test_shots=40)


def samples(labels: Sequence[int], domains: Sequence[int] | None = None) -> Samples:
    """Samples whose first pixel holds their row number (modulo 256)."""
    images = torch.arange(len(labels)).remainder(256).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, 1, 2, 2).contiguous()
    return Samples(images, torch.tensor(labels), torch.tensor(domains or [0] * len(labels)))


def toy(per_class: int, classes: int = 10, test_per_class: int = 5, domains: int = 1) -> Dataset:
    """Classes of equal size in turn: label i modulo classes; domains change after each run of all classes."""

    def part(number: int) -> Samples:
        rows = range(number * classes)
        return samples([i % classes for i in rows], [i // classes % domains for i in rows])

    names = [f"class {c}" for c in range(classes)]
    return Dataset.of("toy", part(per_class), part(test_per_class), names, [f"domain {d}" for d in range(domains)])


def real_data() -> Path | None:
    """The folder with real datasets, if there is one."""
    folder = Path(os.environ.get("PROTOFED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
    return folder if folder.is_dir() else None
