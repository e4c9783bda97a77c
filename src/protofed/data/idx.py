"""The IDX format of MNIST: big-endian header (zero, zero, type, number of dimensions, sizes), then the bytes."""

from __future__ import annotations

import gzip
import hashlib
import math
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from protofed.data.files import find_files
from protofed.data.samples import Dataset, Samples
from protofed.errors import UserError

MNIST = {  # file -> sha256
    "train-images-idx3-ubyte.gz": "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
    "train-labels-idx1-ubyte.gz": "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
    "t10k-images-idx3-ubyte.gz": "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
    "t10k-labels-idx1-ubyte.gz": "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
}


def read_idx(path: Path, ndim: int, sha256: str | None = None) -> Tensor:
    """The uint8 tensor in a gzipped IDX file, checked for its dimensions, its length and, if given, its sha256."""
    packed = path.read_bytes()
    if sha256 is not None and hashlib.sha256(packed).hexdigest() != sha256:
        raise UserError(str(path), hashlib.sha256(packed).hexdigest(), f"the sha256 should be {sha256}: fetch it again")
    try:
        content = gzip.decompress(packed)
    except (OSError, EOFError, zlib.error) as error:
        raise UserError(str(path), str(error), "the gzip file is damaged or cut short: fetch it again") from None
    header = 4 + 4 * ndim
    magic = bytes((0, 0, 8, ndim))  # 8: unsigned bytes
    if content[:4] != magic or len(content) < header:
        raise UserError(str(path), content[:4].hex(), f"an IDX file of {ndim} dimensions starts with {magic.hex()}")
    shape = struct.unpack(f">{ndim}I", content[4:header])
    if len(content) - header != math.prod(shape):
        raise UserError(str(path), f"{len(content) - header} bytes", f"its header says {shape}: fetch it again")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=header).view(shape)


def mnist(data_dir: Path | None, sha256: Mapping[str, str] = MNIST) -> Dataset:
    """MNIST from its four official files; mean and std are the published ones."""
    paths = find_files("mnist", data_dir, list(sha256))
    images, labels, test_images, test_labels = (
        read_idx(path, ndim, sha256[path.name]) for path, ndim in zip(paths, (3, 1, 3, 1), strict=True)
    )
    return Dataset(
        "mnist",
        Samples.of(images.unsqueeze(1), labels.long()),
        Samples.of(test_images.unsqueeze(1), test_labels.long()),
        tuple("0123456789"),
        ("mnist",),
        (0.1307,),
        (0.3081,),
    )
