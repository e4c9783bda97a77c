"""What the owner of a client allows holds against whatever a server says."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from protofed.deploy import ledger
from protofed.deploy.client import Failed, WarmClient, turn_objections
from protofed.deploy.events import Events
from protofed.deploy.ledger import Today
from protofed.deploy.owner import Owner, keys, template
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.deploy.warm_worker import OwnersWord
from protofed.deploy.wire import FAILED, PROTOCOL, REFUSED, Packet, pack, seal
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.runs.run import new_run
from tests.support.command_line import invoke, succeed
from tests.support.loopback import Loopback, in_simulation, size_of

BASE = Experiment("fedproto", dataset="digits", train_size=200, clients=2, rounds=3, model="cnn", alpha=1.0)


def at(place: Path, **says: Any) -> WarmClient:
    """The client whose owner says so, and allows batches of any size unless told otherwise; started anew."""
    (place / "client.yaml").write_text(yaml.safe_dump({"id": 0, "threads": 1, "min_batch": 1, **says}))
    owner = Owner.read(place / "client.yaml").with_data(None)
    return WarmClient(owner, Events(place / "events.jsonl"))


def message(experiment: Experiment = BASE, number: int = 0, run: str = "a", **more: Any) -> Packet:
    """What a server that follows the protocol sends, but for what it is told to."""
    facts = {"run": run, "experiment": asdict(experiment), "clock": [number, [0, 1]]}
    facts |= {"classes": [str(digit) for digit in range(10)], "domains": ["digits"]}
    return pack(facts | more, new_run(replace(BASE, device="cpu")).broadcast)


def refusal(client: WarmClient, packet: Packet, kind: str = "train") -> str:
    answer = client.answer(kind, packet)
    assert isinstance(answer, Failed)
    assert answer.code == REFUSED, answer
    return answer.reason


def taken(client: WarmClient, packet: Packet, kind: str = "train") -> Upload:
    answer = client.answer(kind, packet)
    assert isinstance(answer, Packet), answer
    return Upload.decode(answer.data)


def test_turns_are_counted_by_the_client(tmp_path: Path) -> None:
    """Whatever round the server calls it, and whether the process was started again in between."""
    asked = replace(BASE, rounds=501, participation=0.5)
    for number in (0, 1, 1):
        taken(at(tmp_path, turns=3), message(asked, number))
    for number in (0, 1, 2, 3, 500):
        assert refusal(at(tmp_path, turns=3), message(asked, number)) == (
            "another turn: it has had the 3 of a run that are allowed"
        )
    assert "the experiment has 501" in refusal(at(tmp_path, turns=9), message(asked, 501))
    taken(at(tmp_path, turns=3), message(asked, run="b"))
    assert refusal(at(tmp_path, turns_per_day=4), message(asked, run="c")) == (
        "another turn today: 4 are allowed in a day"
    )


@pytest.mark.parametrize(
    "named",
    [
        {"dataset": "folder:/home/anybody"},
        {"dataset": "npz:/etc/secret.npz"},
        {"dataset": "digits+npz:other.npz"},
        {"public": "folder:/home/anybody"},
    ],
)
def test_a_server_names_no_path(named: dict[str, str], tmp_path: Path) -> None:
    (value,) = named.values()
    asked = replace(BASE, **named)  # type: ignore[arg-type]
    for kind in ("query.hello", "train", "evaluate"):
        assert refusal(at(tmp_path), message(asked), kind).endswith(f"{value}: a server names no path")
    assert not (tmp_path / "memory").exists()


def test_a_folder_of_files_is_the_owners_to_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str | None] = []

    def watch(experiment: Experiment) -> Any:
        seen.append(experiment.data_dir)
        raise ValueError

    monkeypatch.setattr("protofed.deploy.client.federation_of", watch)
    for says in ({}, {"data_dir": "/mine"}):
        answer = at(tmp_path, **says).answer("query.hello", message(replace(BASE, data_dir="/theirs")))
        assert answer == Failed(FAILED, "ValueError")
    assert seen == [None, "/mine"]


@pytest.mark.parametrize(
    "change", [{"method": "fedavg"}, {"lr": 1.0}, {"batch_size": 8}, {"train_size": 100}, {"seed": 1}, {"epochs": 9}]
)
def test_the_first_message_of_a_run_pins_the_experiment(change: dict[str, Any], tmp_path: Path) -> None:
    assert isinstance(at(tmp_path).answer("query.hello", message()), Packet)
    client = at(tmp_path)
    taken(client, message())
    for kind in ("train", "query.hello", "evaluate"):
        for asked in (client, at(tmp_path)):
            assert refusal(asked, message(replace(BASE, **change), 1), kind) == (
                "the run began with another experiment"
            )
    taken(client, message(number=1))
    assert isinstance(client.answer("evaluate", message(number=1)), Packet)


def test_the_first_turn_pins_the_classes(tmp_path: Path) -> None:
    taken(at(tmp_path), message())
    other = [str(digit) for digit in reversed(range(10))]
    assert refusal(at(tmp_path), message(number=1, classes=other)) == "the run began with other classes"
    taken(at(tmp_path), message(number=1, domains=["digits", "others"]))  # which are only told apart


def test_who_takes_part_may_change(tmp_path: Path) -> None:
    client = at(tmp_path)
    for number, who in enumerate(([0, 1], [0])):
        taken(client, message(number=number, clock=[number, who]))


@pytest.mark.parametrize(
    ("change", "says", "why"),
    [
        ({"train_size": 12}, {}, "fewer than 10 samples"),
        ({"batch_size": 1}, {"min_batch": Owner.min_batch}, "batch_size 1: it must be 8 or more"),
        ({"batch_size": 16}, {"min_batch": 17}, "batch_size 16: it must be 17 or more"),
        ({"epochs": 101}, {}, "101 epochs: 100 are allowed"),
        ({"steps": 90}, {"max_epochs": 2}, "90 steps: 2 epochs are allowed"),
        ({}, {"min_count": 5}, "min_count 0: it must be 5 or more"),
        ({}, {"methods": ["fedavg"]}, "method fedproto: fedavg may be run"),
        ({}, {"secure": "required"}, "no secure aggregation: it is required"),
        ({}, {"send": ["weights"]}, "prototypes may not be sent"),
        ({}, {"megabytes_per_day": 0.001}, "MB: 0.001 MB are allowed in a day"),
        ({"rounds": 4}, {"turns": 3}, "4 rounds: 3 turns of a run are allowed"),
        ({"method": "mine.py:Mine"}, {}, "the code of mine.py:Mine: it is not listed under methods"),
        ({"start": "/home/weights.safetensors"}, {}, "start /home/weights.safetensors: not over a network"),
        ({"encoder": "/home/encoder.safetensors"}, {}, "encoder /home/encoder.safetensors: not over a network"),
        ({"privacy": "example", "clip": 1.0, "noise": 1.0}, {}, "privacy example: not over a network"),
        ({"novel": 3}, {}, "novel 3: not over a network"),
        ({"method": "fedrep", "params": {"head_epochs": 40}}, {"max_epochs": 40}, "41 epochs: 40 are allowed"),
        ({"split": "mine.py:cut"}, {}, "the code of mine.py:cut: it is not listed under methods"),
        ({"model": "os:system"}, {}, "the code of os:system: it is not listed under methods"),
    ],
)
def test_the_owner_bounds_what_touches_privacy(
    change: dict[str, Any], says: dict[str, Any], why: str, tmp_path: Path
) -> None:
    asked = replace(BASE, min_size=1, **change)
    assert why in refusal(at(tmp_path, **says), message(asked))
    (line,) = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert why in line["refused"]
    assert (line["kind"], line["run"], line["method"], line["round"]) == ("train", "a", asked.method, 1)


def test_several_objections_are_all_said(tmp_path: Path) -> None:
    said = refusal(at(tmp_path, methods=["fedavg"], min_batch=8), message(replace(BASE, batch_size=4)))
    assert said == "method fedproto: fedavg may be run; batch_size 4: it must be 8 or more"


def test_names_of_runs_do_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "MOST_RUNS", 3)
    for number in range(9):  # of runs that never had a turn nothing is kept for long
        assert isinstance(at(tmp_path).answer("query.hello", message(run=f"r{number}")), Packet)
        assert len(list((tmp_path / "memory").glob("r*"))) <= 3
    for run in "abc":
        taken(at(tmp_path), message(run=run))
    full = "a new run: what it keeps of others has used the room that is allowed"
    assert refusal(at(tmp_path), message(run="d"), "query.hello") == full
    taken(at(tmp_path), message(run="a", number=1))  # those that are there go on
    monkeypatch.undo()
    assert refusal(at(tmp_path, disk_megabytes=0.001), message(run="d"), "query.hello") == full
    taken(at(tmp_path), message(run="d"))


def test_tests_are_counted_and_may_be_kept(tmp_path: Path) -> None:
    """What a model that the server made up makes of a client's samples tells of them."""
    asked = replace(BASE, participation=0.5)
    for number in range(2):
        assert isinstance(at(tmp_path, turns=2).answer("evaluate", message(asked, number)), Packet)
    assert refusal(at(tmp_path, turns=2), message(asked, 2), "evaluate") == (
        "another test: it has had the 2 of a run that are allowed"
    )
    assert refusal(at(tmp_path, turns=2), message(asked, test=True)) == (
        "another test: it has had the 2 of a run that are allowed"
    )
    assert refusal(at(tmp_path, turns_per_day=2), message(asked, run="b"), "evaluate") == (
        "another test today: 2 are allowed in a day"
    )
    silent = ["prototypes", "numbers"]
    assert refusal(at(tmp_path, send=silent), message(asked, run="c"), "evaluate") == "accuracies may not be sent"
    answer = at(tmp_path, send=silent).answer("train", message(asked, run="c", test=True))
    assert isinstance(answer, Packet)
    assert json.loads(answer.text)["scores"] is None


