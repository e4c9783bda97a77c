"""Reports and views that are made from events: what they say, of whom, and that nothing in a log is more than text."""

from __future__ import annotations

import datetime
import json
import re
import urllib.request
from html.parser import HTMLParser
from http.client import HTTPConnection
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.deploy.audit import audit, in_words, moment
from protofed.deploy.audit_page import as_html, as_markdown, as_text
from protofed.deploy.events import EVENTS, Events
from protofed.deploy.federation import FederationFolder, init
from protofed.deploy.situation import Watching, page
from protofed.errors import UserError
from protofed.internal.loopback import HERE
from tests.support.command_line import invoke, refused, succeed

ODD = "<script>alert(1)</script>|`x`"


def write(path: Path, *lines: dict[str, Any], day: int = 1) -> None:
    """Events, a minute apart."""
    with path.open("a") as file:
        for number, line in enumerate(lines):
            at = datetime.datetime(2026, 1, day, 12, number, tzinfo=datetime.UTC).isoformat(timespec="milliseconds")
            file.write(json.dumps({"time": at, **line}) + "\n")


def turn(number: int, run: str = "ab", **more: Any) -> dict[str, Any]:
    sent = {"sent": ["prototypes"], "samples": 40, "min_count": 5, "clip": 1.0, "noise": 0.5}
    return {"kind": "train", "client": 3, "run": run, "method": "fedproto", "round": number} | {
        "bytes_in": 100,
        "bytes_out": 10,
        **sent,
        **more,
    }


@pytest.fixture
def client(tmp_path: Path) -> Path:
    place = tmp_path / "client"
    place.mkdir()
    limits = {"send": ["prototypes"], "turns": 10}
    write(place / EVENTS, {"kind": "limits", "client": 3, "digest": "a" * 64, "limits": limits}, turn(1), turn(2))
    write(
        place / EVENTS,
        {"kind": "limits", "client": 3, "digest": "b" * 64, "limits": limits | {"turns": 20}},
        {"kind": "limits", "client": 3, "digest": "b" * 64, "limits": limits | {"turns": 20}},
        turn(3, sent=["prototypes", "accuracies"], samples=30),
        turn(1, "cd", bytes_out=None, sent=None, refused="batch_size 1: it must be 8 or more"),
        turn(1, "cd", bytes_out=None, sent=None, refused="batch_size 1: it must be 8 or more", times=7),
        {"kind": "query.hello", "client": 3, "run": "cd", "method": ODD, "failed": ODD},
        {"kind": "disconnected", "client": 3, "why": ODD},
        {"kind": "events.lost", "times": 4},
        day=2,
    )
    with (place / EVENTS).open("a") as file:
        file.write("nonsense\n")
    return place


def test_what_left_is_summed_by_run(client: Path) -> None:
    found = audit(client)
    run = found.runs["ab"]
    assert (found.side, run.method, sorted(run.rounds), run.min_count) == ("client", "fedproto", [1, 2, 3], 5)
    one = run.shared["3"]
    assert (one.turns, one.tests, one.bytes_left, one.bytes_came, one.samples) == (3, 1, 30, 300, 30)
    assert (one.sent, one.clip, one.noise) == (["prototypes", "accuracies"], 1.0, 0.5)
    assert list(found.runs) == ["ab"]  # of the other nothing was answered
    refusals = [(one.what, one.who, one.times) for one in found.refused]
    assert refusals[0] == ("train: batch_size 1: it must be 8 or more", "run cd", 8)
    assert len(refusals) == 2
    assert (found.unreadable, found.lost) == (1, 4)


def test_a_change_of_limits_is_said_once(client: Path) -> None:
    first, second = audit(client).limits
    assert first.what.startswith("began with send prototypes, turns 10")
    assert second.what == f"turns 10 became 20 (client.yaml {'b' * 12})"
    (alone,) = audit(client, since=moment("--since", "2026-01-02")).limits  # against what was there before
    assert alone == second


