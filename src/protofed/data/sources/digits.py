"""The 1,797 handwritten digits that come with scikit-learn, 8x8."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from protofed.data.holdout import fifth_out
from protofed.data.samples import Dataset, Samples


def digits() -> Dataset:
    """Ten classes, grey; every fifth image of each class is a test image."""
    package = find_spec("sklearn")  # whose import takes a second, for one file
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).with_name("datasets") / "data/digits.csv.gz"
    rows = torch.from_numpy(np.loadtxt(file, delimiter=","))
    images = (rows[:, :-1].view(-1, 1, 8, 8) * 255 / 16).round().to(torch.uint8)
    return Dataset.of("digits", *fifth_out(Samples.of(images, rows[:, -1].long())), "0123456789")
