"""Samples with their labels and domains, and a dataset of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from protofed.data.encodings import Encoding
from protofed.data.preparation import Preparation, check_finite
from protofed.errors import UserError, listed, unknown

LARGEST = 2**24
"""Numbers of a sample that a model sees."""
DTYPES = (torch.uint8, torch.float32, torch.int64)
"""Bytes, such as pixels; numbers; token ids."""


@dataclass(frozen=True, eq=False)  # tensors do not compare to one truth value: equal means the same object
class Samples:
    """Hold samples of any kind, with one class and one domain each.

    Args:
        x: uint8, float32 or int64 [n, ...]: pixels from 0 to 255 [n, channels, height, width], rows of a table or
            features [n, features], series [n, channels, steps], token ids [n, length] with 0 for padding.
        labels: class numbers [n], int64.
        domains: domain numbers [n], int64.
        holders: numbers of whose each sample is [n], int64, where a column says it.

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

    x: Tensor
    labels: Tensor
    domains: Tensor
    holders: Tensor | None = None

    def __post_init__(self) -> None:
        if self.x.dtype not in DTYPES or self.x.dim() < 2 or 0 in self.x.shape[1:]:
            got = f"{self.x.dtype} {list(self.x.shape)}"
            raise UserError("x", got, "samples must be uint8, float32 or int64 [n, ...], of one number or more each")
        for name, numbers in (("labels", self.labels), ("domains", self.domains)):
            if numbers.dtype != torch.int64 or numbers.shape != self.x.shape[:1]:
                got = f"{numbers.dtype} {list(numbers.shape)}"
                raise UserError(name, got, f"it must be int64 [{len(self.x)}], one number per sample")
            if len(numbers) and int(numbers.min()) < 0:
                raise UserError(name, int(numbers.min()), "numbers must start at 0")

    @classmethod
    def of(cls, x: Tensor, labels: Tensor, domain: int = 0) -> Samples:
        """Make samples that are all of one domain."""
        return cls(x, labels, torch.full_like(labels, domain))

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: Tensor) -> Samples:
        """Take these rows, in this order."""
        holders = None if self.holders is None else self.holders[rows]
        return Samples(self.x[rows], self.labels[rows], self.domains[rows], holders)


