"""What crosses the line between client and server: an Upload one way, a Broadcast the other, and nothing else."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Self

import torch
from safetensors.torch import load, save
from torch import Tensor

from protofed.errors import UserError
from protofed.prototypes import Prototypes

__all__ = ["Broadcast", "Message", "Upload"]

PARTS = ("weights", "prototypes", "numbers", "sums")
"""What a message may hold."""

Layout = tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Traffic:
    """Bytes from clients to the server, and from the server to clients."""

    up: int = 0
    down: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.up + other.up, self.down + other.down)


@dataclass(frozen=True)
class Message:
    """Hold what crosses the line between client and server: named weights, prototype sets, numbers and sums.

    Args:
        weights: tensors of a model by name, of any shape; of several clients with a leading axis [N, ...].
        prototypes: prototype sets by name, vectors [..., C, M, D] and counts [..., C, M].
        numbers: any other tensors by name, such as the numbers of samples [N].
        sums: tensors by name that the server needs only the sum over clients of, such as ZᵀZ [N, D, D].

    Example:
        >>> import torch
        >>> from protofed.messages import Message
        >>> message = Message({"head.bias": torch.zeros(3)})
        >>> message.size() == len(message.encode())
        True
        >>> Message.decode(message.encode()).weights["head.bias"].tolist()
        [0.0, 0.0, 0.0]
    """

    weights: Mapping[str, Tensor] = field(default_factory=dict)
    prototypes: Mapping[str, Prototypes] = field(default_factory=dict)
    numbers: Mapping[str, Tensor] = field(default_factory=dict)
    sums: Mapping[str, Tensor] = field(default_factory=dict)

    def flat(self) -> dict[str, Tensor]:
        """Return the wire form: flat named tensors, without the empty slots of prototypes."""
        flat = {f"weights/{name}": tensor for name, tensor in self.weights.items()}
        for name, (vectors, counts) in self.prototypes.items():
            slots = counts.flatten().nonzero().squeeze(1)
            flat[f"prototypes/{name}/vectors"] = vectors.flatten(0, -2)[slots]
            flat[f"prototypes/{name}/index"] = torch.stack([slots, counts.flatten()[slots]], 1).to(torch.int32)
            flat[f"prototypes/{name}/shape"] = torch.tensor(vectors.shape, dtype=torch.int32)
        flat |= {f"numbers/{name}": tensor for name, tensor in self.numbers.items()}
        return flat | {f"sums/{name}": tensor for name, tensor in self.sums.items()}

    @classmethod
    def from_flat(cls, flat: Mapping[str, Tensor]) -> Self:
        """Return the message that `flat` was made from."""
        parts: dict[str, dict[str, Tensor]] = {part: {} for part in PARTS}
        for path, tensor in flat.items():
            part, _, name = path.partition("/")
            parts[part][name] = tensor
        sets = sorted({path.rpartition("/")[0] for path in parts["prototypes"]})
        unpacked = {name: _unpack(parts["prototypes"], name) for name in sets}
        return cls(parts["weights"], unpacked, parts["numbers"], parts["sums"])

    def encode(self) -> bytes:
        """Return the bytes that go over the wire: a safetensors file, or nothing if there is nothing to say."""
        flat = {name: tensor.contiguous() for name, tensor in self.flat().items()}
        return save(flat) if flat else b""

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return the message that `encode` made; what comes from elsewhere is checked first (trust/screening.py)."""
        return cls.from_flat(tensors_in(data))

    def size(self) -> int:
        """Count the bytes on the wire, all headers included; an empty message is not sent."""
        filled = [found.filled.sum() for found in self.prototypes.values()]
        return self._size(torch.stack(filled).tolist() if filled else [])

    def _size(self, filled: Sequence[int]) -> int:
        """Bytes on the wire if the prototype sets hold so many each."""
        layout = [(f"weights/{name}", tensor.dtype, tuple(tensor.shape)) for name, tensor in self.weights.items()]
        for (name, (vectors, _)), number in zip(self.prototypes.items(), filled, strict=True):
            layout.append((f"prototypes/{name}/vectors", vectors.dtype, (number, vectors.shape[-1])))
            layout.append((f"prototypes/{name}/index", torch.int32, (number, 2)))
            layout.append((f"prototypes/{name}/shape", torch.int32, (vectors.dim(),)))
        for part, tensors in (("numbers", self.numbers), ("sums", self.sums)):
            layout += [(f"{part}/{name}", tensor.dtype, tuple(tensor.shape)) for name, tensor in tensors.items()]
        return _serialised_size(tuple(layout)) if layout else 0


