"""Packets in the form in which Flower carries them."""

from __future__ import annotations

import json

from flwr.app import ConfigRecord, RecordDict

from protofed.deploy.owner import PARTS
from protofed.deploy.wire import LARGEST, Packet
from protofed.errors import RefusedError

PART = 4 * 2**20
"""Bytes that are carried at a time.

Not in Flower's arrays: what unpacks one trusts it to say how often a part of it is repeated."""


def to_records(packet: Packet) -> RecordDict:
    """Facts, and the encoded message in parts."""
    facts = ConfigRecord({"json": packet.text, "digest": packet.digest})
    parts = [packet.data[at : at + PART] for at in range(0, len(packet.data), PART)]
    return RecordDict({"facts": facts, **{str(number): as_record(part) for number, part in enumerate(parts)}})


def from_records(content: RecordDict) -> Packet:
    """The packet that `to_records` took apart.

    Raises:
        RefusedError: the records are others, or more than any message has.
    """
    try:
        facts = content.config_records["facts"]
        text, digest = facts["json"], facts["digest"]
        parts = [from_record(content.config_records[str(number)]) for number in range(len(content) - 1)]
    except (KeyError, TypeError):
        raise RefusedError("it is not a message") from None
    if not (isinstance(text, str) and isinstance(digest, bytes)):
        raise RefusedError("it is not a message")
    if sum(map(len, parts)) > LARGEST:
        raise RefusedError("it is larger than allowed")
    return Packet(text, b"".join(parts), digest)


def as_record(data: bytes) -> ConfigRecord:
    """Some bytes as Flower moves and keeps them."""
    return ConfigRecord({"bytes": data})


def from_record(record: ConfigRecord) -> bytes:
    """The bytes that `as_record` was given."""
    data = record["bytes"]
    if not isinstance(data, bytes):
        raise TypeError
    return data


def size_of(content: RecordDict) -> int:
    """Bytes of the packet in some records, as `Packet.size` counts them; nothing is copied."""
    values = [value for record in content.config_records.values() for value in record.values()]
    return sum(
        len(value.encode() if isinstance(value, str) else value) for value in values if isinstance(value, str | bytes)
    )


def parts_of(content: RecordDict) -> list[str]:
    """What the message in some records holds, by the head of its safetensors file: of weights, prototypes and so on."""
    try:
        data = from_record(content.config_records["0"])
        head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    except (KeyError, TypeError, ValueError, RecursionError):
        return []
    names = {name.partition("/")[0] for name in head} if isinstance(head, dict) else set()
    return [part for part in PARTS if part in names]
