"""The open port of a server, which nobody can keep busy without a key.

A connection is given little time until a client's key has been seen on it, and only so many may wait for that: then the
oldest of them goes. Clients show their key with the first bytes that they send.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import uvicorn

PATIENCE = 10.0
"""Seconds for the handshake of TLS, and from then on until a client's key is seen."""
MOST_STRANGERS = 200
"""Connections on which no key was seen yet."""
MOST_FILES = 65536
"""Open files that are asked for, of which every connection is one; many machines allow 1024 unless asked."""

Address = tuple[str, int]


class Strangers:
    """Connections on which no client's key was seen so far, by where they come from."""

    def __init__(self) -> None:
        self._there: dict[Address, asyncio.Transport] = {}  # the oldest first

    def came(self, address: Address, connection: asyncio.Transport) -> Sequence[Address]:
        """One more; who goes for it, if there are too many."""
        self._there[address] = connection
        return [] if len(self._there) <= MOST_STRANGERS else self.send_away(*next(iter(self._there.items())))

    def known(self, address: Address) -> None:
        """It is a client, or gone."""
        self._there.pop(address, None)

    def send_away(self, address: Address, connection: asyncio.Transport) -> Sequence[Address]:
        """Its time is over; who goes, if it is no client by now."""
        if self._there.get(address) is not connection:
            return []
        del self._there[address]
        connection.abort()
        return [address]


class Listener(uvicorn.Server):
    """Listens over TLS, for an application that says whom it knows.

    Args:
        application: in ASGI's form.
        strangers: whom it does not know yet.
        sent_away: is told the address of those whose time was over; it may take its time.
        host: where to listen.
        port: where to listen.
        certificate: the file of the server's.
        key: the file of its key.
    """

    def __init__(
        self,
        application: Any,
        strangers: Strangers,
        sent_away: Callable[[str], None],
        host: str,
        port: int,
        certificate: str,
        key: str,
    ) -> None:
        super().__init__(
            uvicorn.Config(
                application,
                host=host,
                port=port,
                ssl_certfile=certificate,
                ssl_keyfile=key,
                lifespan="off",
                ws="none",
                access_log=False,
                log_level="error",  # warnings are of what strangers send, as often as they like
                server_header=False,
                proxy_headers=False,  # a proxy passes TLS through; whoever writes such a header is a stranger
            )
        )
        self.strangers, self.sent_away = strangers, sent_away

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        more_files()
        loop = asyncio.get_running_loop()
        if not self.config.loaded:
            self.config.load()
        kind = self.config.http_protocol_class
        self.config.http_protocol_class = _impatient(kind, self.strangers, self.sent_away)
        # uvicorn has no option for it, and asyncio waits for a minute
        loop.create_server = partial(loop.create_server, ssl_handshake_timeout=PATIENCE)  # type: ignore[method-assign]
        await super().startup(sockets)


def more_files() -> None:
    """As many open files as there may be, up to a number."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _impatient(
    kind: type[asyncio.Protocol], strangers: Strangers, sent_away: Callable[[str], None]
) -> type[asyncio.Protocol]:
    """A connection as uvicorn has it, which is closed if no key is seen on it in time."""

    def tell(gone: Sequence[Address]) -> None:
        for host, _ in gone:
            asyncio.get_running_loop().run_in_executor(None, sent_away, host)

    def late(address: Address, connection: asyncio.Transport) -> None:
        tell(strangers.send_away(address, connection))

    class Impatient(kind):  # type: ignore[misc, valid-type]
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.address = cast(Address, tuple(transport.get_extra_info("peername")[:2]))
            tell(strangers.came(self.address, transport))
            asyncio.get_running_loop().call_later(PATIENCE, late, self.address, transport)

        def connection_lost(self, error: Exception | None) -> None:
            strangers.known(self.address)
            super().connection_lost(error)

    return Impatient
