"""A client's line to its server: it fetches messages, has the worker answer them, and brings the answers back.

The worker, which has torch, the data and the models, is another process (warm_worker.py): this one outlives its
crashes, stays connected while it trains, and needs little memory. Apps that a server offers are not even fetched.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar, cast

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protofed.deploy.events import Events, shown
from protofed.deploy.log_lines import say
from protofed.deploy.members import REMOVED, UNKNOWN
from protofed.deploy.records import from_records, to_records
from protofed.deploy.wire import FAILED, REFUSED, Packet
from protofed.deploy.worker import WorkerDiedError, WorkerProcess
from protofed.errors import LostError, RefusedError

FASTEST, SLOWEST = 0.02, 3.0
"""Seconds between two looks for work: a twentieth of the time since the last message, within these bounds."""
COMES_BACK = 120.0
"""Seconds in which a client tries to connect first: a server takes one that was killed for present for a minute."""
PAUSE = 2.0
"""Seconds between two attempts."""
TRIES = 3
"""How often a call is made until it is given up."""
SPARE, MOST_PARTS = 2_000_000, 1000
"""Bytes of a message beside what it carries; parts of it."""

T = TypeVar("T")

Told = list[int]
"""Signals that have asked for the end, so far none."""


class NotAdmittedError(Exception):
    """The server does not answer this client; the text says why."""


class Line:
    """The connection of one client.

    Args:
        address: the server's, as HOST:PORT.
        authority: the certificate by which the server is known.
        key: this client's private key.
        largest: bytes of a message at most.
        client: whose it is.
        events: where it is recorded when there is a connection; nowhere, unless given.
    """

    def __init__(
        self, address: str, authority: Path, key: Path, largest: int, client: int = 0, events: Events | None = None
    ) -> None:
        private = cast(EllipticCurvePrivateKey, load_ssh_private_key(key.read_bytes(), None))
        self.public = public_key_to_bytes(private.public_key())
        self.client = FleetHttpClient.from_server_address(
            address, False, authority.read_bytes(), [NodeAuthHttpInterceptor(private, private.public_key())]
        )
        self.client._client.follow_redirects = False  # or a server could have this client call others in its network
        self.node, self.largest = Node(), largest
        self.number, self.events = client, events
        self.connected = False

    def connect(self) -> None:
        """Say that this client is there.

        Raises:
            NotAdmittedError: the server does not let it in.
            httpx.TransportError: no server answers.
        """
        asked = ActivateNodeRequest(public_key=self.public, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
        with _reasons():
            self.node = Node(node_id=self.client.ActivateNode(asked).node_id)

    def beat(self) -> bool:
        """Say that this client is still there; whether it was heard."""
        try:
            asked = SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=HEARTBEAT_DEFAULT_INTERVAL)
            return bool(self.client.SendNodeHeartbeat(asked).success)
        except httpx.HTTPError:
            return False

    def receive(self) -> tuple[Message, ObjectTree] | None:
        """The head of the next message, if there is one, and of which parts it consists."""
        with _reasons():
            found = self.client.PullMessages(PullMessagesRequest(node=self.node))
        if not found.messages_list:
            return None
        return message_from_proto(found.messages_list[0]), found.message_object_trees[0]

    def fetch(self, head: Message, tree: ObjectTree) -> Packet:
        """What a message says.

        Raises:
            RefusedError: it is too large, or no message of ours.
        """
        number, parts, size = head.metadata.run_id, dict[str, bytes](), 0
        pull = make_pull_object_fn_protobuf(self.client.PullObject, self.node, number)
        with _reasons():
            for part in iterate_object_tree(tree):
                if part.object_id not in parts:
                    parts[part.object_id] = _again(partial(pull, part.object_id))
                    size += len(parts[part.object_id])
                if size > self.largest + SPARE or len(parts) > MOST_PARTS:
                    raise RefusedError(f"a message of more than {self.largest / 1e6:g} MB")
            make_confirm_message_received_fn_protobuf(self.client.ConfirmMessageReceived, self.node, number)(
                tree.object_id
            )
        message = inflate_object_from_contents(tree.object_id, parts)
        if not (isinstance(message, Message) and message.has_content()):
            raise RefusedError("it is not a message")
        return from_records(message.content)

    def send(self, answer: Message, seconds: float) -> None:
        """Bring an answer, on which the client has worked for so long."""
        answer.metadata.__dict__["_message_id"] = answer.object_id
        with no_object_id_recompute(), _reasons():
            tree = get_object_tree(answer)
            asked = PushMessagesRequest(
                node=self.node,
                messages_list=[message_to_proto(remove_content_from_message(answer))],
                message_object_trees=[tree],
                clientapp_runtime_list=[seconds],
            )
            wanted = _again(partial(self.client.PushMessages, asked))
            push = make_push_object_fn_protobuf(
                self.client.PushObject, self.node, answer.metadata.run_id, wanted.session_id
            )
            parts = get_all_nested_objects(answer)
            for name in wanted.objects_to_push:
                _again(partial(push, name, parts[name].deflate()))

    def say(self, text: str) -> None:
        """Print a line of this client's."""
        say(f"client {self.number}", text)

    def record(self, kind: str, **what: str) -> None:
        """Record what happens here, and not in the worker; a server can have it happen as often as it likes."""
        if self.events is not None:
            self.events.write_some(kind=kind, client=self.number, **what)

    def is_connected(self, now: bool, why: str | None = None) -> None:
        """Note whether it is connected, and say so when that changes."""
        if now != self.connected:
            self.connected = now
            self.record("connected" if now else "disconnected", **({} if why is None else {"why": why}))

    def leave(self) -> None:
        """Say that this client goes, if anybody hears it."""
        if self.node.node_id:
            with suppress(httpx.HTTPError):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()


