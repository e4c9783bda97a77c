"""A run as its server's events tell it: what clients were asked, what came back and when, and how rounds ended.

Between a run and its grid, so that whoever asks clients, in rounds or not, is recorded.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from protofed.deploy.bare_grid import BareGrid
from protofed.deploy.connections import MOST_SAMPLES
from protofed.deploy.events import Events, shown
from protofed.deploy.records import parts_of, size_of
from protofed.deploy.wire import FAILED, LOST, REFUSED
from protofed.experiment import Experiment
from protofed.runs.progress import Progress, Standing
from protofed.runs.run import Interrupted
from protofed.server.round import Round

EXPIRED = (ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)


class Waiting(NamedTuple):
    """A message that was not answered yet."""

    who: Mapping[str, int]  # the client, or a node of which it is not known whose it is
    kind: str
    round: int | None  # none of those before the first
    asked: float
    until: float


class RecordedRun:
    """The events of one run.

    Args:
        events: the server's.
        experiment: what is run.
        out: its folder.
        nodes: of the clients that are registered now.
    """

    def __init__(
        self, events: Events, experiment: Experiment, out: Path, nodes: Callable[[], Mapping[int, int]]
    ) -> None:
        self.events, self.experiment, self.out, self.nodes = events, experiment, out, nodes
        self.name: str | None = None  # by which clients know it, once they are asked

    @contextmanager
    def playing(self, grid: Grid) -> Iterator[RecordedGrid]:
        """The same grid, whose messages are recorded, and how the run ends."""
        asking = RecordedGrid(grid, self)
        how: dict[str, str] = {"ended": "completed"}
        try:
            yield asking
        except BaseException as error:
            how = {"ended": "failed", "failed": shown(str(error)) or type(error).__name__}
            if isinstance(error, Interrupted | KeyboardInterrupt):
                how = {"ended": "stopped"}
            raise
        finally:
            asking.close_late()
            self.events.close()
            self.events.write(kind="run.end", **self._about(), **how)

    def begin(self, text: str) -> None:
        """Record that it begins, or goes on; its name is in every message."""
        if self.name is None:
            self.name = str(json.loads(text)["run"])
            asked = {"rounds": self.experiment.rounds, "clients": self.experiment.number_of_clients}
            asked |= {"secure": self.experiment.secure, "min_count": self.experiment.min_count}
            self.events.write(kind="run.begin", **self._about(), **asked)

    def round(self, played: Round) -> None:
        """Record a round."""
        left_out = {str(member): shown(why) for member, why in played.left_out.items()}
        numbers = {"bytes_in": played.bytes_up, "bytes_out": played.bytes_down, "seconds": round(played.seconds, 3)}
        who = {"participants": played.participants, "left_out": left_out or None}
        self.events.write(kind="round", run=self.name, round=played.round, **numbers, **who)

    def message(self, waiting: Waiting, step: str, **more: Any) -> None:
        """Record a step of a message."""
        named = {"kind": waiting.kind, "step": step, "run": self.name, "round": waiting.round}
        # Who refuses to say who it is is asked again every second; turns are as many as there are rounds.
        write = self.events.write_some if waiting.round is None else self.events.write
        write(**named, **waiting.who, **more)

    def _about(self) -> dict[str, Any]:
        return {"run": self.name, "method": self.experiment.method, "out": str(self.out)}


class RecordedGrid(BareGrid):
    """A grid whose messages are recorded.

    Args:
        grid: what carries them.
        run: whose they are.
    """

    def __init__(self, grid: Grid, run: RecordedRun) -> None:
        self.grid, self.recorded = grid, run
        self._waiting: dict[str, Waiting] = {}

    def get_node_ids(self) -> Iterable[int]:
        """The nodes that are connected."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Ask."""
        asked = list(messages)
        self.close_late()
        if asked:
            self.recorded.begin(str(asked[0].content.config_records["facts"]["json"]))
        numbers = list(self.grid.push_messages(asked))
        clients = {node: client for client, node in self.recorded.nodes().items()}
        for number, message in zip(numbers, asked, strict=True):
            about, now = message.metadata, time.monotonic()
            node, group = about.dst_node_id, int(about.group_id) if about.group_id.isdecimal() else None
            who = {"client": clients[node]} if node in clients else {"node": node}
            waiting = Waiting(who, about.message_type, group, now, now + about.ttl)
            if number:
                self._waiting[number] = waiting
            failed = None if number else "it could not be asked"
            self.recorded.message(waiting, "asked", bytes_out=size_of(message.content), failed=failed)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Look for answers."""
        found = list(self.grid.pull_messages(message_ids))
        for answer in found:
            waiting = self._waiting.pop(answer.metadata.reply_to_message_id, None)
            if waiting is not None:
                seconds = round(time.monotonic() - waiting.asked, 3)
                what = _outcome(answer.error) if answer.has_error() else _answered(answer.content)
                self.recorded.message(waiting, "answered", seconds=seconds, **what)
        return found

    def close_late(self) -> None:
        """Record those whose time is over: nobody waits for them any longer."""
        now = time.monotonic()
        for number, waiting in list(self._waiting.items()):
            if now >= waiting.until:
                del self._waiting[number]
                seconds = waiting.until - waiting.asked
                self.recorded.message(waiting, "answered", seconds=seconds, late=f"no answer within {seconds:g} s")

    @property
    def run(self) -> Any:
        """Flower's record of the run."""
        return self.grid.run


def _answered(content: RecordDict) -> dict[str, Any]:
    """Of an answer that nobody has checked yet: its size, what it holds, and how many samples its sender trains on."""
    facts: Any = {}
    with suppress(KeyError, ValueError, TypeError, RecursionError):
        facts = json.loads(content.config_records["facts"]["json"])  # type: ignore[arg-type]  # or it is no answer
    said = facts if isinstance(facts, dict) else {}
    sent = [*parts_of(content), *(["accuracies"] if said.get("scores") else [])]
    samples = said.get("samples")
    found = {"sent": sent or None, "samples": samples if type(samples) is int and 0 < samples < MOST_SAMPLES else None}
    return {"bytes_in": size_of(content), **found}


def _outcome(error: Error) -> dict[str, str]:
    if error.code == REFUSED:
        return {"refused": shown(error.reason or "")}
    if error.code in EXPIRED:
        return {"late": "no answer in time"}
    if error.code == ErrorCode.CLIENT_APP_CRASHED:
        return {"failed": "its process died"}
    if error.code == ErrorCode.NODE_UNAVAILABLE:
        return {"failed": "it is gone"}
    return {"failed": shown(error.reason or "") if error.code in (FAILED, LOST) else f"error {error.code}"}


class RecordedProgress(Progress):
    """Records every round, and shows it as another would."""

    def __init__(self, progress: Progress, run: RecordedRun) -> None:
        self.progress, self.run = progress, run

    def tell(self, standing: Standing) -> None:
        """As the other."""
        self.progress.tell(standing)

    def stops(self, played: Round) -> bool:
        """As the other."""
        self.run.round(played)
        return self.progress.stops(played)

    def end(self) -> None:
        """As the other."""
        self.progress.end()
