"""The long-lived processes of a federation: the server's, which listens, and a client's, which calls it."""

from __future__ import annotations

import logging
import re
import signal
import socket
import ssl
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509

from protofed.deploy.attendance import Attendance
from protofed.deploy.events import EVENTS, Events
from protofed.deploy.federation import FederationFolder
from protofed.deploy.joining import check_keys, notes
from protofed.deploy.members import Roster
from protofed.deploy.membership import enrol, warnings
from protofed.deploy.metrics import ClientMetrics, ServerMetrics, served
from protofed.deploy.owner import Owner
from protofed.deploy.pki import expiry, has_ended, note
from protofed.deploy.processes import alone, hangup, logged, require_free, told_to_end
from protofed.deploy.reminder import Reminder
from protofed.deploy.worker import WorkerProcess
from protofed.errors import LostError, UserError
from protofed.internal.version import VERSION

if TYPE_CHECKING:
    import uvicorn

    from protofed.deploy.node import Line

LOG = logging.getLogger("flwr")
LOOK = 5.0
"""Seconds between two looks at who is still connected."""
FIRST_LOOK = 5.0
"""Seconds for a first look at a server."""
NOT_YET, EXPIRED, OTHER_NAME, OTHER_ADDRESS = 9, 10, 62, 64
"""What OpenSSL calls reasons for which a certificate is not valid."""


def serve(federation: FederationFolder, ready: Callable[[], None], metrics_port: int | None = None) -> int:
    """Listen for clients, until told to end."""
    server = federation.server
    with alone(federation.log), told_to_end(signal.SIGINT, signal.SIGTERM, *hangup()) as told:
        _check_certificate(server / "server.pem")
        require_free(federation.host, federation.port)
        enrol(federation, begin=True)
        events = Events(server / EVENTS)
        with logged(federation.log, "server"), ExitStack() as stack:
            from protofed.deploy import fleet, link  # and Flower, for which who is refused does not wait
            from protofed.deploy.listener import Listener

            state = link.open_state(federation.database)
            link.clear(state)
            roster = Roster(federation.members_file)
            attendance = Attendance(events, lambda: {node: client for client, node in federation.nodes().items()})
            application = fleet.Fleet(state, roster.objection, attendance)
            pem, key = server / "server.pem", server / "server.key"
            listening = Listener(
                application,
                application.strangers,
                lambda address: attendance.refused(address, 408, "it showed no key in time", None),
                federation.host,
                federation.port,
                str(pem),
                str(key),
            )
            if metrics_port is not None:
                figures = ServerMetrics(federation, attendance, state.num_message_ins)
                stack.enter_context(served(metrics_port, figures.text))
            events.write(kind="server.start", address=federation.address, version=VERSION)
            reminder = Reminder(_lines(federation), warn, events)
            reminder.look()

            def look() -> None:
                reminder.look()
                attendance.look(link.online(state))

            try:
                _listen(listening, told, ready, look)
            finally:
                attendance.close()
                events.write(kind="server.stop", why="it was told to end" if told else "it has ended by itself")
    if not told:
        raise LostError(f"the server has ended; see {federation.log}")
    return 0


def _lines(federation: FederationFolder) -> Callable[[], list[str]]:
    """What ends soon, also of the certificate that a server has read when it started, whatever is there now."""
    path = federation.server / "server.pem"
    ends = expiry(path)

    def lines() -> list[str]:
        older = note("the certificate that the server started with", ends, "it is renewed; start the server again")
        return [*warnings(federation), *(older if expiry(path) != ends else [])]

    return lines


def _listen(listening: uvicorn.Server, told: list[int], ready: Callable[[], None], look: Callable[[], None]) -> None:
    """Until told to end, or the listener ends by itself; in a thread, where it leaves signals alone."""
    thread = threading.Thread(target=listening.run)
    thread.start()
    try:
        while not told and thread.is_alive() and not listening.started:
            time.sleep(0.02)
        if listening.started:
            ready()
        looked = time.monotonic()
        while not told and thread.is_alive():
            time.sleep(0.1)
            if time.monotonic() - looked > LOOK:
                with suppress(Exception):  # a database that is locked, or has no room: the next look may do
                    look()
                looked = time.monotonic()
    finally:
        listening.should_exit = True
        thread.join()


