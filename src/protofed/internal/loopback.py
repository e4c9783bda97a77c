"""Pages for this machine alone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs

from protofed.errors import UserError

HERE = "127.0.0.1"
"""Where pages are."""
AT_ONCE = 16
"""Requests that are answered at a time; more are turned away."""
PATIENCE = 10.0
"""Seconds in which a request must have come, and its answer must have gone."""

HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Whatever a name contains, nothing is asked of any other machine; and no other page shows this one in a frame.
    "Content-Security-Policy": (
        "default-src 'self' 'unsafe-inline'; img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
    ),
}
"""What every answer says; a page may allow itself less."""

Query = Mapping[str, Sequence[str]]
"""What an address says behind its question mark."""


class Page(NamedTuple):
    """What is at an address."""

    text: Callable[[Query], str]  # as it is now; a UserError is told, as of an address that is not there
    kind: str = "text/html"


class _Handler(BaseHTTPRequestHandler):
    """Looks at the name that it is called by, at who asks, and at the path."""

    server: LoopbackServer
    timeout = PATIENCE

    def handle_one_request(self) -> None:
        """A request that comes byte by byte holds its place no longer than one that does not come."""
        self._late = threading.Timer(PATIENCE, self._hang_up)
        self._late.daemon = True
        self._late.start()
        try:
            super().handle_one_request()
        finally:
            self._late.cancel()

    def _hang_up(self) -> None:
        with suppress(OSError):  # it has gone by itself
            self.connection.shutdown(socket.SHUT_RDWR)

    def do_GET(self) -> None:
        """Only for this machine by its own name, and for no page of another place: a foreign one may point here."""
        self._late.cancel()
        own = [f"{name}:{self.connection.getsockname()[1]}" for name in (HERE, "localhost")]
        origin = self.headers.get("Origin")
        path, _, query = self.path.partition("?")
        page = self.server.pages.get(path)
        if self.headers.get("Host") not in own or (origin and origin not in [f"http://{name}" for name in own]):
            self.send_error(403)
        elif page is None:
            self.send_error(404)
        else:
            try:
                answer = 200, page.text(parse_qs(query)), page.kind
            except (UserError, OSError) as error:  # the folder is gone, or a file cannot be read
                answer = 404, " ".join(str(error).split()), "text/plain"
            self._send(*answer)

    def _send(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing for each request."""


class LoopbackServer(ThreadingHTTPServer):
    """Answers so many requests at a time."""

    def __init__(self, port: int, pages: Mapping[str, Page]) -> None:
        self.pages, self.places = pages, threading.BoundedSemaphore(AT_ONCE)
        super().__init__((HERE, port), _Handler)

    @property
    def address(self) -> str:
        """Where its first page is."""
        return f"http://{HERE}:{self.server_address[1]}{next(iter(self.pages))}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, if there is one left."""
        if self.places.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """And give it back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing for a reader that has gone."""


def loopback_server(port: int, pages: Mapping[str, Page], flag: str = "--port") -> LoopbackServer:
    """A server of some pages, which is about to answer.

    Args:
        port: where it listens; 0 is any free one.
        pages: by their path.
        flag: the option that named the port.

    Raises:
        UserError: nothing can listen there.
    """
    try:
        return LoopbackServer(port, pages)
    except (OSError, OverflowError) as error:
        raise UserError(flag, port, f"it cannot be used: {error}") from None
