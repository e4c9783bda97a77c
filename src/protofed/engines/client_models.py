"""Where clients' own models and memories wait between turns: on the device while there is room, else in a file."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Container, Mapping, Sequence
from typing import IO

import torch
from torch import Tensor

from protofed.errors import UserError

PART = 0.25
"""Of the device's memory, what the models of all clients may take."""


class Layout:
    """How a model lies in a row of 8-byte words: one tensor after the other."""

    def __init__(self, state: Mapping[str, Tensor]) -> None:
        self.fields = {name: (value.dtype, value.shape) for name, value in state.items()}
        sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in self.fields.values()]
        self.size = -(-sum(sizes) // 8) * 8
        """Bytes of a row."""
        self._sizes = [*sizes, self.size - sum(sizes)]

    def pack(self, states: Mapping[str, Tensor]) -> Tensor:
        """Models [n, ...] as words [n, size / 8]."""
        rows = [states[name].reshape(len(states[name]), math.prod(shape)) for name, (_, shape) in self.fields.items()]
        rest = rows[0].new_zeros(len(rows[0]), self._sizes[-1], dtype=torch.uint8)
        return torch.cat([*(row.contiguous().view(torch.uint8) for row in rows), rest], 1).view(torch.int64)

    def unpack(self, packed: Tensor, names: Container[str]) -> dict[str, Tensor]:
        """Some of what `pack` was given; copies, because a tensor has to begin where its type can."""
        columns = torch.split(packed.view(torch.uint8), self._sizes, 1)
        return {
            name: column.clone(memory_format=torch.contiguous_format).flatten().view(dtype).view(len(packed), *shape)
            for (name, (dtype, shape)), column in zip(self.fields.items(), columns, strict=False)
            if name in names
        }


class Records:
    """A file of rows of words, indexed like a tensor; the system keeps in memory what there is room for."""

    def __init__(self, file: IO[bytes], size: int, pinned: bool = False) -> None:
        self.file, self.size, self.pinned = file, size, pinned

    def __getitem__(self, rows: Sequence[int]) -> Tensor:
        found = torch.empty(len(rows), self.size // 8, dtype=torch.int64, pin_memory=self.pinned)
        for row, record in zip(rows, found.numpy(), strict=True):
            self.file.seek(row * self.size)
            if self.file.readinto(record) != self.size:  # type: ignore[attr-defined]  # files in binary mode have it
                raise EOFError(f"record {row} is not in the file")
        return found

    def __setitem__(self, rows: Sequence[int], packed: Tensor) -> None:
        for row, record in zip(rows, packed.numpy(), strict=True):
            self.file.seek(row * self.size)
            self.file.write(record)


MEMORY = "memory/"


class Store:
    """The clients' own models and memories. Those of one that never trained are the common initial ones."""

    def __init__(
        self, initial: Mapping[str, Tensor], clients: int, room: float, memory: Mapping[str, Tensor] | None = None
    ) -> None:
        """In memory if they all fit into `room` bytes, otherwise in a file without a name, gone with the process."""
        self.initial = {name: value.clone() for name, value in initial.items()}
        self.first_memory = {name: value.clone() for name, value in (memory or {}).items()}
        self.device = next(iter(self.initial.values())).device
        first = self.initial | _marked(self.first_memory)
        self.layout = Layout(first)
        self.trained: set[int] = set()
        self.changed: set[int] = set()
        """Who has trained since the last checkpoint."""
        self._first = self.layout.pack({name: value.unsqueeze(0) for name, value in first.items()})
        self._states: Tensor | Records
        if clients * self.layout.size <= room:
            self._states = self._first.new_empty(clients, self.layout.size // 8)
        else:
            file = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the store is there
            self._states = Records(file, self.layout.size, pinned=self.device.type == "cuda")

    def take(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Copies of some clients' models, [n, ...]."""
        return self.layout.unpack(self.packed(rows), self.initial)

    def memory(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """Copies of what some clients remember, [n, ...]."""
        if not self.first_memory:
            return {}
        found = self.layout.unpack(self.packed(rows), _marked(self.first_memory))
        return {name.removeprefix(MEMORY): value for name, value in found.items()}

    def packed(self, rows: Sequence[int]) -> Tensor:
        """The same as rows of words."""
        trained = [place for place, row in enumerate(rows) if row in self.trained]
        if len(trained) == len(rows):
            return self._read(rows)
        packed = self._first.repeat(len(rows), 1)
        if trained:
            packed.index_copy_(0, self.index(trained), self._read([rows[place] for place in trained]))
        return packed

    def put(
        self, rows: Sequence[int], states: Mapping[str, Tensor], memory: Mapping[str, Tensor] | None = None
    ) -> None:
        """Keep models [n, ...] of some clients and what they remember, which otherwise stays as it is."""
        remembered = self.memory(rows) if memory is None else memory
        self.put_packed(rows, self.layout.pack({**states, **_marked(remembered)}))

    def put_packed(self, rows: Sequence[int], packed: Tensor) -> None:
        """The same from rows of words."""
        if isinstance(self._states, Tensor):
            self._states.index_copy_(0, self.index(rows), packed)
        else:
            try:
                self._states[rows] = packed.cpu()
            except OSError as error:
                full = f"the models of {len(self.trained)} clients are kept there: {error.strerror}"
                raise UserError("TMPDIR", tempfile.gettempdir(), full) from None
        self.trained.update(rows)
        self.changed.update(rows)

    def to_host(self) -> Store:
        """Give the device's memory back, when nobody trains there any more."""
        self.initial = {name: value.cpu() for name, value in self.initial.items()}
        self.first_memory = {name: value.cpu() for name, value in self.first_memory.items()}
        self._first, self.device = self._first.cpu(), torch.device("cpu")
        if isinstance(self._states, Tensor):
            self._states = self._states.cpu()
        return self

    def index(self, rows: Sequence[int]) -> Tensor:
        """Rows as a tensor on the device, which does not wait for it."""
        index = torch.tensor(rows)
        return index.pin_memory().to(self.device, non_blocking=True) if self.device.type == "cuda" else index

    def _read(self, rows: Sequence[int]) -> Tensor:
        if isinstance(self._states, Tensor):
            return self._states.index_select(0, self.index(rows))
        return self._states[rows].to(self.device, non_blocking=True)


def _marked(memory: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What is remembered, by names that no parameter has."""
    return {MEMORY + name: value for name, value in memory.items()}


def room(device: torch.device) -> float:
    """Bytes that the models of all clients may take on a device."""
    if device.type == "cuda":
        return PART * torch.cuda.get_device_properties(device).total_memory
    if not hasattr(os, "sysconf"):  # Windows does not say how much there is
        return math.inf
    return PART * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
