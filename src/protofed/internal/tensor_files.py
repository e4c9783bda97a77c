"""Files of tensors, safetensors, with a digest of all that is in them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from protofed.internal.atomic_files import write_file
from protofed.internal.digests import OTHER

DIGEST = "digest"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str], *, alone: bool = False) -> None:
    """Write tensors and what is said of them.

    Args:
        path: of the file.
        tensors: by name.
        about: texts by name.
        alone: only this process writes the file.
    """
    dense = {name: tensor.contiguous() for name, tensor in tensors.items()}
    metadata = {**about, DIGEST: _digest(dense, about)}
    write_file(path, lambda draft: save_file(dense, draft, metadata), alone=alone)


def read_tensors(path: Path, device: str = "cpu", *, always: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What `write_tensors` wrote; files of before version 0.2 have no digest.

    Args:
        path: of the file.
        device: where the tensors are to be.
        always: refuse a file without a digest.

    Raises:
        ValueError: it is not what was written.
        KeyError: it has no digest, and must have one.
        SafetensorError: it is no file of tensors.
        OSError: it cannot be read.
    """
    with safe_open(path, framework="pt", device=device) as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a mapping
        about = dict(file.metadata() or {})
    said = about.pop(DIGEST) if always else about.pop(DIGEST, None)
    if said is not None and said != _digest(tensors, about):
        raise ValueError(OTHER)
    return tensors, about


def _digest(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    """Of tensors with their names, types and shapes, and of what is said of them.

    The names of what is said are not in it: a reader misses what it asks for.
    """
    found = hashlib.blake2b("\0".join(said for _, said in sorted(about.items())).encode(), digest_size=16)
    for name, tensor in sorted(tensors.items()):
        found.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        found.update(tensor.cpu().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def digests_of_rows(packed: Tensor) -> Tensor:
    """Of each row of words [n, ...], as bytes [n, 16]."""
    found = b"".join(hashlib.blake2b(row.data, digest_size=16).digest() for row in packed.numpy())
    return torch.frombuffer(bytearray(found), dtype=torch.uint8).view(len(packed), 16)
