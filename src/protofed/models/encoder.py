"""A frozen encoder: a trained model without its classifier, whose features stand for images or text; or any module."""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from protofed.data.images import fit
from protofed.data.preparation import Preparation, Shape, check_statistics
from protofed.data.samples import Dataset, Samples, check_shape, is_picture
from protofed.data.text_encoding import MOST_WORDS, TextEncoding, Tokenising
from protofed.errors import UserError, missing_value, unknown
from protofed.internal.atomic_files import cache_folder, write_file
from protofed.internal.plugins import WITH, is_code, load_code
from protofed.internal.schema import check_type
from protofed.internal.tensor_files import read_tensors, write_tensors
from protofed.models import ENCODERS, build, check_size
from protofed.models.stacking import bytes_per_image

CARD, TOKENIZER = "protofed", "tokenizer"
"""Where the card is in the file's metadata, and the tokenizer of one of text."""
BYTES = 2**28
"""What a pass may take."""
AT_ONCE = 256
"""Samples in a pass of a user's own."""
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


class FrozenEncoder(ABC):
    """A module in eval mode on a device; its features of a dataset are computed once and kept on disk."""

    card: EncoderCard | OwnCard
    device: torch.device
    image_size: int | None = None
    """The side of the images that it takes; any, unless given."""
    tokenising: Tokenising | None = None
    """How text becomes the token ids that it takes; as an experiment says, unless given."""

    def dataset(self, dataset: Dataset) -> Dataset:
        """The dataset with features in the place of samples."""
        self.check(dataset)

        def made(part: Samples) -> Samples:
            return replace(part, x=self.features(part.x, dataset.preparation))

        novel, unseen = (None if part is None else made(part) for part in (dataset.novel, dataset.unseen))
        train, test = (made(part) for part in (dataset.train, dataset.test))
        return replace(dataset, train=train, test=test, novel=novel, unseen=unseen, preparation=Preparation())

    def features(self, x: Tensor, preparation: Preparation | None = None) -> Tensor:
        """Features [n, d, 1, 1] of samples [n, ...], prepared like this, computed or from the disk."""
        file = cache_folder("features") / f"{self.key(x, preparation)}.safetensors"
        with suppress(OSError, SafetensorError, KeyError, ValueError):  # one that is damaged is made anew
            found = read_tensors(file, always=True)[0]["features"]
            if len(found) == len(x) and self.fits(found):
                return found
        made = self.computed(x, preparation)
        with suppress(OSError, SafetensorError):  # a full or read-only disk costs time, not the run
            file.parent.mkdir(parents=True, exist_ok=True)
            write_tensors(file, {"features": made}, {})
        return made

    def key(self, x: Tensor, preparation: Preparation | None) -> str:
        """A checksum of the arithmetic, the card, what happens to samples, the weights and the samples."""
        exact = self.device.type == "cpu" or not torch.backends.cudnn.allow_tf32
        card = dataclasses.asdict(self.card) | {"feature_size": None}  # of a user's own it is not known at first
        about = [self.device.type, exact, card, self.seen_as(preparation)]
        made = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
        for name, tensor in (*self.weights().items(), ("x", x)):
            made.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            made.update(tensor.contiguous().numpy().data)
        return made.hexdigest()

    @abstractmethod
    def check(self, dataset: Dataset) -> None:
        """Refuse samples that it cannot take."""

    @abstractmethod
    def fits(self, features: Tensor) -> bool:
        """Whether features [n, d, 1, 1] are of its size."""

    @abstractmethod
    def computed(self, x: Tensor, preparation: Preparation | None = None) -> Tensor:
        """The same as `features` without the disk."""

    @abstractmethod
    def weights(self) -> Mapping[str, Tensor]:
        """Its tensors by name, on the CPU."""

    @abstractmethod
    def seen_as(self, preparation: Preparation | None) -> Any:
        """What of a dataset's preparation its features depend on, as JSON."""


class Encoder(FrozenEncoder):
    """One of our models, with the card of its file."""

    card: EncoderCard

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
        self.image_size = card.image_size or None
        self.tokenising = Tokenising(tokenizer, length=card.length) if card.length else None

    @classmethod
    def read(cls, path: Path, device: torch.device) -> Encoder:
        """An encoder that `write` has written."""
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
            if CARD not in metadata:
                raise missing_value("card", "the file has none", hint="`protofed encoder import` makes one")
            card = json.loads(metadata[CARD])
            if isinstance(card, dict) and is_code(str(card.get("model"))):  # which no file may have run
                name = card["model"]
                both = f"name it, too: --encoder {name}{WITH}{path}"
                raise missing_value("code", f"its model is {name}, which is code", hint=both)
            return cls(EncoderCard(**card), state, device, metadata.get(TOKENIZER, ""))
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

    def check(self, dataset: Dataset) -> None:
        """Refuse samples of another kind than it takes, and token ids that are not its own."""
        x, encoding = dataset.train.x, dataset.encoding
        own = isinstance(encoding, TextEncoding) and encoding.tokenizer == self.tokenizer
        if own if self.card.length else is_picture(x):
            return
        takes = "text, which its own tokenizer makes token ids of" if self.card.length else "pictures"
        kind = str(x.dtype).removeprefix("torch.")
        why = f"it takes {takes}, and the samples of {dataset.name} are {kind} {list(x.shape[1:])}"
        raise UserError("--encoder", self.card.model, why)

    def weights(self) -> Mapping[str, Tensor]:
        """Its tensors by name, on the CPU."""
        return self.state

    def seen_as(self, preparation: Preparation | None) -> Any:  # noqa: ARG002
        """Nothing: the card says it."""
        return None

    def fits(self, features: Tensor) -> bool:
        """Whether features [n, d, 1, 1] are of its size."""
        return features.shape[1:] == (self.card.feature_size, 1, 1)

    @torch.no_grad()
    def computed(self, x: Tensor, preparation: Preparation | None = None) -> Tensor:  # noqa: ARG002
        """Features [n, d, 1, 1] of uint8 images [n, c, h, w] or token ids [n, length], without the disk."""
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