def _check_certificate(path: Path) -> None:
    """Refuse one that no client would accept."""
    for file in (path, path.with_name("ca.crt")):
        if has_ended(ends := expiry(file)):
            why = f"it expired on {ends.date()}, and no client accepts it any longer"
            raise UserError("FILE", str(file), f"{why}: `protofed deploy renew {path.parent.parent}` makes another")


def warn(line: str) -> None:
    """Say what does not stop anything yet, on the terminal and in the log."""
    print(f"warning: {line}", file=sys.stderr, flush=True)
    LOG.warning("%s", line)


def place_of(folder: Path, number: int) -> Path:
    """A client's folder: itself, or in that of its federation."""
    place = next((one for one in (folder / "clients" / str(number), folder) if (one / "client.yaml").is_file()), None)
    if place is None:
        raise UserError("--id", number, f"{folder} has no clients/{number}/client.yaml")
    return place.resolve()


def owner_at(place: Path, number: int) -> Owner:
    """What client.yaml says there, if it is of this client."""
    path = place / "client.yaml"
    owner = Owner.read(path)
    if owner.id != number:
        raise UserError("--id", number, f"{path} is of client {owner.id}")
    return owner


def join(
    folder: Path, number: int, data: str | None, ready: Callable[[], None], metrics_port: int | None = None
) -> int:
    """One client, until told to end."""
    place = place_of(folder, number)
    owner, path = owner_at(place, number), place / "client.yaml"
    where = re.fullmatch(r".+:([0-9]{1,5})", owner.server or "")
    if owner.server is None or where is None or int(where[1]) > 65535:
        raise UserError(f"server in {path}", owner.server, "it must be the server's address, as HOST:PORT")
    check_keys(place, number)
    name = f"client {number}"
    words = [str(path), "--name", name, *(["--data", data] if data is not None else [])]
    with (
        alone(place / "client.log"),
        told_to_end(signal.SIGINT, signal.SIGTERM, *hangup()) as told,
        WorkerProcess(place, words, told) as worker,
    ):
        check_server(owner.server, place / "ca.crt")
        from protofed.deploy.node import Line, play  # and Flower

        events = Events(place / EVENTS)
        with logged(place / "client.log", name), ExitStack() as stack:
            largest = int(owner.megabytes * 1e6)
            line = Line(owner.server, place / "ca.crt", place / "key", largest, number, events)
            if metrics_port is not None:
                figures = ClientMetrics(place, lambda: line.connected, lambda: worker.pid)
                stack.enter_context(served(metrics_port, figures.text))
            events.write(kind="client.start", client=number, server=owner.server, version=VERSION)
            reminder = Reminder(partial(_own_lines, place, number, owner.server), partial(_tell, line), events)
            try:
                return play(line, worker, told, ready, reminder.look)
            finally:
                events.close()
                events.write(kind="client.stop", client=number)


def _own_lines(place: Path, number: int, address: str) -> list[str]:
    """What ends soon, for a client: of its own certificates, and of the server's if that can be seen."""
    found = [*notes(place, number)]
    with suppress(UserError):
        found += check_server(address, place / "ca.crt")
    return found


def _tell(line: Line, text: str) -> None:
    """Say what does not stop anything yet, as a client does."""
    line.say(f"warning: {text}")
    LOG.warning("%s", text)


def check_server(address: str, authority: Path) -> list[str]:
    """Refuse a server whose certificate is not valid, and tell of one that ends soon; who does not answer may come."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        with (
            socket.create_connection((host, int(port)), FIRST_LOOK) as line,
            ssl.create_default_context(cafile=authority).wrap_socket(line, server_hostname=host) as safe,
        ):
            said = x509.load_der_x509_certificate(safe.getpeercert(binary_form=True) or b"")
        return note("the server's certificate", said.not_valid_after_utc, "whoever runs the server renews it")
    except ssl.SSLCertVerificationError as error:
        raise UserError("server", address, why_not_valid(error, authority)) from None
    except OSError:
        return []


def why_not_valid(error: ssl.SSLCertVerificationError, authority: Path) -> str:
    """What is wrong with a server's certificate, in words."""
    if error.verify_code == EXPIRED:
        return "its certificate has expired: it must be renewed at the server (`protofed deploy renew DIR`)"
    if error.verify_code == NOT_YET:
        return "its certificate is not valid yet: is this machine's clock right?"
    if error.verify_code in (OTHER_NAME, OTHER_ADDRESS):
        return f"its certificate is for another name: {error.verify_message}"
    return f"its certificate is not of this federation ({authority}): {error.verify_message}"
