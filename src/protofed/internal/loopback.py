"""Pages for this machine alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from protofed.errors import UserError

HERE = "127.0.0.1"
"""Where pages are."""
AT_ONCE = 16
"""Requests that are answered at a time; more are turned away."""
PATIENCE = 10.0
"""Seconds in which a request must come."""


class Page(NamedTuple):
    """What is at an address."""

    text: Callable[[], str]  # as it is now; a UserError is an address that is not there
    kind: str = "text/html"


class _Handler(BaseHTTPRequestHandler):
    """Looks at the name that it is called by, and at the path."""

    server: _Server
    timeout = PATIENCE

    def do_GET(self) -> None:
        """Only for this machine by its own name: a foreign page may have its name point here."""
        own = [f"{name}:{self.connection.getsockname()[1]}" for name in (HERE, "localhost")]
        page = self.server.pages.get(self.path)
        if self.headers.get("Host") not in own:
            self.send_error(403)
        elif page is None:
            self.send_error(404)
        else:
            try:
                self._send(page.text(), page.kind)
            except UserError:  # the folder is gone
                self.send_error(404)

    def _send(self, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        # Whatever a name contains, nothing is asked of any other machine.
        self.send_header("Content-Security-Policy", "default-src 'self' 'unsafe-inline'; img-src data:")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing for each request."""


class _Server(ThreadingHTTPServer):
    """Answers so many requests at a time."""

    def __init__(self, port: int, pages: Mapping[str, Page]) -> None:
        self.pages, self.places = pages, threading.BoundedSemaphore(AT_ONCE)
        super().__init__((HERE, port), _Handler)

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


def loopback_server(port: int, pages: Mapping[str, Page], flag: str = "--port") -> ThreadingHTTPServer:
    """A server of some pages, which is about to answer.

    Args:
        port: where it listens; 0 is any free one.
        pages: by their path.
        flag: the option that named the port.

    Raises:
        UserError: nothing can listen there.
    """
    try:
        return _Server(port, pages)
    except (OSError, OverflowError) as error:
        raise UserError(flag, port, f"it cannot be used: {error}") from None
