"""What a server of a federation listens with: the calls of registered clients, and nothing else.

Beginning runs, registering keys and all else that an operator does is not asked for over a network at all (link.py), so
that there is nothing here that a stranger, a client or a proxy on the server's machine could ask it for. Who calls is
known from a signature in the head of the request, before a byte of its body is read.
"""

from __future__ import annotations

import asyncio
import datetime
import json
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from flwr.common.constant import (
    HEARTBEAT_MAX_INTERVAL,
    HEARTBEAT_MIN_INTERVAL,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest, PushObjectRequest
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.error import FlowerError
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.superlink.servicer.fleet import fleet_handlers
from google.protobuf.message import DecodeError, Message

from protofed.deploy.attendance import Attendance
from protofed.deploy.listener import Strangers
from protofed.deploy.members import UNKNOWN

Event = Mapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]

LARGEST = 16 * 2**20
"""Bytes of a request: parts of messages have 5 MB."""
MOST_PARTS = 1000
"""Of a message."""
OVER = 409
"""The status of what is asked in vain: mostly the run is over."""
LOG = logging.getLogger("flwr")
TWICE = "a client with the same key is connected, or was until a minute ago"
STALE = "its signature is not valid now: is its clock right?"


class RejectedError(Exception):
    """A call that is not answered; the text says why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class Call(NamedTuple):
    """What a client may ask, and what answers it."""

    request: type[Message]
    answer: Callable[[SqlLinkState, Any], Message]


def _activate(state: SqlLinkState, request: ActivateNodeRequest) -> Message:
    """As Flower's, with the reason where it fails."""
    if not HEARTBEAT_MIN_INTERVAL <= request.heartbeat_interval <= HEARTBEAT_MAX_INTERVAL:
        raise RejectedError(400, "it is not a request")
    node = state.get_node_id_by_public_key(request.public_key)
    if node is None:
        raise RejectedError(403, UNKNOWN)
    if not state.activate_node(node, request.heartbeat_interval):
        raise RejectedError(OVER, TWICE)
    return ActivateNodeResponse(node_id=node)


