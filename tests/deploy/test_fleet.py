"""What listens answers registered clients, each for itself, and nobody else anything."""

from __future__ import annotations

import asyncio
import datetime
import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from fastapi.routing import APIRoute, iter_route_contexts
from flwr.app import ConfigRecord, Message
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    ActivateNodeResponse,
    PullMessagesRequest,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

from protofed.deploy.fleet import CALLS, LARGEST, STALE, TWICE, Fleet
from protofed.deploy.link import LinkGrid, clear, new_run, open_state, register
from protofed.deploy.members import UNKNOWN
from protofed.deploy.pki import make_client_key
from protofed.deploy.records import from_records, to_records
from protofed.deploy.wire import LOST, pack
from protofed.errors import LostError


class Caller:
    """Somebody with a key, which may be registered."""

    def __init__(self, place: Path, name: str, state: SqlLinkState | None) -> None:
        self.key = make_client_key(place / name)
        self.public = public_key_to_bytes(self.key.public_key())
        self.number = 7 if state is None else register(state, self.public, name)

    @property
    def node(self) -> Node:
        return Node(node_id=self.number)

    def head(self, age: float = 0.0) -> dict[str, str]:
        """What Flower's client says of itself."""
        stamp = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=age)).isoformat()
        return signed(self.public, stamp, sign_message(self.key, stamp.encode()))


def signed(public: bytes, stamp: str, signature: bytes) -> dict[str, str]:
    keys = {"flwr-public-key": b64encode(public).decode(), "flwr-signature": b64encode(signature).decode()}
    return keys | {"flwr-timestamp": stamp}


@pytest.fixture
def state(tmp_path: Path) -> SqlLinkState:
    return open_state(tmp_path / "state.db")


class Answer:
    """What came back, and how much of the body was read for it."""

    def __init__(self) -> None:
        self.status, self.body, self.read = 0, b"", 0

    @property
    def why(self) -> str:
        return str(json.loads(self.body)["error"])


def call(state: SqlLinkState, path: str, head: dict[str, str], *body: bytes, method: str = "POST") -> Answer:
    """One request, in parts."""
    answer = Answer()
    scope = {"type": "http", "path": path, "method": method}
    names = [(name.encode(), value.encode()) for name, value in head.items()]

    async def receive() -> dict[str, Any]:
        answer.read += 1
        more = answer.read < len(body)
        return {"type": "http.request", "body": body[answer.read - 1] if body else b"", "more_body": more}

    async def send(event: Any) -> None:
        answer.status = event.get("status", answer.status)
        answer.body += event.get("body", b"")

    asyncio.run(Fleet(state)({**scope, "headers": names}, receive, send))
    return answer


def ask(state: SqlLinkState, caller: Caller, name: str, request: Any, age: float = 0.0) -> Answer:
    return call(state, f"/v1/fleet/{name}", caller.head(age), request.SerializeToString())


def test_nothing_else_of_flowers_server_is_there(state: SqlLinkState, tmp_path: Path) -> None:
    """Control, runtime and documentation: every address of it, also for a client with its own key."""
    from flwr.superlink.main import create_app

    caller = Caller(tmp_path, "mine", state)
    contexts = list(iter_route_contexts(create_app().routes))
    paths = {context.route.path for context in contexts if isinstance(context.route, APIRoute)}
    paths |= {"/", "/docs", "/openapi.json", "/v1/fleet", "/v1/fleet/", "/v1/fleet/../control/start-run", "/metrics"}
    ours = {f"/v1/fleet/{name}" for name in CALLS}
    assert len(paths - ours) > 30
    assert {path for path in paths if path.startswith("/v1/fleet/")} >= ours
    for path in paths - ours:
        for method in ("POST", "GET", "PUT"):
            answer = call(state, path, caller.head(), b"x", method=method)
            assert (answer.status, answer.read) == (404, 0), path
    for name in CALLS:
        assert call(state, f"/v1/fleet/{name}", caller.head(), method="GET").status == 404