@pytest.mark.parametrize("name", ["train_size", "val_fraction", "long_tail"])
def test_own_data_is_trained_on_whole(name: str, tmp_path: Path) -> None:
    """Two runs on parts that differ by one sample would show it."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 255, (200, 1, 8, 8), dtype=np.uint8)
    np.savez(tmp_path / "mine.npz", images=images, labels=np.arange(200) % 10)
    whole = replace(BASE, train_size=None)
    value = {"train_size": 100, "val_fraction": 0.1, "long_tail": 10.0}[name]
    client = at(tmp_path, data=str(tmp_path / "mine.npz"))
    assert refusal(client, message(replace(whole, **{name: value})), "query.hello") == (  # type: ignore[arg-type]
        f"{name} {value}: its own data is trained on whole"
    )
    assert isinstance(client.answer("query.hello", message(whole)), Packet)


def test_a_turn_that_failed_half_way_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the model is to be kept: asked again, the same turn gives the same."""
    client = at(tmp_path)
    taken(client, message())
    expected = WarmClient(client.owner).answer("train", message(number=1))
    (tmp_path / "memory/a/1.safetensors").unlink()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("protofed.deploy.client.remember", full)
    assert client.answer("train", message(number=1)) == Failed(FAILED, "OSError")
    monkeypatch.undo()
    assert client.answer("train", message(number=1)) == expected


