"""What a server tries that wants one client's upload out of secure sums, and why it does not get it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from flwr.app import Message

from protofed.deploy import client, secure_remote
from protofed.deploy.ledger import MOST_SUMS, SumsGiven
from protofed.deploy.members import MembersFile, admit
from protofed.deploy.owner import Owner
from protofed.deploy.pki import certify_client, make_authority, make_client_key, write_certificate
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.deploy.signatories import signatory_of
from protofed.errors import LostError, RefusedError, UserError
from protofed.experiment import Experiment
from protofed.trust.secagg import Member, Words, integers, unmask
from tests.deploy.test_rounds import QUICK, lines
from tests.deploy.test_secure import asked as asked_of_four
from tests.deploy.test_secure import assert_close, silent
from tests.support.loopback import Loopback, facts_of, in_simulation, packed, with_folder

Change = Callable[[Message], None]


@pytest.fixture
def by_the_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients train as in a run without masks."""
    monkeypatch.setattr(client, "private_seed", lambda: Experiment.seed)


@pytest.fixture
def without_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients do not remember other runs."""
    monkeypatch.setattr(client.WarmClient, "sums", lambda _: None)


class Asking(Loopback):
    """A server that changes what it asks before it is sent."""

    def __init__(self, nodes: dict[int, dict[str, Any]], change: Change) -> None:
        super().__init__(nodes)
        self.change = change

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Each changed by itself."""
        changed = list(messages)
        for message in changed:
            self.change(message)
        return super().push_messages(changed)


def asked(method: str, **more: Any) -> Experiment:
    small: dict[str, Any] = {"clients": 3, "train_size": 120, "model": "linear", "min_size": 5, "batch_size": 8}
    return asked_of_four(method, **small | more)


def folders(place: Path, number: int = 3) -> dict[int, dict[str, Any]]:
    return {100 + k: with_folder(place, k, secure="required", min_samples=1) for k in range(number)}


def with_keys(place: Path, number: int = 3) -> dict[int, dict[str, Any]]:
    """Clients as `deploy init` makes them: each has its key and the authority's certificate; the server has theirs."""
    nodes, authority = folders(place, number), make_authority(place, 1, "secret")
    with MembersFile(place / "members.json").changing() as found:
        for k in range(number):
            key = make_client_key(place / f"client-{k}" / "key").public_key()
            admit(found, k, f"client {k}", key, "server", authority, 1)
            write_certificate(place / f"client-{k}", authority[0])
    return nodes


def with_certificates(place: Path, **more: Any) -> Settings:
    """A server that hands the clients' certificates on."""
    return Settings(str(place / "run"), members=str(place / "members.json"), **QUICK | more)


def two_sums(place: Path, monkeypatch: pytest.MonkeyPatch, **second: Any) -> tuple[Words, Words]:
    """The attack: a sum over {0, 1, 2} less one over {1, 2} in another run, and what client 0 added."""
    rows: list[Words] = []
    totals: list[Words] = []

    def recorded(*some: Any) -> Words:
        rows.append(integers(*some))
        return rows[-1]

    def summed(*some: Any) -> Words:
        totals.append(unmask(*some))
        return totals[-1].copy()

    monkeypatch.setattr(client, "integers", recorded)
    monkeypatch.setattr(secure_remote, "unmask", summed)
    nodes = folders(place)
    serve(Loopback(nodes), asked("fedavg", rounds=1), Settings(str(place / "first"), **QUICK))
    without = Loopback(nodes)
    without.offline.add(100)
    serve(without, asked("fedavg", **{"rounds": 1} | second), Settings(str(place / "second"), **QUICK))
    assert [line["participants"] for name in ("first", "second") for line in lines(place / name)] == [
        [0, 1, 2],
        [1, 2],
    ]
    first, last = totals
    return first - last, rows[0]


@pytest.mark.usefixtures("by_the_seed", "without_a_guard")
def test_two_runs_told_one_clients_upload_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that what follows stops something."""
    difference, upload = two_sums(tmp_path, monkeypatch)
    assert np.array_equal(difference, upload)


@pytest.mark.usefixtures("by_the_seed")
@pytest.mark.parametrize("change", [{}, {"lr": 0.02}, {"batch_size": 16, "rounds": 2}])
def test_from_one_beginning_a_client_is_in_one_sum(
    change: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the second run is called and asks for; training is the same, so only this stops the attack."""
    with pytest.raises(LostError, match=r"0 clients have agreed to the sum.*same beginning.*another seed"):
        two_sums(tmp_path, monkeypatch, **change)


