"""The 1,797 handwritten digits that come with scikit-learn, 8x8."""

from __future__ import annotations

import torch

from protofed.data.samples import Dataset, Samples


def digits() -> Dataset:
    """Ten classes, grey; every fifth image of each class is a test image."""
    from sklearn.datasets import load_digits

    raw = load_digits()
    images = (torch.from_numpy(raw.images) * 255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.from_numpy(raw.target).long()
    position = torch.nn.functional.one_hot(labels).cumsum(0).gather(1, labels.unsqueeze(1)).squeeze(1)
    test = position % 5 == 0  # position counts the images of the same class so far, from 1
    everything = Samples.of(images, labels)
    train_rows, test_rows = (~test).nonzero().flatten(), test.nonzero().flatten()
    return Dataset.of("digits", everything.take(train_rows), everything.take(test_rows), "0123456789")
