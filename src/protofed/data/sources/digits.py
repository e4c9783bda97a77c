"""The 1,797 handwritten digits that come with scikit-learn, 8x8."""

from __future__ import annotations

import torch

from protofed.data.holdout import fifth_out
from protofed.data.samples import Dataset, Samples


def digits() -> Dataset:
    """Ten classes, grey; every fifth image of each class is a test image."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = (torch.from_numpy(raw.images) * 255 / 16).round().to(torch.uint8).unsqueeze(1)
    return Dataset.of("digits", *fifth_out(Samples.of(images, torch.from_numpy(raw.target).long())), "0123456789")
