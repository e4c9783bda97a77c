"""The rounds of the Flower engine equal the sequential ones to the bit, and survive what clients do."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Context, Error, Message, RecordDict
from safetensors.torch import load_file

from protofed.deploy import client, connections, server
from protofed.deploy.client_memory import FolderMemory
from protofed.deploy.flower_client import StateMemory
from protofed.deploy.follow_run import HINT, HOPELESS
from protofed.deploy.owner import Owner
from protofed.deploy.records import as_record, to_records
from protofed.deploy.server import serve, server_app
from protofed.deploy.server_settings import Settings
from protofed.deploy.wire import PROTOCOL, REFUSED, pack, seal
from protofed.errors import HopelessError, LostError, RefusedError, UserError
from protofed.experiment import Experiment
from protofed.internal.digests import parse_json
from protofed.messages import Upload
from protofed.prototypes import Prototypes
from protofed.runs.network_label import read_network_label
from protofed.runs.run import Run, new_run
from protofed.server.participation import participants
from tests.engines.test_alone import METHODS, experiment
from tests.support.loopback import Loopback, data_of, facts_of, in_simulation, packed, size_of, with_folder

QUICK: dict[str, Any] = {"deadline": 0.3, "wait": 0.3}


def lines(path: Path) -> list[dict[str, Any]]:
    return [parse_json(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


def sequential(asked: Experiment) -> Run:
    run = new_run(asked)
    for _ in range(asked.rounds):
        run.play_round()
    return run


def assert_same(path: Path, local: Run) -> None:
    """What the server had in the end, and what it wrote of every round."""
    for name, value in load_file(path / "checkpoint/state.safetensors").items():
        part, _, rest = name.partition("/")
        if part in ("server", "kept"):
            kept = local.broadcast.flat() if part == "server" else local.broadcast.kept
            assert torch.equal(value, kept[rest]), name
    for line, expected in zip(lines(path), local.history, strict=True):
        for what in ("per_client", "per_domain", "accuracy", "participants", "scalars_up", "diagnostic"):
            assert line[what] == expected.to_json()[what], what
        assert line["loss"] == pytest.approx(expected.loss)


EVERY_OTHER = [
    pytest.param(name, marks=pytest.mark.slow) if number % 2 else name for number, name in enumerate(METHODS)
]
"""`make test` takes every second method over the network, `make test-slow` the others."""


@pytest.mark.parametrize("method", EVERY_OTHER)
def test_a_run_over_the_network_equals_the_sequential_one(method: str, tmp_path: Path) -> None:
    serve(Loopback(in_simulation(4)), experiment(method), Settings(out=str(tmp_path / "run")))
    assert_same(tmp_path / "run", sequential(experiment(method)))


EVERY_METRIC = "balanced,f1,auc,ece,many,medium,few,class,worst,worst10"


def test_metrics_over_the_network_equal_the_sequential_ones(tmp_path: Path) -> None:
    asked = replace(experiment("fedproto"), metrics=EVERY_METRIC, alpha=0.1, val_fraction=0.1)
    serve(Loopback(in_simulation(4)), asked, Settings(out=str(tmp_path / "run")))
    local = sequential(asked)
    assert_same(tmp_path / "run", local)
    assert [line["undefined"] for line in lines(tmp_path / "run")] == [one.undefined for one in local.history]
    assert {"own/own/head:few", "own/own/nearest:auc", "own/val/head:worst10"} <= local.history[-1].accuracy.keys()


def test_an_owner_may_keep_metrics(tmp_path: Path) -> None:
    asked = replace(experiment("fedproto"), metrics="f1,worst", rounds=1)
    nodes = {100 + k: with_folder(tmp_path, k) for k in range(4)}
    nodes[102] = with_folder(tmp_path, 2, send=["prototypes", "numbers", "accuracies"])
    serve(Loopback(nodes), asked, Settings(out=str(tmp_path / "run")))
    (line,), whole = lines(tmp_path / "run"), sequential(asked).history[-1]
    assert line["undefined"]["own/own/head:f1"] == [2]
    kept = whole.per_client["own/own/head:f1"]
    assert line["per_client"]["own/own/head:f1"] == [kept[0], kept[1], kept[3]]
    assert line["accuracy"]["own/own/head:worst"] == whole.accuracy["own/own/head:worst"]


def test_shots_need_what_clients_with_data_of_their_own_do_not_tell(tmp_path: Path) -> None:
    asked = replace(experiment("fedproto"), clients=3, train_size=None, metrics="f1,few")
    nodes = {100 + k: brings(tmp_path, k) for k in range(3)}
    with pytest.raises(UserError, match="'f1,few' for --metrics: few would need everybody's number of samples"):
        serve(Loopback(nodes), asked, Settings(str(tmp_path / "run"), **QUICK))
    with pytest.raises(UserError, match="'f3' for --metrics"):
        serve(Loopback({}), replace(asked, metrics="f3"), Settings(out=str(tmp_path / "other")))


def exchanging(exchange: str, **more: Any) -> Experiment:
    """Clients that agree on public images before they train."""
    given: dict[str, Any] = {
        "dataset": "digits",
        "train_size": 120,
        "alpha": 1.0,
        "clients": 3,
        "rounds": 2,
        "lr": 0.001,
    }
    given |= {"public": "digit-domains", "model": "cnn", "device": "cpu", "threads": 1, "engine": "sequential"}
    params = {"public_images": 40, "public_batch": 16, "exchange": exchange}
    return Experiment(method="fccl-plus", params=params, **given | more)


@pytest.mark.parametrize("exchange", ["batch", "round"])
def test_clients_agree_on_public_images_over_the_network(exchange: str, tmp_path: Path) -> None:
    asked = exchanging(exchange)
    grid = Loopback(in_simulation(3))
    serve(grid, asked, Settings(out=str(tmp_path / "run")))
    assert_same(tmp_path / "run", sequential(asked))
    kinds = [message.metadata.message_type for message in grid.asked if message.metadata.group_id == "1"]
    parts = 4 if exchange == "batch" else 2  # 40 images are three batches; then the models
    assert kinds.count("train.public") == 3 * parts
    assert kinds.count("train") == kinds.count("query.public") == 3
    for line in lines(tmp_path / "run"):
        number = str(line["round"])
        assert line["bytes_down"] == sum(size_of(m) for m in grid.asked if m.metadata.group_id == number)


def test_who_has_other_public_images_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = exchanging("batch", rounds=1)
    made = pack

    def lie(facts: dict[str, Any], *rest: Any) -> Any:
        return made({**facts, "digest": "other"} if facts.get("id") == 1 and "digest" in facts else facts, *rest)

    monkeypatch.setattr(client, "pack", lie)
    serve(Loopback(in_simulation(3)), asked, Settings(out=str(tmp_path / "run")))
    (line,) = lines(tmp_path / "run")
    assert line["left_out"] == {"1": "refused: its public images are others"}
    assert line["participants"] == [0, 2]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"experiment": {"secure": True}}, "an upload without masks"),
        ({"learned": [0, 0]}, "no such public batches"),
        ({"wanted": [3]}, "no such public batches"),
        ({"wanted": "all"}, "no such public batches"),
    ],
)
def test_a_server_cannot_ask_for_more_than_an_exchange_is(change: dict[str, Any], why: str) -> None:
    """Not for an upload without masks where they are promised, nor for the same steps again and again."""
    asked = exchanging("batch")
    sent = new_run(asked).broadcast
    facts: dict[str, Any] = {"clock": [0, [0, 1, 2]], "first": True, "learned": [], "wanted": [0], "run": "a"}
    facts |= {"classes": [str(digit) for digit in range(10)], "domains": ["digits"], "experiment": vars(asked)}
    facts |= change | {"experiment": {**vars(asked), **change.get("experiment", {})}}
    answer = client.WarmClient(Owner(0, threads=1)).answer("train.public", pack(facts, sent), StateMemory(RecordDict()))
    assert isinstance(answer, client.Failed)
    assert (answer.code, why in answer.reason) == (REFUSED, True)


def test_a_client_that_has_not_begun_an_exchange_refuses_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StateMemory, "keep", lambda *_: None)  # what it kept is gone
    with pytest.raises(LostError, match="fewer than 1 of the round's clients are left"):
        serve(Loopback(in_simulation(3)), exchanging("batch"), Settings(out=str(tmp_path / "run")))


def test_with_some_clients_a_round_too(tmp_path: Path) -> None:
    asked = replace(experiment("mp-fedcl"), participation=0.5)
    serve(Loopback(in_simulation(4)), asked, Settings(out=str(tmp_path / "run")))
    assert_same(tmp_path / "run", sequential(asked))


def test_bytes_are_those_of_the_messages(tmp_path: Path) -> None:
    answers: list[Message] = []
    grid = Loopback(in_simulation(4), lambda answer: answers.append(answer) or [answer])  # type: ignore[func-returns-value]
    serve(grid, experiment("fedsc"), Settings(out=str(tmp_path / "run")))
    for line in lines(tmp_path / "run"):
        number = str(line["round"])
        assert line["bytes_down"] == sum(size_of(m) for m in grid.asked if m.metadata.group_id == number)
        assert line["bytes_up"] == sum(size_of(m) for m in answers if m.metadata.group_id == number)


FACTS: dict[str, dict[str, Any]] = {
    "another id": {"id": 1},
    "another protocol": {"protocol": 99},
    "no loss": {"loss": "low"},
    "high loss": {"loss": 1.7e308},
}
SAMPLES = {"many samples": 10**15, "no samples": 0, "samples below nothing": -200}


def spoiled(what: str) -> Callable[[Message], list[Message]]:
    """Answers of client 2 to its second turn, as something else."""

    def changed(answer: Message) -> list[Message]:
        about = answer.metadata
        if about.src_node_id != 102 or (about.message_type, about.group_id) != ("train", "2"):
            return [answer]
        upload = Upload.decode(data_of(answer))
        (name, found), *_ = upload.prototypes.items()
        facts = facts_of(answer)
        worse = {
            "not finite": {name: Prototypes(found.vectors * torch.inf, found.counts)},
            "far off": {name: Prototypes(found.vectors * 1000, found.counts)},
            "another size": {name: Prototypes(found.vectors[..., :-1], found.counts)},
            "another name": {"others": found},
            "counts": {name: Prototypes(found.vectors, 1000 * found.counts)},
        }
        if what in worse:
            answer.content = packed(facts, Upload(upload.weights, worse[what], upload.numbers))
        elif what in FACTS:
            answer.content = packed(facts | FACTS[what], upload)
        elif what in SAMPLES:
            told = {"samples": torch.full_like(upload.numbers["samples"], SAMPLES[what])}
            answer.content = packed(facts, Upload(upload.weights, upload.prototypes, told))
        elif what == "garbage":
            answer.content = sealed(json.dumps(facts), bytes(range(256)) * 3)
        elif what == "endless":
            answer.content = sealed("[" * 100_000, b"")
        elif what == "one bit":
            data = bytearray(upload.encode())
            data[-1] ^= 1  # of a number: what it holds has the right form
            answer.content["0"] = as_record(bytes(data))
        elif what == "empty":
            answer.content = RecordDict()
        elif what == "an error":
            return [_error(answer)]
        elif what == "silence":
            return []
        elif what == "twice":
            return [answer, answer]
        return [answer]

    return changed


def sealed(text: str, data: bytes) -> RecordDict:
    """What a client sends that means it."""
    return to_records(seal(text, data))


def _error(answer: Message) -> Message:
    failed = Message(Error(2, "ValueError: patient 17 has no label"), reply_to=answer)
    failed.metadata.__dict__["_reply_to_message_id"] = answer.metadata.reply_to_message_id
    return failed


REASONS = {
    "not finite": "not finite",
    "far off": "far longer than the others",
    "another size": "shape",
    "another name": "other tensors",
    "another id": "another client",
    "another protocol": "protocol 99",
    "no loss": "loss",
    "high loss": "loss",
    "counts": "more samples than it declared",
    "many samples": "more samples than it declared",
    "no samples": "less than nothing",
    "samples below nothing": "less than nothing",
    "garbage": "not a message",
    "endless": "not a message",
    "one bit": "damaged",
    "empty": "not a message",
    "an error": "error 2: ValueError",
    "silence": "no answer within 0.3 s",
}


@pytest.mark.parametrize("what", REASONS)
def test_a_bad_answer_costs_the_client_its_round_and_nobody_else(what: str, tmp_path: Path) -> None:
    asked = replace(experiment("mp-fedcl"), model="cnn", train_size=120, eval_every=3)
    serve(Loopback(in_simulation(4), spoiled(what)), asked, Settings(str(tmp_path / "run"), **QUICK))
    first, second, third = lines(tmp_path / "run")
    assert "left_out" not in first
    assert "left_out" not in third  # it is back
    assert list(second["left_out"]) == ["2"]
    assert REASONS[what] in second["left_out"]["2"]
    assert "patient" not in json.dumps(second)
    assert (second["participants"], third["participants"]) == ([0, 1, 3], [0, 1, 2, 3])


def test_a_repeated_answer_is_taken_once(tmp_path: Path) -> None:
    serve(Loopback(in_simulation(4), spoiled("twice")), experiment("mp-fedcl"), Settings(out=str(tmp_path / "run")))
    assert_same(tmp_path / "run", sequential(experiment("mp-fedcl")))


def without_at_first(node: int, nodes: dict[int, Any]) -> Loopback:
    """A grid to which one node comes after the first round."""
    grid = Loopback(nodes)
    grid.offline = {node}

    def arrive(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.group_id) == ("train", "1"):
            grid.offline.clear()
        return [answer]

    grid.trouble = arrive
    return grid


def test_who_comes_late_is_welcome(tmp_path: Path) -> None:
    grid = without_at_first(103, in_simulation(4))
    serve(grid, experiment("fedproto"), Settings(str(tmp_path / "run"), **QUICK))
    first, second, _ = lines(tmp_path / "run")
    assert first["left_out"] == {"3": "not connected"}
    assert (first["participants"], second["participants"]) == ([0, 1, 2], [0, 1, 2, 3])
    assert "tested" not in first  # it has come with the turns of the second round, to which all were there
    assert "tested" not in second


def test_a_test_travels_with_the_next_turn(tmp_path: Path) -> None:
    """Of those that take part and of the others alike, so that nobody is sent the same model twice."""
    asked = replace(experiment("mp-fedcl"), participation=0.5, rounds=3)
    grid = Loopback(in_simulation(4))
    serve(grid, asked, Settings(str(tmp_path / "run")))
    kinds = {number: [m.metadata.message_type for m in grid.asked if m.metadata.group_id == number] for number in "123"}
    assert [sorted(kinds[number]) for number in "123"] == [
        ["train"] * 2,
        ["evaluate"] * 2 + ["train"] * 2,
        ["evaluate"] * 6 + ["train"] * 2,  # after the last round there is no turn
    ]
    told = [facts_of(message).get("test", False) for message in grid.asked if message.metadata.message_type == "train"]
    assert told == [False] * 2 + [True] * 4
    assert_same(tmp_path / "run", sequential(asked))


def test_a_server_killed_before_a_test_came_back_asks_for_it_again(tmp_path: Path) -> None:
    nodes = {100 + k: with_folder(tmp_path, k) for k in range(4)}
    asked = experiment("mp-fedcl")

    def trouble(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.group_id) == ("train", "3"):
            raise KilledError
        return [answer]

    with pytest.raises(KilledError):
        serve(Loopback(nodes, trouble), asked, Settings(str(tmp_path / "run")))
    assert [bool(line["accuracy"]) for line in lines(tmp_path / "run")] == [True, False]
    serve(Loopback(nodes), asked, Settings(str(tmp_path / "run")))
    assert_same(tmp_path / "run", sequential(asked))


def brings(place: Path, number: int, **more: Any) -> dict[str, Any]:
    """The node of a client with data of its own."""
    labels = np.arange(24) % 3
    images = np.random.default_rng(number).integers(0, 255, (24, 1, 8, 8), dtype=np.uint8)
    np.savez(place / f"site{number}.npz", images=images, labels=labels, **more)
    return with_folder(place, number, data=f"npz:{place / f'site{number}.npz'}")


def test_who_comes_late_may_bring_its_own_data_and_domain(tmp_path: Path) -> None:
    grid = without_at_first(102, {100 + k: brings(tmp_path, k) for k in range(3)})
    asked = replace(experiment("mp-fedcl"), clients=3, train_size=None)
    serve(grid, asked, Settings(str(tmp_path / "run"), **QUICK))
    first, *later = lines(tmp_path / "run")
    assert (first["participants"], [line["participants"] for line in later]) == ([0, 1], [[0, 1, 2]] * 2)
    for line in (first, *later):
        assert "tested" not in line
        assert list(line["per_domain"]["global/domain/head"]) == ["site0", "site1", "site2"]
    assert not any("left_out" in line for line in later)


@pytest.mark.parametrize(("forgets", "late"), [(0, False), (2, False), (2, True)])
def test_who_forgets_its_data_while_others_bring_theirs_is_refused(
    forgets: int, late: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = {100 + k: brings(tmp_path, k) for k in range(3)} | {100 + forgets: with_folder(tmp_path, forgets)}
    grid = Loopback(nodes)
    grid.offline = {100 + forgets} if late else set()

    def mend(answer: Message) -> list[Message]:
        """It comes; later it leaves, and comes back with data."""
        if answer.metadata.message_type == "train":
            grid.offline = {100 + forgets} if answer.metadata.group_id == "2" else set()
            if answer.metadata.group_id == "3":
                brings(tmp_path, forgets)
        return [answer]

    grid.trouble = mend
    asked = replace(experiment("mp-fedcl"), clients=3, train_size=None, rounds=4)
    (tmp_path / "nodes.json").write_text(json.dumps({k: 100 + k for k in range(3)}))
    serve(grid, asked, Settings(str(tmp_path / "run"), nodes=str(tmp_path / "nodes.json"), **QUICK))
    others = [k for k in range(3) if k != forgets]
    assert [line["participants"] for line in lines(tmp_path / "run")] == [others, others, others, [0, 1, 2]]
    why = "it brings no data, but others do: say --data"
    assert why in caplog.text
    assert [line.get("left_out", {}).get(str(forgets)) for line in lines(tmp_path / "run")] == [
        "not connected" if late else why,
        why,
        "not connected",
        None,
    ]


def test_who_brings_data_into_a_run_that_began_without_is_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    grid = Loopback({100: with_folder(tmp_path, 0), 101: with_folder(tmp_path, 1), 102: brings(tmp_path, 2)})
    grid.offline = {102}

    def arrive(answer: Message) -> list[Message]:
        if answer.metadata.message_type == "train":
            grid.offline.clear()
        return [answer]

    grid.trouble = arrive
    asked = replace(experiment("mp-fedcl"), clients=3, train_size=None)
    serve(grid, asked, Settings(str(tmp_path / "run"), **QUICK))
    assert [line["participants"] for line in lines(tmp_path / "run")] == [[0, 1]] * 3
    assert "it brings data, and nobody did when the run began" in caplog.text


def test_too_few_clients_end_a_run_which_can_go_on_later(tmp_path: Path) -> None:
    nodes = {100 + k: with_folder(tmp_path, k) for k in range(4)}
    grid = Loopback(nodes)

    def leave(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.group_id) == ("train", "3"):
            grid.offline = {102, 103}
            return []
        return [answer]

    grid.trouble = leave
    settings = Settings(str(tmp_path / "run"), minimum=3, **QUICK)
    with pytest.raises(LostError, match="fewer than 3"):
        serve(grid, experiment("fedproto"), settings)
    assert len(lines(tmp_path / "run")) == 2
    serve(Loopback(nodes), experiment("fedproto"), settings)  # all have trained round 3 already, and do it again
    assert_same(tmp_path / "run", sequential(experiment("fedproto")))
    kept = sorted((tmp_path / "client-0" / "memory").rglob("*.safetensors"))
    assert [file.stem for file in kept] == ["0", "1", "2"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in kept} == {0o600}
    assert stat.S_IMODE((tmp_path / "client-0" / "memory").stat().st_mode) == 0o700


def test_who_was_away_for_rounds_plays_one_again_from_the_same_model(tmp_path: Path) -> None:
    """With two of four a round, a client's last turn may be many rounds ago when a round is played again."""
    asked = replace(experiment("fedproto"), participation=0.5, rounds=8)
    grid = Loopback({100 + k: with_folder(tmp_path, k) for k in range(4)})
    seen: set[tuple[str, int]] = set()

    def trouble(answer: Message) -> list[Message]:
        turn = (answer.metadata.group_id, answer.metadata.src_node_id)
        if answer.metadata.message_type == "train" and turn not in seen and turn[1] % 2:
            seen.add(turn)
            return [_error(answer)]
        return [answer]

    grid.trouble = trouble
    serve(grid, asked, Settings(str(tmp_path / "run"), minimum=2))
    assert_same(tmp_path / "run", sequential(asked))


