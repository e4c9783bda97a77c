"""Damage to valid files: to their bytes, and to what their format says."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

import torch
import yaml
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from protofed.internal import tensor_files
from protofed.internal.digests import json_with_digest, parse_json, yaml_with_digest
from protofed.internal.tensor_files import DIGEST

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, -(2**63), 10**12, 10**400, 0.5, -0.0, 1e308, float("nan"), float("inf")),
    *("", "a", "\0", "é" * 20, "../../etc/passwd", "1" * 5000, "\ud800", "file.py:Name", "2024-99-99"),
    *([], [[]], [None], [0] * 50, ["a", 1], {}, {"a": None}, {"": []}),
)
"""What stands where something else should."""

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)


@st.composite
def bytes_of(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes flipped, cut out, doubled, put elsewhere, or numbers written over them."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = draw(st.integers(start, min(len(data), start + draw(st.sampled_from((1, 8, 64, 2**20))))))
        match draw(st.sampled_from(("flip", "cut", "double", "move", "end", "number", "new"))):
            case "flip" if start < len(data):
                data[start] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[start:end]
            case "double":
                data[end:end] = data[start:end]
            case "move":
                part = data[start:end]
                del data[start:end]
                place = draw(st.integers(0, len(data)))
                data[place:place] = part
            case "end":
                del data[start:]
            case "number":
                width, order = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(("little", "big")))
                number = draw(st.sampled_from(NUMBERS)) % 256**width
                data[start : start + width] = number.to_bytes(width, order)
            case "new":
                data[start:end] = draw(st.binary(max_size=16))
    return bytes(data)


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    """Every list or mapping in a document with each of its keys."""
    if isinstance(document, dict | list):
        for key in list(document) if isinstance(document, dict) else range(min(len(document), 20)):
            yield document, key
            yield from _places(document[key])


@st.composite
def document_of(draw: st.DrawFn, whole: Any) -> Any:
    """Values exchanged for odd ones or for one another, left out, or added."""
    document = {"": copy.deepcopy(whole)}
    for _ in range(draw(st.integers(1, 3))):
        places = list(_places(document))
        if not places:
            break
        holder, key = draw(st.sampled_from(places))
        match draw(st.sampled_from(("odd", "odd", "out", "swap", "more", "deep"))):
            case "odd":
                holder[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
            case "out" if holder is not document:
                del holder[key]
            case "swap":
                other, place = draw(st.sampled_from(places))
                holder[key] = copy.deepcopy(other[place])
            case "more" if isinstance(holder[key], dict):
                holder[key][draw(st.sampled_from(("more", "", "é", "__class__")))] = copy.deepcopy(
                    draw(st.sampled_from(ODD))
                )
            case "more" if isinstance(holder[key], list):
                holder[key] = holder[key] * draw(st.integers(0, 3))
            case "deep":
                for _ in range(draw(st.integers(1, 30))):
                    holder[key] = [holder[key]]
    return document[""]


CHANGES = (
    lambda tensor: tensor[:0] if tensor.dim() else tensor.view(1),
    lambda tensor: tensor.flatten()[0] if tensor.numel() else tensor,
    lambda tensor: tensor.flatten(),
    lambda tensor: tensor.unsqueeze(0),
    lambda tensor: torch.cat([tensor, tensor]) if tensor.dim() else tensor,
    lambda tensor: tensor.double(),
    lambda tensor: tensor.long(),
    lambda tensor: tensor.to(torch.float8_e4m3fn),
    lambda tensor: tensor.to(torch.complex64),
    lambda tensor: tensor.bool(),
    lambda tensor: tensor.to(torch.int8),
    lambda tensor: tensor.long() + 10**6,
    lambda tensor: -tensor.long() - 1,
    lambda tensor: torch.full(tensor.shape, 2**31 - 1, dtype=torch.int32),
    lambda tensor: torch.full(tensor.shape, float("nan")),
    lambda tensor: torch.full(tensor.shape, float("inf")),
    lambda tensor: torch.full(tensor.shape, 1e38),
)
"""Of a tensor in a file."""


TEXTS = (DIGEST,)
"""In the metadata of safetensors; everything else that is ours there is JSON."""


def _split(data: bytes) -> tuple[dict[str, Any], bytes]:
    """The header of a safetensors file, and what follows."""
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    about = header.get("__metadata__", {})
    for name, text in about.items():
        about[name] = text if name in TEXTS else json.loads(text)
    return header, data[8 + size :]


def _joined(header: Any, rest: bytes) -> bytes:
    about = header.get("__metadata__") if isinstance(header, dict) else None
    if isinstance(about, dict):
        header["__metadata__"] = _texts(about)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def _texts(about: dict[str, Any]) -> dict[str, str]:
    return {name: value if name in TEXTS else json.dumps(value) for name, value in about.items()}


@st.composite
def tensors_of(draw: st.DrawFn, whole: bytes) -> bytes:
    """A safetensors file with another header, or a sound one with other tensors."""
    header, rest = _split(whole)
    if draw(st.booleans()):
        return _joined(draw(document_of(header)), rest)
    tensors: dict[str, Tensor] = load(whole)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(tensors)))
        match draw(st.sampled_from(("change", "change", "change", "out", "swap", "more"))):
            case "change":
                tensors[name] = draw(st.sampled_from(CHANGES))(tensors[name])
            case "out" if len(tensors) > 1:
                del tensors[name]
            case "swap":
                tensors[name] = tensors[draw(st.sampled_from(sorted(tensors)))].clone()
            case "more":
                tensors[f"{name}/more"] = tensors[name].clone()
    about = header.get("__metadata__")
    try:
        changed = {name: tensor.contiguous() for name, tensor in tensors.items()}
        texts = None if about is None else _texts(about)
        if texts and texts.pop(DIGEST, None):  # it is there again, so that what is read after it is reached
            texts[DIGEST] = tensor_files._digest(changed, texts)
        return save(changed, texts)
    except SafetensorError:  # a type that it does not write
        return whole


def damaged(name: str, whole: bytes) -> st.SearchStrategy[bytes]:
    """What may have become of a file of this name."""
    match PurePath(name).suffix:
        case ".json":
            found = st.builds(_json, document_of(parse_json(whole.decode())), st.booleans())
        case ".jsonl":
            lines = [parse_json(line.decode()) for line in whole.splitlines()]
            found = st.builds(_lines, document_of(lines), st.booleans())
        case ".yaml":
            found = st.builds(_yaml, document_of(yaml.safe_load(whole)), st.booleans())
        case ".safetensors":
            found = tensors_of(whole)
        case _:
            return bytes_of(whole)
    return st.one_of(found, found, bytes_of(whole))


def _json(document: Any, digest: bool) -> bytes:
    """With a digest, as if it had been written so, or without one."""
    text = json.dumps(document)
    return (json_with_digest(text) if digest and text.endswith("}") else text).encode("utf-8", "replace")


def _lines(document: Any, digest: bool) -> bytes:
    lines = document if isinstance(document, list) else [document]
    return b"".join(_json(line, digest) + b"\n" for line in lines)


def _yaml(document: Any, digest: bool) -> bytes:
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return (yaml_with_digest(text) if digest else text).encode("utf-8", "replace")