def _again(call: Callable[[], T]) -> T:
    """A call that is made again where the connection broke: all of them may be."""
    for _ in range(TRIES - 1):
        try:
            return call()
        except httpx.TransportError:
            time.sleep(FASTEST)
    return call()


@contextmanager
def _reasons() -> Iterator[None]:
    """What the server says where it does not answer; 409 is of a run that is over, or of a key that is in use."""
    try:
        yield
    except httpx.HTTPStatusError as error:
        try:
            why = str(error.response.json()["error"])
        except (ValueError, KeyError, TypeError):
            why = f"status {error.response.status_code}"
        raise NotAdmittedError(why) from None


def play(
    line: Line, worker: WorkerProcess, told: Told, ready: Callable[[], None], look: Callable[[], None] = lambda: None
) -> int:
    """Be a client until told to end; `look` is called again and again meanwhile."""
    if not _connected(line, told):
        return 0
    beating = HeartbeatSender(line.beat)
    beating.start()
    line.is_connected(True)
    ready()
    last, lost = time.monotonic(), ""
    try:
        while not told:
            look()
            try:
                found = line.receive()
                if lost:
                    line.beat()  # or nobody would ask it for anything until the next beat
                    line.say("connected again")
                    line.is_connected(True)
                lost = ""
            except Exception as error:  # whatever the network or the server does, this client stays
                why = why_lost(error)
                if is_final(why):
                    line.is_connected(False, why)
                    raise LostError(f"not connected: {why}") from None
                if why != lost:
                    line.say(f"not connected: {why}; trying again")
                    line.is_connected(False, why)
                lost = why
                pause(told, PAUSE)
                continue
            if found is None:
                pause(told, min(max((time.monotonic() - last) / 20, FASTEST), SLOWEST))
                continue
            _serve(line, worker, *found)
            last = time.monotonic()
        return 0
    finally:
        beating.stop()
        line.is_connected(False, "it was ended")
        line.leave()


def _connected(line: Line, told: Told) -> bool:
    """Try to connect until it works, or for a while; whether it did before it was told to end."""
    began, said = time.monotonic(), ""
    while not told:
        try:
            line.connect()
            return True
        except (httpx.HTTPError, NotAdmittedError, ValueError) as error:
            why = why_lost(error)
            if time.monotonic() - began > COMES_BACK or is_final(why):
                raise LostError(f"not connected: {why}") from None
            if why != said:
                line.say(f"not connected: {why}; trying again")
                line.record("disconnected", why=why)
            said = why
            pause(told, PAUSE)
    return False


def is_final(why: str) -> bool:
    """Whether trying again cannot help."""
    return why.startswith((UNKNOWN, REMOVED)) or "certificate" in why


def why_lost(error: Exception) -> str:
    """Why no server answers, or what it says instead, in words."""
    if isinstance(error, NotAdmittedError):
        return str(error)
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not valid: {cause.verify_message}"
        if isinstance(cause, ConnectionRefusedError):
            return "no server listens there; is it started?"
        cause = cause.__cause__ or cause.__context__
    return f"no server answers ({' '.join(str(error).split()) or type(error).__name__})"


def _serve(line: Line, worker: WorkerProcess, head: Message, tree: ObjectTree) -> None:
    """Answer a message; an answer that cannot be brought is lost, as one that is late."""
    began, about = time.monotonic(), head.metadata
    about.__dict__["_message_id"] = tree.object_id
    found: Packet | tuple[int, str]
    try:
        found = worker.answer(about.message_type, line.fetch(head, tree), about.ttl)
    except RefusedError as error:
        found = REFUSED, str(error)
        line.record(shown(about.message_type), refused=str(error))
    except WorkerDiedError as error:
        line.say(f"{error}; a new one is started")
        found = int(ErrorCode.CLIENT_APP_CRASHED), "its process died"
        line.record(shown(about.message_type), failed="its process died")
    except Exception as error:  # a server, or a file of the owner's, must not end this client
        line.say(f"a message could not be answered: {why_lost(error)}")
        found = FAILED, type(error).__name__
        line.record(shown(about.message_type), failed=type(error).__name__)
    if not isinstance(found, Packet) and found[0] == REFUSED:
        line.say(f"refused: {found[1]}")
    content = to_records(found) if isinstance(found, Packet) else Error(*found)
    try:
        line.send(Message(content, reply_to=head), time.monotonic() - began)
    except Exception as error:
        line.say(f"an answer could not be brought: {why_lost(error)}")
        line.record(shown(about.message_type), failed="its answer could not be brought")


def pause(told: Told, seconds: float) -> None:
    """So long, unless told to end."""
    until = time.monotonic() + seconds
    while not told and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
