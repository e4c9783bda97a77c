"""Who is connected to a server, who was and who was turned away, as its events tell it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping

from protofed.deploy.events import CONNECTIONS, Events

REASONS = {
    400: "malformed",
    401: "not_signed",
    403: "not_admitted",
    404: "unknown_call",
    408: "no_key_in_time",
    409: "connected_already",
    413: "too_large",
}
"""What somebody is turned away for, by the status of the answer."""
UNHEARD = "nothing was heard of it"


class Attendance:
    """Those that are there.

    Args:
        events: the server's; who is turned away is recorded in a file beside it.
        clients: the client of each node, as the server knows them now.
    """

    def __init__(self, events: Events, clients: Callable[[], Mapping[int, int]]) -> None:
        self.events, self.clients = events, clients
        self._turned_away = Events(events.path.with_name(CONNECTIONS))
        self.here: set[int] = set()  # nodes
        self.refusals: Counter[str] = Counter()  # by reason
        self._mutex = threading.Lock()

    def came(self, node: int) -> None:
        """A client has connected."""
        with self._mutex:
            if node not in self.here:
                self.here.add(node)
                self.events.write_some(kind="client.connected", client=self.clients().get(node))

    def left(self, node: int, why: str = "it went") -> None:
        """A client has gone, or is taken to have."""
        with self._mutex:
            if node in self.here:
                self.here.remove(node)
                self.events.write_some(kind="client.gone", client=self.clients().get(node), why=why)

    def look(self, online: Collection[int]) -> None:
        """Compare with those that the server has heard of within a minute."""
        for node in self.here - set(online):
            self.left(node, UNHEARD)
        for node in set(online) - self.here:  # it was there when the server began
            self.came(node)

    def refused(self, address: str, status: int, why: str, node: int | None) -> None:
        """Somebody was turned away, whose address is the last that is known of the way here."""
        self.refusals[REASONS.get(status, "failed")] += 1
        client = None if node is None else self.clients().get(node)
        self._turned_away.write_some(kind="connection", client=client, address=address, refused=why)

    def close(self) -> None:
        """Write what was only counted so far."""
        self.events.close()
        self._turned_away.close()