@dataclass(frozen=True)
class Broadcast(Message):
    """Hold what the server sends to a client.

    Args:
        weights: tensors of a model by name, without a client axis.
        prototypes: prototype sets by name, vectors [C, M, D], or [N, C, M, D] where a set is of N clients.
        numbers: any other tensors by name.
        sums: none: they are what clients send.
        kept: what stays at the server for its next aggregation: in the checkpoint, never on the wire.

    Example:
        >>> import torch
        >>> from protofed.messages import Broadcast
        >>> Broadcast({"head.bias": torch.zeros(3)}, kept={"centres": torch.ones(1000)}).size()
        92
    """

    kept: Mapping[str, Tensor] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        """Sums are what clients send: those that receive have nothing to add up."""
        if self.sums:
            raise UserError("sums of a broadcast", ", ".join(self.sums), "a server sends numbers, or keeps them")

    def on_host(self) -> Broadcast:
        """Copy the broadcast to the host's memory; from a GPU the copy is under way."""

        def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {name: tensor.to("cpu", non_blocking=True, copy=True) for name, tensor in tensors.items()}

        vectors = copies({name: found.vectors for name, found in self.prototypes.items()})
        counts = copies({name: found.counts for name, found in self.prototypes.items()})
        sets = {name: Prototypes(vectors[name], counts[name]) for name in vectors}
        return Broadcast(copies(self.weights), sets, copies(self.numbers), kept=copies(self.kept))


