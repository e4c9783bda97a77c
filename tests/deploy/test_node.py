"""A client's line to its server: what a server's odd answers come to, and what its owner changes meanwhile."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from protofed.deploy import node
from protofed.deploy.node import Line, NotAdmittedError
from protofed.deploy.pki import make_authority, make_client_key
from protofed.deploy.processes import running
from protofed.deploy.warm_worker import OwnersWord
from protofed.deploy.wire import Packet
from protofed.deploy.worker import WorkerDiedError, WorkerProcess
from protofed.errors import UserError


def line(place: Path, answer: Callable[[httpx.Request], httpx.Response]) -> Line:
    """A client whose server is a function."""
    make_authority(place, 1, "a long passphrase")
    make_client_key(place / "key")
    made = Line("localhost:9", place / "ca.crt", place / "key", 1_000_000)
    made.client._client._mounts = {}
    made.client._client._transport = httpx.MockTransport(answer)
    return made


def test_a_server_cannot_send_a_client_elsewhere(tmp_path: Path) -> None:
    asked: list[str] = []

    def elsewhere(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.host)
        return httpx.Response(307, headers={"location": "http://inside.hospital/records"})

    with pytest.raises(NotAdmittedError, match="status 307"):
        line(tmp_path, elsewhere).connect()
    assert asked == ["localhost"]


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (500, b"<html>broken</html>", "status 500"),
        (404, b"", "status 404"),
        (503, b'{"error": "closed for the night"}', "closed for the night"),
        (409, b'["error"]', "status 409"),
        (409, b'{"error": {"deep": 1}}', "deep"),
    ],
)
def test_what_a_server_says_is_told(status: int, body: bytes, says: str, tmp_path: Path) -> None:
    with pytest.raises(NotAdmittedError, match=says):
        line(tmp_path, lambda _: httpx.Response(status, content=body)).connect()


def test_a_connection_that_breaks_is_tried_again_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    calls = []

    def breaks(times: int) -> Callable[[], str]:
        def call() -> str:
            calls.append(times)
            if len(calls) <= times:
                raise httpx.ReadError("cut")
            return "there"

        calls.clear()
        return call

    assert node._again(breaks(node.TRIES - 1)) == "there"
    assert len(calls) == node.TRIES
    with pytest.raises(httpx.ReadError):
        node._again(breaks(node.TRIES))
    assert len(calls) == node.TRIES


def test_an_owners_word_holds_from_the_next_message_on(tmp_path: Path) -> None:
    path = tmp_path / "client.yaml"
    path.write_text(yaml.safe_dump({"id": 0, "methods": ["fedavg"]}), encoding="utf-8")
    word = OwnersWord(path, None)
    first = word.read()
    assert first is not None
    assert word.read() is None
    path.write_text(yaml.safe_dump({"id": 0, "methods": ["fedproto"]}), encoding="utf-8")
    os.utime(path, ns=(0, word.changed + 1))
    second = word.read()
    assert second is not None
    assert (list(first.methods or ()), list(second.methods or ())) == (["fedavg"], ["fedproto"])
    path.write_text("id: 0\nmethods: 7\n", encoding="utf-8")
    os.utime(path, ns=(0, word.changed + 1))
    for _ in range(2):  # what is wrong stays wrong until it is mended: the old word is not taken up again
        with pytest.raises(UserError):
            word.read()


class Quiet(WorkerProcess):
    """A worker that is ready, and never answers."""

    def start(self) -> None:
        code = (
            "import sys, time; from protofed.deploy.wire import write_frame; "
            "write_frame(sys.stdout.buffer, {'ready': True}); time.sleep(60)"
        )
        self._process = self._stack.enter_context(
            running([sys.executable, "-c", code], self.place / "flower", self.log, pipes=True)
        )
        self._read(None)


def test_who_is_told_to_end_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    told: list[int] = []
    with Quiet(tmp_path, [], told) as worker:
        told.append(2)
        with pytest.raises(WorkerDiedError, match="was ended"):
            worker.answer("turn", Packet("{}", b"", b""), 50.0)
    assert worker._process is None


def test_who_does_not_answer_in_time_is_ended(tmp_path: Path) -> None:
    with Quiet(tmp_path, []) as worker, pytest.raises(WorkerDiedError, match=r"did not answer within 0\.2 s"):
        worker.answer("turn", Packet("{}", b"", b""), 0.2)


def test_who_is_connected_again_is_asked_again_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes a client for gone that it has not heard of: it hears of this one before the next beat is due."""
    told: list[int] = []
    calls: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        name = request.url.path.rpartition("/")[2]
        if name != "pull-messages":
            return httpx.Response(200, content=b"")
        calls.append(name)
        if len(calls) > 2:
            told.append(2)
        return httpx.Response(503 if len(calls) == 1 else 200, content=b"")

    made = line(tmp_path, answer)

    def beat() -> bool:
        if threading.current_thread() is threading.main_thread():  # the others are those of every half minute
            calls.append("beat")
        return True

    monkeypatch.setattr(made, "beat", beat)
    monkeypatch.setattr(node, "PAUSE", 0.0)
    assert node.play(made, Quiet(tmp_path, []), told, lambda: None) == 0
    assert calls[:3] == ["pull-messages", "pull-messages", "beat"]
