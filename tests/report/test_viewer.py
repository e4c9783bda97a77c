"""The viewer's list of runs, and what it answers to whom."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection
from pathlib import Path
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
import yaml

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal import loopback
from protofed.internal.digests import checked_yaml
from protofed.internal.loopback import LoopbackServer, Page
from protofed.internal.yaml_files import read_yaml
from protofed.report.html import content, looks, motions, run_data
from protofed.report.html.content import numbers
from protofed.report.index import Index, Row, listed, options_of
from protofed.report.motion import gather_motion
from protofed.report.viewer import MOST, server
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.runs.result import Result
from protofed.studies.comparison import ComparisonStudy
from tests.support.command_line import TINY, invoke, refused, start, succeed
from tests.support.made_rounds import a_round

EXPERIMENT = Experiment(method="fedproto", rounds=4, clients=3)
EVIL = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, three rounds."""
    place = tmp_path_factory.mktemp("viewer")
    flags = ("--method", "fedproto,fedavg", "--seeds", "2", "--jobs", "1", "--out", "both", "--quiet")
    succeed(place, "compare", *TINY[2:], *flags)
    return place


def begin(path: Path, rounds: int = 2, experiment: Experiment = EXPERIMENT) -> RunFolder:
    """A run that has played some rounds."""
    folder = RunFolder.create(path, experiment)
    for number in range(1, rounds + 1):
        folder.append_round(a_round(number, seconds=2.0, loss=3.0 / number, accuracy={"own/own/head": 40.0 + number}))
    return folder


def rows_of(folder: Path) -> dict[str, Row]:
    return {row.name: row for row in Index(folder).rows()}


def test_a_complete_run_is_listed_as_its_result_says(comparison: Path) -> None:
    rows = rows_of(comparison)
    assert len(rows) == 4
    for name, row in rows.items():
        result = Result.read(comparison / name)
        assert (row.state, row.done, row.score) == ("ended", result.rounds, result.score)
        assert row.value == result.accuracy[result.score].last
        assert row.loss == result.history[-1].loss
        assert row.megabytes == (result.bytes_up + result.bytes_down) / 1e6
        assert row.options == read_yaml(comparison / name / "config.yaml")


def test_runs_that_are_not_complete(tmp_path: Path) -> None:
    begin(tmp_path / "deep/er/stopped")
    begin(tmp_path / "new", rounds=0)
    FailedRun("fedproto", 0, "diverged", "the loss became nan", round=3).write(begin(tmp_path / "failed").path)
    begin(tmp_path / "tuning/trial")
    begin(tmp_path / ".draft")
    with begin(tmp_path / "going").claim() as folder:
        with folder.rounds.open("a") as file:
            file.write('{"round": 3, "sec')  # in the writing
        rows = rows_of(tmp_path)
    assert {name: row.state for name, row in rows.items()} == {
        **{"deep/er/stopped": "stopped", "new": "stopped", "failed": "failed", "tuning/trial": "stopped"},
        "going": "going on",
    }
    assert (rows["going"].done, rows["going"].loss, rows["going"].value, rows["going"].left) == (2, 1.5, 42.0, 4.0)
    assert rows["failed"].reason == "diverged (round 3): the loss became nan"
    assert (rows["new"].done, rows["new"].loss) == (0, None)
    assert [name for name, row in rows.items() if row.trial] == ["tuning/trial"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", "a: [1"),
        ("config.yaml", "rounds: many\n"),
        ("config.yaml", "method: fedavg\n"),
        ("config.yaml", "x: 1\n" * 100_000),
        ("result.json", "{"),
        ("result.json", "[]"),
        ("result.json", '{"score": "a", "accuracy": {"a": {"last": 1}}, "rounds": 1e999}'),
        ("result.json", "[" * 100_000),
        ("result.json", '{"score": "a", "accuracy": {}}'),
        ("rounds.jsonl", "{}\n"),
        ("rounds.jsonl", "[]\n"),
        ("rounds.jsonl", '{"seconds": 1, "bytes_up": 0, "bytes_down": 0, "accuracy": ["own/own/head"]}\n'),
        ("rounds.jsonl", '{"seconds": 1, "bytes_up": "x", "bytes_down": 0}\n'),
        ("failure.json", "nothing"),
    ],
)
def test_a_damaged_run_is_listed_as_such_and_hides_no_other(tmp_path: Path, file: str, content: str) -> None:
    begin(tmp_path / "whole")
    (begin(tmp_path / "damaged").path / file).write_text(content)
    rows = rows_of(tmp_path)
    assert (rows["whole"].state, rows["damaged"].state) == ("stopped", "unreadable")
    assert rows["damaged"].reason
    json.dumps(listed(list(rows.values())), allow_nan=False)


