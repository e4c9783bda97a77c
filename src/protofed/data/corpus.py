"""Texts with their classes, before they are token ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from protofed.data.holdout import fifth_out, interleaved
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, Samples
from protofed.data.text_encoding import Tokenising
from protofed.errors import UserError, listed

MOST = 2**29
"""Token ids of all texts together."""


class Text(NamedTuple):
    """A text with the name of its class and of its domain."""

    content: str
    label: str
    domain: str = ""


@dataclass(frozen=True)
class Corpus:
    """Texts before they are token ids; without a test part every fifth of each class is for testing."""

    path: Path
    train: Sequence[Text]
    test: Sequence[Text]

    def encoded(self, how: Tokenising, name: str) -> Dataset:
        """The dataset of its texts; the vocabulary is that of the training part."""
        texts = [*self.train, *self.test]
        classes = sorted({text.label for text in self.train})
        domains = sorted({text.domain for text in texts})
        if unseen := sorted({text.label for text in texts} - set(classes)):
            raise UserError("PATH", str(self.path), f"there is no training text of the class {listed(unseen)}")
        if len(texts) * how.length > MOST:
            raise UserError("--length", how.length, f"{len(texts)} texts of that length are more than {MOST} token ids")
        rows = Samples(
            torch.arange(len(texts)).unsqueeze(1),
            torch.tensor([classes.index(text.label) for text in texts]),
            torch.tensor([domains.index(text.domain) for text in texts]),
        )
        cut = len(self.train)
        given = rows.take(torch.arange(cut)), rows.take(torch.arange(cut, len(texts)))
        halves = given if self.test else fifth_out(rows)
        train, test = (interleaved(half) if len(domains) > 1 else half for half in halves)
        if not len(test):
            raise UserError("PATH", str(self.path), "every fifth of a class is for testing, and no class has five")
        contents = [[texts[row].content for row in half.x.flatten().tolist()] for half in (train, test)]
        encoding = how.of(contents[0])
        train, test = (
            Samples(encoding.encode(content), half.labels, half.domains)
            for content, half in zip(contents, (train, test), strict=True)
        )
        names = domains if len(domains) > 1 else ()
        return Dataset.of(name, train, test, classes, names, Preparation(tokens=encoding.tokens), encoding)