def test_a_round_waits_for_those_it_asks_not_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "PAUSE", 0.01)
    asked = replace(experiment("fedproto"), participation=0.5, rounds=2)
    first, second = participants(asked, 4, 1)
    grid, looks = Loopback(in_simulation(4)), iter(range(10))

    def trouble(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.group_id) == ("train", "1"):
            grid.offline = {100 + first}
        return [answer]

    def come_back() -> list[int]:
        if grid.offline and next(looks, None) is None:
            grid.offline = set()
        return Loopback.get_node_ids(grid)

    grid.trouble = trouble
    monkeypatch.setattr(grid, "get_node_ids", come_back)
    serve(grid, asked, Settings(str(tmp_path / "run"), minimum=2))
    assert lines(tmp_path / "run")[1]["participants"] == [first, second]
    assert_same(tmp_path / "run", sequential(asked))


class KilledError(BaseException):
    """Nobody catches it."""


def die(*_: Any) -> None:
    raise KilledError


def test_a_server_goes_on_after_its_last_round_whatever_the_experiment_says(tmp_path: Path) -> None:
    asked = replace(experiment("fedproto"), rounds=6, checkpoint_every=3)
    nodes = {100 + k: with_folder(tmp_path, k) for k in range(4)}

    def trouble(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.group_id) == ("evaluate", "6"):
            raise KilledError
        return [answer]

    with pytest.raises(KilledError):
        serve(Loopback(nodes, trouble), asked, Settings(str(tmp_path / "run")))
    assert len(lines(tmp_path / "run")) == 5
    serve(Loopback(nodes), asked, Settings(str(tmp_path / "run")))
    assert_same(tmp_path / "run", sequential(asked))


