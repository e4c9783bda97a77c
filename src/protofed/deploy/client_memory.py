"""What a client keeps between its turns: its own model and how many turns it had, after each of its last turns.

The models before the last two turns are kept too: a server that crashes may have lost the round it was in, and the one
before, which it was still writing, and asks for both again. Within a round of secure aggregation, its secrets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save

from protofed.engines.client_group import Group
from protofed.internal.atomic_files import write_file
from protofed.messages import tensors_in

KEPT = 3
SECRETS, PUBLIC = "secrets.json", "public.bin"
"""Notes within a round: secrets of secure aggregation, and the model in an exchange on public images."""


class ClientMemory(Protocol):
    """Encoded models by the number of the round that they come from."""

    def rounds(self) -> list[int]:
        """Of which rounds there are models."""

    def read(self, number: int) -> bytes:
        """The model after a round."""

    def write(self, number: int, data: bytes) -> None:
        """Keep the model after a round."""

    def forget(self, number: int) -> None:
        """Do not keep it any longer."""

    def note(self, name: str) -> bytes:
        """What is kept within a round under a name; nothing if there is none."""

    def keep(self, name: str, data: bytes) -> None:
        """Keep it in place of what was kept before."""


class FolderMemory:
    """In files that only the client's owner can read; they survive the client's and the server's restarts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for place in (folder.parent, folder):
            place.mkdir(mode=0o700, exist_ok=True)
        for draft in folder.glob(".*.draft"):  # of a process that was killed while it wrote
            draft.unlink()

    def rounds(self) -> list[int]:
        """Of which rounds there are models."""
        return [int(file.stem) for file in self.folder.glob("*.safetensors")]

    def read(self, number: int) -> bytes:
        """The model after a round."""
        return self._file(number).read_bytes()

    def write(self, number: int, data: bytes) -> None:
        """Keep the model after a round; whole or not at all."""
        self._write(self._file(number), data)

    def forget(self, number: int) -> None:
        """Do not keep it any longer."""
        self._file(number).unlink(missing_ok=True)

    def note(self, name: str) -> bytes:
        """What is kept within a round under a name; nothing if there is none."""
        path = self.folder / name
        return path.read_bytes() if path.exists() else b""

    def keep(self, name: str, data: bytes) -> None:
        """Keep it in place of what was kept before; whole or not at all."""
        self._write(self.folder / name, data)

    def _write(self, path: Path, data: bytes) -> None:
        write_file(path, lambda draft: draft.write_bytes(data), alone=True, mode=0o600)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number}.safetensors"


def last_round(memory: ClientMemory, before: int) -> int | None:
    """The last round before another of which there is a model."""
    return max((number for number in memory.rounds() if number < before), default=None)


def recall(memory: ClientMemory, group: Group, number: int) -> None:
    """Give a client, the only one of its group, the model it had after a round."""
    state = tensors_in(memory.read(number))
    group.taken[0] = state.pop("taken")
    own, memory_of = (
        {name.removeprefix(part): tensor.unsqueeze(0) for name, tensor in state.items() if name.startswith(part)}
        for part in ("own/", "memory/")
    )
    group.own.put([0], own, memory_of)


def remember(memory: ClientMemory, group: Group, number: int) -> None:
    """Keep the model that a client has after a round."""
    state = {f"own/{name}": tensor[0].contiguous() for name, tensor in group.own.take([0]).items()}
    state |= {f"memory/{name}": tensor[0].contiguous() for name, tensor in group.own.memory([0]).items()}
    memory.write(number, save(state | {"taken": group.taken[0].to(torch.int64)}))
    rounds = sorted(memory.rounds())
    played = [other for other in rounds if other <= number]  # later ones are of rounds that the server has lost
    for other in rounds:
        if other not in played[-KEPT:]:
            memory.forget(other)
