"""Secure aggregation over the network engine: the plain run's result, and a server that sees only sums."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from flwr.app import Message, RecordDict
from numpy.typing import NDArray
from safetensors.torch import load, load_file
from torch import Tensor

from protofed.deploy import client, flower_client
from protofed.deploy.owner import Owner
from protofed.deploy.server import check, serve
from protofed.deploy.server_settings import Settings
from protofed.deploy.wire import REFUSED, pack, read_book, spelt
from protofed.errors import LostError, RefusedError, UserError
from protofed.experiment import Experiment
from protofed.runs.run import new_run
from protofed.trust.secagg import PUBLIC, Words, added, integers
from tests.deploy.test_network import changed_worker
from tests.deploy.test_rounds import QUICK, lines, sequential
from tests.support.command_line import succeed
from tests.support.federation_processes import Deployment, federation
from tests.support.loopback import Loopback, data_of, facts_of, in_simulation, packed, size_of, with_folder

STEPS = ("query.keys", "query.shares", "train.masked", "query.agree", "query.unmask")
KINDS: dict[str, dict[str, Any]] = {
    "fedavg": {"model": "cnn"},
    "fedproto": {"model": "cnn-18,cnn"},
    "fednh": {"model": "mlp"},  # weights and prototypes
}


@pytest.fixture
def by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients train as in a run without masks."""
    monkeypatch.setattr(client, "private_seed", lambda: Experiment.seed)


def asked(method: str, **more: Any) -> Experiment:
    common: dict[str, Any] = {"dataset": "digits", "train_size": 300, "alpha": 0.5, "clients": 4, "rounds": 2}
    common |= {"engine": "sequential", "device": "cpu", "threads": 1, "precision": "float64", "secure": True}
    return Experiment(**common | KINDS.get(method, {}) | {"method": method, "eval_every": 2} | more)


def state(path: Path) -> dict[str, Tensor]:
    """What the server sends next."""
    found = load_file(path / "checkpoint/state.safetensors").items()
    return {name: value for name, value in found if name.startswith("server/")}


def assert_close(path: Path, plain: Path, atol: float) -> None:
    found, expected = state(path), state(plain)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=atol)


Trouble = Callable[[Message], list[Message]]


def silent(number: int, step: str, in_round: int) -> Trouble:
    """A client that leaves before it answers, for the rest of the round."""
    left = False

    def swallow(answer: Message) -> list[Message]:
        nonlocal left
        about = answer.metadata
        if about.src_node_id != 100 + number or about.group_id != str(in_round) or about.message_type == "evaluate":
            return [answer]
        left = left or about.message_type == step
        return [] if left else [answer]

    return swallow


def run(path: Path, experiment: Experiment, trouble: Trouble | None = None, **settings: Any) -> Path:
    serve(Loopback(in_simulation(4), trouble), experiment, Settings(str(path), **QUICK | settings))
    return path


@pytest.mark.usefixtures("by_the_seed")
@pytest.mark.parametrize("method", KINDS)
def test_the_result_is_that_of_the_plain_run_up_to_rounding(method: str, tmp_path: Path) -> None:
    secure = run(tmp_path / "secure", asked(method, rounds=1))
    plain = run(tmp_path / "plain", asked(method, rounds=1, secure=False))
    assert_close(secure, plain, 2.0**-32)
    (found,), (expected,) = lines(secure), lines(plain)
    assert found["participants"] == expected["participants"] == [0, 1, 2, 3]
    assert found["loss"] == pytest.approx(expected["loss"], abs=2.0**-32)
    assert found["losses"] == [found["loss"]] * 4  # no client's own
    assert found["per_client"] == expected["per_client"]


@pytest.mark.usefixtures("by_the_seed")
def test_in_single_precision_too(tmp_path: Path) -> None:
    secure = run(tmp_path / "secure", asked("fedavg", rounds=1, precision="float32"))
    assert_close(secure, run(tmp_path / "plain", asked("fedavg", rounds=1, precision="float32", secure=False)), 1e-6)
    assert {value.dtype for value in state(secure).values()} == {torch.float32}


