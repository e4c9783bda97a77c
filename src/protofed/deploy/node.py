"""A client's line to its server: it fetches messages, has the worker answer them, and brings the answers back.

The worker, which has torch, the data and the models, is another process (warm_worker.py): this one outlives its
crashes, stays connected while it trains, and needs little memory. Apps that a server offers are not even fetched.
"""

from __future__ import annotations

import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

import httpx
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Error, Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import HEARTBEAT_DEFAULT_INTERVAL, ErrorCode
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_confirm_message_received_fn_protobuf,
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import pull_and_inflate_object_from_tree, push_objects
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from protofed.deploy.records import from_records, to_records
from protofed.deploy.wire import REFUSED, Packet
from protofed.deploy.worker import Worker, WorkerDiedError
from protofed.errors import LostError, RefusedError

FASTEST, SLOWEST = 0.05, 3.0
"""Seconds between two looks for work: a twentieth of the time since the last message, within these bounds."""
COMES_BACK = 120.0
"""Seconds in which a client tries to connect first: a server takes one that was killed for present for a minute."""
PAUSE = 2.0
"""Seconds between two attempts."""

Told = list[int]
"""Signals that have asked for the end, so far none."""


class NotAdmittedError(Exception):
    """The server does not let this client in; the text says why."""


class Line:
    """The connection of one client."""

    def __init__(self, address: str, authority: Path, key: Path) -> None:
        private = cast(EllipticCurvePrivateKey, load_ssh_private_key(key.read_bytes(), None))
        self.public = public_key_to_bytes(private.public_key())
        self.client = FleetHttpClient.from_server_address(
            address, False, authority.read_bytes(), [NodeAuthHttpInterceptor(private, private.public_key())]
        )
        self.node = Node()

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

    def receive(self) -> Message | None:
        """The next message with all its parts, if there is one."""
        with _reasons():
            found = self.client.PullMessages(PullMessagesRequest(node=self.node))
            if not found.messages_list:
                return None
            head, tree = message_from_proto(found.messages_list[0]), found.message_object_trees[0]
            number = head.metadata.run_id
            message = pull_and_inflate_object_from_tree(
                tree,
                make_pull_object_fn_protobuf(self.client.PullObject, self.node, number),
                make_confirm_message_received_fn_protobuf(self.client.ConfirmMessageReceived, self.node, number),
                return_type=Message,
            )
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

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
            wanted = self.client.PushMessages(asked)
            push = make_push_object_fn_protobuf(
                self.client.PushObject, self.node, answer.metadata.run_id, wanted.session_id
            )
            push_objects(get_all_nested_objects(answer), push, object_ids_to_push=set(wanted.objects_to_push))

    def leave(self) -> None:
        """Say that this client goes, if anybody hears it."""
        if self.node.node_id:
            with suppress(httpx.HTTPError):
                self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()


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


def play(line: Line, worker: Worker, told: Told, ready: Callable[[], None]) -> int:
    """Be a client until told to end."""
    if not _connected(line, told):
        return 0
    beating = HeartbeatSender(line.beat)
    beating.start()
    ready()
    last, lost = time.monotonic(), False
    try:
        while not told:
            try:
                message = line.receive()
                if lost:
                    print("connected again", flush=True)
                lost = False
            except httpx.TransportError as error:
                if not lost:
                    print(f"not connected: {why_lost(error)}; trying again", flush=True)
                lost = True
                pause(told, PAUSE)
                continue
            except NotAdmittedError as error:  # a run that ended while its message was fetched, or a key removed
                message = None
                if not line.beat():
                    raise LostError(f"the server does not let it in any longer: {error}") from None
            if message is None:
                pause(told, min(max((time.monotonic() - last) / 20, FASTEST), SLOWEST))
                continue
            _serve(line, worker, message)
            last = time.monotonic()
        return 0
    finally:
        beating.stop()
        line.leave()


def _connected(line: Line, told: Told) -> bool:
    """Try to connect until it works, or for a while; whether it did before it was told to end."""
    began, said = time.monotonic(), ""
    while not told:
        try:
            line.connect()
            return True
        except (httpx.TransportError, NotAdmittedError) as error:
            why = str(error) if isinstance(error, NotAdmittedError) else why_lost(error)
            if time.monotonic() - began > COMES_BACK or is_final(why):
                raise LostError(f"not connected: {why}") from None
            if why != said:
                print(f"not connected: {why}; trying again", flush=True)
            said = why
            pause(told, PAUSE)
    return False


def is_final(why: str) -> bool:
    """Whether trying again cannot help."""
    return why.startswith("its key is not registered") or "certificate" in why


def why_lost(error: httpx.TransportError) -> str:
    """Why no server answers, in words."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"the server's certificate is not valid: {cause.verify_message}"
        if isinstance(cause, ConnectionRefusedError):
            return "no server listens there; is it started?"
        cause = cause.__cause__ or cause.__context__
    return f"no server answers ({' '.join(str(error).split()) or type(error).__name__})"


def _serve(line: Line, worker: Worker, message: Message) -> None:
    """Answer a message; an answer that cannot be brought is lost, as one that is late."""
    began, about = time.monotonic(), message.metadata
    answer: Message
    try:
        found = worker.answer(about.message_type, from_records(message.content), about.ttl)
        if isinstance(found, Packet):
            answer = Message(to_records(found), reply_to=message)
        else:
            answer = Message(Error(*found), reply_to=message)
    except RefusedError as error:
        answer = Message(Error(REFUSED, str(error)), reply_to=message)
    except WorkerDiedError as error:
        print(f"{error}; a new one is started", file=sys.stderr, flush=True)
        answer = Message(Error(ErrorCode.CLIENT_APP_CRASHED, "its process died"), reply_to=message)
    try:
        line.send(answer, time.monotonic() - began)
    except (httpx.HTTPError, NotAdmittedError, ValueError) as error:
        print(f"an answer could not be brought: {error}", file=sys.stderr, flush=True)


def pause(told: Told, seconds: float) -> None:
    """So long, unless told to end."""
    until = time.monotonic() + seconds
    while not told and (left := until - time.monotonic()) > 0:
        time.sleep(min(left, 0.1))
