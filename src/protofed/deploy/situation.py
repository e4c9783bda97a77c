"""How the federation is at this moment: its run, who has answered, who is awaited, and who was last seen when."""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from protofed.deploy.events import EVENTS, Event, Reader
from protofed.deploy.federation import FederationFolder
from protofed.deploy.processes import is_running
from protofed.errors import UserError
from protofed.internal.loopback import LoopbackServer, Page, loopback_server
from protofed.report import watch
from protofed.report.terminal import TextTable


@dataclass
class Attending:
    """A client, as far as the server's events tell."""

    client: int
    state: str = "never seen"  # connected, gone, removed
    seen: str = ""  # when it was last heard of
    doing: str = ""  # in the round
    since: str = ""  # when that began


@dataclass
class Situation:
    """How a federation is."""

    folder: str
    running: bool  # the server
    state: str = "no run"  # going on, completed, stopped, failed
    why: str = ""  # it failed
    run: str = ""
    method: str = ""
    out: str = ""
    rounds: int = 0
    round: int = 0  # that clients were asked for last
    done: int = 0  # rounds that are over
    score: str = ""
    accuracy: float | None = None  # of the last round that was tested
    members: dict[int, Attending] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)  # of the last round

    def to_json(self) -> str:
        """What the page asks for."""
        listed = [asdict(one) for _, one in sorted(self.members.items())]
        return json.dumps({**asdict(self), "members": listed, "left_out": list(self.left_out.items())})


class Watching:
    """Follows the events of a federation.

    Args:
        federation: its folder.
    """

    def __init__(self, federation: FederationFolder) -> None:
        self.federation = federation
        self._reader = Reader(federation.server / EVENTS)
        self._mutex = threading.Lock()
        self._now = Situation(str(federation.folder), False)

    def look(self) -> Situation:
        """As it is now, for one reader at a time."""
        with self._mutex:
            return self._looked()

    def _looked(self) -> Situation:
        now = self._now
        now.running = is_running(self.federation.log)
        for client in self.federation.nodes():
            now.members.setdefault(client, Attending(client))
        for event in self._reader.read():
            self._add(event)
        if now.out and now.state == "going on" and (Path(now.out) / "config.yaml").is_file():
            self._scores(Path(now.out))
        return now

    def _add(self, event: Event) -> None:
        now, at = self._now, event.time.astimezone(datetime.UTC).isoformat(timespec="seconds")
        if event.kind == "run.begin":
            self._begin(event)
        elif event.kind == "run.end":
            now.state, now.why = str(event.more.get("ended")), event.failed
            if now.out and (Path(now.out) / "config.yaml").is_file():
                self._scores(Path(now.out))
            for one in now.members.values():
                one.doing = one.since = ""
        elif event.kind == "round":
            now.done = event.round or now.done
            left_out = event.more.get("left_out")
            now.left_out = {str(k): str(v) for k, v in left_out.items()} if isinstance(left_out, Mapping) else {}
        if event.client is None:
            return
        member = now.members.setdefault(event.client, Attending(event.client))
        if event.kind in ("client.connected", "client.gone"):
            member.state, member.seen = event.kind.removeprefix("client."), at
        elif event.kind == "member":
            member.state = {"removed": "removed"}.get(str(event.more.get("change")), member.state)
        elif event.step == "asked":
            if event.round is not None and event.round != now.round:
                now.round = event.round
                for one in now.members.values():
                    one.doing = one.since = ""
            member.doing, member.since = f"awaited: {event.kind}", at
        elif event.step == "answered":
            member.seen = at if not event.late else member.seen
            member.doing, member.since = event.why_not or f"answered: {event.kind}", at

    def _begin(self, event: Event) -> None:
        now, rounds = self._now, event.more.get("rounds")
        now.run, now.method, now.state, now.why = event.run, event.method, "going on", ""
        now.out, now.rounds = str(event.more.get("out")), rounds if isinstance(rounds, int) else 0
        now.round, now.done, now.left_out, now.accuracy, now.score = 0, 0, {}, None, ""

    def _scores(self, out: Path) -> None:
        """What the run's folder says; it may be gone."""
        try:
            (run,) = watch.look(out).runs
        except (UserError, OSError, ValueError):
            return
        self._now.score, self._now.accuracy = run.score, run.scores[-1] if run.scores else None


def table(now: Situation) -> TextTable:
    """For a terminal: a row per client."""
    server = "the server is running" if now.running else "the server is not running"
    run = f"no run so far, {server}"
    if now.run:
        of = f"round {now.round} of {now.rounds}" if now.state == "going on" else f"{now.done} of {now.rounds} rounds"
        run = f"run {now.run}: {now.method}, {of}, {now.state}{now.why and f' ({now.why})'}, {server}"
    rows = [
        [str(one.client), one.state, one.seen, one.doing, one.since, now.left_out.get(str(one.client), "")]
        for _, one in sorted(now.members.items())
    ]
    below = "" if now.accuracy is None else f"{now.score} {now.accuracy:.1f} %"
    titles = ("client", "is", "last seen", "in the round", "since", "left out of the last one")
    return TextTable(titles, rows, run, below, align="rl")


def page(watching: Watching, port: int) -> LoopbackServer:
    """The same on a page of this machine, which asks for news; port 0 is any free one."""
    state = Page(lambda _: watching.look().to_json(), "application/json")
    return loopback_server(port, {"/": Page(lambda _: PAGE), "/state.json": state})


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>protofed deploy watch</title><link rel="icon" href="data:,">
<style>
body { font: 15px system-ui, sans-serif; margin: 2em; }
td, th { padding: .3em .8em; text-align: left; }
</style></head>
<body><h1 id="title">protofed deploy watch</h1><p id="run"></p><p id="note"></p>
<table><thead><tr><th>client<th>is<th>last seen<th>in the round<th>since<th>left out of the last one</tr></thead>
<tbody id="members"></tbody></table>
<script>
function cell(row, text) { row.insertCell().textContent = text; }  // a text is never read as HTML
async function update() {
  const note = document.getElementById("note");
  try {
    const now = await (await fetch("state.json")).json(), body = document.createElement("tbody");
    const left = Object.fromEntries(now.left_out);
    for (const one of now.members) {
      const row = body.insertRow();
      const lack = left[one.client] || "";
      for (const text of [one.client, one.state, one.seen, one.doing, one.since, lack]) cell(row, text);
    }
    body.id = "members"; document.getElementById("members").replaceWith(body);
    document.getElementById("title").textContent = now.folder;
    const at = now.state === "going on" ? `round ${now.round}` : `${now.done}`;
    document.getElementById("run").textContent = now.run
      ? `run ${now.run}: ${now.method}, ${at} of ${now.rounds}, ${now.state} ${now.why}` : "no run so far";
    const accuracy = now.accuracy === null ? "" : `; ${now.score} ${now.accuracy.toFixed(1)} %`;
    note.textContent = (now.running ? "the server is running" : "the server is not running") + accuracy;
  } catch { note.textContent = "protofed deploy watch does not answer"; }
  setTimeout(update, 2000);
}
update();
</script></body></html>
"""
