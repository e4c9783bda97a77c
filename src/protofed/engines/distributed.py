"""One run in several processes, each with a GPU or a part of the CPU: who trains whom, and what they tell each other.

Every process holds the whole run. In a round each trains its share of the clients; then all of them learn what the
others have trained, and do the rest alike. Whatever they tell each other begins with `exchange`, so that a process that
fails can say so there instead.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from traceback import clear_frames
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from torch.distributed.rendezvous import rendezvous
from torch.utils._pytree import tree_leaves, tree_map

from protofed.errors import DivergedError, Failure, LostError, UserError
from protofed.internal.profiling import section

MEETING = timedelta(minutes=5)
"""So long processes wait for the others to start."""
PATIENCE = timedelta(minutes=30)
"""So long they wait for one that is slower in a round; one that is gone is noticed at once."""
ALIGNED = 64
"""Bytes between the beginnings of tensors: all types can begin there."""

T = TypeVar("T")


@dataclass(frozen=True)
class Place:
    """Where in a buffer of bytes a tensor lies."""

    begin: int
    dtype: torch.dtype
    shape: torch.Size

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def tensor(self, buffer: Tensor) -> Tensor:
        """A view of it."""
        return buffer[self.begin : self.begin + self.size].view(self.dtype).view(self.shape)


class Ranks:
    """This process among those of a run; alone, it has everything to do and nobody to talk to."""

    def __init__(self, number: int = 0, count: int = 1, local: int = 0) -> None:
        """`local` is its number on its machine, and that of its GPU."""
        self.number, self.count, self.local = number, count, local
        self._failed = False

    def share(self, costs: Sequence[int]) -> list[int]:
        """Which pieces of work are this process's: each, the most costly first, goes to who has least to do.

        All get equally many, because a GPU takes about as long for few clients as for more, and records for a number.
        """
        most = -(-len(costs) // self.count)
        shares: list[list[int]] = [[] for _ in range(self.count)]
        loads = [0] * self.count
        for piece in sorted(range(len(costs)), key=lambda piece: -costs[piece]):
            rank = min((rank for rank in range(self.count) if len(shares[rank]) < most), key=loads.__getitem__)
            shares[rank].append(piece)
            loads[rank] += costs[piece]
        return sorted(shares[self.number])

    def exchange(self, value: T) -> list[T]:
        """A value of each process; if one of them has failed, its error."""
        if self.count == 1:
            return [value]
        values: list[Any] = [None] * self.count
        with self._talking():
            distributed.all_gather_object(values, value)
        for found in values:
            if isinstance(found, Failure):
                self._failed = True
                raise found.error()
        return values

    def first(self, work: Callable[[], T]) -> T:
        """What the first process does for all."""
        return self.exchange(work() if self.number == 0 else None)[0]  # type: ignore[return-value]  # the first's is a T

    def gather(self, pieces: list[T], device: torch.device) -> list[T]:
        """The pieces of all processes, in their order: trees with tensors on this device, of whatever shapes."""
        if self.count == 1:
            return pieces
        with section("exchange"):
            outline, mine = _pack(pieces, device)
            found = []
            for rank, (theirs, size) in enumerate(self.exchange((outline, len(mine)))):
                buffer = mine if rank == self.number else torch.empty(size, dtype=torch.uint8, device=device)
                with self._talking():
                    distributed.broadcast(buffer, rank)
                found += _unpack(theirs, buffer)
        return found

    def tell(self, error: Exception) -> None:
        """Let the others end too."""
        if self._failed or self.count == 1:
            return
        failure = Failure.of(error)
        if not isinstance(error, UserError | DivergedError):
            what = f"{type(error).__name__}: {error}"
            failure = Failure(LostError, f"process {self.number} of {self.count} failed with {what}")
        with suppress(RuntimeError):  # they may have ended already
            distributed.all_gather_object([None] * self.count, failure)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        """What is broken off in here cannot be taken up again."""
        try:
            yield
        except RuntimeError as error:
            self._failed = True
            clear_frames(error.__traceback__)  # they hold the group, whose threads must have ended before Python does
            raise LostError("another process of this run is gone, or was too long silent") from error
        except BaseException:
            self._failed = True
            raise


ALONE = Ranks()


@contextmanager
def join() -> Iterator[Ranks]:
    """This process among those that a launcher has started for a run; an error in one of them ends all."""
    ranks = _launched()
    if ranks.count == 1:
        yield ranks
        return
    _meet(ranks)
    try:
        yield ranks
    except Exception as error:
        ranks.tell(error)
        raise
    finally:
        distributed.destroy_process_group()


def _launched() -> Ranks:
    """What torchrun and its like say in the environment."""
    names = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    given = {name: os.environ.get(name, alone) for name, alone in names.items()}
    for name, text in given.items():
        if not text.isdecimal():
            raise UserError(name, text, "it must be a number, set by a launcher such as torchrun")
    number, count, local = (int(text) for text in given.values())
    if number >= count:
        raise UserError("RANK", number, f"it must be below WORLD_SIZE, which is {count}")
    return Ranks(number, count, local)


def _meet(ranks: Ranks) -> None:
    gpus = torch.cuda.is_available() and distributed.is_nccl_available()
    try:
        store, *_ = next(rendezvous("env://", ranks.number, ranks.count, timeout=MEETING))
        distributed.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            store=store,
            rank=ranks.number,
            world_size=ranks.count,
            timeout=PATIENCE,
        )
    except (ValueError, RuntimeError) as error:
        why = f"the {ranks.count} processes of this run cannot meet there: {str(error).splitlines()[0]}"
        raise UserError("MASTER_ADDR", os.environ.get("MASTER_ADDR"), why) from None


def _pack(pieces: Any, device: torch.device) -> tuple[Any, Tensor]:
    """Trees with places instead of tensors, and the buffer that these are in."""
    places: dict[int, Place] = {}
    tensors = {id(leaf): leaf for leaf in tree_leaves(pieces) if isinstance(leaf, Tensor)}  # each once
    end = 0
    for name, tensor in tensors.items():
        places[name] = Place(end, tensor.dtype, tensor.shape)
        end += -(-places[name].size // ALIGNED) * ALIGNED
    buffer = torch.empty(end, dtype=torch.uint8, device=device)
    for name, tensor in tensors.items():
        places[name].tensor(buffer).copy_(tensor)
    return tree_map(lambda leaf: places.get(id(leaf), leaf), pieces), buffer


def _unpack(outline: Any, buffer: Tensor) -> Any:
    """The trees that were packed."""
    return tree_map(lambda leaf: leaf.tensor(buffer) if isinstance(leaf, Place) else leaf, outline)
