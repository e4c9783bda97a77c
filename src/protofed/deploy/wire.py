"""What crosses the network: an Upload or a Broadcast as a safetensors file, a few facts as JSON, a digest of both.

Neither Flower nor torch is imported: a process that only carries messages has no use for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from protofed.errors import RefusedError

if TYPE_CHECKING:
    from torch import Tensor

    from protofed.messages import Message

OLDEST, PROTOCOL = 8, 8
"""Of the form of messages: what can be spoken here. A run speaks the highest that its server and clients all can.

A number stands for the form of every message, and for the defaults of options, which are not said. A fact that may be
absent and an option whose default changes nothing need no new number. All else does, and OLDEST stays behind where
`respoken` gives the older form.
"""
Range = tuple[int, int]
"""The oldest and the newest form that somebody speaks."""
LARGEST = 2 * 10**9
"""Bytes of an answer."""
LARGEST_FACTS = 1_000_000
"""Bytes."""
DIGEST = 32
"""Bytes."""
REFUSED, FAILED, LOST = 101, 102, 103
"""Codes of errors: the client's owner does not allow it; something went wrong there; its answer is of no use."""
MOST_CLIENTS = 2**31
"""Numbers of clients are below this."""


class Packet(NamedTuple):
    """A message between server and client as it is sent."""

    text: str  # facts, as JSON
    data: bytes  # an encoded Upload or Broadcast, or nothing
    digest: bytes  # of both

    def size(self) -> int:
        """Bytes of it."""
        return len(self.text.encode()) + len(self.data) + DIGEST


def pack(facts: Mapping[str, Any], message: Message | None = None) -> Packet:
    """The packet that holds some facts, which may name an earlier protocol, and a message."""
    return seal(
        json.dumps({"protocol": PROTOCOL, **facts}, ensure_ascii=False), b"" if message is None else message.encode()
    )


def seal(text: str, data: bytes) -> Packet:
    """A packet with its digest: Flower checks what is put into its database, not what comes out."""
    found = hashlib.sha256(data)
    found.update(text.encode())
    return Packet(text, data, found.digest())


def unpack(packet: Packet, largest: int) -> tuple[dict[str, Any], bytes]:
    """Facts, and the encoded message, of at most so many bytes; its form is for others to check.

    Raises:
        RefusedError: it is too large, damaged, of another protocol, or no packet.
    """
    if len(packet.text) > LARGEST_FACTS or len(packet.data) > largest:
        raise RefusedError("it is larger than allowed")
    try:
        facts = json.loads(packet.text)
    except (ValueError, RecursionError):
        raise RefusedError("it is not a message") from None
    if not isinstance(facts, dict):
        raise RefusedError("it is not a message")
    check_protocol(spoken_by(facts), (OLDEST, PROTOCOL))
    if packet.digest != seal(packet.text, packet.data).digest:
        raise RefusedError("it is damaged")
    return facts, packet.data


def spoken_by(facts: Mapping[str, Any]) -> Range:
    """What the sender of a message speaks: in the first one it says so, of later ones it is known from the form."""
    said = facts.get("protocols", [facts.get("protocol")] * 2)
    if not (isinstance(said, list) and len(said) == 2 and all(type(one) is int for one in said)):
        raise RefusedError(f"it speaks protocol {facts.get('protocol')!r}, not {_shown((OLDEST, PROTOCOL))}")
    return said[0], said[1]


def check_protocol(theirs: Range, ours: Range) -> None:
    """Refuse who speaks no protocol that is spoken here.

    Raises:
        RefusedError: there is none in common; either side may read it.
    """
    if theirs[1] < ours[0] or theirs[0] > ours[1]:
        raise RefusedError(
            f"it speaks protocol {_shown(theirs)}, not {_shown(ours)}: the older side's protofed must be upgraded"
        )


def _shown(spoken: Range) -> str:
    return " to ".join(map(str, dict.fromkeys(spoken)))


def respoken(packet: Packet, protocol: int) -> Packet:
    """A packet in an earlier protocol; all that there are differ in nothing but their number."""
    return seal(json.dumps({**json.loads(packet.text), "protocol": protocol}, ensure_ascii=False), packet.data)


def write_frame(line: IO[bytes], head: Mapping[str, Any], data: bytes = b"") -> None:
    """Send a JSON object and some bytes to another process of this machine."""
    text = json.dumps(head).encode()
    line.write(len(text).to_bytes(8, "big") + len(data).to_bytes(8, "big") + text)
    line.write(data)
    line.flush()


def read_frame(line: IO[bytes]) -> tuple[dict[str, Any], bytes]:
    """What `write_frame` sent.

    Raises:
        EOFError: the other process has ended.
    """
    sizes = _exactly(line, 16)
    head: dict[str, Any] = json.loads(_exactly(line, int.from_bytes(sizes[:8], "big")))
    return head, _exactly(line, int.from_bytes(sizes[8:], "big"))


def _exactly(line: IO[bytes], number: int) -> bytes:
    found = line.read(number)
    if len(found) < number:
        raise EOFError
    return found


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