def joined(parts: Sequence[Samples]) -> Samples:
    """Samples of one kind, one after the other; whose they are is not kept."""
    columns = ((part.x, part.labels, part.domains) for part in parts)
    return Samples(*(torch.cat(column) for column in zip(*columns, strict=True)))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Hold training and test samples before they are divided among clients.

    Args:
        name: what it is called.
        train: the training samples.
        test: the test samples.
        classes: the names of the classes, by number.
        domains: the names of the domains, by number; a dataset without domains has one, named like the dataset.
        preparation: what happens to samples before a model sees them.
        novel: samples of classes that are not among `classes`, for few-shot episodes; None without any.
        encoding: how records of a file became samples, which new ones go through too; None for pictures and tensors.
        unseen: test samples of a domain that nobody trains on; None without any.
        holders: the names of those whose the samples are, by number, where a column says it.

    Raises:
        UserError: there are no samples, a number has no name or is not finite, or the preparation does not fit.

    Example:
        >>> import torch
        >>> from protofed.data import Dataset, Samples
        >>> samples = Samples.of(torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1), torch.tensor([0, 1]))
        >>> dataset = Dataset.of("shades", samples, samples, ["black", "white"])
        >>> dataset.preparation.kind, dataset.preparation.mean, dataset.domains
        ('pixels', (0.5,), ('shades',))
    """

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]
    domains: tuple[str, ...]
    preparation: Preparation
    novel: Samples | None = None
    encoding: Encoding | None = None
    unseen: Samples | None = None
    holders: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.train.x.shape[1:] != self.test.x.shape[1:] or self.train.x.dtype != self.test.x.dtype:
            got = f"{self.test.x.dtype} {list(self.test.x.shape)}"
            raise UserError("test", got, f"its samples must be like those for training, {list(self.train.x.shape)}")
        check(self.train, self.classes, self.domains, self.preparation)
        check(self.test, self.classes, self.domains, self.preparation)

    @classmethod
    def of(
        cls,
        name: str,
        train: Samples,
        test: Samples,
        classes: Sequence[str],
        domains: Sequence[str] = (),
        preparation: Preparation | None = None,
        encoding: Encoding | None = None,
    ) -> Dataset:
        """Make a dataset whose preparation, unless given, is `Preparation.of` its training samples."""
        if preparation is None:
            preparation = Preparation.of(train.x)
            if preparation.tokens and len(test):  # an id that only test samples have is an id too
                preparation = replace(preparation, tokens=max(preparation.tokens, Preparation.of(test.x).tokens))
        return cls(name, train, test, tuple(classes), tuple(domains) or (name,), preparation, encoding=encoding)

    def keep_out(self, number: int) -> Dataset:
        """Leave the last so many classes out of training; their test samples become `novel`."""
        if number == 0:
            return self
        left = len(self.classes) - number
        if left < 2:
            why = f"{self.name} has {len(self.classes)} classes, of which two must be left to train on"
            raise UserError("--novel", number, why)
        train, test = (part.take((part.labels < left).nonzero().flatten()) for part in (self.train, self.test))
        novel = self.test.take((self.test.labels >= left).nonzero().flatten())
        return replace(self, train=train, test=test, classes=self.classes[:left], novel=novel)

    def leave_out(self, domain: str | None) -> Dataset:
        """Leave a domain out of training; its test samples become `unseen`."""
        if domain is None:
            return self
        if len(self.domains) < 2:
            raise UserError("--unseen", domain, f"{self.name} has no domains")
        if domain not in self.domains:
            raise unknown("--unseen", domain, self.domains)
        number = self.domains.index(domain)
        unseen = self.test.take((self.test.domains == number).nonzero().flatten())
        if not len(unseen):
            raise UserError("--unseen", domain, f"{self.name} has no test samples of it")
        train, test = (_without(part, number) for part in (self.train, self.test))
        for what, part in (("training", train), ("test", test)):
            if not len(part):
                raise UserError("--unseen", domain, f"{self.name} has no {what} samples of another domain")
        left = tuple(name for name in self.domains if name != domain)
        unseen = replace(unseen, domains=torch.zeros_like(unseen.domains))
        return replace(self, train=train, test=test, domains=left, unseen=unseen)


def _without(samples: Samples, domain: int) -> Samples:
    """The samples of the other domains, whose numbers close the gap."""
    rest = samples.take((samples.domains != domain).nonzero().flatten())
    return replace(rest, domains=rest.domains - (rest.domains > domain).long())


def check(
    samples: Samples, classes: tuple[str, ...], domains: tuple[str, ...], preparation: Preparation | None = None
) -> None:
    """Raise unless there are samples, every number in them is finite or has a name, and the preparation fits."""
    if not len(samples):
        raise UserError("samples", 0, "there must be at least one sample")
    for what, names, numbers in (("classes", classes, samples.labels), ("domains", domains, samples.domains)):
        if len(set(names)) != len(names):
            raise UserError(what, listed(names), "every name may appear once")
        if int(numbers.max()) >= len(names):
            raise UserError(
                what, listed(names), f"numbers in the samples go up to {int(numbers.max())}", hint="name them all"
            )
    check_finite(samples.x)
    if samples.x.dtype == torch.int64 and int(samples.x.min()) < 0:
        raise UserError("x", int(samples.x.min()), "token ids must start at 0")
    if preparation is not None:
        preparation.check(samples.x)


def is_picture(x: Tensor) -> bool:
    """Whether samples are bytes [n, channels, height, width]."""
    return x.dtype == torch.uint8 and x.dim() == 4


def check_shape(*shape: int) -> None:
    """Raise if samples are larger than any that is looked at: a card is somebody's word, and such samples are made."""
    if math.prod(shape) > LARGEST:
        raise UserError("shape", list(shape), f"it may have {LARGEST} numbers at most")