def test_what_a_server_writes_is_shown_in_plain_letters(tmp_path: Path) -> None:
    client, packet = at(tmp_path), message()
    odd = packet.text.replace('"fedproto"', '"\\ud800\\u001b[2J' + "x" * 10_000 + '"')
    assert isinstance(client.answer("train", seal(odd, packet.data)), Failed)
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(line) < 1000
    assert json.loads(line)["method"].startswith("??[2J")


@pytest.mark.parametrize("number", [True, 1.0, "1", None, -1])
def test_a_round_is_a_whole_number(number: Any, tmp_path: Path) -> None:
    assert "the experiment has 3" in refusal(at(tmp_path), message(clock=[number, [0, 1]]))


def test_an_owner_who_clips_takes_no_part_in_an_exchange_on_public_images(tmp_path: Path) -> None:
    asked = replace(BASE, method="fccl-plus", public="digit-domains", params={"public_images": 40, "public_batch": 16})
    facts: dict[str, Any] = {"first": True, "learned": [], "wanted": [0]}
    assert "neither clipped nor noised" in refusal(at(tmp_path, clip=1.0), message(asked, **facts), "train.public")


def test_public_batches_are_learned_once(tmp_path: Path) -> None:
    """A server must not have a client step on them again and again."""
    asked = replace(BASE, method="fccl-plus", public="digit-domains", params={"public_images": 40, "public_batch": 16})
    client = at(tmp_path)
    upload = taken(client, message(asked, first=True, learned=[], wanted=[0]), "train.public")
    assert upload.numbers
    again = message(asked, first=False, learned=[], wanted=[0])
    assert refusal(client, again, "train.public") == "these public batches again"


