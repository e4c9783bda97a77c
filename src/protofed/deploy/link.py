"""The server's end of the line: Flower's state, which runs read and write directly.

Nothing here listens. Messages wait in a database in the federation's folder: who may read that folder begins runs and
registers keys, and nobody else can. What listens is fleet.py, and it answers clients only.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, cast

from flwr.app import Error, Message, Metadata
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import (
    HEARTBEAT_DEFAULT_INTERVAL,
    HEARTBEAT_PATIENCE,
    NOOP_ACCOUNT_NAME,
    NOOP_FLWR_AID,
    SUPERLINK_NODE_ID,
    SubStatus,
)
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, SYSTEM_MESSAGE_TYPE, NodeStatus, TaskType
from flwr.supercore.date import now
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store.sql_object_store import SqlObjectStore
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.federation import NoOpFederationManager

from protofed.deploy.bare_grid import BareGrid
from protofed.deploy.wire import LARGEST, LOST


def open_state(path: Path) -> SqlLinkState:
    """The state of a federation's link, in a file that is made if it is not there."""
    store = SqlObjectStore(str(path))
    store.initialize()
    state = SqlLinkState(str(path), NoOpFederationManager(), store)
    state.initialize()
    return state


def register(state: SqlLinkState, key: bytes, name: str) -> int:
    """Make a client's public key known; the number of its node."""
    known = state.get_node_id_by_public_key(key)
    return known or state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0, name=name)


def dismiss(state: SqlLinkState, but: Collection[int]) -> None:
    """Take all other nodes for gone, so that nobody waits for what they were asked; the listener answers none."""
    for node in state.get_node_info(statuses=[NodeStatus.ONLINE]):
        if node.node_id not in but:
            state.deactivate_node(node.node_id)


def last_seen(state: SqlLinkState) -> dict[int, tuple[bool, str | None]]:
    """Of each node whether it is connected, and when it was heard of last."""
    found: dict[int, tuple[bool, str | None]] = {}
    for node in state.get_node_info():
        there, gone = node.status == NodeStatus.ONLINE, node.last_deactivated_at
        last = datetime.datetime.fromisoformat(gone) if gone else None
        if there:
            beat = node.online_until - HEARTBEAT_PATIENCE * node.heartbeat_interval
            last = datetime.datetime.fromtimestamp(beat, datetime.UTC)
        found[node.node_id] = there, None if last is None else last.isoformat(timespec="seconds")
    return found


def online(state: SqlLinkState) -> list[int]:
    """The nodes that something was heard of within a minute."""
    return [node.node_id for node in state.get_node_info(statuses=[NodeStatus.ONLINE])]


def clear(state: SqlLinkState) -> None:
    """Drop the messages of runs whose process has ended, however it did."""
    states = state.get_run_status({run.run_id for run in state.get_run_info()})
    for number, status in states.items():
        if status.status == "finished":
            state.cleanup_run(number)


@contextmanager
def new_run(
    state: SqlLinkState, check: Callable[[], None], stops: type[BaseException] = KeyboardInterrupt
) -> Iterator[LinkGrid]:
    """A run of this process, through which it talks to clients; others see how it ended.

    Args:
        state: of the federation's link.
        check: raises where the server, without which no answer arrives, has ended.
        stops: what is raised when a user stops the run; all else is a failure.
    """
    number = state.create_run(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
    (run,) = state.get_run_info(run_ids=[number])
    task = cast(int, run.primary_task_id)
    state.claim_task(task)
    state.activate_task(task)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = number, SUPERLINK_NODE_ID, task
    over = threading.Event()

    def beat() -> None:
        while not over.wait(HEARTBEAT_DEFAULT_INTERVAL / 3):
            with suppress(Exception):  # a database that is locked for a moment; the next one is in time
                state.acknowledge_task_heartbeat(task)

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    how, why = SubStatus.COMPLETED, ""
    try:
        yield LinkGrid(state, number, check)
    except BaseException as error:
        how = SubStatus.STOPPED if isinstance(error, stops | KeyboardInterrupt) else SubStatus.FAILED
        why = str(error)[:1000]
        raise
    finally:
        over.set()
        beating.join()
        state.finish_task(task, how, why)
        state.cleanup_run(number)


class Arriving(NamedTuple):
    """An answer whose parts are still coming."""

    message: Message
    parts: dict[str, bytes]


class LinkGrid(BareGrid):
    """Flower's grid on the state itself, without a connection in between."""

    def __init__(self, state: SqlLinkState, run: int, check: Callable[[], None]) -> None:
        self.state, self.number, self.check = state, run, check
        self._arriving: list[Arriving] = []

    def get_node_ids(self) -> list[int]:
        """The nodes that are connected."""
        self.check()
        return list(self.state.get_nodes(self.number))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Store messages with all their parts at once: a client never finds one whose parts are not there yet."""
        numbers = []
        with no_object_id_recompute(), self.state.session():
            for message in messages:
                session = self.state.start_session(self.number)  # which ends with the last part of a message
                message.metadata.__dict__["_message_id"] = message.object_id
                stored, missing = self.state.store_message_and_object_tree(
                    remove_content_from_message(message), get_object_tree(message), session
                )
                numbers.append(message.object_id if stored else "")
                parts = get_all_nested_objects(message) if missing else {}
                for part in missing:
                    self.state.store_object(self.number, session, part, parts[part].deflate())
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The answers that are complete by now."""
        self.check()
        wanted = set(message_ids)
        arriving = {one.message.metadata.reply_to_message_id for one in self._arriving}
        answers = self.state.get_message_res(wanted - arriving, self.number)
        self.state.delete_messages({answer.metadata.reply_to_message_id for answer in answers})
        self._arriving += [Arriving(answer, {}) for answer in answers]
        found, waiting = [], []
        for one in self._arriving:
            if one.message.metadata.reply_to_message_id not in wanted:  # somebody else waits for it
                waiting.append(one)
                continue
            try:
                message = self._complete(one)
            except Exception as error:  # whatever a client has sent, it ends nothing but its own answer
                message = _lost(one.message.metadata, type(error).__name__)
            if message is None:
                waiting.append(one)
            else:
                found.append(message)
        self._arriving = waiting
        return found

    def _complete(self, arriving: Arriving) -> Message | None:
        """An answer, if all its parts are there; an error if some will never be, or are too many."""
        if arriving.message.has_error():
            return arriving.message
        number, store = arriving.message.metadata.message_id, self.state.object_store
        for part in iterate_object_tree(store.get_object_tree(number)):
            if part.object_id not in arriving.parts:
                content = self.state.get_object(self.number, part.object_id)
                if content == b"":
                    return None
                if content is None:  # its sender has given up
                    return _lost(arriving.message.metadata, "its answer did not arrive")
                arriving.parts[part.object_id] = content
                if sum(map(len, arriving.parts.values())) > LARGEST:
                    return _lost(arriving.message.metadata, "its answer is too large")
        store.delete(number)
        message = cast(Message, inflate_object_from_contents(number, arriving.parts))
        message.metadata.__dict__["_message_id"] = number
        return message

    @property
    def run(self) -> Run:
        """Flower's record of the run."""
        return self.state.get_run_info(run_ids=[self.number])[0]


def _lost(about: Metadata, why: str) -> Message:
    """The answer to a message whose real one is of no use."""
    metadata = Metadata(
        about.run_id, "", about.src_node_id, about.dst_node_id, about.reply_to_message_id, "", now().timestamp(), 0,
        SYSTEM_MESSAGE_TYPE,
    )  # fmt: skip
    return make_message(metadata, error=Error(LOST, why))