class Upload(Message):
    """Hold what a client sends or, with a leading client axis on every tensor, what N clients sent.

    Args:
        weights: tensors of a model by name, [N, ...].
        prototypes: prototype sets by name, vectors [N, C, M, D] and counts [N, C, M].
        numbers: any other tensors by name, such as `samples` [N].
        sums: tensors by name of which the server uses the sum over clients only, [N, ...].

    Example:
        >>> import torch
        >>> from protofed.messages import Upload
        >>> uploads = Upload({"bias": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}, {}, {"samples": torch.tensor([10, 20])})
        >>> uploads.client(1).weights["bias"].tolist()
        [3.0, 4.0]
        >>> uploads.scalars()
        {'weights': 4, 'prototypes': 0}
    """

    def client(self, row: int) -> Upload:
        """Return one client's upload out of several."""
        return Upload(
            {name: tensor[row] for name, tensor in self.weights.items()},
            {name: prototypes.take(row) for name, prototypes in self.prototypes.items()},
            {name: tensor[row] for name, tensor in self.numbers.items()},
            {name: tensor[row] for name, tensor in self.sums.items()},
        )

    def sizes(self) -> list[int]:
        """Count every client's bytes on the wire, with one transfer from the device; none where nothing is sent."""
        rest = [*self.weights.values(), *self.numbers.values(), *self.sums.values()]
        filled = [found.filled.flatten(1).sum(1) for found in self.prototypes.values()]
        if not (rest or filled):
            return []
        one = self.client(0)
        each = [tuple(row) for row in torch.stack(filled, 1).tolist()] if filled else [()] * len(rest[0])
        known = {row: one._size(row) for row in set(each)}
        return [known[row] for row in each]

    def scalars(self) -> dict[str, int]:
        """Count the numbers that all clients send, of weights and of prototypes: what papers count."""
        weights = sum(tensor.numel() for tensor in self.weights.values() if tensor.is_floating_point())
        sets = self.prototypes.values()
        return {"weights": weights, "prototypes": sum(int(one.filled.sum()) * one.vectors.shape[-1] for one in sets)}

    def changes(self, sent: Broadcast) -> dict[str, Tensor]:
        """Return how the weights differ from those that were sent, [N, n] by name; of weights not sent, all of them."""
        changed = {
            name: tensor - sent.weights[name] if name in sent.weights else tensor
            for name, tensor in self.weights.items()
            if tensor.is_floating_point()
        }
        return {name: tensor.unsqueeze(-1).flatten(1) for name, tensor in changed.items()}  # a scalar has no axis

    def reorder(self, order: Tensor) -> Upload:
        """Return the same uploads with their clients in another order."""
        return Upload(
            {name: tensor[order] for name, tensor in self.weights.items()},
            {name: prototypes.take(order) for name, prototypes in self.prototypes.items()},
            {name: tensor[order] for name, tensor in self.numbers.items()},
            {name: tensor[order] for name, tensor in self.sums.items()},
        )

    @staticmethod
    def gather(uploads: Sequence[Upload]) -> Upload:
        """Stack the uploads of single clients along a leading client axis."""
        led = [
            Upload(
                {name: tensor.unsqueeze(0) for name, tensor in one.weights.items()},
                {name: Prototypes(*(part.unsqueeze(0) for part in found)) for name, found in one.prototypes.items()},
                {name: tensor.unsqueeze(0) for name, tensor in one.numbers.items()},
                {name: tensor.unsqueeze(0) for name, tensor in one.sums.items()},
            )
            for one in uploads
        ]
        return Upload.join(led)

    @staticmethod
    def join(uploads: Sequence[Upload]) -> Upload:
        """Join the uploads of several groups of clients; sets get as many slots as the widest has."""
        if len(uploads) == 1:
            return uploads[0]
        first = uploads[0]
        return Upload(
            {name: torch.cat([upload.weights[name] for upload in uploads]) for name in first.weights},
            {name: _join([upload.prototypes[name] for upload in uploads]) for name in first.prototypes},
            {name: torch.cat([upload.numbers[name] for upload in uploads]) for name in first.numbers},
            {name: torch.cat([upload.sums[name] for upload in uploads]) for name in first.sums},
        )


def tensors_in(data: bytes) -> dict[str, Tensor]:
    """The named tensors of an encoded message; copies, because those in the buffer begin where rounding may differ."""
    return {name: tensor.clone() for name, tensor in load(data).items()} if data else {}


def _join(groups: Sequence[Prototypes]) -> Prototypes:
    slots = max(group.counts.shape[-1] for group in groups)
    wide = [group.widen(slots) for group in groups]
    return Prototypes(torch.cat([group.vectors for group in wide]), torch.cat([group.counts for group in wide]))


def _unpack(parts: Mapping[str, Tensor], name: str) -> Prototypes:
    packed, index = parts[f"{name}/vectors"], parts[f"{name}/index"].long()
    shape = parts[f"{name}/shape"].tolist()
    vectors = packed.new_zeros(shape).flatten(0, -2)
    counts = packed.new_zeros(shape[:-1]).flatten()
    vectors[index[:, 0]] = packed
    counts[index[:, 0]] = index[:, 1].to(counts.dtype)
    return Prototypes(vectors.view(shape), counts.view(shape[:-1]))


STORED: dict[torch.dtype, str] = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""safetensors' names of the types, in the order in which it stores them."""


@lru_cache(maxsize=4096)
def _serialised_size(layout: Layout) -> int:
    """The length of the safetensors file of such tensors, without making one: that would write every weight."""
    order, header, end = list(STORED), {}, 0
    for name, dtype, shape in sorted(layout, key=lambda entry: (order.index(entry[1]), entry[0])):
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": STORED[dtype], "shape": shape, "data_offsets": (begin, end)}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return 8 + -(-len(text) // 8) * 8 + end  # the header's length, the header in whole words, the data