def test_what_json_cannot_say_is_listed_as_text(tmp_path: Path) -> None:
    config = begin(tmp_path / "run").path / "config.yaml"
    config.write_text(checked_yaml(config.read_text()) + "when: 2026-01-01\nlimit: .inf\nof: {1: .nan}\n")
    (row,) = Index(tmp_path).rows()
    told = [row.options[name] for name in ("when", "limit", "of")]
    assert told == ["2026-01-01", "inf", {"1": "nan"}]


def test_parts_of_a_config_are_read_as_the_whole(tmp_path: Path) -> None:
    texts = [
        yaml.safe_dump(
            {"rounds": 1, "params": {"a": [1, 2], "b": {"c": "x: y"}}, "name": "a\n\nb: c\n", "x": [1, [2]]}
        ),
        "# a comment\n\nrounds: 3\nparams:\n- 1\n- 2\n\nlast: |\n  a\n\n  b\n",
        "{rounds: 1, a: 2}\n",
        "rounds: 1\na: 'x\n\n  y'\n",
    ]
    for text in texts:
        (tmp_path / "config.yaml").write_text(text)
        assert options_of(tmp_path) == read_yaml(tmp_path / "config.yaml"), text


def test_a_run_is_read_again_when_a_file_of_it_changes(tmp_path: Path) -> None:
    folder, index = begin(tmp_path / "run"), Index(tmp_path)
    (before,) = index.rows()
    assert index.rows()[0] is before
    folder.append_round(a_round(3, accuracy={"own/own/head": 1.0}))
    (after,) = index.rows()
    assert (after.done, after.id) == (3, before.id)
    assert after.version != before.version


def test_links_lead_nowhere(tmp_path: Path) -> None:
    begin(tmp_path / "elsewhere/run")
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "here/loop").symlink_to(tmp_path / "here")
    assert Index(tmp_path / "here").rows() == []


@contextmanager
def answering(folder: Path, **options: Any) -> Iterator[LoopbackServer]:
    with server(folder, 0, **options) as served:
        thread = Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield served
        finally:
            served.shutdown()
            thread.join()


def get(served: LoopbackServer, path: str, **headers: str) -> tuple[int, str, dict[str, str]]:
    """What is at a path below the word, or at one that begins with /."""
    place = urlsplit(served.address)
    connection = HTTPConnection(str(place.hostname), place.port or 0, timeout=60)
    connection.request("GET", path if path.startswith("/") else place.path + path, headers=headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), dict(answer.getheaders())
    connection.close()
    return found


def test_the_viewer_answers_what_the_report_gathers(comparison: Path) -> None:
    with answering(comparison) as served:
        status, page, headers = get(served, "")
        assert (status, headers["Content-Security-Policy"].split(";")[0]) == (200, "default-src 'self' 'unsafe-inline'")
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "both" not in page  # the list comes when it is asked for
        runs = json.loads(get(served, "runs.json")[1])
        ids = [row["id"] for row in runs["runs"]]
        found = json.loads(get(served, f"numbers.json?runs={','.join(ids)}")[1])
        names = {comparison / row["name"]: row["name"] for row in runs["runs"]}
        assert found == json.loads(json.dumps(numbers(names)))
        assert {row["label"] for row in found["summary"]} == {"fedproto", "fedavg"}
        (study,) = json.loads(get(served, "studies.json")[1])["studies"]
        assert (study["name"], study["kind"], study["waiting"]) == ("both", "compare", 0)
        one = json.loads(get(served, f"details.json?runs={ids[0]}")[1])
        assert list(one["looks"]) == ["fedavg"]


