"""Packets in the form in which Flower carries them."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from protofed.deploy.wire import Packet
from protofed.errors import RefusedError


def to_records(packet: Packet) -> RecordDict:
    """One array for all tensors: Flower moves every array by itself, which takes longer than what is in it."""
    facts = ConfigRecord({"json": packet.text, "digest": packet.digest})
    if not packet.data:
        return RecordDict({"facts": facts})
    return RecordDict({"facts": facts, "message": as_array(packet.data)})


def from_records(content: RecordDict) -> Packet:
    """The packet that `to_records` took apart.

    Raises:
        RefusedError: the records are others.
    """
    try:
        facts = content.config_records["facts"]
        text, digest = facts["json"], facts["digest"]
        data = content.array_records["message"]["safetensors"].data if "message" in content else b""
    except (KeyError, TypeError):
        raise RefusedError("it is not a message") from None
    if not (isinstance(text, str) and isinstance(digest, bytes)):
        raise RefusedError("it is not a message")
    return Packet(text, data, digest)


def as_array(data: bytes) -> ArrayRecord:
    """Some bytes as Flower moves and keeps them."""
    return ArrayRecord({"safetensors": Array("uint8", (len(data),), "safetensors", data)})
