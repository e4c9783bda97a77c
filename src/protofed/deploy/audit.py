"""What the events of one side come to, for whoever is responsible for the data: who asked, what left, what did not."""

from __future__ import annotations

import datetime
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import Any, Literal

from protofed.deploy.events import CONNECTIONS, Event, Reader, events_of, shown
from protofed.errors import UserError, unknown

TURNS = ("train", "train.masked")
"""Kinds of messages that are answered by what was trained."""
ABOUT_MEMBERS = ("member", "connection", "client.connected", "client.gone", "connected", "disconnected")
MOST = 200
"""Lines of a table."""


@dataclass
class Shared:
    """What has left one client in one run."""

    client: int | None
    turns: int = 0
    tests: int = 0  # whose accuracies have left
    others: int = 0  # messages about the run, such as who takes part
    bytes_left: int = 0
    bytes_came: int = 0
    sent: list[str] = field(default_factory=list)  # of weights, prototypes, numbers, sums, accuracies, metrics
    samples: int | None = None  # that it trained on; the fewest
    clip: float | None = None
    noise: float | None = None


@dataclass
class AuditedRun:
    """What was asked under one run's name."""

    run: str
    method: str
    began: str
    ended: str
    asked: int | None = None  # rounds that the experiment has
    rounds: list[int] = field(default_factory=list)  # that were asked for
    min_count: int | None = None
    secure: bool = False
    how: str = ""  # it has ended, as far as that is known
    shared: dict[str, Shared] = field(default_factory=dict)  # by client


@dataclass
class Repeated:
    """Something that happened several times."""

    what: str
    who: str
    times: int
    first: str
    last: str


@dataclass(frozen=True)
class Change:
    """Something that an owner or an operator has changed."""

    time: str
    what: str


@dataclass
class Audit:
    """A report on one side's events."""

    side: Literal["client", "server"]
    folder: str
    first: str = ""  # of the events that it is made of
    last: str = ""
    events: int = 0
    unreadable: int = 0  # lines
    lost: int = 0  # events that a full disk did not take
    runs: dict[str, AuditedRun] = field(default_factory=dict)
    refused: list[Repeated] = field(default_factory=list)
    limits: list[Change] = field(default_factory=list)
    members: list[Change] = field(default_factory=list)
    connections: list[Repeated] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


def audit(
    folder: Path,
    since: datetime.datetime | None = None,
    until: datetime.datetime | None = None,
    run: str | None = None,
) -> Audit:
    """Read a client's or a federation's events.

    Args:
        folder: of the client, or of the federation.
        since: the first moment.
        until: the moment before which all is.
        run: the name of a run, or its beginning.

    Raises:
        UserError: there are no events, or none of that run.
    """
    path = events_of(folder)
    if not path.is_file():
        raise UserError(
            "DIR", str(folder), f"it has no {path.relative_to(folder)}", hint="nothing was started there yet"
        )
    readers = Reader(path), Reader(path.with_name(CONNECTIONS))
    made = _Making("server" if path.parent != folder else "client", folder)
    names: set[str] = set()
    for event in merge(*(reader.read() for reader in readers), key=attrgetter("time")):
        names |= {event.run} - {"", "None"}
        within = (since is None or event.time >= since) and (until is None or event.time < until)
        made.note_limits(event, within)
        if within and (run is None or event.run.startswith(run) or event.kind == "events.lost"):
            made.add(event)
    if run is not None and not any(name.startswith(run) for name in names):
        raise unknown("--run", run, names)
    made.found.unreadable = sum(reader.unreadable for reader in readers)
    return made.found


def moment(flag: str, text: str | None, ends: bool = False) -> datetime.datetime | None:
    """A day, or a time; in UTC, unless it says another zone. Of a day that ends something, the end."""
    if text is None:
        return None
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise UserError(flag, text, "it must be a day as 2026-01-31, or a time as 2026-01-31T12:00") from None
    if re.fullmatch(r"[0-9-]{8,10}", text) and ends:
        found += datetime.timedelta(days=1)
    return found.replace(tzinfo=datetime.UTC) if found.tzinfo is None else found