def test_who_has_no_registered_key_is_not_even_read(state: SqlLinkState, tmp_path: Path) -> None:
    mine, stranger = Caller(tmp_path, "mine", state), Caller(tmp_path, "other", None)
    stamp = datetime.datetime.now(datetime.UTC).isoformat()
    numbers = rsa.generate_private_key(65537, 2048).public_key()
    wrong_kind = numbers.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    theirs = sign_message(stranger.key, stamp.encode())
    for head, status, why in (
        ({}, 401, "it has no key"),
        (stranger.head(), 403, UNKNOWN),
        (signed(mine.public, stamp, theirs), 401, "it has no key"),
        (signed(mine.public, "yesterday", theirs), 401, "it has no key"),
        (signed(b"no key", stamp, theirs), 401, "it has no key"),
        (signed(wrong_kind, stamp, theirs), 401, "it has no key"),
        (mine.head() | {"flwr-signature": "*"}, 401, "it has no key"),
        (mine.head(age=3600), 401, f"{STALE} (it is 36"),
        (mine.head(age=-3600), 401, f"{STALE} (it is 3"),
    ):
        for name in CALLS:
            answer = call(state, f"/v1/fleet/{name}", head, b"x" * 100)
            assert (answer.status, answer.why.startswith(why), answer.read) == (status, True, 0), name


