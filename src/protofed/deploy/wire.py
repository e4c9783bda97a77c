"""What crosses the network: an Upload or a Broadcast as a safetensors file, a few facts as JSON, a digest of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from torch import Tensor

from protofed.messages import Message
from protofed.trust.screening import RefusedError

PROTOCOL = 5
"""Of the form of messages; both sides must have the same."""
LARGEST = 2 * 10**9
"""Bytes of an answer."""
LARGEST_FACTS = 1_000_000
"""Bytes."""
DIGEST = 32
"""Bytes."""
MOST_CLIENTS = 2**31
"""Numbers of clients are below this."""


def pack(facts: Mapping[str, Any], message: Message | None = None) -> RecordDict:
    """One array for all tensors: Flower moves every array by itself, which takes longer than what is in it."""
    data = b"" if message is None else message.encode()
    text = json.dumps({"protocol": PROTOCOL, **facts})
    return RecordDict({"message": record(data), "facts": ConfigRecord({"json": text, "digest": digest(text, data)})})


def digest(text: str, data: bytes) -> bytes:
    """Of a whole message: Flower checks what is put into its database, not what comes out."""
    found = hashlib.sha256(data)
    found.update(text.encode())
    return found.digest()


def record(data: bytes) -> ArrayRecord:
    """An encoded message, or model, as Flower moves and keeps it."""
    return ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})


def unpack(content: RecordDict, largest: int) -> tuple[dict[str, Any], bytes]:
    """Facts, and the encoded message, of at most so many bytes; its form is for others to check."""
    try:
        told, array = content.config_records["facts"], content.array_records["message"]["safetensors"]
        text = told["json"]
        if len(content) != 2 or not isinstance(text, str):
            raise TypeError
        if len(text) > LARGEST_FACTS or len(array.data) > largest:
            raise RefusedError("it is larger than allowed")
        facts = json.loads(text)
        if not isinstance(facts, dict):
            raise TypeError
        if facts.get("protocol") != PROTOCOL:
            raise RefusedError(f"it speaks protocol {facts.get('protocol')!r}, not {PROTOCOL}")
        if told["digest"] != digest(text, array.data):
            raise RefusedError("it is damaged")
    except (KeyError, TypeError, ValueError, RecursionError):
        raise RefusedError("it is not a message") from None
    return facts, array.data


def numbered(parts: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Tensors of several batches under one name each, NUMBER/NAME."""
    return {f"{number}/{name}": tensor for number, part in parts.items() for name, tensor in part.items()}


def part_of(tensors: Mapping[str, Tensor], number: int) -> dict[str, Tensor]:
    """Those of one batch again."""
    begin = f"{number}/"
    return {name.removeprefix(begin): tensor for name, tensor in tensors.items() if name.startswith(begin)}


def spelt(book: Mapping[int, bytes]) -> dict[str, str]:
    """Some bytes of each of some clients, as facts."""
    return {str(member): data.hex() for member, data in book.items()}


def read_book(told: Any, each: int) -> dict[int, bytes]:
    """What `spelt` made, if it is of so many bytes each."""
    try:
        book = {int(member): bytes.fromhex(text) for member, text in told.items()}
    except (AttributeError, TypeError, ValueError):
        raise RefusedError("it does not name what belongs to whom") from None
    right = all(0 <= member < MOST_CLIENTS and len(data) == each for member, data in book.items())
    if not right or len(book) != len(told):
        raise RefusedError("it does not name what belongs to whom")
    return book


def size(content: RecordDict) -> int:
    """Bytes of what `pack` made."""
    told = str(content.config_records["facts"]["json"])
    return len(told.encode()) + DIGEST + len(content.array_records["message"]["safetensors"].data)