@pytest.mark.parametrize("rounds", [1, 3])
def test_a_folder_of_another_experiment_is_not_played_on(rounds: int, tmp_path: Path) -> None:
    """Whether it is finished or not."""
    grid = Loopback(in_simulation(4))
    asked = experiment("fedproto")

    def trouble(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.group_id) == ("train", str(rounds + 1)):
            raise KilledError
        return [answer]

    grid.trouble = trouble
    with pytest.raises(KilledError) if rounds < 3 else nullcontext():
        serve(grid, asked, Settings(str(tmp_path / "run")))
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    other = Loopback(in_simulation(4))
    for change in ({"method": "mp-fedcl", "params": {}}, {"seed": 7}, {"rounds": 4}):
        with pytest.raises(UserError, match=f"another experiment .*{next(iter(change))}"):
            serve(other, replace(asked, **change), Settings(str(tmp_path / "run")))
    assert not other.asked
    assert {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()} == before


def test_a_server_killed_when_it_had_made_its_folder_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = replace(experiment("fedproto"), rounds=1)
    monkeypatch.setattr(server, "write_text", die)
    with pytest.raises(KilledError):
        serve(Loopback(in_simulation(4)), asked, Settings(str(tmp_path / "run")))
    monkeypatch.undo()
    serve(Loopback(in_simulation(4)), asked, Settings(str(tmp_path / "run")))
    assert (tmp_path / "run/config.yaml").exists()
    assert_same(tmp_path / "run", sequential(asked))


