"""The checkpoint: what the server sends next and keeps, and the model of every client that has trained.

Only the models that changed since the last checkpoint are written, as records of clients-<group>.bin; then
state.safetensors, which says where each client's record is, is replaced. A record that it names is never written over,
so a crash at any moment leaves the old checkpoint or the new one; so does a loss of power, as all that it needs is on
the disk before. It holds digests of itself and of every record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from protofed.engines.client_group import Group
from protofed.engines.client_models import Records
from protofed.errors import UserError
from protofed.internal.atomic_files import sync, writing
from protofed.internal.tensor_files import digests_of_rows, read_tensors, write_tensors
from protofed.messages import Broadcast

AT_ONCE = 2**30
"""Bytes of clients' models that may wait in memory to be written."""

WRONG = (SafetensorError, OSError, EOFError, KeyError, TypeError, ValueError)
"""What a file raises that is not a checkpoint's."""


OLD_ATTACK = "kept/attack/"
"""Where attackers' memory was before version 0.2."""


class ServerState(NamedTuple):
    """What a run goes on from, beside the clients' models."""

    broadcast: Broadcast  # what the server sends next, and keeps
    rounds: int  # that were played
    attack: Mapping[str, Tensor] = MappingProxyType({})  # what attackers remember
    flight: Mapping[str, Tensor] = MappingProxyType({})  # of asynchronous rounds: turns that go on, and the pool
    data: str = ""  # a digest of what clients held at the beginning; older checkpoints have none