@dataclass(frozen=True)
class OwnCard:
    """What is known of a module of the user's own."""

    model: str  # the function that makes it
    source: str  # the file of its weights, or of the function
    digest: str  # of its weights, and of the file that the function is in
    feature_size: int | None = None  # once it has seen samples


class OwnEncoder(FrozenEncoder):
    """Any torch module: it sees samples as models would, and makes a vector of each.

    Args:
        name: `path/to/file.py:make`, a function of nothing that returns the module; `path/to/file.py:make@FILE` has its
            weights in a file that `encoder import` has written.
        device: where it runs.
    """

    card: OwnCard

    def __init__(self, name: str, device: torch.device) -> None:
        code, _, file = name.partition(WITH)
        self.name, self.device = code, device
        make = load_code("--encoder", code)
        try:
            self.module = make()
        except UserError:
            raise
        except Exception as error:  # it is the user's own
            raise self._refusal(f"calling it failed: {type(error).__name__}: {error}") from error
        if not isinstance(self.module, nn.Module):
            raise self._refusal(f"it must return an nn.Module, not {type(self.module).__name__}")
        if file:
            self._load(Path(file))
        self.module.to(device).eval()
        source = inspect.getsourcefile(make)
        made = hashlib.blake2b(Path(source).read_bytes() if source else b"", digest_size=16)
        for key, tensor in self.weights().items():
            made.update(f"{key} {tensor.dtype} {list(tensor.shape)}".encode())
            made.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)
        place, _, function = code.rpartition(":")
        self.card = OwnCard(f"{Path(place).name}:{function}", Path(file or place).name, made.hexdigest())

    def _load(self, file: Path) -> None:
        try:
            self.module.load_state_dict(load_file(file))
        except (SafetensorError, OSError, RuntimeError) as error:
            raise UserError("--encoder", str(file), f"it does not hold weights of {self.name}: {error}") from None

    def write(self, path: Path) -> None:
        """Its weights, with the card in the metadata; the code stays where it is."""
        metadata = {CARD: json.dumps({name: value for name, value in dataclasses.asdict(self.card).items() if value})}
        state = {name: tensor.clone().contiguous() for name, tensor in self.weights().items()}
        try:
            write_file(path, lambda draft: save_file(state, draft, metadata))
        except (OSError, SafetensorError) as error:
            raise UserError("--out", str(path), f"it cannot be written: {error}") from None

    def weights(self) -> Mapping[str, Tensor]:
        """Its parameters and buffers by name, on the CPU."""
        return {name: tensor.cpu() for name, tensor in self.module.state_dict().items()}

    def check(self, dataset: Dataset) -> None:
        """Nothing: it says itself what it cannot take."""

    def seen_as(self, preparation: Preparation | None) -> Any:
        """All of it."""
        return None if preparation is None else dataclasses.asdict(preparation)

    def fits(self, features: Tensor) -> bool:
        """Whether features [n, d, 1, 1] are of the size of those before."""
        if self.card.feature_size is None:
            self.card = replace(self.card, feature_size=features.shape[1])
        return features.shape[1:] == (self.card.feature_size, 1, 1)

    @torch.no_grad()
    def computed(self, x: Tensor, preparation: Preparation | None = None) -> Tensor:
        """Features [n, d, 1, 1] of samples, without the disk."""
        parts = [self._made(part.to(self.device), preparation or Preparation()) for part in torch.split(x, AT_ONCE)]
        made = torch.cat(parts)[..., None, None]
        if not self.fits(made):
            raise self._refusal(f"it makes {made.shape[1]} features, and has made {self.card.feature_size}")
        return made

    def _made(self, x: Tensor, preparation: Preparation) -> Tensor:
        """Features [n, d] of some samples."""
        try:
            out = self.module(preparation.applied(x))
        except Exception as error:
            why = f"on samples of {list(x.shape)} its forward raised {type(error).__name__}: {error}"
            raise self._refusal(why) from error
        out = out[0] if isinstance(out, tuple) else out
        if not isinstance(out, Tensor) or out.dim() != 2 or len(out) != len(x) or not out.is_floating_point():
            got = f"{out.dtype} {list(out.shape)}" if isinstance(out, Tensor) else type(out).__name__
            raise self._refusal(f"of {len(x)} samples it makes {got}, and must make floats [{len(x)}, features]")
        if not bool(out.isfinite().all()):
            raise self._refusal("it makes a feature that is not finite")
        return out.float().cpu()

    def _refusal(self, why: str) -> UserError:
        return UserError("--encoder", self.name, why)


def read_encoder(name: str, device: torch.device) -> FrozenEncoder:
    """The encoder of a file, or the module that a function of the user's makes."""
    return OwnEncoder(name, device) if is_code(name) else Encoder.read(Path(name), device)


def in_encoder(name: str) -> bool:
    """Whether a tensor of a model is part of its encoder: all but the classifier is."""
    return not name.startswith("head.")