@pytest.mark.usefixtures("without_a_guard")
def test_training_is_nobody_elses_to_repeat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The difference is client 0's upload and that of the others' trainings, which is no rounding."""
    difference, upload = two_sums(tmp_path, monkeypatch)
    rest = (difference - upload).view(np.int64) / 2.0**32
    assert abs(rest).max() > 0.01
    assert (rest != 0).mean() > 0.9


@pytest.mark.slow
def test_runs_from_other_beginnings_or_over_the_same_clients_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    two_sums(tmp_path, monkeypatch, seed=1)
    for name in ("same", "again"):
        with_all = Settings(str(tmp_path / name), **QUICK)
        serve(Loopback(folders(tmp_path)), asked("fedavg", rounds=1), with_all)
    left = Loopback(folders(tmp_path), silent(2, "train.masked", in_round=2))
    serve(left, asked("fedavg", rounds=3, eval_every=3), Settings(str(tmp_path / "left"), **QUICK))
    assert [len(line["participants"]) for line in lines(tmp_path / "left")] == [3, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedproto", "fedper", "fednh"])
def test_the_guard_knows_what_a_turn_begins_with(method: str, tmp_path: Path) -> None:
    """Whether a client's weights are sent to it or stay with it."""
    nodes = folders(tmp_path)
    experiment = asked(method, rounds=1, model="mlp")  # FedPer's has more than a head
    serve(Loopback(nodes), experiment, Settings(str(tmp_path / "first"), **QUICK))
    fewer = Loopback(nodes)
    fewer.offline.add(100)
    with pytest.raises(LostError, match="same beginning"):
        serve(fewer, experiment, Settings(str(tmp_path / "second"), **QUICK))
    serve(fewer, replace(experiment, seed=1), Settings(str(tmp_path / "third"), **QUICK))


def test_a_client_remembers_a_sum_over_its_restarts_and_a_limit_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sums.json"
    SumsGiven(path).check("a", [0, 1])
    assert not path.exists()  # nothing was given
    SumsGiven(path).give("a", [0, 1])
    SumsGiven(path).give("a", [1, 0])
    for who in ([0, 1, 2], [0], [2, 3]):
        with pytest.raises(RefusedError, match="same beginning"):
            SumsGiven(path).give("a", who)
    monkeypatch.setattr("protofed.deploy.ledger.MOST_SUMS", 2)
    SumsGiven(path).give("b", [0])
    with pytest.raises(RefusedError, match="it remembers 2"):
        SumsGiven(path).check("c", [0])
    SumsGiven(path).check("b", [0])
    assert MOST_SUMS > 2


# Signatures.


@pytest.mark.usefixtures("by_the_seed")
def test_clients_that_know_each_other_play_as_those_that_do_not(tmp_path: Path) -> None:
    serve(Loopback(with_keys(tmp_path)), asked("fedproto"), with_certificates(tmp_path))
    plain = Settings(str(tmp_path / "plain"), **QUICK)
    serve(Loopback(in_simulation(3)), asked("fedproto", secure=False), plain)
    assert_close(tmp_path / "run", tmp_path / "plain", 1e-6)


@pytest.mark.slow
def test_clients_that_know_each_other_may_leave(tmp_path: Path) -> None:
    for number, step in enumerate(("query.shares", "train.masked", "query.agree", "query.unmask")):
        out = tmp_path / str(number)
        trouble = silent(2, step, in_round=1)
        serve(Loopback(with_keys(out), trouble), asked("fedproto", rounds=1), with_certificates(out))
        (line,) = lines(out / "run")
        assert line["participants"] == ([0, 1, 2] if number > 1 else [0, 1])


def test_keys_that_a_server_puts_in_place_of_a_clients_are_found_out(tmp_path: Path) -> None:
    """It makes keys, for which it can open shares and take off masks, and says that they are client 2's."""
    own = Member.begin(2, range(3), 0, None).keys().hex()

    def exchanged(message: Message) -> None:
        if message.metadata.message_type == "query.shares" and message.metadata.dst_node_id != 102:
            facts = facts_of(message)
            facts["publics"]["2"] = own
            message.content = packed(facts)

    with pytest.raises(LostError, match="what client 2 is said to have signed is not signed by it"):
        serve(Asking(with_keys(tmp_path / "a"), exchanged), asked("fedproto"), with_certificates(tmp_path / "a"))
    shared: list[Message] = []
    unnoticed = Asking(folders(tmp_path / "b"), exchanged)
    unnoticed.trouble = lambda answer: shared.append(answer) or [answer]  # type: ignore[func-returns-value]
    with pytest.raises(LostError):  # client 2 cannot open its shares; its server could
        serve(unnoticed, asked("fedproto"), Settings(str(tmp_path / "y"), **QUICK))
    made = [one for one in shared if one.metadata.message_type == "query.shares" and not one.has_error()]
    assert {one.metadata.src_node_id for one in made} == {100, 101, 102}


@pytest.mark.parametrize("known", [True, False])
def test_clients_that_are_told_of_different_sets_reveal_nothing(known: bool, tmp_path: Path) -> None:
    def divided(message: Message) -> None:
        if message.metadata.message_type == "query.agree" and message.metadata.dst_node_id in (100, 101):
            message.content = packed(facts_of(message) | {"there": [0, 1]})

    told: list[Message] = []
    nodes = with_keys(tmp_path) if known else folders(tmp_path)
    grid = Asking(nodes, divided)
    grid.trouble = lambda answer: told.append(answer) or [answer]  # type: ignore[func-returns-value]
    with pytest.raises(LostError):
        serve(
            grid, asked("fedproto"), with_certificates(tmp_path) if known else Settings(str(tmp_path / "run"), **QUICK)
        )
    revealed = [one for one in told if one.metadata.message_type == "query.unmask" and not one.has_error()]
    assert bool(revealed) != known