class Checkpoint:
    """Writes in the background, one after the other; within `with`, nothing is left unwritten at the end."""

    def __init__(self, folder: Path, before: Path | None = None) -> None:
        """The checkpoint in a folder; another file may have to be on the disk before it is."""
        self.folder = folder
        self.before = before
        self.file = folder / "state.safetensors"
        self._thread = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None
        self._waiting = 0  # bytes
        self._slots: dict[int, Tensor] = {}  # of each group: the record of each client's model, -1 if it has none
        self._named: dict[int, Tensor] = {}  # the same as the file says it
        self._digests: dict[int, Tensor] = {}  # of each group: that of each client's record
        self._unsynced: dict[Path, None] = {}  # what has to be on the disk before the file names it

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self.wait()
        elif self._last is not None:
            wait([self._last])

    def wait(self) -> None:
        """Until everything is on disk; raises what went wrong there."""
        if self._last is not None:
            self._last.result()
        self._waiting = 0

    def save(self, state: ServerState, groups: Sequence[Group]) -> None:
        """Begin to write the state of the server and the clients as it is now; wait for the one before."""
        self.wait()
        if not self.folder.is_dir():
            with writing(self.folder):
                self.folder.mkdir()
            self._unsynced[self.folder.parent] = None
        held, attack = state.broadcast.on_host(), {name: _copied(value) for name, value in state.attack.items()}
        flight = {name: _copied(value) for name, value in state.flight.items()}
        rest = {}
        for number, group in enumerate(groups):
            for slots in (self._slots, self._named):
                slots.setdefault(number, torch.full((len(group.members),), -1))
            self._digests.setdefault(number, torch.zeros(len(group.members), 16, dtype=torch.uint8))
            for rows in _parts(sorted(group.own.changed), group.own.layout.size):
                self._write_clients(number, group, rows)
            group.own.changed.clear()
            rest[f"taken/{number}"] = _copied(group.taken)
            rest[f"size/{number}"] = torch.tensor(group.own.layout.size)

        def write() -> None:
            tensors = {f"server/{name}": tensor for name, tensor in held.flat().items()}
            tensors |= {f"kept/{name}": tensor for name, tensor in held.kept.items()} | rest
            tensors |= {f"attack/{name}": tensor for name, tensor in attack.items()}
            tensors |= {f"flight/{name}": tensor for name, tensor in flight.items()}
            tensors |= {f"slots/{number}": slots for number, slots in self._slots.items()}
            tensors |= {f"digests/{number}": digests for number, digests in self._digests.items()}
            self._sync()
            write_tensors(self.file, tensors, {"rounds": str(state.rounds), "data": state.data}, alone=True)
            self._named = {number: slots.clone() for number, slots in self._slots.items()}

        self._begin(write, groups[0].device)

    def rounds(self) -> int | None:
        """After how many rounds it was written, if there is one."""
        if not self.file.exists():
            return None
        try:
            return int(read_tensors(self.file, always=True)[1]["rounds"])
        except WRONG as error:
            raise self._unreadable(error) from None

    def load(self, groups: Sequence[Group]) -> ServerState | None:
        """Give the clients their models back; the server's state, if there is a checkpoint."""
        self.wait()
        if not self.file.exists():
            return None
        try:
            found, about = read_tensors(self.file, str(groups[0].device) if groups else "cpu", always=True)
            # Copies, because tensors in the mapped file are not aligned, and kernels then round differently.
            state = {name: tensor.clone() for name, tensor in found.items()}
            rounds = int(about["rounds"])
            for number, group in enumerate(groups):
                slots = state[f"slots/{number}"].cpu()
                if len(slots) != len(group.members) or int(state[f"size/{number}"]) != group.own.layout.size:
                    raise ValueError("it is of other clients or another model")
                self._slots[number], self._named[number] = slots, slots.clone()
                self._read_clients(number, group, state.get(f"digests/{number}"))
                group.taken = state[f"taken/{number}"]
            attack = _part(state, "attack/") | _part(state, OLD_ATTACK)
            kept = _part({name: tensor for name, tensor in state.items() if not name.startswith(OLD_ATTACK)}, "kept/")
            broadcast = replace(Broadcast.from_flat(_part(state, "server/")), kept=kept)
            return ServerState(broadcast, rounds, attack, _part(state, "flight/"), about.get("data", ""))
        except WRONG as error:
            raise self._unreadable(error) from None

    def _unreadable(self, error: BaseException) -> UserError:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        return UserError("DIR", str(self.folder.parent), f"its checkpoint cannot be read: {reason}")

    def _write_clients(self, number: int, group: Group, rows: Sequence[int]) -> None:
        packed = group.own.packed(rows).to("cpu", non_blocking=True)
        if self._waiting + packed.nbytes > AT_ONCE:
            self.wait()
        self._waiting += packed.nbytes

        def write() -> None:
            slots, named = self._slots[number], self._named[number]
            slots[rows] = -1
            free = torch.ones(2 * len(slots), dtype=torch.bool)  # one for each that is named, and one for its successor
            free[slots[slots >= 0]] = free[named[named >= 0]] = False
            slots[rows] = free.nonzero().flatten()[: len(rows)]
            self._digests[number][rows] = digests_of_rows(packed)
            path = self._clients(number)
            if fresh := not path.exists():
                self._unsynced[self.folder] = None
            with writing(path), path.open("w+b" if fresh else "r+b") as file:
                Records(file, group.own.layout.size)[slots[rows].tolist()] = packed
            self._unsynced[path] = None

        self._begin(write, group.device)

    def _sync(self) -> None:
        """Have on the disk what the file is about to name."""
        for path in (*([self.before] if self.before is not None else []), *self._unsynced):
            with writing(path):
                sync(path)
        self._unsynced.clear()

    def _read_clients(self, number: int, group: Group, known: Tensor | None) -> None:
        """Give the clients of a group their models, if their digests are the known ones; older files have none."""
        slots = self._slots[number]
        self._digests[number] = torch.zeros(len(slots), 16, dtype=torch.uint8)
        trained = (slots >= 0).nonzero().flatten().tolist()
        if trained:
            with self._clients(number).open("rb") as file:
                records = Records(file, group.own.layout.size)
                for rows in _parts(trained, records.size):
                    packed = records[slots[rows].tolist()]
                    digests = self._digests[number][rows] = digests_of_rows(packed)
                    if known is not None and not torch.equal(known[rows].cpu(), digests):
                        raise ValueError(f"{self._clients(number).name} is not what was written")
                    group.own.put_packed(rows, packed.to(group.device))
        group.own.changed.clear()

    def _clients(self, number: int) -> Path:
        return self.folder / f"clients-{number}.bin"

    def _begin(self, write: Callable[[], None], device: torch.device) -> None:
        """Write in the background, when what came before is written and the copies to the host have arrived."""
        before = self._last
        arrived = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

        def job() -> None:
            if before is not None:
                before.result()
            if arrived is not None:
                arrived.synchronize()
            write()

        self._last = self._thread.submit(job)


def _copied(tensor: Tensor) -> Tensor:
    """On the host, as it is now, without waiting for a GPU."""
    return tensor.to("cpu", non_blocking=True, copy=True)


def _part(state: Mapping[str, Tensor], beginning: str) -> dict[str, Tensor]:
    """The tensors whose names begin so, without that."""
    return {name.removeprefix(beginning): tensor for name, tensor in state.items() if name.startswith(beginning)}


def _parts(rows: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Clients whose models of so many bytes fit into memory at once."""
    step = max(1, AT_ONCE // size)
    for begin in range(0, len(rows), step):
        yield rows[begin : begin + step]
