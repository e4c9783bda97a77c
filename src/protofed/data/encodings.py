"""How records of a file become samples: what new records go through too, and how a sample is shown to people."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from torch import Tensor

from protofed.errors import UserError, listed

KINDS: dict[str, type[Encoding]] = {}
"""The kinds of encodings, by the name under which they are written."""


class Encoding(ABC):
    """Describe how records became samples; a subclass is a frozen dataclass of what JSON can hold.

    Attributes:
        kind: under which name it is written.
    """

    kind: ClassVar[str]

    def __init_subclass__(cls) -> None:
        KINDS[cls.kind] = cls

    @abstractmethod
    def encode(self, records: Sequence[Any], /) -> Tensor:
        """Make samples [n, ...] of records; one that cannot be is a UserError."""

    @abstractmethod
    def show(self, x: Tensor) -> str:
        """Return one sample [...], as it is stored, as a line of text."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads."""

    def layout(self) -> Any:
        """Return what each number of a sample stands for, as JSON; a layer that sees samples is for one layout."""
        return self.to_json()

    @classmethod
    @abstractmethod
    def from_json(cls, said: Any) -> Encoding:
        """Read what `to_json` made; anything else is a UserError."""


def encoded(encoding: Encoding | None) -> dict[str, Any] | None:
    """What JSON keeps of an encoding."""
    return None if encoding is None else {"kind": encoding.kind, **encoding.to_json()}


def decoded(said: Any) -> Encoding | None:
    """The encoding that JSON has kept; anything else is a UserError."""
    if said is None:
        return None
    if not isinstance(said, dict) or said.get("kind") not in list(KINDS):  # a list, for a kind may be unhashable
        raise UserError("encoding", said, f"it must be one of {listed(list(KINDS))}")
    return KINDS[said["kind"]].from_json({name: value for name, value in said.items() if name != "kind"})
