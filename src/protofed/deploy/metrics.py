"""Figures of a server or a client in Prometheus' text format, at a port of this machine alone."""

from __future__ import annotations

import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from protofed.deploy.attendance import Attendance
from protofed.deploy.events import EVENTS, Event, Reader
from protofed.deploy.federation import FederationFolder
from protofed.deploy.pki import expiry
from protofed.internal.loopback import HERE, Page, loopback_server
from protofed.internal.version import VERSION

FORMAT = "text/plain; version=0.0.4"
"""What Prometheus calls its text format."""
BEGAN = time.time()


class Family(NamedTuple):
    """A metric: a value for each set of labels."""

    name: str
    kind: str  # counter or gauge
    about: str
    values: Mapping[tuple[tuple[str, str], ...], float]


def family(name: str, kind: str, about: str, value: float | None) -> Family:
    """One without labels; without a value, as there is none yet."""
    return Family(name, kind, about, {} if value is None else {(): value})


def by_label(name: str, about: str, label: str, values: Mapping[str, float]) -> Family:
    """A counter with one label."""
    return Family(name, "counter", about, {((label, word),): value for word, value in sorted(values.items())})


def exposition(families: list[Family]) -> str:
    """Families as Prometheus reads them."""
    lines = []
    for name, kind, about, values in families:
        lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
        for labels, value in values.items():
            named = ",".join(f'{label}="{_escaped(word)}"' for label, word in labels)
            lines.append(f"{name}{{{named}}} {_number(value)}" if named else f"{name} {_number(value)}")
    return "\n".join(lines) + "\n"


@contextmanager
def served(port: int, text: Callable[[], str]) -> Iterator[None]:
    """Serve a text at /metrics of a port of this machine."""
    server = loopback_server(port, {"/metrics": Page(lambda _: text(), FORMAT)}, "--metrics-port")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    print(f"metrics: http://{HERE}:{server.server_address[1]}/metrics", flush=True)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Counted:
    """What the events of a folder come to, from now on."""

    def __init__(self, path: Path) -> None:
        self.reader = Reader(path, anew=True)
        self.refusals: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()  # runs
        self.rounds = self.turns = self.bytes_in = self.bytes_out = 0
        self.last_round: float | None = None  # seconds
        self.awaited: set[tuple[int | None, str]] = set()  # clients, and what they were asked
        self._mutex = threading.Lock()

    def look(self) -> None:
        """Count what has come since the last look."""
        with self._mutex:
            for event in self.reader.read():
                self._count(event)

    def _count(self, event: Event) -> None:
        if event.why_not and event.kind not in ("connection", "run.end"):  # those who come are counted elsewhere
            reason = "owner" if event.refused else "late" if event.late else "failed"
            self.refusals[reason] += event.times
        if event.kind == "round":
            self.rounds += 1
            seconds = event.more.get("seconds")
            self.last_round = float(seconds) if isinstance(seconds, int | float) else None
            return  # its bytes are those of its messages
        self.bytes_in += event.bytes_in
        self.bytes_out += event.bytes_out
        self.turns += bool(event.more.get("sent")) and event.kind.startswith("train")
        if event.kind == "run.end":
            self.ended[str(event.more.get("ended"))] += 1
            self.awaited.clear()
        if event.step == "asked" and not event.failed:
            self.awaited.add((event.client, event.kind))
        elif event.step == "answered":
            self.awaited.discard((event.client, event.kind))

    def families(self) -> list[Family]:
        """What both sides have."""
        return [
            family("protofed_received_bytes_total", "counter", "Bytes of messages received.", self.bytes_in),
            family("protofed_sent_bytes_total", "counter", "Bytes of messages sent.", self.bytes_out),
        ]


class ServerMetrics:
    """Figures of a server.

    Args:
        federation: its folder.
        attendance: who is connected.
        waiting: how many messages wait for clients, or for their answers.
    """

    def __init__(self, federation: FederationFolder, attendance: Attendance, waiting: Callable[[], int]) -> None:
        self.federation, self.attendance, self.waiting = federation, attendance, waiting
        self.counted = Counted(federation.server / EVENTS)

    def text(self) -> str:
        """As they are now."""
        self.counted.look()
        counted, there = self.counted, self.attendance
        awaited = len({client for client, _ in counted.awaited})
        refusals = counted.refusals + there.refusals
        return exposition([
            family("protofed_clients_registered", "gauge", "Clients that are registered.", len(there.clients())),
            family("protofed_clients_connected", "gauge", "Clients that are connected.", len(there.here)),
            family("protofed_clients_awaited", "gauge", "Clients whose answer a run waits for.", awaited),
            by_label("protofed_runs_total", "Runs that have ended, by how.", "ended", counted.ended),
            family("protofed_rounds_total", "counter", "Rounds that were played.", counted.rounds),
            family("protofed_last_round_seconds", "gauge", "How long the last round took.", counted.last_round),
            *counted.families(),
            by_label("protofed_refusals_total", "What was refused, failed or late, by reason.", "reason", refusals),
            family("protofed_messages_waiting", "gauge", "Messages that wait, or whose answers do.", self.waiting()),
            _ends(self.federation.server / "server.pem"),
            *_process(),
        ])  # fmt: skip


class ClientMetrics:
    """Figures of a client.

    Args:
        place: its folder.
        connected: whether it is.
        worker: the number of the process that trains, while there is one.
    """

    def __init__(self, place: Path, connected: Callable[[], bool], worker: Callable[[], int | None]) -> None:
        self.place, self.connected, self.worker = place, connected, worker
        self.counted = Counted(place / EVENTS)

    def text(self) -> str:
        """As they are now."""
        self.counted.look()
        counted = self.counted
        memory = _memory(self.worker())
        return exposition([
            family("protofed_connected", "gauge", "Whether the client is connected.", self.connected()),
            family("protofed_turns_total", "counter", "Turns whose upload has left.", counted.turns),
            *counted.families(),
            by_label("protofed_refusals_total", "What was refused or failed, by reason.", "reason", counted.refusals),
            family("protofed_worker_resident_memory_bytes", "gauge", "Memory of the process that trains.", memory),
            _ends(self.place / "ca.crt"),
            *_process(),
        ])  # fmt: skip


def _ends(certificate: Path) -> Family:
    about = "When the certificate ends, in seconds since 1970."
    return family("protofed_certificate_expiry_timestamp_seconds", "gauge", about, expiry(certificate).timestamp())


def _process() -> list[Family]:
    info = Family("protofed_build_info", "gauge", "The version that runs.", {(("version", VERSION),): 1})
    return [
        info,
        family("process_resident_memory_bytes", "gauge", "Memory of this process.", _memory(os.getpid())),
        family("process_start_time_seconds", "gauge", "When this process began, in seconds since 1970.", BEGAN),
    ]


def _memory(process: int | None) -> float | None:
    """Of a process; on Linux, which tells."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def _number(value: float) -> str:
    return str(int(value)) if math.isfinite(value) and value == int(value) else repr(float(value))


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