@pytest.mark.parametrize("run", ["../a", "", "a/b", "ä", "a" * 65, 7, None, ["a"]])
def test_a_run_has_a_plain_name(run: Any, tmp_path: Path) -> None:
    assert refusal(at(tmp_path), message(run=run)) == "the run has no plain name"


def test_what_is_sent_is_recorded(tmp_path: Path) -> None:
    client, packet = at(tmp_path), message()
    answer = client.answer("train", packet)
    assert isinstance(answer, Packet)
    client.answer("train", seal("{}", b""))
    client.answer("train", packet._replace(digest=bytes(32)))
    first, *others = map(json.loads, (tmp_path / "events.jsonl").read_text().splitlines())
    assert first.pop("time").endswith("+00:00")
    assert first.pop("seconds") > 0
    samples = len(client.federation("a", BASE).clients[0].train)
    assert first == {"kind": "train", "client": 0, "run": "a", "method": "fedproto", "round": 1} | {
        "bytes_in": packet.size(),
        "bytes_out": answer.size(),
        "sent": ["prototypes"],
        "samples": samples,
        "min_count": 0,
        "secure": False,
    }
    assert [line["refused"] for line in others] == [f"it speaks protocol None, not {PROTOCOL}", "it is damaged"]
    assert (tmp_path / "events.jsonl").stat().st_mode & 0o077 == 0
    today = json.loads((tmp_path / "memory/today.json").read_text())
    assert (today["turns"], today["sent"]) == (1, answer.size())


def test_a_new_day_begins_with_nothing(tmp_path: Path) -> None:
    client = at(tmp_path, turns_per_day=1)
    taken(client, message())
    assert "today" in refusal(client, message(number=1))
    said = json.loads((tmp_path / "memory/today.json").read_text())
    (tmp_path / "memory/today.json").write_text(json.dumps(said | {"day": "2020-01-01"}))
    taken(client, message(number=1))


def test_the_log_of_events_begins_anew_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protofed.deploy.events.LARGEST", 100)
    events = Events(tmp_path / "events.jsonl")
    for number in range(5):
        events.write(number=number, nothing=None)
    kept = [(tmp_path / name).read_text().splitlines() for name in ("events.1.jsonl", "events.jsonl")]
    assert [json.loads(line)["number"] for lines in kept for line in lines][-1] == 4
    assert all("nothing" not in line for lines in kept for line in lines)


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_an_owner_clips_and_noises_what_is_sent(method: str, tmp_path: Path) -> None:
    asked = replace(BASE, method=method, model="mlp", lr=0.1)
    sent = new_run(replace(asked, device="cpu")).broadcast
    facts = {"run": "a", "experiment": asdict(asked), "clock": [0, [0, 1]]}
    packet = pack(facts | {"classes": [str(digit) for digit in range(10)], "domains": ["digits"]}, sent)

    def norm(upload: Upload) -> float:
        parts = [value - sent.weights[name] for name, value in upload.weights.items() if value.is_floating_point()]
        parts += [found.vectors for found in upload.prototypes.values()]
        return float(np.sqrt(sum(float(part.double().square().sum()) for part in parts)))

    def norm_with(**says: Any) -> float:
        place = tmp_path / json.dumps(says)
        place.mkdir()
        return norm(taken(at(place, **says), packet))

    plain = norm_with()
    assert plain > 0.2
    assert norm_with(clip=0.1) == pytest.approx(0.1, rel=1e-4)
    assert norm_with(clip=100.0) == pytest.approx(plain, rel=1e-5)
    (tmp_path / "noisy").mkdir()
    noisy = taken(at(tmp_path / "noisy", clip=0.1, noise=10.0), packet)
    size = sum(value.numel() for value in noisy.weights.values())
    size += sum(int(found.filled.sum()) * found.vectors.shape[-1] for found in noisy.prototypes.values())
    assert norm(noisy) == pytest.approx(np.sqrt(size), rel=0.1)  # each number has noise of 10 · 0.1


def test_an_owner_who_changes_the_file_is_heard_at_once(tmp_path: Path) -> None:
    path = tmp_path / "client.yaml"
    path.write_text("id: 3\n")
    word = OwnersWord(path, None)
    first = word.read()
    assert first is not None
    assert (first.id, first.turns) == (3, 1_000_000)
    assert word.read() is None
    path.write_text("id: 3\nturns: 5\n")
    second = word.read()
    assert second is not None
    assert second.turns == 5