@pytest.mark.usefixtures("by_the_seed")
@pytest.mark.parametrize(("method", "step"), [("fedavg", "train.masked"), *(("fedproto", step) for step in STEPS)])
def test_a_client_that_leaves_is_left_out_or_recovered(method: str, step: str, tmp_path: Path) -> None:
    found = run(tmp_path / "secure", asked(method), silent(2, step, in_round=2))
    helped = step in ("query.agree", "query.unmask")  # what it adds has arrived
    plain = run(tmp_path / "plain", asked(method, secure=False), None if helped else silent(2, "train", in_round=2))
    assert_close(found, plain, 1e-6)  # training lets the first round's rounding grow
    first, second = lines(found)
    assert "left_out" not in first
    assert second.get("left_out", {}) == ({} if helped else {"2": "no answer within 0.3 s"})


def test_two_of_four_are_too_many_to_lose(tmp_path: Path) -> None:
    two = [silent(number, "train.masked", in_round=2) for number in (1, 2)]

    def both(answer: Message) -> list[Message]:
        return [one for kept in two[0](answer) for one in two[1](kept)]

    with pytest.raises(LostError, match="round 2 failed 3 times: 2 clients have sent keys, 3 are needed"):
        run(tmp_path / "run", asked("fedproto"), both)
    assert len(lines(tmp_path / "run")) == 1


@pytest.mark.usefixtures("by_the_seed")
def test_a_lost_sum_is_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Wrong shares of one client, once."""
    spoiled: list[Message] = []

    def spoil(answer: Message) -> list[Message]:
        if not spoiled and (answer.metadata.src_node_id, answer.metadata.message_type) == (101, "query.unmask"):
            spoiled.append(answer)
            facts = facts_of(answer)
            facts["told"]["3"] = "00" * 66
            answer.content = packed(facts)
        return [answer]

    found = run(tmp_path / "secure", asked("fedproto"), spoil)
    assert "round 1 is played again: the shares of client 3's secret do not fit together" in caplog.text
    assert_close(found, run(tmp_path / "plain", asked("fedproto", secure=False)), 1e-6)


def test_a_key_that_is_none_costs_only_who_sent_it(tmp_path: Path) -> None:
    def spoil(answer: Message) -> list[Message]:
        if (answer.metadata.src_node_id, answer.metadata.message_type) == (103, "query.keys"):
            facts = facts_of(answer)
            answer.content = packed(facts | {"public": "00" * PUBLIC})
        return [answer]

    (line,) = lines(run(tmp_path / "secure", asked("fedproto", rounds=1), spoil))
    assert line["left_out"] == {"3": "refused: its keys are none"}
    assert line["participants"] == [0, 1, 2]


def test_a_sum_of_more_samples_than_were_declared_is_refused(tmp_path: Path) -> None:
    def few(answer: Message) -> list[Message]:
        if answer.metadata.message_type == "query.hello":
            facts = facts_of(answer)
            answer.content = packed(facts | {"samples": 1})
        return [answer]

    with pytest.raises(LostError, match="more samples than it declared"):
        run(tmp_path / "secure", asked("fedavg", rounds=1), few)


def test_a_sum_that_is_not_wanted_is_never_unmasked(tmp_path: Path) -> None:
    """Fewer than the minimum: were both this sum and the next attempt's known, so would be their difference."""
    told: list[Message] = []
    leave = silent(2, "train.masked", in_round=1)

    def watch(answer: Message) -> list[Message]:
        told.extend([answer] if answer.metadata.message_type == "query.unmask" else [])
        return leave(answer)

    with pytest.raises(LostError, match="round 1 failed 3 times"):
        run(tmp_path / "run", asked("fedproto"), watch, minimum=4)
    assert not told


