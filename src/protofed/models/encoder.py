"""A frozen encoder: a trained model without its classifier, whose features stand for images or text."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from protofed.data.images import fit
from protofed.data.preparation import Preparation, Shape, check_statistics
from protofed.data.samples import Dataset, Samples, check_shape, is_picture
from protofed.data.text_encoding import MOST_WORDS, TextEncoding, Tokenising
from protofed.errors import UserError, missing_value, unknown
from protofed.internal.atomic_files import cache_folder, write_file
from protofed.internal.schema import check_type
from protofed.internal.tensor_files import read_tensors, write_tensors
from protofed.models import ENCODERS, build, check_size
from protofed.models.stacking import bytes_per_image

CARD, TOKENIZER = "protofed", "tokenizer"
"""Where the card is in the file's metadata, and the tokenizer of one of text."""
BYTES = 2**28
"""What a pass may take."""
LARGEST = 1024
"""No side is longer: a card is somebody's word, and images of the size it names are made."""


@dataclass(frozen=True)
class EncoderCard:
    """What an encoder is, what it sees (images of a size, or texts of a length) and where it comes from."""

    model: str
    channels: int
    image_size: int
    mean: list[float]  # per channel, of pixels scaled to 0..1
    std: list[float]
    feature_size: int
    source: str  # the dataset it was trained on, or the file or package it was imported from
    accuracy: float | None = None  # of its classifier on that dataset's test images
    epochs: int | None = None
    seed: int | None = None
    length: int | None = None  # token ids of a text
    tokens: int | None = None  # how many of them there are
    licence: str | None = None  # of published weights, as their package says

    def __post_init__(self) -> None:
        hints = get_type_hints(EncoderCard)
        for item in dataclasses.fields(self):
            check_type(item.name, getattr(self, item.name), hints[item.name])
        if self.model not in ENCODERS:  # a file with code in it, which other models may be, is never named by a card
            raise unknown("model", self.model, ENCODERS, see="protofed models")
        sizes = (
            {"length": LARGEST, "tokens": MOST_WORDS}
            if self.length
            else dict.fromkeys(("channels", "image_size"), LARGEST)
        )
        for name, largest in sizes.items():
            if not 1 <= (getattr(self, name) or 0) <= largest:
                raise UserError(name, getattr(self, name), f"it must be from 1 to {largest}")
        check_shape(*self.shape)
        if not self.length:
            check_statistics(self.mean, self.std, self.channels)

    @property
    def shape(self) -> Shape:
        """Of what it sees."""
        if self.length:
            return Shape((self.length,), self.tokens or 0)
        return Shape((self.channels, self.image_size, self.image_size))

    @property
    def dtype(self) -> torch.dtype:
        """Of what it sees, as it is stored."""
        return torch.int64 if self.length else torch.uint8

    @property
    def preparation(self) -> Preparation:
        """What happens to what it sees."""
        if self.length:
            return Preparation(tokens=self.tokens or 0)
        return Preparation("pixels", tuple(self.mean), tuple(self.std))