def test_what_is_no_id_is_nothing(comparison: Path) -> None:
    with answering(comparison) as served:
        get(served, "runs.json")
        for asked in ("", "?runs=", "?runs=../../etc", "?runs=both/fedavg-seed0", f"?runs={EVIL}", "?x=1&runs=%00,,"):
            status, text, _ = get(served, f"numbers.json{asked.replace(' ', '')}")
            assert (status, json.loads(text)["lines"]) == (200, {})


def test_nothing_else_is_answered_and_nobody_else(comparison: Path) -> None:
    with answering(comparison) as served:
        word, port = urlsplit(served.address).path, served.server_address[1]
        outside = [
            f"{word}{path}" for path in ("../both/compare.yaml", "both/compare.yaml", "%2e%2e/%2e%2e/etc/passwd")
        ]
        for path in ("/", "/runs.json", "/x/runs.json", "//etc/passwd", f"{word}runs.json/", word[:-1], *outside):
            assert get(served, path)[0] == 404, path
        foreign = ("http://evil.example", "null", f"http://127.0.0.1:{port + 1}")
        hosts = ("elsewhere.example", f"elsewhere.example:{port}")
        for headers in [{"Host": host} for host in hosts] + [{"Origin": origin} for origin in foreign]:
            assert get(served, "runs.json", **headers)[0] == 403, headers
        assert get(served, "runs.json", Host=f"localhost:{port}", Origin=f"http://localhost:{port}")[0] == 200
    with answering(comparison) as served:
        assert urlsplit(served.address).path != word  # another word each time


def test_a_name_is_text_in_every_answer(tmp_path: Path) -> None:
    place = tmp_path / "<img src=x onerror=alert(1)>"
    begin(place / f"{EVIL.replace('/', '')}-run", experiment=Experiment(rounds=4))
    with answering(place) as served:
        text = get(served, "")[1]
        assert "<img" not in text
        status, runs, headers = get(served, "runs.json")
        assert (status, headers["Content-Type"], headers["X-Content-Type-Options"]) == (
            *(200, "application/json; charset=utf-8"),
            "nosniff",
        )
        (row,) = json.loads(runs)["runs"]
        assert get(served, f"numbers.json?runs={row['id']}")[2]["Content-Type"].startswith("application/json")


def test_a_folder_whose_name_is_no_text(tmp_path: Path) -> None:
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe"))
    begin(place / "run")
    with answering(place) as served:
        assert [get(served, name)[0] for name in ("", "runs.json", "studies.json")] == [200, 200, 200]


def test_who_is_slow_holds_a_place_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "run")
    monkeypatch.setattr(loopback, "PATIENCE", 0.3)
    monkeypatch.setattr(loopback, "AT_ONCE", 3)
    with answering(tmp_path) as served:
        slow = [socket.create_connection(("127.0.0.1", served.server_address[1])) for _ in range(3)]
        begun = time.monotonic()
        ended: set[socket.socket] = set()
        while len(ended) < 3:
            assert time.monotonic() - begun < 60
            for one in slow:
                try:
                    one.sendall(b"G")  # a byte at a time
                except OSError:
                    ended.add(one)
            time.sleep(0.05)
        for one in slow:
            one.close()
        assert get(served, "runs.json")[0] == 200


