"""A frozen encoder: a trained model without its classifier, whose features stand for images."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from protofed.data.augmentation import IMAGENET
from protofed.data.images import fit
from protofed.data.preparation import Preparation, check_statistics
from protofed.data.samples import Dataset, Samples, check_shape
from protofed.data.sources.pickles import look_through
from protofed.errors import UserError, missing_value, unknown
from protofed.internal.atomic_files import cache_folder, write_file
from protofed.internal.schema import check_type
from protofed.models import MODELS, build, check_size
from protofed.models.stacking import bytes_per_image

CARD = "protofed"
"""Where the card is in the file's metadata."""
BYTES = 2**28
"""What a pass may take."""
LARGEST = 1024
"""No side is longer: a card is somebody's word, and images of the size it names are made."""

THEIR_NAMES = {"downsample.": "shortcut.", "conv2.": "second.0.", "bn2.": "second.1.", "fc.": "head."}
"""Parts of torchvision's ResNet-18, and of ours."""


@dataclass(frozen=True)
class EncoderCard:
    """What an encoder is, what it sees and where it comes from."""

    model: str
    channels: int
    image_size: int
    mean: list[float]  # per channel, of pixels scaled to 0..1
    std: list[float]
    feature_size: int
    source: str  # the dataset it was trained on, or the file it was imported from
    accuracy: float | None = None  # of its classifier on that dataset's test images
    epochs: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        hints = get_type_hints(EncoderCard)
        for item in dataclasses.fields(self):
            check_type(item.name, getattr(self, item.name), hints[item.name])
        if self.model not in MODELS:  # a file with code in it, which other models may be, is never named by a card
            raise unknown("model", self.model, MODELS, see="protofed models")
        for name, largest in (("channels", LARGEST), ("image_size", LARGEST)):
            if not 1 <= getattr(self, name) <= largest:
                raise UserError(name, getattr(self, name), f"it must be from 1 to {largest}")
        check_shape(*self.shape)
        check_statistics(self.mean, self.std, self.channels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of what it sees."""
        return self.channels, self.image_size, self.image_size


class Encoder:
    """A model in eval mode on a device; its features of a dataset are computed once and kept on disk."""

    def __init__(self, card: EncoderCard, state: Mapping[str, Tensor], device: torch.device) -> None:
        self.card, self.state, self.device = card, dict(state), device
        check_size(card.model, card.shape, 1, state)
        self.module = build(card.model, card.shape, 1, 0).eval()
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
    def image_size(self) -> int:
        """The side of the images that it takes."""
        return self.card.image_size

    @classmethod
    def read(cls, path: Path, device: torch.device) -> Encoder:
        """An encoder that `write` has written."""
        try:
            with safe_open(path, framework="pt") as file:
                text = (file.metadata() or {}).get(CARD)
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
            if text is None:
                raise missing_value("card", "the file has none", hint="`protofed encoder import` makes one")
            return cls(EncoderCard(**json.loads(text)), state, device)
        except (SafetensorError, OSError, TypeError, ValueError, RecursionError) as error:  # UserError is a ValueError
            why, hint = f"it is not an encoder that can be read: {error}", getattr(error, "hint", None)
            raise UserError("--encoder", str(path), why, hint=hint) from None

    def write(self, path: Path) -> None:
        """The weights, with the card in the metadata."""
        try:
            metadata = {CARD: json.dumps(dataclasses.asdict(self.card))}
            write_file(path, lambda draft: save_file(self.state, draft, metadata))
        except (OSError, SafetensorError) as error:
            raise UserError("--out", str(path), f"it cannot be written: {error}") from None

    def dataset(self, dataset: Dataset) -> Dataset:
        """The dataset with features in the place of images."""
        novel, unseen = (None if part is None else self._samples(part) for part in (dataset.novel, dataset.unseen))
        train, test = (self._samples(part) for part in (dataset.train, dataset.test))
        return replace(dataset, train=train, test=test, novel=novel, unseen=unseen, preparation=Preparation())

    def _samples(self, samples: Samples) -> Samples:
        return replace(samples, x=self.features(samples.x))

    def features(self, images: Tensor) -> Tensor:
        """Features [n, d, 1, 1] of uint8 images [n, c, h, w], computed or from the disk."""
        file = cache_folder("features") / f"{self._key(images)}.safetensors"
        with suppress(OSError, SafetensorError, KeyError):  # a file that cannot be read is made anew
            found = load_file(file)["features"]
            if found.shape == (len(images), self.card.feature_size, 1, 1):
                return found
        made = self.computed(images)
        with suppress(OSError, SafetensorError):  # a full or read-only disk costs time, not the run
            file.parent.mkdir(parents=True, exist_ok=True)
            write_file(file, lambda draft: save_file({"features": made}, draft))
        return made

    @torch.no_grad()
    def computed(self, images: Tensor) -> Tensor:
        """The same without the disk."""
        statistics = torch.tensor([self.card.mean, self.card.std], dtype=torch.float32, device=self.device)
        mean, std = statistics.view(2, -1, 1, 1)
        at_once = max(1, BYTES // bytes_per_image(self.module, torch.zeros(self.card.shape, device=self.device)))
        chunks = []
        for part in torch.split(images, at_once):
            seen = (fit(part.to(self.device), self.card.shape) / 255 - mean) / std
            chunks.append(self.module(seen).features.cpu())
        return torch.cat(chunks).view(len(images), self.card.feature_size, 1, 1)

    def _key(self, images: Tensor) -> str:
        """A checksum of the arithmetic, the card, the weights and the images."""
        exact = self.device.type == "cpu" or not torch.backends.cudnn.allow_tf32
        about = [self.device.type, exact, dataclasses.asdict(self.card)]
        made = hashlib.blake2b(json.dumps(about).encode(), digest_size=16)
        for name, tensor in (*self.state.items(), ("images", images)):
            made.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
            made.update(tensor.contiguous().numpy().data)
        return made.hexdigest()


def imported(path: Path, image_size: int) -> Encoder:
    """The ResNet-18 of torchvision, from a file with its weights, to see images of a size."""
    try:
        found: Any = load_file(path) if path.suffix == ".safetensors" else _load_plain(path)
    except Exception as error:  # torch.load raises whatever a file that is none makes it stumble over
        why = " ".join(str(error).split())[:200]
        raise UserError("FILE", str(path), f"it cannot be read as safetensors or as plain weights: {why}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise UserError("FILE", str(path), "it must hold tensors by name, a state dict")
    state = {_our_name(str(name)): tensor for name, tensor in found.items()}
    kept = {name: tensor.float() for name, tensor in state.items() if in_encoder(name) and "num_batches" not in name}
    mean, std = (list(part) for part in IMAGENET)
    try:
        return Encoder(EncoderCard("resnet18", 3, image_size, mean, std, 512, path.name), kept, torch.device("cpu"))
    except UserError as error:
        raise UserError("FILE", str(path), f"it does not hold torchvision's ResNet-18: {error}") from None


def _load_plain(path: Path) -> Any:
    """What torch.save wrote, if it is plain: a zip with one pickle or, of old, four and then the weights."""
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                for name in archive.namelist():
                    if name.endswith("data.pkl"):
                        look_through(archive.read(name))
        else:
            file.seek(0)
            for _ in range(4):
                look_through(file)
    return torch.load(path, "cpu", weights_only=True)


def _our_name(name: str) -> str:
    """What we call a tensor of torchvision's ResNet-18."""
    name = re.sub(r"^layer(\d)\.", lambda found: f"stages.{int(found[1]) - 1}.", name)
    for theirs, ours in THEIR_NAMES.items():
        name = name.replace(theirs, ours)
    place = "first" if name.startswith("stages.") else "stem"
    return name.replace("conv1.", f"{place}.0.").replace("bn1.", f"{place}.1.")


def in_encoder(name: str) -> bool:
    """Whether a tensor of a model is part of its encoder: all but the classifier is."""
    return not name.startswith("head.")