def test_a_request_is_no_larger_than_a_part_of_a_message(state: SqlLinkState, tmp_path: Path) -> None:
    mine = Caller(tmp_path, "mine", state)
    answer = call(state, "/v1/fleet/push-object", mine.head(), *[b"x" * (LARGEST // 2)] * 9)
    assert (answer.status, answer.read) == (413, 3)
    assert call(state, "/v1/fleet/push-object", mine.head(), b"\xff\xff").status == 400


def test_a_client_speaks_for_itself_alone(state: SqlLinkState, tmp_path: Path) -> None:
    mine, other = Caller(tmp_path, "mine", state), Caller(tmp_path, "other", state)
    beat = SendNodeHeartbeatRequest(node=other.node, heartbeat_interval=30)
    for name, request in (
        ("activate-node", ActivateNodeRequest(public_key=other.public, heartbeat_interval=30)),
        ("send-node-heartbeat", beat),
        ("pull-messages", PullMessagesRequest(node=other.node)),
    ):
        answer = ask(state, mine, name, request)
        assert (answer.status, answer.why) == (403, "it speaks for another")
    assert ask(state, other, "send-node-heartbeat", beat).status == 200


def test_who_is_there_already_is_told_so(state: SqlLinkState, tmp_path: Path) -> None:
    mine = Caller(tmp_path, "mine", state)
    hello = ActivateNodeRequest(public_key=mine.public, heartbeat_interval=30)
    first, second = (ask(state, mine, "activate-node", hello) for _ in range(2))
    assert ActivateNodeResponse.FromString(first.body).node_id == mine.number
    assert (second.status, second.why) == (409, TWICE)


def test_a_client_says_how_often_it_is_heard_of_within_bounds(state: SqlLinkState, tmp_path: Path) -> None:
    mine = Caller(tmp_path, "mine", state)
    for interval in (0.0, 1e300):
        hello = ActivateNodeRequest(public_key=mine.public, heartbeat_interval=interval)
        assert ask(state, mine, "activate-node", hello).status == 400


def test_a_key_is_registered_once(state: SqlLinkState, tmp_path: Path) -> None:
    mine = Caller(tmp_path, "mine", state)
    assert register(state, mine.public, "again") == mine.number


def nothing() -> None:
    """The server runs."""


def asked(grid: LinkGrid, caller: Caller, state: SqlLinkState) -> tuple[Message, str]:
    """A message of a run, as its client gets it, and its number."""
    hello = ActivateNodeRequest(public_key=caller.public, heartbeat_interval=30)
    assert ask(state, caller, "activate-node", hello).status == 200
    assert grid.get_node_ids() == [caller.number]
    (number,) = grid.push_messages([Message(to_records(pack({"a": 1})), caller.number, "train", ttl=60.0)])
    (message,) = state.get_message_ins(caller.number, 1)
    return message, number


class Pushing:
    """A client that answers a message part by part."""

    def __init__(self, state: SqlLinkState, caller: Caller, answer: Message) -> None:
        answer.metadata.__dict__["_message_id"] = answer.object_id
        self.state, self.caller, self.run = state, caller, answer.metadata.run_id
        self.told = message_to_proto(remove_content_from_message(answer))
        self.tree = get_object_tree(answer)
        self.parts = {name: part.deflate() for name, part in get_all_nested_objects(answer).items()}

    def begin(self, caller: Caller | None = None) -> Answer:
        """What the server says to the head of it."""
        caller = caller or self.caller
        asked = PushMessagesRequest(node=caller.node, messages_list=[self.told], message_object_trees=[self.tree])
        return ask(self.state, caller, "push-messages", asked)

    def push(self, name: str, session: str) -> None:
        """One part."""
        asked = PushObjectRequest(node=self.caller.node, run_id=self.run, session_id=session)
        asked.object_id, asked.object_content = name, self.parts[name]
        assert ask(self.state, self.caller, "push-object", asked).status == 200


def test_an_answer_comes_when_all_its_parts_have(state: SqlLinkState, tmp_path: Path) -> None:
    mine, other = Caller(tmp_path, "mine", state), Caller(tmp_path, "other", state)
    with new_run(state, nothing) as grid:
        message, number = asked(grid, mine, state)
        pushing = Pushing(state, mine, Message(to_records(pack({"b": 2})), reply_to=message))
        refused = pushing.begin(other)
        assert (refused.status, refused.why) == (403, "it answers for another")
        wanted = PushMessagesResponse.FromString(pushing.begin().body)
        assert {*wanted.objects_to_push} == pushing.parts.keys()
        for name in wanted.objects_to_push:
            assert grid.pull_messages([number]) == []
            pushing.push(name, wanted.session_id)
        (found,) = grid.pull_messages([number])
        assert json.loads(from_records(found.content).text)["b"] == 2
        assert found.metadata.reply_to_message_id == number
    (status,) = state.get_run_status({grid.number}).values()
    assert (status.status, status.sub_status) == ("finished", "completed")
    assert len(state.object_store) == 0  # nothing is left of it


@pytest.mark.parametrize("what", ["another number", "no tree", "too many parts"])
def test_an_answer_that_is_none_is_not_taken(what: str, state: SqlLinkState, tmp_path: Path) -> None:
    mine = Caller(tmp_path, "mine", state)
    with new_run(state, nothing) as grid:
        message, number = asked(grid, mine, state)
        pushing = Pushing(state, mine, Message(to_records(pack({"b": 2})), reply_to=message))
        if what == "another number":
            pushing.told.metadata.message_id = "0" * 64
        elif what == "no tree":
            pushing.tree = ObjectTree()
        else:
            pushing.tree.children.extend(ObjectTree(object_id=f"{n:064x}") for n in range(1001))
        assert pushing.begin().status == 400
        assert grid.pull_messages([number]) == []


def test_an_answer_that_cannot_be_read_ends_nothing_else(state: SqlLinkState, tmp_path: Path) -> None:
    """A root that is no message: Flower trusts it to be one."""
    mine = Caller(tmp_path, "mine", state)
    with new_run(state, nothing) as grid:
        message, number = asked(grid, mine, state)
        pushing = Pushing(state, mine, Message(to_records(pack({"b": 2})), reply_to=message))
        record = ConfigRecord({"a": "b"})
        pushing.told.metadata.message_id, pushing.tree = record.object_id, get_object_tree(record)
        pushing.parts = {record.object_id: record.deflate()}
        wanted = PushMessagesResponse.FromString(pushing.begin().body)
        pushing.push(record.object_id, wanted.session_id)
        (found,) = grid.pull_messages([number])
        assert (found.has_error(), found.error.code) == (True, LOST)
        assert found.metadata.reply_to_message_id == number


def test_an_answer_is_no_larger_than_any_is(
    state: SqlLinkState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("protofed.deploy.link.LARGEST", 50)
    mine = Caller(tmp_path, "mine", state)
    with new_run(state, nothing) as grid:
        message, number = asked(grid, mine, state)
        pushing = Pushing(state, mine, Message(to_records(pack({"b": "x" * 100})), reply_to=message))
        wanted = PushMessagesResponse.FromString(pushing.begin().body)
        for name in wanted.objects_to_push:
            pushing.push(name, wanted.session_id)
        (found,) = grid.pull_messages([number])
        assert (found.error.code, found.error.reason) == (LOST, "its answer is too large")


def test_a_run_ends_with_the_server(state: SqlLinkState) -> None:
    def ended() -> None:
        raise LostError("the server is not running")

    with pytest.raises(LostError, match="not running"), new_run(state, ended) as grid:
        grid.get_node_ids()
    (status,) = state.get_run_status({grid.number}).values()
    assert (status.sub_status, status.details) == ("failed", "the server is not running")


def test_what_a_killed_run_left_is_cleared(
    state: SqlLinkState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = Caller(tmp_path, "mine", state)
    with new_run(state, nothing) as grid:
        asked(grid, mine, state)
        before = len(state.object_store)
        clear(state)
        assert len(state.object_store) == before  # it is still going on
        monkeypatch.setattr(state, "cleanup_run", lambda _: None)  # killed before it could
    monkeypatch.undo()
    assert len(state.object_store) == before
    clear(state)
    assert len(state.object_store) == 0
