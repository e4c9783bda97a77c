"""Fetching files, from a server that the test runs."""

from __future__ import annotations

import hashlib
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from protofed.data.sources import download
from protofed.data.sources.download import fetch
from protofed.data.sources.files import File, Form, Source
from protofed.errors import UserError
from tests.support.toy_data import toy

CONTENT = bytes(range(256)) * 1000


class Server(BaseHTTPRequestHandler):
    """Serves CONTENT; /short breaks off, /none has none, /plain knows no ranges, /stall never ends."""

    asked: list[str | None] = []  # noqa: RUF012 - the server makes a new handler for each request

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        Server.asked.append(wanted)
        if self.path == "/none":
            self.send_error(404)
            return
        begin = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and self.path != "/plain" else 0
        if begin >= len(CONTENT):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(CONTENT) - begin))
        self.end_headers()
        if self.path == "/stall":
            self.wfile.flush()
            STALLED.wait(5)
            return
        end = len(CONTENT) // 2 if self.path == "/short" and not begin else len(CONTENT)
        self.wfile.write(CONTENT[begin:end])

    def log_message(self, *_: object) -> None:
        """Say nothing."""


STALLED = threading.Event()


@pytest.fixture
def server() -> Iterator[str]:
    Server.asked.clear()
    STALLED.clear()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}"
    STALLED.set()
    httpd.shutdown()
    httpd.server_close()


def source(url: str, content: bytes = CONTENT) -> Source:
    file = File("a.bin", f"sha256:{hashlib.sha256(content).hexdigest()}", url)
    return Source("toys", "none", 10, (1, 2, 2), (Form((file,), lambda *_: toy(1), 1, 1),))


def test_a_file_is_fetched_once_and_checked(server: str, tmp_path: Path) -> None:
    _, paths = fetch("toys", source(f"{server}/whole"), tmp_path)
    assert paths == [tmp_path / "toys" / "a.bin"]
    assert paths[0].read_bytes() == CONTENT
    assert fetch("toys", source(f"{server}/whole"), tmp_path)[1] == paths
    assert len(Server.asked) == 1
    assert [path.name for path in paths[0].parent.iterdir()] == ["a.bin"]


def test_without_a_folder_it_goes_into_the_cache(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch("toys", source(f"{server}/whole"), None)[1] == [tmp_path / "protofed" / "downloads" / "toys" / "a.bin"]


def test_a_transfer_that_broke_off_goes_on(server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it needs a\.bin for toys: the transfer from 127\.0\.0\.1 broke off"):
        fetch("toys", source(f"{server}/short"), tmp_path)
    begun = (tmp_path / "toys" / "a.bin.part").read_bytes()
    assert 0 < len(begun) <= len(CONTENT) // 2
    assert CONTENT.startswith(begun)
    assert fetch("toys", source(f"{server}/short"), tmp_path)[1][0].read_bytes() == CONTENT
    assert Server.asked == [None, f"bytes={len(begun)}-"]


def test_a_server_without_ranges_starts_over(server: str, tmp_path: Path) -> None:
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "a.bin.part").write_bytes(CONTENT[:1000])
    assert fetch("toys", source(f"{server}/plain"), tmp_path)[1][0].read_bytes() == CONTENT


def test_a_part_that_is_whole_is_taken(server: str, tmp_path: Path) -> None:
    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "a.bin.part").write_bytes(CONTENT)
    assert fetch("toys", source(f"{server}/whole"), tmp_path)[1][0].read_bytes() == CONTENT


def test_a_wrong_file_is_not_kept(server: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"it needs a\.bin for toys: the hash"):
        fetch("toys", source(f"{server}/whole", b"something else"), tmp_path)
    assert not (tmp_path / "toys").exists()


def test_what_is_not_there_is_said(server: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"for --data-dir: it needs a\.bin for toys: 127\.0\.0\.1 answers 404\nhint: get a\.bin from http",
    ) as caught:
        fetch("toys", source(f"{server}/none"), tmp_path)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_says_nothing_more_is_not_waited_for(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "TIMEOUT", (0.2, 0.2))
    with pytest.raises(UserError, match=r"it needs a\.bin for toys: 127\.0\.0\.1 timed out"):
        fetch("toys", source(f"{server}/stall"), tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # takes the connection and never answers
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a"
        with pytest.raises(UserError, match=r"it needs a\.bin for toys: 127\.0\.0\.1 timed out"):
            fetch("toys", source(url), tmp_path)


def test_without_pooch_it_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(UserError, match=r"it needs a\.bin.*pip install 'protofed\[download\]'"):
        fetch("toys", source("http://127.0.0.1:9/a"), tmp_path)


def test_what_has_no_link_is_not_fetched(tmp_path: Path) -> None:
    form = Form((File("a.bin"),), lambda *_: toy(1), 1, 1)
    with pytest.raises(UserError, match=r"get a\.bin from https://example\.org/page"):
        fetch("toys", Source("toys", "none", 10, (1, 2, 2), (form,), page="https://example.org/page"), tmp_path)