def test_keys_of_another_round_are_found_out(tmp_path: Path) -> None:
    kept: dict[str, Any] = {}

    def repeated(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.src_node_id) == ("query.keys", 102):
            facts = facts_of(answer)
            if not kept:
                kept.update(facts)
            answer.content = packed(kept)
        return [answer]

    with pytest.raises(LostError, match=r"round 2 failed .*client 2 is said to have signed is not signed by it"):
        serve(Loopback(with_keys(tmp_path), repeated), asked("fedproto"), with_certificates(tmp_path))


@pytest.mark.slow
def test_a_set_that_was_signed_in_another_attempt_is_found_out(tmp_path: Path) -> None:
    """A first attempt fails when all have signed a set; in the second the server uses what they signed."""
    signed: dict[str, str] = {}

    def repeated(message: Message) -> None:
        if message.metadata.message_type == "query.unmask":
            facts = facts_of(message)
            if not signed:
                signed.update(facts["signatures"])
                message.content = packed(facts | {"signatures": {}})  # nobody reveals
            elif "1" in signed:
                facts["signatures"]["1"] = signed["1"]
                message.content = packed(facts)

    with pytest.raises(LostError, match="what client 1 is said to have signed is not signed by it"):
        serve(Asking(with_keys(tmp_path), repeated), asked("fedproto"), with_certificates(tmp_path))


@pytest.mark.parametrize("lack", ["key", "certificate"])
def test_who_was_not_admitted_or_cannot_sign_is_named(lack: str, tmp_path: Path) -> None:
    nodes = with_keys(tmp_path)
    if lack == "key":
        (tmp_path / "client-2" / "key").unlink()
    else:
        path = tmp_path / "members.json"
        path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "2"}))
    why = "what client 2 is said to have signed" if lack == "key" else "client 2 is not in its list of members"
    with pytest.raises(LostError, match=why):
        serve(Loopback(nodes), asked("fedproto"), with_certificates(tmp_path, minimum=3))


def test_a_server_without_certificates_gets_no_sum(tmp_path: Path) -> None:
    with pytest.raises(LostError, match="is not in its list of members"):
        serve(Loopback(with_keys(tmp_path)), asked("fedproto"), Settings(str(tmp_path / "run"), **QUICK))


def test_a_certificate_is_the_authoritys_word_on_a_number(tmp_path: Path) -> None:
    nodes = with_keys(tmp_path)
    owner = Owner.read(Path(nodes[100]["client"]))
    right = {str(k): member.certificate for k, member in MembersFile(tmp_path / "members.json").read().items()}
    known = signatory_of(owner, right)
    assert known.members is not None
    assert list(known.members) == [0, 1, 2]
    statement = b"what is said"
    client_1 = signatory_of(Owner.read(Path(nodes[101]["client"])), right)
    known.check({1: statement}, {1: client_1.sign(statement)})
    with pytest.raises(RefusedError):
        known.check({2: statement}, {2: client_1.sign(statement)})
    key = make_client_key(tmp_path / "another").public_key()
    forged = certify_client(1, "client 1", key, make_authority(tmp_path / "client-0", 1, "mine"), 1)
    (tmp_path / "client-0/ca.crt").write_text((tmp_path / "client-1/ca.crt").read_text())
    wrong: dict[str, Any] = {
        "not of this federation's authority": pem(forged),
        "is that of another": right["2"],
        "client 1 is not of": "no certificate",
        "client 1 is not": 7,
    }
    for why, certificate in wrong.items():
        with pytest.raises(RefusedError, match=why):
            signatory_of(owner, right | {"1": certificate})
    server = (tmp_path / "client-1/ca.crt").read_text()
    with pytest.raises(RefusedError, match="client 1 is not of"):
        signatory_of(owner, right | {"1": server})


def test_an_admission_that_has_ended_signs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = with_keys(tmp_path)
    right = {str(k): member.certificate for k, member in MembersFile(tmp_path / "members.json").read().items()}
    monkeypatch.setattr("protofed.deploy.signatories.has_ended", lambda _: True)
    with pytest.raises(RefusedError, match="the admission of client 0 has ended"):
        signatory_of(Owner.read(Path(nodes[100]["client"])), right)


def test_without_a_key_nothing_is_signed_or_checked(tmp_path: Path) -> None:
    assert signatory_of(Owner(0)).members is None
    (tmp_path / "key").write_text("no key")
    with pytest.raises(UserError, match="it is no key"):
        signatory_of(Owner(0, key=str(tmp_path / "key")))


def pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()