class _Making:
    """An audit, as events are read."""

    def __init__(self, side: Literal["client", "server"], folder: Path) -> None:
        self.found = Audit(side, str(folder))
        self._refused: dict[tuple[str, str], Repeated] = {}
        self._connections: dict[tuple[str, str], Repeated] = {}
        self._said: Any = None  # the owner's limits so far
        self._digest = ""

    def add(self, event: Event) -> None:
        """One that the report is about."""
        found, at = self.found, _at(event)
        found.first, found.last, found.events = found.first or at, at, found.events + event.times
        if event.kind == "events.lost":
            found.lost += event.times
        elif event.kind == "member":
            key = event.more.get("key")
            named = f", key {key}" if isinstance(key, str) else ""
            found.members.append(Change(at, f"client {event.client} was {event.more.get('change')}{named}"))
        elif event.kind in ABOUT_MEMBERS:
            self._connection(event)
        elif event.kind == "round":
            self._round(event)
        elif event.kind.startswith("run.") or (event.run not in ("", "None") and not event.why_not):
            self._message(event)
        if event.why_not and event.kind not in ABOUT_MEMBERS:
            self._refuse(event, event.why_not, event.client)

    def note_limits(self, event: Event, reported: bool) -> None:
        """What the owner allows, where it has changed."""
        digest, says = event.more.get("digest"), event.more.get("limits")
        if event.kind != "limits" or not isinstance(says, dict) or digest == self._digest:
            return
        before, self._said, self._digest = self._said, says, str(digest)
        if before is None:
            what = "began with " + ", ".join(f"{name} {_value(value)}" for name, value in says.items())
        else:
            names = [name for name in {**before, **says} if before.get(name) != says.get(name)]
            changes = [f"{name} {_value(before.get(name))} became {_value(says.get(name))}" for name in names]
            what = "; ".join(changes) or "client.yaml changed, but none of its limits"
        if reported:
            self.found.limits.append(Change(_at(event), f"{what} (client.yaml {self._digest[:12]})"))

    def _message(self, event: Event) -> None:
        found = self.found.runs.get(event.run)
        if found is None:
            found = AuditedRun(event.run, event.method, _at(event), _at(event))
            if event.run:
                self.found.runs[event.run] = found
        found.ended, found.method = _at(event), event.method or found.method
        if event.kind == "run.begin":
            found.asked, found.min_count = _whole(event, "rounds"), _whole(event, "min_count")
            found.secure = event.more.get("secure") is True
        elif event.kind == "run.end":
            found.how = str(event.more.get("ended"))
        elif event.step != "asked":
            self._answered(found, event)
        else:
            self._shared(found, event).bytes_came += event.bytes_out

    def _answered(self, run: AuditedRun, event: Event) -> None:
        """What has left a client; at a server, what came from it."""
        one = self._shared(run, event)
        parts = event.more.get("sent")
        sent = [shown(str(part)) for part in parts] if isinstance(parts, list) else []
        one.sent += [part for part in sent if part not in one.sent]
        one.turns += event.times if event.kind in TURNS else 0
        one.tests += event.times if "accuracies" in sent else 0
        one.others += event.times if event.kind not in TURNS and "accuracies" not in sent else 0
        one.bytes_left += event.bytes_in if event.step else event.bytes_out
        one.bytes_came += 0 if event.step else event.bytes_in
        samples = _whole(event, "samples")
        one.samples = samples if one.samples is None else min(one.samples, samples or one.samples)
        if event.kind in TURNS and event.round is not None and event.round not in run.rounds:
            run.rounds.append(event.round)
        if not event.step and sent:
            run.min_count, run.secure = _whole(event, "min_count"), event.more.get("secure") is True
            one.clip, one.noise = _number(event, "clip"), _number(event, "noise")

    def _shared(self, run: AuditedRun, event: Event) -> Shared:
        return run.shared.setdefault(str(event.client), Shared(event.client))

    def _round(self, event: Event) -> None:
        """At a server: whose answers it refused itself."""
        left_out = event.more.get("left_out")
        for client, why in (left_out if isinstance(left_out, dict) else {}).items():
            if str(why).startswith("refused:"):
                self._refuse(event, f"its answer was {why}", int(client) if str(client).isdecimal() else None)

    def _refuse(self, event: Event, why: str, client: int | None) -> None:
        what = f"{event.kind}: {why}" if event.kind not in ("round", "others") else why
        who = f"run {event.run}" if event.run not in ("", "None") else ""
        if self.found.side == "server":
            who = ", ".join(filter(None, [who, "" if client is None else f"client {client}"]))
        _repeat(self._refused, self.found.refused, what, who, event)

    def _connection(self, event: Event) -> None:
        why = event.refused or event.more.get("why")
        what = "turned away" if event.kind == "connection" else event.kind.removeprefix("client.")
        address = event.more.get("address")
        who = f"client {event.client}" if event.client is not None else "somebody unknown"
        who += f" at {address}" if address else ""
        _repeat(self._connections, self.found.connections, f"{what}: {why}" if why else what, who, event)


def _repeat(known: dict[tuple[str, str], Repeated], listed: list[Repeated], what: str, who: str, event: Event) -> None:
    """Count it with others of its kind, of which there is no end if somebody wants it so."""
    if (what, who) not in known and len(known) >= MOST:
        what, who = "others", ""
    if (what, who) not in known:
        known[what, who] = Repeated(what, who, 0, _at(event), "")
        listed.append(known[what, who])
    known[what, who].times += event.times
    known[what, who].last = _at(event)


def _at(event: Event) -> str:
    return event.time.astimezone(datetime.UTC).isoformat(sep=" ", timespec="seconds").removesuffix("+00:00")


def _whole(event: Event, name: str) -> int | None:
    value = event.more.get(name)
    return value if type(value) is int else None


def _number(event: Event, name: str) -> float | None:
    value = event.more.get(name)
    return float(value) if isinstance(value, int | float) else None


def _value(value: Any) -> str:
    if value is None:
        return "none"
    return ", ".join(map(str, value)) or "nothing" if isinstance(value, list) else str(value)


def in_words(rounds: Sequence[int]) -> str:
    """Rounds as a reader has them: how many, and from which to which."""
    if not rounds:
        return "none"
    low, high = min(rounds), max(rounds)
    if low == high:
        return str(low)
    return f"{low} to {high}" if len(rounds) == high - low + 1 else f"{len(rounds)} of {low} to {high}"