def test_a_server_started_again_keeps_the_classes_of_who_is_away(tmp_path: Path) -> None:
    for k, classes in ((0, 4), (1, 2)):
        labels = np.arange(24) % classes
        np.savez(tmp_path / f"{k}.npz", images=np.zeros((24, 1, 8, 8), dtype=np.uint8), labels=labels)
    nodes = {100 + k: with_folder(tmp_path, k, data=f"npz:{tmp_path / f'{k}.npz'}") for k in range(2)}
    asked = replace(experiment("fedproto"), model="cnn", clients=2, train_size=None)

    def trouble(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.group_id) == ("train", "2"):
            raise KilledError
        return [answer]

    with pytest.raises(KilledError):
        serve(Loopback(nodes, trouble), asked, Settings(str(tmp_path / "run"), **QUICK))
    grid = Loopback(nodes)
    grid.offline = {100}
    serve(grid, asked, Settings(str(tmp_path / "run"), **QUICK))
    assert [line["participants"] for line in lines(tmp_path / "run")] == [[0, 1], [1], [1]]


def test_a_client_killed_while_it_writes_keeps_its_models_and_tidies_up_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = FolderMemory(tmp_path / "memory/run")
    memory.write(0, b"whole")
    monkeypatch.setattr(Path, "replace", die)
    for number in (1, 2):
        with pytest.raises(KilledError):
            memory.write(number, b"part")
    assert memory.rounds() == [0]
    (memory.folder / ".1.safetensors.draft").write_bytes(b"what a killed process leaves")
    FolderMemory(tmp_path / "memory/run")
    assert [file.name for file in memory.folder.iterdir()] == ["0.safetensors"]
    monkeypatch.undo()
    memory.write(1, b"next")
    assert sorted(file.name for file in memory.folder.iterdir()) == ["0.safetensors", "1.safetensors"]


