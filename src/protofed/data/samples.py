"""Images with their labels and domains, and a dataset of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from protofed.errors import UserError, listed
from protofed.internal.schema import check_type

LARGEST = 2**24
"""Numbers of an image that a model sees."""


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value: equal means the same object
class Samples:
    """Hold images, or features that stand for them, with one class and one domain each.

    Args:
        images: uint8 [n, channels, height, width], pixels from 0 to 255; features are float32 [n, D, 1, 1].
        labels: class numbers [n], int64.
        domains: domain numbers [n], int64.

    Raises:
        UserError: a tensor is of another dtype or shape, or a number is negative.

    Example:
        >>> import torch
        >>> from protofed.data import Samples
        >>> samples = Samples.of(torch.zeros(3, 1, 8, 8, dtype=torch.uint8), torch.tensor([0, 1, 1]))
        >>> len(samples), samples.domains.tolist()
        (3, [0, 0, 0])
        >>> samples.take(torch.tensor([2, 0])).labels.tolist()
        [1, 0]
    """

    images: Tensor
    labels: Tensor
    domains: Tensor

    def __post_init__(self) -> None:
        features = self.images.dtype == torch.float32 and self.images.shape[2:] == (1, 1)
        if not (features or (self.images.dtype == torch.uint8 and self.images.ndim == 4)):
            got = f"{self.images.dtype} {list(self.images.shape)}"
            raise UserError(
                "images",
                got,
                "they must be uint8 [n, channels, height, width], or features as float32 [n, size, 1, 1]",
            )
        for name, numbers in (("labels", self.labels), ("domains", self.domains)):
            if numbers.dtype != torch.int64 or numbers.shape != self.images.shape[:1]:
                got = f"{numbers.dtype} {list(numbers.shape)}"
                raise UserError(name, got, f"it must be int64 [{len(self.images)}], one number per image")
            if len(numbers) and int(numbers.min()) < 0:
                raise UserError(name, int(numbers.min()), "numbers must start at 0")

    @classmethod
    def of(cls, images: Tensor, labels: Tensor, domain: int = 0) -> Samples:
        """Make samples that are all of one domain."""
        return cls(images, labels, torch.full_like(labels, domain))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Samples:
        """Take these rows, in this order."""
        return Samples(self.images[rows], self.labels[rows], self.domains[rows])


@dataclass(frozen=True, eq=False)
class Dataset:
    """Hold training and test samples before they are divided among clients.

    Args:
        name: what it is called.
        train: the training samples.
        test: the test samples.
        classes: the names of the classes, by number.
        domains: the names of the domains, by number; a dataset without domains has one, named like the dataset.
        mean: of each channel, of pixels scaled to 0..1.
        std: likewise, above 0.
        novel: samples of classes that are not among `classes`, for few-shot episodes; None without any.

    Raises:
        UserError: there are no samples, a number has no name, or `mean` and `std` are not those of the channels.

    Example:
        >>> import torch
        >>> from protofed.data import Dataset, Samples
        >>> samples = Samples.of(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1), torch.tensor([0, 1]))
        >>> dataset = Dataset.of("shades", samples, samples, ["black", "white"])
        >>> dataset.mean, dataset.std, dataset.domains
        ((0.5,), (0.5,), ('shades',))
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    novel: Samples | None = None

    def __post_init__(self) -> None:
        check(self.train, self.classes, self.domains, self.mean, self.std)
        check(self.test, self.classes, self.domains, self.mean, self.std)

    @classmethod
    def of(
        cls, name: str, train: Samples, test: Samples, classes: Sequence[str], domains: Sequence[str] = ()
    ) -> Dataset:
        """Make a dataset whose mean and std are those of its training images."""
        mean, std = pixel_statistics(train.images)
        return cls(name, train, test, tuple(classes), tuple(domains) or (name,), mean, std)

    def keep_out(self, number: int) -> Dataset:
        """Leave the last so many classes out of training; their test images become `novel`."""
        if number == 0:
            return self
        left = len(self.classes) - number
        if left < 2:
            why = f"{self.name} has {len(self.classes)} classes, of which two must be left to train on"
            raise UserError("--novel", number, why)
        train, test = (part.take((part.labels < left).nonzero().flatten()) for part in (self.train, self.test))
        novel = self.test.take((self.test.labels >= left).nonzero().flatten())
        return replace(self, train=train, test=test, classes=self.classes[:left], novel=novel)

    def normalised(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Dataset:
        """Return the same images, to be seen with another mean and std for each channel."""
        channels = self.train.images.shape[1]
        if channels != len(mean):
            raise UserError("--normalise", "imagenet", f"it is for {len(mean)} colours, and {self.name} has {channels}")
        return replace(self, mean=mean, std=std)


def unit(images: Tensor) -> int:
    """What stands for 1: pixels go up to 255, features are taken as they are."""
    return 255 if images.dtype == torch.uint8 else 1


def pixel_statistics(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, of pixels scaled to 0..1; a constant channel gets std 1."""
    if images.dtype == torch.uint8:
        levels = torch.arange(256, dtype=torch.float64) / 255
        counts = [torch.bincount(channel.reshape(-1), minlength=256) for channel in images.unbind(1)]  # exact, and lean
        parts = torch.stack(counts).double() / max(1, images[:, 0].numel())
        mean = parts @ levels
        std = (parts * (levels - mean.unsqueeze(1)) ** 2).sum(1).sqrt()
    else:
        std, mean = torch.std_mean(images.double(), (0, 2, 3), correction=0)
    return tuple(mean.tolist()), tuple(torch.where(std > 0, std, 1.0).tolist())


def check(
    samples: Samples,
    classes: tuple[str, ...],
    domains: tuple[str, ...],
    mean: tuple[float, ...],
    std: tuple[float, ...],
) -> None:
    """Raise unless there are samples and every number in them has a name, every channel a mean and a std."""
    if not len(samples):
        raise UserError("samples", 0, "there must be at least one image")
    for what, names, numbers in (("classes", classes, samples.labels), ("domains", domains, samples.domains)):
        if len(set(names)) != len(names):
            raise UserError(what, listed(names), "every name may appear once")
        if int(numbers.max()) >= len(names):
            raise UserError(
                what, listed(names), f"numbers in the samples go up to {int(numbers.max())}", hint="name them all"
            )
    channels = samples.images.shape[1]
    if not len(mean) == len(std) == channels:
        raise UserError("mean and std", (mean, std), f"give {channels} of each, one per channel")
    if not all(s > 0 for s in std):
        raise UserError("std", std, "it must be above 0")


def check_shape(*shape: int) -> None:
    """Raise if images are larger than any that is looked at: a card is somebody's word, and such images are made."""
    if math.prod(shape) > LARGEST:
        raise UserError("image", list(shape), f"it may have {LARGEST} numbers at most")


def check_statistics(mean: Sequence[Any], std: Sequence[Any], channels: int) -> None:
    """Raise unless a card's mean and std of pixels are numbers, one a channel, that can be divided by."""
    for name, numbers in (("mean", mean), ("std", std)):
        if len(numbers) != channels:
            raise UserError(name, numbers, "it must hold a number for each channel")
        for number in numbers:
            check_type(name, number, float)
    if min(std) <= 0:
        raise UserError("std", std, "it must be above 0")