def test_who_reads_slowly_holds_a_place_for_a_while_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "run")
    monkeypatch.setattr(loopback._Handler, "timeout", 0.5)
    monkeypatch.setattr(loopback, "AT_ONCE", 1)
    size = 64 * 2**20  # more than the system takes off the server's hands
    with answering(tmp_path) as served, socket.socket() as reader:
        served.pages = {**served.pages, "/large": Page(lambda _: "x" * size)}
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        reader.settimeout(60)
        port = served.server_address[1]
        reader.connect(("127.0.0.1", port))
        reader.sendall(f"GET /large HTTP/1.0\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        begun, came = time.monotonic(), len(reader.recv(1))
        while not served.places.acquire(blocking=False):
            assert time.monotonic() - begun < 60
            came += len(reader.recv(1))  # a byte at a time
            time.sleep(0.01)
        served.places.release()
        assert get(served, "runs.json")[0] == 200
        with suppress(ConnectionError):
            while part := reader.recv(2**20):
                came += len(part)
        assert came < size


def test_the_list_does_not_wait_for_what_takes_long(comparison: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = Event(), Event()

    def slow(names: dict[Path, str]) -> dict[str, Any]:  # noqa: ARG001
        begun.set()
        assert go_on.wait(60)
        return {}

    monkeypatch.setattr(content, "details", slow)
    with answering(comparison) as served:
        asking = Thread(target=get, args=(served, "details.json"))
        asking.start()
        try:
            assert begun.wait(60)
            assert get(served, "runs.json")[0] == get(served, "studies.json")[0] == 200
            assert asking.is_alive()
        finally:
            go_on.set()
            asking.join()


def test_what_takes_long_is_found_once(comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "copy"
    shutil.copytree(comparison / "both", place)
    planes, projections = Mock(wraps=looks.plane), Mock(wraps=gather_motion)
    monkeypatch.setattr(looks, "plane", planes)
    monkeypatch.setattr(motions, "gather_motion", projections)
    with answering(place) as served:
        ids = ",".join(row["id"] for row in json.loads(get(served, "runs.json")[1])["runs"])
        for _ in range(2):
            get(served, f"details.json?runs={ids}")
        assert (planes.call_count, projections.call_count) == (2, 1)
        os.utime(place / "fedavg-seed0/motion.safetensors")
        get(served, f"details.json?runs={ids}")
        assert (planes.call_count, projections.call_count) == (3, 2)
    assert run_data.REMEMBERED >= MOST


def test_a_message_names_what_cannot_be_read(tmp_path: Path) -> None:
    folder = begin(tmp_path / "run")
    folder.rounds.write_text('{"round": 1}\n')
    folder.result.write_text(
        json.dumps(
            {"score": "a", "accuracy": {"a": {"last": 1}}, "rounds": 1, "bytes_up": 1, "bytes_down": 1, "seconds": 1}
        )
    )
    with answering(tmp_path) as served:
        (row,) = json.loads(get(served, "runs.json")[1])["runs"]
        status, text, _ = get(served, f"numbers.json?runs={row['id']}")
        assert status == 200
        (said,) = json.loads(text)["incomplete"]
        assert "run cannot be read: " in said
        assert "rounds.jsonl" in said
    shutil.rmtree(tmp_path)


def test_a_study_that_has_not_begun_says_so(tmp_path: Path) -> None:
    study = ComparisonStudy(methods=["fedavg", "fedproto"], seeds=3)
    (tmp_path / "study").mkdir()
    study.config(tmp_path / "study").write_text(study.to_yaml())
    (tmp_path / "damaged").mkdir()
    study.config(tmp_path / "damaged").write_text("methods: 3")
    with answering(tmp_path) as served:
        assert json.loads(get(served, "runs.json")[1])["runs"] == []
        found = {one["name"]: one for one in json.loads(get(served, "studies.json")[1])["studies"]}
    assert (found["study"]["waiting"], found["study"]["reason"]) == (6, "")
    assert found["damaged"]["reason"]


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with server(tmp_path, 0) as served, pytest.raises(UserError, match="--port"):
        server(tmp_path, int(served.server_address[1]))
    with pytest.raises(UserError, match="--port"):
        server(tmp_path, 100_000)


def test_the_command(tmp_path: Path) -> None:
    begin(tmp_path / "runs/one")
    serving = start(tmp_path, "ui")
    try:
        assert serving.stdout is not None
        assert serving.stdout.readline().startswith("http://127.0.0.1:")
    finally:
        serving.kill()
        serving.wait()
    assert "there is no such folder" in refused(invoke(tmp_path, "ui", "nowhere"))
    assert "it must be of type int" in refused(invoke(tmp_path, "ui", "--port", "many"))