def _push(state: SqlLinkState, request: PushMessagesRequest) -> Message:
    """As Flower's, of a node's own answer, which is what the tree of its parts says."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        raise RejectedError(400, "it is not a request")
    (message,), (tree,) = request.messages_list, request.message_object_trees
    if message.metadata.src_node_id != request.node.node_id:
        raise RejectedError(403, "it answers for another")
    if message.metadata.message_id != tree.object_id or sum(1 for _ in iterate_object_tree(tree)) > MOST_PARTS:
        raise RejectedError(400, "it is not a request")
    return fleet_handlers.push_messages(request, state)


CALLS = {
    "activate-node": Call(ActivateNodeRequest, _activate),
    "deactivate-node": Call(DeactivateNodeRequest, lambda state, asked: fleet_handlers.deactivate_node(asked, state)),
    "send-node-heartbeat": Call(
        SendNodeHeartbeatRequest, lambda state, asked: fleet_handlers.send_node_heartbeat(asked, state)
    ),
    "pull-messages": Call(
        PullMessagesRequest, lambda state, asked: fleet_handlers.pull_messages(asked, state, state.object_store)
    ),
    "push-messages": Call(PushMessagesRequest, _push),
    "pull-object": Call(PullObjectRequest, lambda state, asked: fleet_handlers.pull_object(asked, state)),
    "push-object": Call(PushObjectRequest, lambda state, asked: fleet_handlers.push_object(asked, state)),
    "confirm-message-received": Call(
        ConfirmMessageReceivedRequest,
        lambda state, asked: fleet_handlers.confirm_message_received(asked, state, state.object_store),
    ),
}
"""All that is answered, by the last part of its address, /v1/fleet/NAME."""


class Fleet:
    """An ASGI application that answers registered clients; who comes and who is turned away is told, if to anybody."""

    def __init__(
        self,
        state: SqlLinkState,
        objection: Callable[[bytes], str | None] = lambda _: None,
        attendance: Attendance | None = None,
    ) -> None:
        """`objection` says why the owner of a registered key is not answered, if so; it is asked with every call."""
        self.state, self.objection, self.attendance = state, objection, attendance
        self.strangers = Strangers()

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            return
        nodes: list[int] = []  # whose request it is, once that is known
        try:
            body = await self._answer(scope, receive, nodes)
            status, kind = 200, b"application/x-protobuf"
        except Exception as error:
            status, why = _refusal(error)
            kind, body = b"application/json", json.dumps({"error": why}).encode()
            if self.attendance is not None and (status != OVER or why == TWICE):
                address = (scope.get("client") or ["unknown"])[0]
                await asyncio.to_thread(self.attendance.refused, address, status, why, nodes[0] if nodes else None)
        head = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
        if status != 200:
            head.append((b"connection", b"close"))  # what follows was not read
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Event, receive: Receive, nodes: list[int]) -> bytes:
        call = CALLS.get(scope["path"].removeprefix("/v1/fleet/"))
        if call is None or scope["method"] != "POST" or not scope["path"].startswith("/v1/fleet/"):
            raise RejectedError(404, "there is nothing here")
        key = signed_by({name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]})
        node = await asyncio.to_thread(self.state.get_node_id_by_public_key, key)
        if node is None:
            raise RejectedError(403, UNKNOWN)
        nodes.append(node)
        if (why := self.objection(key)) is not None:
            raise RejectedError(403, why)
        if scope.get("client"):
            self.strangers.known(tuple(scope["client"]))
        request = call.request()
        try:
            request.ParseFromString(await _body(receive))
        except DecodeError:
            raise RejectedError(400, "it is not a request") from None
        if claimed(request) not in (key, node):
            raise RejectedError(403, "it speaks for another")
        answer = await asyncio.to_thread(self._answered, call, request)
        if self.attendance is not None and call.request in (ActivateNodeRequest, DeactivateNodeRequest):
            told = self.attendance.came if call.request is ActivateNodeRequest else self.attendance.left
            await asyncio.to_thread(told, node)
        return answer

    def _answered(self, call: Call, request: Message) -> bytes:
        try:
            answer: bytes = call.answer(self.state, request).SerializeToString()
            return answer
        except FlowerError as error:  # mostly of a run that is over
            raise RejectedError(OVER, f"code {error.code}") from None


def _refusal(error: Exception) -> tuple[int, str]:
    """The status and the reason of what is not answered; uvicorn would print what nobody foresaw."""
    if isinstance(error, RejectedError):
        return error.status, str(error)
    LOG.error("a call has failed", exc_info=error)
    return 500, type(error).__name__


def signed_by(head: Mapping[str, str]) -> bytes:
    """The public key whose owner has signed the time of a request.

    Raises:
        RejectedError: nobody has, or not now.
    """
    try:
        key, signature = (
            b64decode(head[name.lower()], validate=True)
            for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
        )
        stamp = head[TIMESTAMP_HEADER.lower()]
        age = (now() - datetime.datetime.fromisoformat(stamp)).total_seconds()
        valid = verify_signature(bytes_to_public_key(key), stamp.encode("ascii"), signature)
    except (KeyError, ValueError, TypeError, AttributeError, UnsupportedAlgorithm):
        raise RejectedError(401, "it has no key") from None
    if not valid:
        raise RejectedError(401, "it has no key")
    if not -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE:
        raise RejectedError(401, f"{STALE} (it is {abs(age):.0f} s {'behind' if age > 0 else 'ahead'})")
    return key


def claimed(request: Any) -> bytes | int:
    """Who a request says it is of: a public key, or the number of a node."""
    if isinstance(request, ActivateNodeRequest):
        return request.public_key
    return int(request.node_id if isinstance(request, DeactivateNodeRequest) else request.node.node_id)


async def _body(receive: Receive) -> bytes:
    parts, size, more = [], 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise RejectedError(400, "it broke off")
        parts.append(event.get("body", b""))
        size, more = size + len(parts[-1]), event.get("more_body", False)
        if size > LARGEST:
            raise RejectedError(413, "it is too large")
    return b"".join(parts)