class Encoder:
    """A model in eval mode on a device; its features of a dataset are computed once and kept on disk."""

    def __init__(
        self, card: EncoderCard, state: Mapping[str, Tensor], device: torch.device, tokenizer: str = ""
    ) -> None:
        self.card, self.state, self.device, self.tokenizer = card, dict(state), device, tokenizer
        if bool(tokenizer) != bool(card.length):
            raise missing_value("tokenizer", "an encoder of text, and no other, has one")
        check_size(card.model, card.shape, 1, state)
        self.module = build(ENCODERS[card.model], card.shape, 1, 0).eval()
        whole = self.module.state_dict()
        own = {name: tensor.shape for name, tensor in whole.items() if in_encoder(name)}
        given = {name: tensor.shape for name, tensor in state.items()}
        if wrong := sorted({name for name, _ in own.items() ^ given.items()}):
            raise UserError("tensors", wrong[0], f"it is missing, of another shape, or not one of {card.model}'s")
        if self.module.feature_size != card.feature_size:
            raise UserError("feature_size", card.feature_size, f"it is {self.module.feature_size} for {card.model}")
        self.module.load_state_dict(whole | self.state)
        self.module.to(device)

    @property
    def image_size(self) -> int | None:
        """The side of the images that it takes."""
        return self.card.image_size or None

    @property
    def tokenising(self) -> Tokenising | None:
        """How text becomes the token ids that it takes."""
        return Tokenising(self.tokenizer, length=self.card.length) if self.card.length else None

    @classmethod
    def read(cls, path: Path, device: torch.device) -> Encoder:
        """An encoder that `write` has written."""
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
            if CARD not in metadata:
                raise missing_value("card", "the file has none", hint="`protofed encoder import` makes one")
            return cls(EncoderCard(**json.loads(metadata[CARD])), state, device, metadata.get(TOKENIZER, ""))
        except (SafetensorError, OSError, TypeError, ValueError, RecursionError) as error:  # UserError is a ValueError
            why, hint = f"it is not an encoder that can be read: {error}", getattr(error, "hint", None)
            raise UserError("--encoder", str(path), why, hint=hint) from None

    def write(self, path: Path) -> None:
        """The weights, with the card in the metadata."""
        try:
            metadata = {CARD: json.dumps(dataclasses.asdict(self.card))}
            metadata |= {TOKENIZER: self.tokenizer} if self.tokenizer else {}
            write_file(path, lambda draft: save_file(self.state, draft, metadata))
        except (OSError, SafetensorError) as error:
            raise UserError("--out", str(path), f"it cannot be written: {error}") from None

    def dataset(self, dataset: Dataset) -> Dataset:
        """The dataset with features in the place of images or text."""
        self._check(dataset)
        novel, unseen = (None if part is None else self._samples(part) for part in (dataset.novel, dataset.unseen))
        train, test = (self._samples(part) for part in (dataset.train, dataset.test))
        return replace(dataset, train=train, test=test, novel=novel, unseen=unseen, preparation=Preparation())

    def _samples(self, samples: Samples) -> Samples:
        return replace(samples, x=self.features(samples.x))

    def _check(self, dataset: Dataset) -> None:
        """Refuse samples of another kind than it takes, and token ids that are not its own."""
        x, encoding = dataset.train.x, dataset.encoding
        own = isinstance(encoding, TextEncoding) and encoding.tokenizer == self.tokenizer
        if own if self.card.length else is_picture(x):
            return
        takes = "text, which its own tokenizer makes token ids of" if self.card.length else "pictures"
        kind = str(x.dtype).removeprefix("torch.")
        why = f"it takes {takes}, and the samples of {dataset.name} are {kind} {list(x.shape[1:])}"
        raise UserError("--encoder", self.card.model, why)

    def features(self, x: Tensor) -> Tensor:
        """Features [n, d, 1, 1] of uint8 images [n, c, h, w] or token ids [n, length], computed or from the disk."""
        file = cache_folder("features") / f"{self._key(x)}.safetensors"
        with suppress(OSError, SafetensorError, KeyError, ValueError):  # one that is damaged is made anew
            found = read_tensors(file, always=True)[0]["features"]
            if found.shape == (len(x), self.card.feature_size, 1, 1):
                return found
        made = self.computed(x)
        with suppress(OSError, SafetensorError):  # a full or read-only disk costs time, not the run
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, {"features": made}, {})
        return made

    @torch.no_grad()
    def computed(self, x: Tensor) -> Tensor:
        """The same without the disk."""
        example = torch.zeros(self.card.shape, dtype=torch.int64 if self.card.length else None, device=self.device)
        at_once = max(1, BYTES // bytes_per_image(self.module, example))
        made = torch.empty(len(x), self.card.feature_size)
        for rows in torch.split(self._order(x), at_once):
            made[rows] = self.module(self._seen(x[rows].to(self.device))).features.cpu()
        return made.view(len(x), self.card.feature_size, 1, 1)

    def _order(self, x: Tensor) -> Tensor:
        """Images as they come; short texts first, so that few are padded to the length of a long one."""
        return (x != 0).sum(1).argsort(stable=True) if self.card.length else torch.arange(len(x))

    def _seen(self, x: Tensor) -> Tensor:
        """What the module sees: pixels that are fitted and normalised, or token ids without padding that all have."""
        if self.card.length:
            return x[:, : max(1, int((x != 0).sum(1).max()))]
        statistics = torch.tensor([self.card.mean, self.card.std], dtype=torch.float32, device=self.device)
        mean, std = statistics.view(2, -1, 1, 1)
        seen: Tensor = (fit(x, self.card.shape) / 255 - mean) / std
        return seen

    def _key(self, x: Tensor) -> str:
        """A checksum of the arithmetic, the card, the weights and the samples."""
        exact = self.device.type == "cpu" or not torch.backends.cudnn.allow_tf32
        about = [self.device.type, exact, dataclasses.asdict(self.card)]
        made = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
        for name, tensor in (*self.state.items(), ("x", x)):
            made.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            made.update(tensor.contiguous().numpy().data)
        return made.hexdigest()


def in_encoder(name: str) -> bool:
    """Whether a tensor of a model is part of its encoder: all but the classifier is."""
    return not name.startswith("head.")