def test_a_round_that_fails_again_and_again_ends_the_run(tmp_path: Path) -> None:
    def fail(answer: Message) -> list[Message]:
        return [_error(answer) if answer.metadata.message_type == "train" else answer]

    with pytest.raises(LostError, match="round 1 failed 3 times"):
        serve(Loopback(in_simulation(4), fail), experiment("fedproto"), Settings(str(tmp_path / "run"), **QUICK))
    assert not (tmp_path / "run/rounds.jsonl").exists()


@pytest.mark.parametrize(
    "lie",
    [
        {"per_client": {"own/own/head": [101.0]}},
        {"per_client": {"own/own/head": [50.0, 60.0]}},
        {"per_client": {}},
        {"per_client": {"x": [50.0]}},
        {"per_client": {"own/own/nearest": [50.0], "own/all/nearest": [50.0]}},
        {"per_domain": {"global/all/head": {"d": 100.0}}},
        {"per_domain": {"everything": {"digits": 100.0}}},
        {"diagnostic": ["<script>"]},
        {"interval": {"a": 1.0}},
        {"per_domain": {"global/domain/head": {"x": "high"}}},
        {"per_domain": {"global/domain/head": {}}},
        {"tested": [0, 1, 2, 3]},
        {"undefined": {"own/own/head": [1]}},
        {"per_domain": {"global/domain/head:f1": {"digits": 50.0}}},  # nobody has asked for it
    ],
)
def test_scores_that_are_none_are_left_out(lie: dict[str, Any], tmp_path: Path) -> None:
    def changed(answer: Message) -> list[Message]:
        if (answer.metadata.src_node_id, answer.metadata.message_type) == (100, "evaluate"):
            facts = facts_of(answer)
            answer.content = packed(facts | {"scores": facts["scores"] | lie})
        return [answer]

    asked = replace(experiment("fedproto"), train_size=120, rounds=1)
    serve(Loopback(in_simulation(4), changed), asked, Settings(str(tmp_path / "run"), **QUICK))
    (line,) = lines(tmp_path / "run")
    assert line["tested"] == [1, 2, 3]
    assert {len(values) for values in line["per_client"].values()} == {3}


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ({"methods": ["fedavg"]}, "method fedproto"),
        ({"turns": 2}, "3 rounds: 2 turns of a run are allowed"),
        ({"megabytes": 0.001}, "MB: 0.001 MB are allowed"),
        ({"send": ["weights"]}, "prototypes may not be sent"),
        ({"data": "npz:nowhere.npz"}, "UserError"),
        ({"colour": "red"}, "UserError"),
    ],
)
def test_what_a_client_does_not_allow_is_not_done(
    says: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    nodes = {100 + k: with_folder(tmp_path, k, **(says if k == 1 else {})) for k in range(4)}
    asked = replace(experiment("fedproto"), train_size=120, eval_every=3)
    (tmp_path / "nodes.json").write_text(json.dumps({k: 100 + k for k in range(4)}))
    settings = Settings(str(tmp_path / "run"), minimum=3, nodes=str(tmp_path / "nodes.json"), **QUICK)
    serve(Loopback(nodes), asked, settings)
    for line in lines(tmp_path / "run"):
        assert 1 not in line["participants"]
        assert list(line["left_out"]) == ["1"]
        assert line["left_out"]["1"] == f"error 102: {why}" or why in line["left_out"]["1"]  # at the server
    told = capsys.readouterr()
    assert why in told.out + told.err  # at the client
    assert "nowhere" not in caplog.text  # not at the server


def test_a_run_without_enough_clients_says_what_was_wrong_with_those_that_came(tmp_path: Path) -> None:
    nodes = {100: with_folder(tmp_path, 0), 101: brings(tmp_path, 1), 102: with_folder(tmp_path, 2, turns=1)}
    (tmp_path / "nodes.json").write_text(json.dumps({k: 100 + k for k in range(4)}))
    settings = Settings(str(tmp_path / "run"), minimum=2, nodes=str(tmp_path / "nodes.json"), **QUICK)
    with pytest.raises(LostError) as lost:
        serve(Loopback(nodes), replace(experiment("fedproto"), train_size=None), settings)
    assert str(lost.value) == (
        "1 of at least 2 clients came within 0.3 s; client 0: it brings no data, but others do: say --data; "
        "client 2: it refuses: 3 rounds: 1 turns of a run are allowed"
    )


def test_images_of_which_the_server_would_make_too_many_are_refused() -> None:
    clients = connections.Connections(Loopback({}), experiment("fedproto"), Settings(), "run")
    said: dict[str, Any] = {"id": 1, "samples": 10, "shape": [3, 224, 224], "classes": ["a", "b"], "domains": ["a"]}
    said |= {"brings": False, "tokens": 0, "masked": False}
    assert clients._read_hello(1, pack(said))[0] == 1
    lies: list[tuple[dict[str, Any], str]] = [
        *(({"shape": shape}, "shape") for shape in ([3, 10_000, 10_000], [], [1, 0, 8], [1.5], [1] * 5)),
        *(({"tokens": number}, "shape") for number in (None, -1, 1.5, 10**6)),
        ({"masked": 1}, "shape"),
        ({"brings": None}, "who it is"),
        ({"classes": [str(n) for n in range(10_001)]}, "too many"),
        *(({"domains": [name]}, "does not name its classes") for name in ("", "\ud800", "a\nb", 5)),
        *(({"samples": number}, "how many samples") for number in (None, 0, -5, 1.5, "9", 10**10)),
    ]
    for lie, why in lies:
        with pytest.raises(RefusedError, match=why):
            clients._read_hello(1, seal(json.dumps({"protocol": PROTOCOL, **said, **lie}), b""))


def test_names_that_would_fill_every_message_are_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def changed(answer: Message) -> list[Message]:
        if answer.metadata.message_type == "query.hello" and answer.metadata.src_node_id == 101:
            answer.content = packed(facts_of(answer) | {"domains": ["長" * 400_001]})
        return [answer]

    asked = replace(experiment("fedproto"), rounds=1)
    serve(Loopback(in_simulation(4), changed), asked, Settings(str(tmp_path / "run"), **QUICK))
    assert lines(tmp_path / "run")[0]["participants"] == [0, 2, 3]
    assert "the names of its classes and domains are too long" in caplog.text


def test_classes_that_are_too_many_together_end_the_run_before_it_begins(tmp_path: Path) -> None:
    def changed(answer: Message) -> list[Message]:
        if answer.metadata.message_type == "query.hello":
            facts = facts_of(answer)
            names = [f"{facts['id']}-{number}" for number in range(4000)]
            answer.content = packed(facts | {"classes": names})
        return [answer]

    with pytest.raises(UserError, match="leave out who names what it should not"):
        serve(Loopback(in_simulation(4), changed), experiment("fedproto"), Settings(str(tmp_path / "run"), **QUICK))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("method", ["fedproto", "fedsc"])
def test_more_prototypes_than_class_means_are_refused(method: str, tmp_path: Path) -> None:
    def changed(answer: Message) -> list[Message]:
        if (answer.metadata.src_node_id, answer.metadata.message_type) == (102, "train"):
            facts = facts_of(answer)
            upload = Upload.decode(data_of(answer))
            wide = {name: found.widen(64) for name, found in upload.prototypes.items()}
            answer.content = packed(facts, Upload(upload.weights, wide, upload.numbers))
        return [answer]

    asked = replace(experiment(method), rounds=1)
    serve(Loopback(in_simulation(4), changed), asked, Settings(str(tmp_path / "run"), **QUICK))
    (line,) = lines(tmp_path / "run")
    assert list(line["left_out"]) == ["2"]
    assert "too many prototypes" in line["left_out"]["2"]


def test_code_that_a_server_names_is_not_loaded() -> None:
    asked = replace(experiment("fedproto"), model="net.py:Net")
    for methods in (None, ("fedproto",), ("fedproto", "net.py:Other")):
        with pytest.raises(RefusedError, match=r"the code of net\.py:Net"):
            Owner(0, methods=methods).check(asked)
    Owner(0, methods=("fedproto", "net.py:Net")).check(asked)  # its owner knows it
    with pytest.raises(RefusedError, match="plain name"):
        client.WarmClient(Owner(0))._folder("../../somewhere")


def test_a_node_is_one_client_and_a_client_one_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = in_simulation(4) | {104: {"partition-id": 2}, 105: {"partition-id": 9}}
    (tmp_path / "nodes.json").write_text(json.dumps({str(k): str(100 + k) for k in (0, 1, 2)} | {"3": "777"}))
    settings = Settings(str(tmp_path / "run"), nodes=str(tmp_path / "nodes.json"), **QUICK)
    serve(Loopback(nodes), replace(experiment("fedproto"), rounds=1), settings)
    assert lines(tmp_path / "run")[0]["participants"] == [0, 1, 2]
    assert "node 104 is refused: client 2 is another node" in caplog.text
    assert "node 105 is left out: it refuses: the experiment divides its dataset among clients 0 to 3" in caplog.text
    assert "its key is not that of client 3" in caplog.text


@pytest.mark.parametrize("text", [None, "", "[]", '{"0": null}', '{"0": "-1"}', '{"0": "%s"}' % ("1" * 5000)])
def test_without_a_list_of_nodes_that_can_be_read_nobody_is_let_in(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "nodes.json").write_text(text)
    settings = Settings(str(tmp_path / "run"), nodes=str(tmp_path / "nodes.json"), **QUICK)
    with pytest.raises(UserError, match=r"nodes\.json"):
        serve(Loopback(in_simulation(4)), experiment("fedproto"), settings)


@pytest.mark.parametrize(
    "change",
    [
        {"run": None},
        {"protocol": "7"},
        {"brings": "some"},
        {"layout": None},
        {"classes": []},
        {"shapes": [[1, 8, 8]]},
        {"shapes": [[1, 2, 3, 4, 5]] * 4},
        {"shapes": [[1, 0, 8]] * 4},
        {"tokens": [0]},
        {"tokens": [10**6] * 4},
        {"masked": [0] * 4},
        {"shapes": [[1, 10**9, 8]] * 4},
    ],
)
def test_a_damaged_label_of_a_run_is_said(change: dict[str, Any], tmp_path: Path) -> None:
    label = {"run": "abc", "brings": False, "classes": ["a"], "domains": ["b"], "shapes": [[1, 8, 8]] * 4}
    label |= {"tokens": [0] * 4, "masked": [False] * 4, "protocol": 7, "layout": ""}
    (tmp_path / "flower.json").write_text(json.dumps(label))
    assert read_network_label(tmp_path / "flower.json", 4) == label
    (tmp_path / "flower.json").write_text(json.dumps(label | change))
    with pytest.raises(UserError, match=r"flower\.json"):
        read_network_label(tmp_path / "flower.json", 4)


def test_what_would_fail_again_is_marked_for_who_follows_the_run(tmp_path: Path) -> None:
    wrong = rf"^{HOPELESS}invalid value 'cnnn' for --model: .*{HINT}did you mean 'cnn'\?"
    for model, kind, said in (("cnnn", HopelessError, wrong), ("cnn", LostError, "^0 of")):
        (tmp_path / "experiment.yaml").write_text(replace(experiment("fedproto"), model=model).to_yaml())
        context = Context(1, 1, {}, RecordDict(), {"out": str(tmp_path / "run"), **QUICK})
        with pytest.raises(kind, match=said):
            server_app(tmp_path)(Loopback({}), context)


def test_an_exchange_without_public_images_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--public"):
        serve(Loopback({}), exchanging("batch", public=None), Settings(out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()


OWN_CODE = """
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from protofed.methods.fedavg import FedAvg
from protofed.models.output import Output


@dataclass(frozen=True)
class Mine(FedAvg):
    name: ClassVar[str] = "mine"


class Small(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.body, self.head = nn.Linear(shape[0] * shape[1] * shape[2], 8), nn.Linear(8, classes)
        self.feature_size = 8

    def forward(self, x):
        features = self.body(x.flatten(1)).relu()
        return Output(features, self.head(features), (features,))
"""


@pytest.mark.parametrize("simulated", [True, False])
def test_code_of_ones_own_runs_in_the_simulation_alone(simulated: bool, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_CODE)
    asked = replace(
        experiment("mp-fedcl"), params={}, method=f"{tmp_path}/mine.py:Mine", model=f"{tmp_path}/mine.py:Small"
    )
    grid = Loopback(in_simulation(4), simulated=simulated)
    if simulated:
        serve(grid, asked, Settings(out=str(tmp_path / "run")))
        assert_same(tmp_path / "run", sequential(asked))
    else:
        with pytest.raises(LostError, match="0 of at least 1 clients came"):
            serve(grid, asked, Settings(str(tmp_path / "run"), **QUICK))


@pytest.mark.parametrize(
    ("name", "value"),
    [("drift", "sudden"), ("novel", 3), ("model", "cnnn"), ("dataset", "digit")],
)
def test_what_cannot_be_done_over_a_network_is_said_at_once(name: str, value: Any, tmp_path: Path) -> None:
    asked = replace(experiment("fedproto"), **{name: value, "params": {}})
    with pytest.raises(UserError, match=f"--{name}"):
        serve(Loopback({}), asked, Settings(out=str(tmp_path / "run")))
    assert not (tmp_path / "run").exists()