@pytest.mark.parametrize(
    ("since", "until", "turns"),
    [
        (None, None, 3),
        ("2026-01-02", None, 1),
        (None, "2026-01-01", 2),
        ("2026-01-01T12:02", "2026-01-02T12:02:00", 1),
        ("2026-01-01T14:02+02:00", "2026-01-01", 1),
        ("2026-02-01", None, 0),
    ],
)
def test_a_time_is_chosen(since: str | None, until: str | None, turns: int, client: Path) -> None:
    found = audit(client, moment("--since", since), moment("--until", until, ends=True))
    assert sum(one.turns for run in found.runs.values() for one in run.shared.values()) == turns


def test_a_run_is_chosen(client: Path) -> None:
    assert list(audit(client, run="a").runs) == ["ab"]
    assert [one.who for one in audit(client, run="cd").refused] == ["run cd", "run cd"]
    with pytest.raises(UserError, match=re.escape("'x' for --run: it must be one of ab, cd")):
        audit(client, run="x")


class Tags(HTMLParser):
    """What a page consists of."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        assert not [name for name, _ in attrs if name in ("src", "href") or name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.words += data


def test_what_a_log_says_is_never_more_than_text(client: Path) -> None:
    found = audit(client)
    html = Tags(as_html(found))
    assert "script" not in html.tags
    assert ODD in html.words
    assert "<script>" not in as_markdown(found).replace("\\<", "")
    rows = [line for line in as_markdown(found).splitlines() if line.startswith("| ")]
    assert len(rows) > 5
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 6, 7, 9) for row in rows)


def test_the_report_says_it_in_words(client: Path) -> None:
    said = " ".join(as_text(audit(client)).split())
    for part in (
        "1 run asked this client to train",
        "30 bytes have left this client in 3 turns of training: prototypes (class means), accuracies.",
        "1 to 3",
        "prototypes of at least 5 samples; clipped to 1, noise 0.5 × that",
        "9 messages were refused, failed or came too late.",
        "turns 10 became 20",
        "The log has gaps: 1 lines cannot be read; 4 events were lost while the disk was full.",
    ):
        assert part in said, said


def test_the_command_writes_what_the_name_asks_for(client: Path, tmp_path: Path) -> None:
    assert succeed(tmp_path, "deploy", "audit", str(client)).out == as_text(audit(client))
    for name, begin in (("a.html", "<!doctype"), ("a.md", "# Report"), ("a.txt", "Report")):
        assert succeed(tmp_path, "deploy", "audit", "client", "--out", name).out == f"report: {name}\n"
        assert (tmp_path / name).read_text().startswith(begin)
    said = json.loads(succeed(tmp_path, "deploy", "audit", "client", "--json").out)
    assert said["runs"]["ab"]["shared"]["3"]["turns"] == 3
    for words, why in (
        (("--out", "a.html"), "exists already"),
        (("--out", "a.pdf"), "must end with"),
        (("--out", "nowhere/a.md"), "cannot be written"),
        (("--since", "yesterday"), "a day as"),
        (("--run", "zz"), "it must be one of"),
    ):
        assert why in refused(invoke(tmp_path, "deploy", "audit", "client", *words))
    assert "has no events.jsonl" in refused(invoke(tmp_path, "deploy", "audit", "."))


@pytest.mark.parametrize(
    ("rounds", "said"), [([], "none"), ([4], "4"), ([3, 1, 2], "1 to 3"), ([1, 5, 9], "3 of 1 to 9")]
)
def test_rounds_in_words(rounds: list[int], said: str) -> None:
    assert in_words(rounds) == said


KINDS = ["train", "round", "run.begin", "run.end", "limits", "member", "connection", "client.gone", "evaluate"]
SOME = (
    st.none()
    | st.integers()
    | st.floats()
    | st.sampled_from(["a", "3", ""])
    | st.just([1, "x"])
    | st.just({"1": "refused:"})
)
NAMES = [
    "run",
    "round",
    "client",
    "bytes_in",
    "step",
    "sent",
    "samples",
    "clip",
    "noise",
    "limits",
    "left_out",
    "rounds",
]
NAMES += ["min_count", "refused", "late", "why", "address", "change", "out", "seconds", "ended"]


@given(
    st.lists(st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES), SOME, min_size=2)), max_size=6)
)
def test_any_events_make_a_report(tmp_path_factory: pytest.TempPathFactory, lines: Any) -> None:
    place = tmp_path_factory.mktemp("any")
    write(place / EVENTS, *({"kind": kind, **more} for kind, more in lines))
    found = audit(place)
    assert as_html(found)
    assert as_markdown(found)
    assert as_text(found)
    json.dumps(found.to_dict())


@pytest.fixture
def federation(tmp_path: Path) -> FederationFolder:
    made = FederationFolder(tmp_path / "federation")
    init(made, 3)
    made.nodes_file.write_text('{"0": 10, "1": 11, "2": 12}')
    return made


def test_a_round_as_it_stands(federation: FederationFolder) -> None:
    log, watching = Events(federation.server / EVENTS), Watching(federation)
    assert watching.look().state == "no run"
    log.write(kind="client.connected", client=0)
    log.write(kind="run.begin", run="ab", method="fedproto", rounds=4, out=str(federation.folder / "none"))
    for client in (0, 1, 2):
        log.write(kind="train", step="asked", run="ab", round=2, client=client)
    log.write(kind="train", step="answered", run="ab", round=2, client=0, bytes_in=4)
    log.write(kind="train", step="answered", run="ab", round=2, client=2, refused=ODD)
    now = watching.look()
    assert (now.run, now.state, now.round, now.rounds, now.done, now.running) == ("ab", "going on", 2, 4, 0, False)
    assert [one.doing for _, one in sorted(now.members.items())] == ["answered: train", "awaited: train", ODD]
    assert now.members[1].since
    assert now.members[0].state == "connected"
    assert (now.members[1].state, now.members[1].seen) == ("never seen", "")
    log.write(kind="round", run="ab", round=2, left_out={"2": f"it refuses: {ODD}"})
    log.write(kind="client.gone", client=0, why="it went")
    log.write(kind="member", client=1, change="removed")
    log.write(kind="train", step="asked", run="ab", round=3, client=1)
    now = watching.look()
    assert (now.round, now.done, now.left_out) == (3, 2, {"2": f"it refuses: {ODD}"})
    assert [one.doing for _, one in sorted(now.members.items())] == ["", "awaited: train", ""]
    assert [one.state for _, one in sorted(now.members.items())] == ["gone", "removed", "never seen"]
    log.write(kind="run.end", run="ab", ended="failed", failed="why it did")
    assert (watching.look().state, watching.look().why) == ("failed", "why it did")


def test_the_terminal_shows_it_once(federation: FederationFolder, tmp_path: Path) -> None:
    Events(federation.server / EVENTS).write(kind="client.connected", client=2)
    said = succeed(tmp_path, "deploy", "watch", "federation", "--once").out
    assert "no run so far, the server is not running" in said
    assert "connected" in said
    assert "--serve" in refused(invoke(tmp_path, "deploy", "watch", "federation", "--port", "1"))
    assert "--serve" in refused(invoke(tmp_path, "deploy", "watch", "federation", "--once", "--serve"))
    assert "federation.yaml" in refused(invoke(tmp_path, "deploy", "watch", "federation/clients/0"))


def test_the_page_is_for_this_machine_and_reads_nothing_as_html(federation: FederationFolder) -> None:
    Events(federation.server / EVENTS).write(kind="train", step="answered", client=0, failed=ODD)
    server = page(Watching(federation), 0)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        port = server.server_address[1]
        with urllib.request.urlopen(f"http://{HERE}:{port}/") as answer:
            text = answer.read().decode()
            assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
        assert "innerHTML" not in text
        assert "textContent" in text
        with urllib.request.urlopen(f"http://{HERE}:{port}/state.json") as answer:
            assert json.load(answer)["members"][0]["doing"] == ODD
        line = HTTPConnection(HERE, port)
        line.request("GET", "/state.json", headers={"Host": f"evil.example:{port}"})
        assert line.getresponse().status == 403
        line.close()
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