@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_the_server_sees_nothing_but_the_sum(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything that clients have sent, in two rounds with a dropout, is searched for what they added."""
    rows: list[Words] = []

    def recorded(*some: Any) -> Words:
        rows.append(integers(*some))
        return rows[-1]

    monkeypatch.setattr(client, "integers", recorded)
    received: list[Message] = []
    leave = silent(2, "train.masked", in_round=2)

    def watch(answer: Message) -> list[Message]:
        found = leave(answer)
        received.extend(found)
        return found

    run(tmp_path / "run", asked(method), watch)
    first, second = rows[:4], rows[4:]
    assert (len(first), len(second)) == (4, 4)
    hidden = [*rows, *(after - before for before, after in zip(first, second, strict=True))]
    hidden += [one + other for some in (first, second) for one, other in itertools.combinations(some, 2)]
    telling = np.sort(np.concatenate(hidden).view(np.int64))
    telling = telling[abs(telling) > 2**24]  # smaller ones may be there by chance
    assert len(telling) > 1000

    def tells(found: NDArray[Any]) -> bool:
        at = np.searchsorted(telling, found.view(np.int64)).clip(max=len(telling) - 1)
        return bool((telling[at] == found.view(np.int64)).any())

    assert tells(rows[0])
    kinds = {message.metadata.message_type for message in received}
    assert kinds == {"query.hello", *STEPS, "evaluate"}
    masked: dict[str, list[Words]] = {"1": [], "2": []}
    for message in received:
        facts = facts_of(message)
        data = data_of(message)
        about = message.metadata
        if about.message_type in STEPS:
            assert {name for name, value in facts.items() if value is not None} <= {
                "protocol",
                "id",
                "public",
                "sealed",
                "signature",
                "told",
            }  # no loss, no number of samples
            books = [book for book in facts.values() if isinstance(book, dict)]
            told = b"".join(bytes.fromhex(text) for book in books for text in book.values())
            windows = [told[at : at + 8] for at in range(len(told) - 7)]
            assert not tells(np.frombuffer(b"".join(windows), np.int64))
        if about.message_type == "train.masked":
            (sent,) = load(data).values()
            masked[about.group_id].append(sent.numpy().view(np.uint64))
        else:
            assert data == b""
    assert [len(some) for some in masked.values()] == [4, 3]
    made = [row for some in masked.values() for row in some]
    made += [after - before for before in masked["1"] for after in masked["2"]]
    made += [one + other for some in masked.values() for one, other in itertools.combinations(some, 2)]
    assert not any(tells(row) for row in made)


def test_bytes_are_those_of_all_five_exchanges(tmp_path: Path) -> None:
    answers: list[Message] = []
    grid = Loopback(in_simulation(4), lambda answer: answers.append(answer) or [answer])  # type: ignore[func-returns-value]
    serve(grid, asked("fedproto"), Settings(str(tmp_path / "run")))
    for line in lines(tmp_path / "run"):
        number = str(line["round"])
        assert line["bytes_down"] == sum(size_of(m) for m in grid.asked if m.metadata.group_id == number)
        assert line["bytes_up"] == sum(size_of(m) for m in answers if m.metadata.group_id == number)
    assert [m.metadata.message_type for m in answers if m.metadata.group_id == "1"][::4] == list(STEPS)


def test_secrets_are_kept_for_a_round_and_by_their_owner_alone(tmp_path: Path) -> None:
    nodes = {100 + k: with_folder(tmp_path, k, secure="required") for k in range(4)}
    kept: list[dict[str, Any]] = []

    def look(answer: Message) -> list[Message]:
        for path in (tmp_path / "client-1" / "memory").rglob("secrets.json"):
            assert path.stat().st_mode & 0o077 == 0
            kept.append(json.loads(path.read_text()))
        return [answer]

    serve(Loopback(nodes, look), asked("fedproto"), Settings(str(tmp_path / "run"), **QUICK))
    assert {one["step"] for one in kept} == {"keys", "shared", "masked", "agreed", "done"}  # between answers
    last = kept[-1]
    assert (last["sealing"], last["masking"], last["seed"], last["held"]) == ("", "", "", {})
    assert last["summed"] == {"0": [0, 1, 2, 3], "1": [0, 1, 2, 3]}


def test_who_has_left_a_round_forgets_its_secrets_when_it_is_asked_again(tmp_path: Path) -> None:
    nodes = {100 + k: with_folder(tmp_path, k) for k in range(4)}
    grid = Loopback(nodes, silent(2, "query.shares", in_round=2))
    serve(grid, asked("fedproto"), Settings(str(tmp_path / "run"), **QUICK))
    (path,) = (tmp_path / "client-2" / "memory").rglob("secrets.json")
    last = json.loads(path.read_text())
    assert (last["step"], last["masking"], last["summed"]) == ("done", "", {"0": [0, 1, 2, 3]})


@pytest.mark.usefixtures("by_the_seed")
def test_a_round_is_not_summed_again_over_others(tmp_path: Path) -> None:
    """A server that lost a round in a crash, and has other clients when it plays it again."""
    nodes = {100 + k: with_folder(tmp_path, k) for k in range(4)}

    def crash(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.src_node_id) == ("query.unmask", 103):  # the last one
            raise KeyboardInterrupt
        return [answer]

    experiment, settings = asked("fedproto", eval_every=1), Settings(str(tmp_path / "run"), **QUICK)
    with pytest.raises(KeyboardInterrupt):
        serve(Loopback(nodes, crash), experiment, settings)
    with pytest.raises(
        LostError, match=r"0 clients have agreed to the sum, and 3 are needed .*it refuses: round 1 has"
    ):
        serve(Loopback(nodes, silent(2, "train.masked", in_round=1)), experiment, settings)
    serve(Loopback(nodes), experiment, settings)  # with the same ones it goes on
    assert_close(tmp_path / "run", run(tmp_path / "plain", asked("fedproto", eval_every=1, secure=False)), 1e-6)


def test_an_owner_may_require_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = {100 + k: with_folder(tmp_path, k, **({"secure": "required"} if k == 1 else {})) for k in range(4)}
    serve(Loopback(nodes), asked("fedproto", secure=False), Settings(str(tmp_path / "run"), **QUICK))
    assert [line["participants"] for line in lines(tmp_path / "run")] == [[0, 2, 3]] * 2
    assert "refused: no secure aggregation" in capsys.readouterr().out
    with pytest.raises(UserError, match=r"'please' for secure in .*client\.yaml: it must be one of "):
        flower_client.owner_of(with_folder(tmp_path, 5, secure="please"))


def test_a_secure_run_takes_no_upload_without_masks() -> None:
    facts = {"experiment": vars(asked("fedproto")), "clock": [0, [0, 1, 2, 3]], "run": "a"}
    memory = flower_client.StateMemory(RecordDict())
    answer = client.WarmClient(Owner(0)).answer("train", pack(facts), memory)
    assert answer == client.Failed(REFUSED, "an upload without masks")


def test_masks_serve_one_turn(tmp_path: Path) -> None:
    """Asked for the same turn again, a client refuses: a second row under the same masks would tell the difference."""
    grid = Loopback(in_simulation(4))

    def again(answer: Message) -> list[Message]:
        if answer.metadata.message_type == "train.masked" and answer.metadata.src_node_id == 101:
            question = next(one for one in reversed(grid.asked) if one.metadata.dst_node_id == 101)
            repeated = flower_client.app(question, grid.contexts[101])
            assert (repeated.has_error(), repeated.error.code) == (True, REFUSED)
            tried.append(repeated)
        return [answer]

    tried: list[Message] = []
    grid.trouble = again
    serve(grid, asked("fedproto", rounds=1), Settings(str(tmp_path / "run"), **QUICK))
    assert len(tried) == 1


def test_numbers_too_large_for_a_sum_are_refused_and_not_wrapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(client, "added", lambda *some: {n: t * 2**30 for n, t in added(*some).items()})
    with pytest.raises(LostError, match="round 1 failed 3 times: 0 clients have sent what they add"):
        run(tmp_path / "run", asked("fedavg"))
    assert "the most that 4 clients may add" in capsys.readouterr().out


@pytest.mark.parametrize("method", ["mp-fedcl", "fedplcc", "fedsc", "fesem", "fedcda"])
def test_a_method_that_needs_each_upload_is_refused_by_name(method: str) -> None:
    with pytest.raises(UserError, match=rf"'{method}' for --method with --secure: .*each client's own upload"):
        check(asked(method))


def test_what_does_not_go_with_it_is_said_at_once() -> None:
    with pytest.raises(UserError, match="--defence"):
        check(asked("fedavg", defence="median"))
    with pytest.raises(UserError, match="hides nothing"):
        check(asked("fedavg", participation=0.25))
    check(asked("fedavg", participation=0.5))


TLS: dict[str, Any] = {"method": "fedproto", "dataset": "digits", "train_size": 300, "alpha": 0.5, "model": "mlp"}
TLS |= {"batch_size": 300}  # clients draw batches of their own, which all hold everything here; mlp has no dropout
TLS |= {"rounds": 2, "eval_every": 2, "precision": "float64"}


def assert_like_sequential(path: Path, clients: int) -> None:
    here = sequential(Experiment(**TLS, clients=clients, engine="sequential", device="cpu", threads=1))
    for name, value in state(path).items():
        torch.testing.assert_close(value, here.broadcast.flat()[name.removeprefix("server/")], rtol=0, atol=1e-6)
    assert [line["participants"] for line in lines(path)] == [list(range(clients))] * 2
    assert "secure: true" in (path / "config.yaml").read_text()


@pytest.mark.network
def test_three_processes_over_tls_are_summed(tmp_path: Path) -> None:
    with federation(tmp_path, 3, minimum=3) as made:
        outcome = made.run("run", **TLS, secure=True)
        assert outcome.code == 0, outcome.err
        for path in made.folder.glob("clients/*/memory/*/secrets.json"):
            assert json.loads(path.read_text())["step"] == "done"
    assert_like_sequential(tmp_path / "run", 3)


@pytest.mark.network
def test_a_process_that_dies_over_its_masks_is_recovered_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others have masked what they add with its keys too."""
    path = changed_worker(tmp_path, "train.masked", "os._exit(3)")
    with Deployment(tmp_path, 4, minimum=3, deadline=60) as made:
        made.server()
        for number in range(3):
            made.client(number)
        monkeypatch.setenv("PYTHONPATH", path)
        made.client(3)
        monkeypatch.delenv("PYTHONPATH")
        outcome = made.run("run", **TLS | {"rounds": 1, "eval_every": 1}, secure=True)
        assert outcome.code == 0, outcome.err
    (line,) = lines(tmp_path / "run")
    assert list(line["left_out"]) == ["3"], line
    assert line["participants"] == [0, 1, 2]


@pytest.mark.network
def test_the_simulation_sums_too(tmp_path: Path) -> None:
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(TLS | {"clients": 3, "threads": 1, "secure": True}))
    succeed(tmp_path, "run", "--config", "experiment.yaml", "--engine", "flower-sim", "--out", "run", "--quiet")
    assert_like_sequential(tmp_path / "run", 3)


def test_what_belongs_to_whom_is_read_back_or_refused() -> None:
    book = {3: b"abc", 0: b"xyz"}
    assert read_book(json.loads(json.dumps(spelt(book))), 3) == book
    bad: list[Any] = [None, [], "x", {"a": "00"}, {"0": "0"}, {"0": 7}, {"0": "00" * 4}, {"-1": "00" * 3}]
    bad += [{"0": "00" * 3, "00": "00" * 3}, {"0": None}, {str(2**521 - 2): "00" * 3}]
    for told in bad:
        with pytest.raises(RefusedError, match="whom"):
            read_book(told, 3)


@pytest.mark.parametrize("engine", ["auto", "sequential", "stacked"])
def test_secure_aggregation_is_for_a_network(engine: str) -> None:
    with pytest.raises(UserError, match="it is for runs over a network"):
        new_run(Experiment.from_mapping({"engine": engine, "secure": True, "train_size": 100, "device": "cpu"}))