def test_the_file_that_init_writes_names_every_key(tmp_path: Path) -> None:
    text = template(4, "here:9092")
    (tmp_path / "client.yaml").write_text(text)
    owner = Owner.read(tmp_path / "client.yaml")
    defaults = Owner(4, "here:9092", memory=str(tmp_path / "memory"), key=str(tmp_path / "key"))
    assert owner == defaults
    assert all(f"\n{'' if item.name in ('id', 'server') else '#'}{item.name}: " in text for item in keys())
    said = "\n".join(line.removeprefix("#") for line in text.splitlines() if not line.startswith("# "))
    (tmp_path / "all.yaml").write_text(said)
    assert list(Owner.read(tmp_path / "all.yaml").methods or ()) == ["fedproto", "mp-fedcl"]  # its examples can be read


def test_the_docs_name_every_key() -> None:
    page = (Path(__file__).parents[2] / "docs/deployment.md").read_text()
    for item in keys():
        assert f"`{item.name}`" in page, item.name


@pytest.fixture
def told(tmp_path: Path) -> Callable[..., tuple[int, list[str]]]:
    """What `--explain` says of an experiment."""
    succeed(tmp_path, "deploy", "init", "F", "--clients", "2")

    def explain(experiment: dict[str, Any], **says: Any) -> tuple[int, list[str]]:
        (tmp_path / "e.yaml").write_text(yaml.safe_dump(experiment))
        path = tmp_path / "F/clients/1/client.yaml"
        path.write_text(yaml.safe_dump({"id": 1, **says}))
        outcome = invoke(tmp_path, "deploy", "client", "F", "--id", "1", "--explain", "e.yaml")
        assert outcome.err == ""
        return outcome.code, outcome.out.splitlines()

    return explain


def test_an_owner_learns_beforehand_what_would_be_refused(told: Callable[..., tuple[int, list[str]]]) -> None:
    asked = {"method": "fedproto", "model": "cnn", "dataset": "digits", "train_size": 300, "rounds": 5, "clients": 2}
    assert told(asked) == (0, ["nothing would be refused"])
    assert told(asked, turns=4, methods=["fedavg"]) == (
        3,
        ["refused: method fedproto: fedavg may be run", "refused: 5 rounds: 4 turns of a run are allowed"],
    )
    assert told(asked, send=["weights", "accuracies"]) == (3, ["refused: prototypes may not be sent"])
    assert told(asked, send=["prototypes"]) == (3, ["refused: accuracies may not be sent"])
    assert told(asked, min_samples=10_000) == (3, ["refused: it would train on fewer than 10000 samples"])


def test_all_objections_are_told_beforehand_at_once(told: Callable[..., tuple[int, list[str]]], tmp_path: Path) -> None:
    """Of the experiment, the samples, the turn, what is sent and what is received; files are not opened for it."""
    asked = {"method": "fedavg", "model": "cnn", "dataset": "digits", "train_size": 300, "rounds": 5, "clients": 2}
    asked |= {"epochs": 4, "min_count": 1}
    limits: dict[str, Any] = {"min_count": 5, "min_samples": 10_000, "max_epochs": 3, "megabytes": 0.01}
    limits |= {"min_batch": 33, "send": ["accuracies"], "turns_per_day": 4, "megabytes_per_day": 0.02}
    code, lines = told(asked, **limits)
    assert code == 3
    (samples,) = (re.search("would have ([0-9]+) samples", line) for line in lines if "last batch" in line)
    assert samples is not None
    patterns = [
        "batch_size 32: it must be 33 or more",
        "min_count 1: it must be 5 or more",
        "it would train on fewer than 10000 samples",
        "4 epochs: 3 are allowed",
        f"batch_size 32: the last batch of an epoch would have {samples[1]} samples, 33 or more are allowed"
        "; [0-9]+ would do",
        "weights may not be sent",
        "numbers may not be sent",
        "an upload of [0-9.]+ MB: 0[.]01 MB are allowed",
        "a broadcast of [0-9.]+ MB: 0[.]01 MB are allowed",
        "5 turns, if on this day: 4 are allowed in a day",
        "[0-9.]+ MB of uploads, if on this day: 0[.]02 MB are allowed in a day",
    ]
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(f"refused: {pattern}", line), (line, pattern)
    elsewhere = {"dataset": f"npz:{tmp_path}/none.npz", "encoder": "none.safetensors", "novel": 2}
    code, lines = told(asked | elsewhere, min_count=5)
    assert lines == [
        f"refused: dataset npz:{tmp_path}/none.npz: a server names no path",
        "refused: encoder none.safetensors: not over a network",
        "refused: novel 2: not over a network",
        "refused: min_count 1: it must be 5 or more",
    ]
    code, lines = told(asked | {"encoder": "none.safetensors"}, min_samples=10_000)
    assert "refused: it would train on fewer than 10000 samples" in lines  # although the encoder is not there


