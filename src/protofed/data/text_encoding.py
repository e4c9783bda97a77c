"""Text as samples: token ids, of words or of an installed tokenizer's pieces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from protofed.data.encodings import Encoding
from protofed.data.samples import check_shape
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.schema import check_type

WORDS = "words"
UNKNOWN = 1
"""The id of what is not in the vocabulary; 0 pads."""
LARGEST = 2**25
"""Characters of a tokenizer's file."""
MOST_WORDS = 10**6


@dataclass(frozen=True)
class Tokenising:
    """Say how text becomes token ids; unless given, as `Experiment` says.

    Args:
        tokenizer: `words`, the path of a tokenizer.json, a name that the package `tokenizers` finds, or what a
            tokenizer.json holds, which is taken as it is.
        vocabulary: words that get an id of their own, the most frequent ones of the training text (`words`).
        length: ids of a sample: longer text is cut off, shorter is padded with 0.

    Example:
        >>> from protofed.data import Tokenising
        >>> Tokenising(vocabulary=1, length=2).of(["red and red"]).words
        ('red',)
    """

    tokenizer: str = Experiment.tokenizer
    vocabulary: int = Experiment.vocabulary
    length: int = Experiment.length

    def of(self, training: Iterable[str]) -> TextEncoding:
        """Return the encoding of training text."""
        if self.tokenizer.startswith("{"):
            return TextEncoding((), self.length, self.tokenizer)
        if self.tokenizer != WORDS:
            return TextEncoding((), self.length, _installed(self.tokenizer))
        counts = Counter(word for text in training for word in words_of(text))
        order = sorted(counts, key=lambda word: (-counts[word], word))
        return TextEncoding(tuple(order[: self.vocabulary]), self.length)


@dataclass(frozen=True)
class TextEncoding(Encoding):
    """Describe text as samples: token ids, int64 [length].

    Args:
        words: the vocabulary, the most frequent word first; the first has id 2, because 0 pads and 1 is unknown.
        length: ids of a sample.
        tokenizer: in place of words, a tokenizer of the package `tokenizers` as its JSON says it; its ids count from 1.

    Raises:
        UserError: the length is below 1 or too large, or the vocabulary is too large.

    Example:
        >>> from protofed.data import Tokenising
        >>> encoding = Tokenising(vocabulary=2, length=4).of(["the cat", "the dog, the cat"])
        >>> encoding
        TextEncoding(words=('the', 'cat'), length=4, tokenizer='')
        >>> encoding.encode(["The CAT sat."]).tolist()
        [[2, 3, 1, 0]]
        >>> encoding.show(encoding.encode(["The CAT sat."])[0])
        'the cat ·'
    """

    kind: ClassVar[str] = "text"
    words: tuple[str, ...]
    length: int
    tokenizer: str = ""

    def __post_init__(self) -> None:
        for name, hint in (("words", tuple[str, ...]), ("length", int), ("tokenizer", str)):
            check_type(name, getattr(self, name), hint)
        if self.length < 1:
            raise UserError("length", self.length, "it must be at least 1")
        check_shape(self.length)
        if len(self.words) > MOST_WORDS or len(self.tokenizer) > LARGEST:
            raise UserError("vocabulary", len(self.words), f"it may have {MOST_WORDS} words at most")

    @property
    def tokens(self) -> int:
        """How many ids there may be."""
        return 1 + self._pieces.get_vocab_size() if self.tokenizer else 2 + len(self.words)

    def encode(self, texts: Sequence[str]) -> Tensor:
        """Make samples of texts.

        Args:
            texts: text with something in it; what has no word at all is one unknown word.

        Returns:
            The token ids [n, length], int64.

        Raises:
            UserError: a text is empty.
        """
        x = torch.zeros(len(texts), self.length, dtype=torch.int64)
        for number, text in enumerate(texts):
            if not text.strip():
                raise UserError("text", number, "it is empty")
            ids = (self._ids(text) or [UNKNOWN])[: self.length]
            x[number, : len(ids)] = torch.tensor(ids)
        return x

    def show(self, x: Tensor) -> str:
        """Return the words of a sample; a dot is an unknown one."""
        ids = [number for number in x.tolist() if number]
        if self.tokenizer:
            return str(self._pieces.decode([number - 1 for number in ids]))
        return " ".join("·" if number == UNKNOWN else self.words[number - 2] for number in ids)

    def _ids(self, text: str) -> list[int]:
        if self.tokenizer:
            return [number + 1 for number in self._pieces.encode(text).ids]
        return [self._numbers.get(word, UNKNOWN) for word in words_of(text)]

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {word: number for number, word in enumerate(self.words, 2)}

    @cached_property
    def _pieces(self) -> Any:
        return _parsed(self.tokenizer)

    def to_json(self) -> dict[str, Any]:
        """Return its fields."""
        return asdict(self) | {"words": list(self.words)}

    @classmethod
    def from_json(cls, said: Any) -> TextEncoding:
        """Read what `to_json` made."""
        if not isinstance(said, dict) or said.keys() != {"words", "length", "tokenizer"}:
            raise UserError("encoding", said, "one of text has words, length and tokenizer, and nothing else")
        check_type("words", said["words"], list)
        return cls(**said | {"words": tuple(said["words"])})


def words_of(text: str) -> list[str]:
    """The words of a text in small letters: letters and digits, with an apostrophe inside."""
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.lower())


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        hint = "pip install 'protofed[text]', or take --tokenizer words"
        raise UserError("--tokenizer", "tokenizers", "the package is not installed", hint=hint) from None
    return tokenizers


def _installed(name: str) -> str:
    """The JSON of a tokenizer in a file, or of one that its package finds by name."""
    package, path = _tokenizers(), Path(name)
    if path.suffix == ".json":
        if not path.is_file() or path.stat().st_size > LARGEST:
            raise UserError("--tokenizer", name, f"there is no such file, or one of more than {LARGEST} bytes")
        return _plain(_parsed(path.read_text(encoding="utf-8", errors="replace"), name))
    try:
        return _plain(package.Tokenizer.from_pretrained(name))
    except Exception as error:  # whatever the hub's client stumbles over, most often no network
        why = f"no tokenizer of that name could be had: {type(error).__name__}"
        raise UserError("--tokenizer", name, why, hint="name a tokenizer.json, or take --tokenizer words") from None


def _parsed(content: str, name: str = "tokenizer.json") -> Any:
    try:
        return _tokenizers().Tokenizer.from_str(content)
    except UserError:
        raise
    except Exception as error:  # the package raises plain Exceptions
        raise UserError("--tokenizer", name, f"it is no tokenizer of the package tokenizers: {error}") from None


def _plain(pieces: Any) -> str:
    """The JSON of a tokenizer that neither pads nor cuts: that is done here."""
    pieces.no_padding()
    pieces.no_truncation()
    return str(pieces.to_str())


def with_truncation(content: str, length: int) -> str:
    """The JSON of a tokenizer that cuts text to so many ids, those that it adds at both ends included."""
    pieces = _parsed(content)
    pieces.no_padding()
    pieces.enable_truncation(length)
    return str(pieces.to_str())
