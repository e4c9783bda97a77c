"""What crosses the network: an Upload or a Broadcast as a safetensors file, and a few facts as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from protofed.messages import Message
from protofed.trust.validation import RefusedError

PROTOCOL = 1
"""Of the form of messages; both sides must have the same."""
LARGEST_FACTS = 1_000_000
"""Bytes."""


def pack(facts: Mapping[str, Any], message: Message | None = None) -> RecordDict:
    """One array for all tensors: Flower moves every array by itself, which takes longer than what is in it."""
    data = b"" if message is None else message.encode()
    told = ConfigRecord({"json": json.dumps({"protocol": PROTOCOL, **facts})})
    return RecordDict({"message": record(data), "facts": told})


def record(data: bytes) -> ArrayRecord:
    """An encoded message, or model, as Flower moves and keeps it."""
    return ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})


def unpack(content: RecordDict, largest: int) -> tuple[dict[str, Any], bytes]:
    """Facts, and the encoded message, of at most so many bytes; its form is for others to check."""
    try:
        text, array = content.config_records["facts"]["json"], content.array_records["message"]["safetensors"]
        if len(content) != 2 or not isinstance(text, str):
            raise TypeError
        if len(text) > LARGEST_FACTS or len(array.data) > largest:
            raise RefusedError("it is larger than allowed")
        facts = json.loads(text)
        if not isinstance(facts, dict):
            raise TypeError
    except (KeyError, TypeError, ValueError):
        raise RefusedError("it is not a message") from None
    if facts.get("protocol") != PROTOCOL:
        raise RefusedError(f"it speaks protocol {facts.get('protocol')!r}, not {PROTOCOL}")
    return facts, array.data


def size(content: RecordDict) -> int:
    """Bytes of what `pack` made."""
    told = str(content.config_records["facts"]["json"])
    return len(told.encode()) + len(content.array_records["message"]["safetensors"].data)