def test_what_was_had_today_counts_and_what_is_kept_does(
    told: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    asked = {"method": "fedproto", "model": "cnn", "dataset": "digits", "train_size": 300, "rounds": 5, "clients": 2}
    memory = tmp_path / "F/clients/1/memory"
    (memory / "a").mkdir(parents=True)
    (memory / "a/0.safetensors").write_bytes(bytes(2_000_000))
    full = "refused: a new run: what it keeps of others has used the room that is allowed"
    assert told(asked, disk_megabytes=1) == (3, [full])
    assert told(asked, disk_megabytes=3)[0] == 0
    for path in (memory / "a/0.safetensors", memory / "a"):  # so old that it is deleted when another begins
        os.utime(path, (0, 0))
    assert told(asked, disk_megabytes=1)[0] == 0
    assert (memory / "a/0.safetensors").exists()
    Today.read(memory / "today.json").count(memory / "today.json", Owner(1), turns=4, sent=500_000)
    assert told(asked, turns_per_day=9)[0] == 0
    code, (turns, sent) = told(asked, turns_per_day=8, megabytes_per_day=0.5)
    assert (code, turns) == (3, "refused: 5 turns, if on this day: 8 are allowed in a day, and 4 were taken")
    assert re.fullmatch(
        r"refused: [0-9.]+ MB of uploads, if on this day: 0\.5 MB are allowed in a day, and 0\.5 were sent", sent
    )


def test_an_exchange_on_public_images_is_told_of_beforehand(told: Callable[..., tuple[int, list[str]]]) -> None:
    """It takes a turn of its own, sends numbers and is not clipped."""
    asked = {"method": "fccl-plus", "model": "cnn", "dataset": "digits", "train_size": 300, "rounds": 5, "clients": 2}
    asked |= {"public": "digit-domains", "params": {"public_images": 200, "public_batch": 100}}
    assert told(asked)[0] == 0
    code, lines = told(asked, clip=1.0, turns=9, send=["weights", "accuracies"], megabytes=0.042)
    assert code == 3
    assert lines[:2] == [
        "refused: numbers may not be sent",
        "refused: an exchange on public images, which is neither clipped nor noised",
    ]
    similarities = (100 * 99 + 100 * 10) * 4 / 1e6
    for line, what in zip(lines[2:4], ("an upload", "a broadcast"), strict=True):
        found = re.fullmatch(f"refused: {what} of ([0-9.]+) MB: 0.042 MB are allowed", line)
        assert found is not None, line
        assert similarities < float(found[1]) < similarities + 0.001
    assert lines[4:] == ["refused: 10 turns: 9 of a run are allowed"]


@pytest.mark.parametrize(
    "change",
    [
        {"method": "mp-fedcl"},  # whose pool grows with the clients
        {"method": "fedproto"},
        {"method": "fedavg"},
        {"method": "fedavg", "secure": True},
        {"method": "fedproto", "secure": True, "privacy": "client", "clip": 1.0, "noise": 1.0},
    ],
)
def test_messages_have_the_size_that_is_told_beforehand(
    change: dict[str, Any], told: Callable[..., tuple[int, list[str]]], tmp_path: Path
) -> None:
    asked = {
        "model": "cnn",
        "dataset": "digits",
        "train_size": 1000,
        "split": "iid",
        "rounds": 2,
        "clients": 4,
    } | change
    sent: list[int] = []
    grid = Loopback(in_simulation(4), lambda answer: sent.append(size_of(answer)) or [answer])  # type: ignore[func-returns-value]
    serve(grid, Experiment.from_mapping(asked | {"device": "cpu", "threads": 1}), Settings(str(tmp_path / "run")))
    received = max(map(size_of, grid.asked))
    _, lines = told(asked, megabytes=1e-6, min_batch=1)
    for line, what, actual in zip(lines, ("an upload", "a broadcast"), (max(sent), received), strict=True):
        found = re.fullmatch(f"refused: {what} of ([0-9.]+) MB: 1e-06 MB are allowed", line)
        assert found is not None, line
        assert float(found[1]) * 1e6 == pytest.approx(actual, rel=0.1, abs=1000)
    if asked.get("secure"):
        unmasked = {"secure": False, "privacy": "none", "clip": None, "noise": 0.0}
        _, plain = told(asked | unmasked, megabytes=1e-6, min_batch=1)
        (upload,) = (float(line.split()[4]) for line in plain if "an upload" in line)
        assert max(sent) / 1e6 > 1.7 * upload  # 8 bytes a number in place of 4


def test_a_step_on_few_samples_is_refused(tmp_path: Path) -> None:
    """Also the last one of an epoch, by the engine's rule that a single sample joins the batch before it."""
    whole = replace(BASE, split="iid", train_size=202)
    client = at(tmp_path)
    samples = len(client.federation("a", whole).clients[0].train)
    assert samples == 101
    for asked, smallest in ((32, 5), (16, 5), (30, 11), (31, 8), (25, 25), (50, 50), (93, 8), (94, 7), (102, 101)):
        owner = at(tmp_path, min_batch=8)
        packet = message(replace(whole, batch_size=asked), run=f"b{asked}")
        if smallest >= 8:
            taken(owner, packet)
            continue
        why = f"batch_size {asked}: the last batch of an epoch would have {smallest} samples, 8 or more are allowed"
        said = refusal(owner, packet)
        found = re.fullmatch(f"{re.escape(why)}; ([0-9]+) or ([0-9]+) would do", said)
        assert found is not None, said
        for better in map(int, found.groups()):
            taken(owner, message(replace(whole, batch_size=better), run=f"b{asked}to{better}"))
    assert "the last batch" in refusal(at(tmp_path, min_batch=8), message(replace(whole, steps=4), run="steps"))
    taken(at(tmp_path, min_batch=8), message(replace(whole, steps=3), run="fewer"))  # which never come to the last one
    nobody = replace(whole, method="fed3r", model="mlp")  # trains
    assert isinstance(at(tmp_path, min_batch=8).answer("query.hello", message(nobody, run="none")), Packet)
    assert turn_objections(Owner(0), new_run(replace(nobody, clients=1, train_size=101, device="cpu")).engine) == []
    assert refusal(at(tmp_path, min_batch=102), message(replace(whole, batch_size=200), run="all")) == (
        "batch_size 200: the last batch of an epoch would have 101 samples, 102 or more are allowed"
    )


def test_simulated_clients_are_their_users_own() -> None:
    asked = replace(BASE, dataset="npz:mine.npz", model="mine.py:Net", batch_size=1)
    assert Owner(0, simulated=True, min_batch=1).objections(asked) == []
    assert len(Owner(0).objections(asked)) == 3
    assert "simulated" not in {item.name for item in keys()}


def test_a_broadcast_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    weights = new_run(replace(BASE, device="cpu", method="fedavg")).broadcast.weights
    facts = {"run": "a", "experiment": asdict(BASE), "clock": [0, [0]]}
    facts |= {"classes": list("0123456789"), "domains": ["digits"]}
    wrong = Broadcast({"other": next(iter(weights.values()))})
    assert refusal(at(tmp_path), pack(facts, wrong)) == "the model has no weights/other"


def test_a_server_names_no_file_of_rows(tmp_path: Path) -> None:
    """Rows in a file would be opened here; a client for each class needs none."""
    owner = Owner(id=0)
    (tmp_path / "rows.json").write_text("[[0], [1]]")
    named = replace(BASE, split=f"indices:{tmp_path / 'rows.json'}")
    assert any("a server names no path" in one for one in owner.objections(named))
    assert owner.objections(replace(BASE, split="by:label")) == []
    mine = replace(owner, data=f"folder:{tmp_path}")
    for option in ({"unseen": "sketch"}, {"test_fraction": 0.5}):
        assert any("its own data is trained on whole" in one for one in mine.objections(replace(BASE, **option)))
