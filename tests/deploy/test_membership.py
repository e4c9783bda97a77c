"""Who takes part in a federation: clients ask with keys of their own, and are admitted, removed and renewed."""

from __future__ import annotations

import base64
import datetime
import hashlib
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from flwr.app import Message
from flwr.supercore.primitives.asymmetric import sign_message

from protofed.deploy import client, warm_worker, wire
from protofed.deploy.federation import FederationFolder
from protofed.deploy.fleet import CALLS, Fleet
from protofed.deploy.joining import check_keys, notes
from protofed.deploy.ledger import forget_old
from protofed.deploy.link import last_seen, open_state
from protofed.deploy.members import REMOVED, UNKNOWN, MembersFile, Roster
from protofed.deploy.membership import enrol, listed, remove_client, renew_client, renew_server, warnings
from protofed.deploy.owner import Owner
from protofed.deploy.pki import certify, certify_authority, open_authority, public_pem, read_client_key
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.deploy.supervise import _check_certificate
from protofed.deploy.wire import pack, seal, spoken_by, unpack
from protofed.errors import LostError, RefusedError, UserError
from protofed.internal.digests import parse_json
from protofed.messages import Broadcast
from protofed.runs.folder import RunFolder
from tests.deploy.test_fleet import call, signed
from tests.deploy.test_rounds import QUICK, assert_same, brings, lines, sequential
from tests.engines.test_alone import experiment
from tests.support.command_line import invoke, refused, succeed
from tests.support.loopback import Loopback, facts_of, in_simulation, packed
from tests.support.membership import admitted, asks, founded, received, secrets_in, typed


def test_a_clients_key_is_made_there_and_stays_there(tmp_path: Path) -> None:
    passphrase = founded(tmp_path, "--clients", "1")
    assert admitted(tmp_path, passphrase, "anna") == 1
    check_keys(tmp_path / "anna", 1)
    assert secrets_in(tmp_path / "anna") == ["key"]
    assert secrets_in(tmp_path / "federation") == ["clients/0/key", "server/ca.key", "server/server.key"]
    assert not [path for path in (tmp_path / "federation/clients/1").iterdir() if path.name == "key"]
    said = json.loads(succeed(tmp_path, "deploy", "members", "federation", "--json").out)["members"]
    assert [(row["id"], row["name"], row["status"], row["key_made_at"]) for row in said] == [
        (0, "client 0", "admitted", "server"),
        (1, "site anna", "admitted", "client"),
    ]
    public = read_client_key(tmp_path / "anna/key").public_key()
    blob = base64.b64decode(public.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
    fingerprint = "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")
    assert said[1]["key"] == fingerprint
    assert fingerprint in succeed(tmp_path, "deploy", "members", "federation").out
    assert Owner.read(tmp_path / "anna/client.yaml").id == 1
    events = [json.loads(line) for line in (tmp_path / "federation/server/events.jsonl").read_text().splitlines()]
    assert [(event["kind"], event["change"], event["client"]) for event in events] == [
        ("member", "admitted", 0),
        ("member", "admitted", 1),
    ]
    assert events[1]["key"] == fingerprint
    assert passphrase not in (tmp_path / "federation/server/members.json").read_text()


def test_a_clients_certificate_is_of_no_use_to_a_server(tmp_path: Path) -> None:
    admitted(tmp_path, founded(tmp_path), "anna")
    certificate = x509.load_pem_x509_certificate((tmp_path / "anna/client.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((tmp_path / "anna/ca.crt").read_bytes())
    certificate.verify_directly_issued_by(authority)
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage)
    assert (usage.critical, list(usage.value)) == (True, [ExtendedKeyUsageOID.CLIENT_AUTH])
    with pytest.raises(x509.ExtensionNotFound):
        certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)


def made_request(path: Path, name: str = "x", key: Any = None, damage: bool = False) -> str:
    key = key or ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    request = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, hashes.SHA384())
    data = bytearray(request.public_bytes(Encoding.DER))
    data[-1] ^= damage
    text = base64.encodebytes(bytes(data)).decode()
    path.write_text(f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n")
    return str(path)


def test_who_is_not_let_in_is_told_why(tmp_path: Path) -> None:
    passphrase = founded(tmp_path, "--clients", "1")
    admitted(tmp_path, passphrase, "anna")
    request = str(asks(tmp_path, "berta"))
    copied = made_request(tmp_path / "copied.csr", key=read_client_key(tmp_path / "anna/key"))
    (tmp_path / "junk").write_bytes(b"\x00" * 100)
    path = tmp_path / "request.csr"
    before = (tmp_path / "federation/server/members.json").read_bytes()
    for file, why in (
        (str(tmp_path / "none"), "for REQUEST: it is not the file that"),
        (str(tmp_path / "junk"), "for REQUEST: it is not the file that"),
        (made_request(path, key=rsa.generate_private_key(65537, 2048)), "its key is of another kind"),
    ):
        assert why in refused(invoke(tmp_path, "deploy", "admit", "federation", file))
    for change in ({"damage": True}, {"key": ec.generate_private_key(ec.SECP256R1())}):
        assert "another kind, or did not sign it" in refused(
            invoke(tmp_path, "deploy", "admit", "federation", made_request(path, **change))
        )
    assert "no name that can be shown" in refused(
        invoke(tmp_path, "deploy", "admit", "federation", made_request(path, "a\nb"))
    )
    for words, given, why in (
        ((request,), "wrong", "invalid use of the passphrase: it does not open "),
        ((request,), "", "missing value for passphrase"),
        ((request, "--id", "1"), passphrase, "site anna is client 1"),
        ((request, "--id", "3"), passphrase, "the next new one is 2"),
        ((request, "--days", "0"), passphrase, "for --days: it must be from 1 to 3650"),
        ((copied,), passphrase, "its key is that of client 1"),
    ):
        outcome = typed(given, tmp_path, "deploy", "admit", "federation", *words)
        assert (outcome.code, why in outcome.err) == (2, True), outcome.err
    assert (tmp_path / "federation/server/members.json").read_bytes() == before
    succeed(tmp_path, "deploy", "remove", "federation", "--id", "1")
    outcome = typed(passphrase, tmp_path, "deploy", "admit", "federation", copied)
    assert "its key is that of client 1, and holds no more" in outcome.err
    assert typed(passphrase, tmp_path, "deploy", "admit", "federation", request, "--id", "1").code == 0
    outcome = typed(passphrase, tmp_path, "deploy", "admit", "federation", copied)
    assert "its key is that of client 1, and holds no more" in outcome.err
    assert "there is no such client" in refused(invoke(tmp_path, "deploy", "remove", "federation", "--id", "7"))


def test_a_key_is_not_made_twice(tmp_path: Path) -> None:
    request = asks(tmp_path, "anna")
    key = (tmp_path / "anna/key").read_bytes()
    asks(tmp_path, "anna")  # the same again
    assert (tmp_path / "anna/key").read_bytes() == key
    assert "no key that could be renewed" in refused(invoke(tmp_path, "deploy", "join", "b", "--name", "b", "--renew"))
    admitted(tmp_path, founded(tmp_path), "anna")
    assert "it has a key that is admitted" in refused(invoke(tmp_path, "deploy", "join", "anna", "--name", "a"))
    assert "for --name" in refused(invoke(tmp_path, "deploy", "join", "c", "--name", "a\nb"))
    assert request.exists()


def running(place: Path) -> tuple[FederationFolder, Roster, Callable[[str], bytes]]:
    """A federation whose server knows its members, and the public key of each site."""
    federation = FederationFolder.open(place / "federation")
    enrol(federation, begin=True)
    return (
        federation,
        Roster(federation.members_file),
        lambda site: public_pem(read_client_key(place / site / "key").public_key()),
    )


def test_a_removed_client_is_answered_no_longer_while_the_server_runs(tmp_path: Path) -> None:
    passphrase = founded(tmp_path)
    assert [admitted(tmp_path, passphrase, site) for site in ("anna", "berta")] == [0, 1]
    federation, roster, key_of = running(tmp_path)
    state = open_state(federation.database)

    def asked(site: str) -> set[tuple[int, str]]:
        """What a client is told, whichever of the calls that there are it makes."""
        stamp = datetime.datetime.now(datetime.UTC).isoformat()
        head = signed(key_of(site), stamp, sign_message(read_client_key(tmp_path / site / "key"), stamp.encode()))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.deploy.test_fleet.Fleet", lambda state: Fleet(state, roster.objection))
            answers = [call(state, f"/v1/fleet/{name}", head, b"\xff") for name in CALLS]
        assert len(answers) == 8
        return {(answer.status, answer.why) for answer in answers}

    assert asked("anna") == asked("berta") == {(400, "it is not a request")}
    node = federation.nodes()[1]
    state.activate_node(node, 30)
    assert last_seen(state)[node][0]
    remove_client(federation, 1)
    there, last = last_seen(state)[node]
    assert not there  # nobody waits for its answer
    assert last is not None
    assert datetime.datetime.fromisoformat(last).microsecond == 0
    assert asked("anna") == {(400, "it is not a request")}
    assert asked("berta") == {(403, REMOVED)}
    assert federation.nodes().keys() == {0}
    assert roster.objection(b"another") == UNKNOWN
    assert [(row["id"], row["status"]) for row in listed(federation)] == [(0, "admitted"), (1, "removed")]


def test_another_key_takes_the_place_of_one_that_holds_until_then(tmp_path: Path) -> None:
    passphrase = founded(tmp_path)
    admitted(tmp_path, passphrase, "anna")
    federation, roster, key_of = running(tmp_path)
    old, node = key_of("anna"), federation.nodes()[0]
    request = asks(tmp_path, "anna", "--renew")
    check_keys(tmp_path / "anna", 0)
    assert key_of("anna") == old  # so far
    assert roster.objection(old) is None
    renew_client(federation, 0, request, passphrase)
    received(tmp_path, "anna", 0)
    check_keys(tmp_path / "anna", 0)
    assert key_of("anna") != old
    assert not (tmp_path / "anna/key.next").exists()
    assert (roster.objection(old), roster.objection(key_of("anna"))) == (UNKNOWN, None)
    assert federation.nodes()[0] != node


def test_a_key_that_was_made_at_the_server_is_replaced_by_ones_own(tmp_path: Path) -> None:
    passphrase = founded(tmp_path, "--clients", "1")
    outcome = typed(
        passphrase, tmp_path, "deploy", "renew", "federation", "--id", "0", "--request", str(asks(tmp_path, "anna"))
    )
    assert outcome.code == 0, outcome.err
    assert secrets_in(tmp_path / "federation/clients/0") == []
    assert "made at the server" not in succeed(tmp_path, "deploy", "members", "federation").out


def ended(federation: FederationFolder, passphrase: str) -> None:
    """All certificates but the authority's are over."""
    authority = open_authority(federation.server, passphrase)
    certify(federation.server, "server", federation.host, authority, 0)
    from protofed.deploy.federation import write_bundle
    from protofed.deploy.members import renew

    with federation.members_file.changing() as members:
        for number in members:
            renew(members, number, None, authority, 0)
            write_bundle(federation, number, members[number], authority[0])


def test_what_has_ended_is_refused_in_a_line_that_says_what_mends_it(tmp_path: Path) -> None:
    passphrase = founded(tmp_path, "--clients", "1", "--port", "9")
    federation = FederationFolder.open(tmp_path / "federation")
    ended(federation, passphrase)
    today = datetime.datetime.now(datetime.UTC).date()
    said = refused(invoke(tmp_path, "deploy", "server", "federation"))
    assert f"it expired on {today}" in said
    assert f"`protofed deploy renew {federation.folder}` makes another" in said
    said = refused(invoke(tmp_path, "deploy", "client", "federation", "--id", "0"))
    assert f"the admission ended on {today}: whoever runs the server renews it with " in said
    assert "`protofed deploy renew DIR --id 0`" in said
    key = public_pem(read_client_key(federation.client(0) / "key").public_key())
    assert f"its admission ended on {today}" in str(Roster(federation.members_file).objection(key))
    assert (listed(federation)[0]["status"], listed(federation)[0]["connected"]) == ("ended", False)
    for words in ((), ("--id", "0")):
        assert typed(passphrase, tmp_path, "deploy", "renew", "federation", *words).code == 0
    _check_certificate(federation.server / "server.pem")
    check_keys(federation.client(0), 0)
    assert warnings(federation) == []


def test_what_ends_within_a_month_is_said_everywhere(tmp_path: Path) -> None:
    passphrase = founded(tmp_path, "--clients", "2", "--port", "9")
    federation = FederationFolder.open(tmp_path / "federation")
    renew_server(federation, passphrase, 20)
    renew_client(federation, 1, None, passphrase, 10)
    ends = datetime.datetime.now(datetime.UTC).date()
    server, admission = warnings(federation)
    again = f"`protofed deploy renew {federation.folder}"
    assert server == (
        f"the server's certificate ends on {ends + datetime.timedelta(20)}, in 19 days: {again}`, "
        "then start the server again"
    )
    assert admission == (
        f"the admission of client 1 ends on {ends + datetime.timedelta(10)}, in 9 days: {again} --id 1`"
    )
    for name in ("members", "status"):
        out = invoke(tmp_path, "deploy", name, "federation").out
        assert f"warning: {server}\n" in out, name
        assert f"warning: {admission}\n" in out, name
    assert notes(federation.client(0), 0) == []
    (line,) = notes(federation.client(1), 1)
    assert line.startswith("this client's admission ends on ")
    assert line.endswith("whoever runs the server renews it with `protofed deploy renew DIR --id 1`")


def test_an_authority_that_ends_is_renewed_with_the_same_key(tmp_path: Path) -> None:
    """So that what it has signed is good under the old certificate and under the new one."""
    passphrase = founded(tmp_path, "--clients", "1")
    federation = FederationFolder.open(tmp_path / "federation")
    before, key = open_authority(federation.server, passphrase)
    short = certify_authority(federation.server, key, 100)
    assert renew_server(federation, passphrase)
    after = x509.load_pem_x509_certificate((federation.client(0) / "ca.crt").read_bytes())
    assert after.not_valid_after_utc > short.not_valid_after_utc
    server = x509.load_pem_x509_certificate((federation.server / "server.pem").read_bytes())
    for authority in (before, short, after):
        server.verify_directly_issued_by(authority)
    assert not renew_server(federation, passphrase)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}x", '{"x": {}}', '{"0": {"certificate": "none", "key_made_at": "client"}}']
)
def test_a_damaged_list_of_members_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "members.json").write_text(text)
    with pytest.raises(UserError, match=r"members\.json"):
        MembersFile(tmp_path / "members.json").read()


def test_the_keys_of_a_client_belong_together(tmp_path: Path) -> None:
    passphrase = founded(tmp_path)
    for site in ("anna", "berta"):
        admitted(tmp_path, passphrase, site)
    with pytest.raises(UserError, match="it is of client-0, not of client 1"):
        check_keys(tmp_path / "anna", 1)
    (tmp_path / "anna/client.crt").write_bytes((tmp_path / "berta/client.crt").read_bytes())
    with pytest.raises(UserError, match=r"it is not of .*anna/key"):
        check_keys(tmp_path / "anna", 0)


def changing(place: Path, nodes: dict[int, Any], changes: dict[tuple[str, str], list[int]]) -> Loopback:
    """A grid whose federation has other members once a message of a kind and round was answered."""

    def write(members: list[int]) -> None:
        (place / "nodes.json").write_text(json.dumps({number: 100 + number for number in members}))
        grid.offline = {100 + number for number in nodes if number not in members}

    def trouble(answer: Message) -> list[Message]:
        about = answer.metadata
        if members := changes.pop((about.message_type, about.group_id), None):
            write(members)
        return [answer]

    grid = Loopback({100 + number: node for number, node in nodes.items()}, trouble)
    write(changes.pop(("", "")))
    return grid


def settings(place: Path) -> Settings:
    return Settings(str(place / "run"), nodes=str(place / "nodes.json"), **QUICK)


KEEPS = [
    *("fesem", "fedpac"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("fedheal", "fedcof", "fedcda", "scaffold", "mp-fedcl")),
]
"""Methods whose server keeps something of each client, and others."""


@pytest.mark.parametrize("method", KEEPS)
def test_clients_join_and_leave_a_run(method: str, tmp_path: Path) -> None:
    asked = replace(experiment("fedproto"), method=method, model="mlp", params={}, clients=3, train_size=None, rounds=5)
    nodes = {number: brings(tmp_path, number) for number in range(5)}
    changes = {("", ""): [0, 1, 2], ("train", "2"): [0, 1, 2, 3], ("train", "3"): [0, 2, 3, 4]}
    serve(changing(tmp_path, nodes, changes), asked, settings(tmp_path))
    told = lines(tmp_path / "run")
    assert [line["participants"] for line in told[:2]] == [[0, 1, 2]] * 2
    assert told[2]["participants"] == [0, 1, 2, 3]
    assert [line["participants"] for line in told[3:]] == [[0, 2, 3, 4]] * 2
    assert [(line.get("joined"), line.get("removed")) for line in told] == [
        (None, None), (None, None), ([3], None), ([4], [1]), (None, None),
    ]  # fmt: skip
    assert told[-1]["tested"] == [0, 2, 3, 4]
    assert {len(values) for values in told[-1]["per_client"].values()} == {4}
    assert RunFolder(tmp_path / "run").experiment().clients == 3


def test_a_run_that_is_taken_up_again_has_the_members_of_now(tmp_path: Path) -> None:
    asked = replace(experiment("fesem"), clients=2, train_size=None, rounds=4)
    nodes = {number: brings(tmp_path, number) for number in range(3)}
    grid = changing(tmp_path, nodes, {("", ""): [0, 1], ("train", "2"): [0, 1, 2]})
    pulled = grid.pull_messages

    def cut(numbers: Any) -> list[Message]:
        if grid.asked[-1].metadata.group_id == "4":
            raise KeyboardInterrupt
        return pulled(numbers)

    grid.pull_messages = cut  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        serve(grid, asked, settings(tmp_path))
    assert len(lines(tmp_path / "run")) == 3
    again = changing(tmp_path, nodes, {("", ""): [0, 2]})
    again.contexts = grid.contexts
    serve(again, asked, settings(tmp_path))
    told = lines(tmp_path / "run")
    assert [line["participants"] for line in told] == [[0, 1], [0, 1], [0, 1, 2], [0, 2]]
    assert [(line.get("joined"), line.get("removed")) for line in told[2:]] == [([2], None), (None, [1])]


def test_who_joins_a_divided_dataset_needs_data_of_its_own(tmp_path: Path) -> None:
    """Others keep the parts that they have."""
    asked = replace(experiment("fedproto"), clients=3, model="mlp", params={}, rounds=3)
    nodes = {**dict(enumerate(in_simulation(3).values())), 3: {"partition-id": 3}}
    grid = changing(tmp_path, nodes, {("", ""): [0, 1, 2], ("train", "1"): [0, 1, 2, 3]})
    serve(grid, asked, settings(tmp_path))
    told = lines(tmp_path / "run")
    why = "it refuses: the experiment divides its dataset among clients 0 to 2: who joins later needs data of its own"
    assert told[1]["left_out"] == {"3": f"{why} (--data)"}
    local = sequential(asked)
    assert [line["loss"] for line in told] == pytest.approx([one.loss for one in local.history])


def test_nobody_is_left(tmp_path: Path) -> None:
    grid = changing(tmp_path, {}, {("", ""): [0]})
    (tmp_path / "nodes.json").write_text("{}")
    with pytest.raises(LostError, match="the federation has no clients"):
        serve(grid, experiment("fedproto"), settings(tmp_path))


def test_a_run_of_fewer_members_than_numbers(tmp_path: Path) -> None:
    asked = replace(experiment("mp-fedcl"), clients=3, train_size=None, rounds=1, participation=0.5)
    grid = changing(tmp_path, {number: brings(tmp_path, number) for number in (0, 2)}, {("", ""): [0, 2]})
    serve(grid, asked, settings(tmp_path))
    (line,) = lines(tmp_path / "run")
    assert (line["removed"], set(line["participants"]) <= {0, 2}) == ([1], True)


def speaking(spoken: list[int], who: int) -> Callable[[Message], list[Message]]:
    """One client's version speaks other protocols."""

    def changed(answer: Message) -> list[Message]:
        if (answer.metadata.message_type, answer.metadata.src_node_id) == ("query.hello", who):
            answer.content = packed(facts_of(answer) | {"protocols": spoken})
        return [answer]

    return changed


NOW = wire.PROTOCOL


@pytest.mark.parametrize(
    ("spoken", "shown"), [([NOW + 1, NOW + 2], f"{NOW + 1} to {NOW + 2}"), ([NOW - 1] * 2, f"{NOW - 1}")]
)
def test_a_client_of_another_time_is_left_out_with_a_line(spoken: list[int], shown: str, tmp_path: Path) -> None:
    asked = replace(experiment("fedproto"), rounds=1)
    (tmp_path / "nodes.json").write_text(json.dumps({k: 100 + k for k in range(4)}))
    serve(Loopback(in_simulation(4), speaking(spoken, 102)), asked, settings(tmp_path))
    (line,) = lines(tmp_path / "run")
    assert line["participants"] == [0, 1, 3]
    assert line["left_out"] == {
        "2": f"refused: it speaks protocol {shown}, not {NOW}: the older side's protofed must be upgraded"
    }
    assert json.loads((tmp_path / "run/flower.json").read_text())["protocol"] == NOW


def test_a_run_speaks_what_all_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that speaks more goes on with a run in what it began with, and answers each side in its own."""
    monkeypatch.setattr(wire, "PROTOCOL", NOW + 1)
    for module in ("client", "connections", "server"):
        monkeypatch.setattr(f"protofed.deploy.{module}.PROTOCOL", NOW + 1)
    asked = replace(experiment("fedproto"), rounds=1)
    grid = Loopback(in_simulation(4), speaking([NOW, NOW], 102))
    serve(grid, asked, Settings(str(tmp_path / "run")))
    assert {facts_of(message)["protocol"] for message in grid.asked} == {NOW}
    assert json.loads((tmp_path / "run/flower.json").read_text())["protocol"] == NOW
    assert_same(tmp_path / "run", sequential(asked))
    other = Loopback(in_simulation(4))
    serve(other, asked, Settings(str(tmp_path / "other")))
    assert {facts_of(m)["protocol"] for m in other.asked if m.metadata.message_type == "train"} == {NOW + 1}
    assert_same(tmp_path / "other", sequential(asked))
    label = tmp_path / "run/flower.json"
    label.write_text(json.dumps(parse_json(label.read_text()) | {"protocol": NOW - 1}))
    with pytest.raises(UserError, match=f"its messages are of protocol {NOW - 1}, and this version speaks {NOW} to"):
        serve(grid, asked, Settings(str(tmp_path / "run")))


def test_a_first_message_tells_what_its_sender_speaks() -> None:
    older = seal(json.dumps({"protocol": NOW - 2, "protocols": [NOW - 2, NOW]}), b"")
    assert spoken_by(unpack(older, 1)[0]) == (NOW - 2, NOW)
    assert spoken_by(unpack(pack({}), 1)[0]) == (NOW, NOW)
    for said in ({"protocol": NOW - 1}, {"protocol": "7"}, {"protocol": None}, {"protocol": NOW, "protocols": [NOW]}):
        with pytest.raises(RefusedError, match="it speaks protocol"):
            unpack(seal(json.dumps(said), b""), 1)


def test_what_is_kept_of_old_runs_is_deleted(tmp_path: Path) -> None:
    owner = Owner(0, memory=str(tmp_path / "memory"), keep_days=10)
    days = {"finished": 11, "idle": 40, "recent": 9, "going": 40}
    for name, ago in days.items():
        place = tmp_path / "memory" / name
        place.mkdir(parents=True)
        (place / "3.safetensors").write_text("x")
        then = time.time() - ago * 86_400
        os.utime(place / "3.safetensors", (then, then))
        os.utime(place, (then, then))
    (tmp_path / "memory/going/ledger.json").write_text("{}")  # it was asked something just now
    (tmp_path / "memory/today.json").write_text("{}")
    assert sorted(forget_old(tmp_path / "memory", owner)) == ["finished", "idle"]
    assert sorted(path.name for path in (tmp_path / "memory").iterdir()) == ["going", "recent", "today.json"]
    assert forget_old(tmp_path / "nowhere", owner) == []


def test_a_new_run_deletes_what_is_old_and_says_so(tmp_path: Path) -> None:
    from protofed.deploy.events import Events

    asked = client.WarmClient(Owner(0, memory=str(tmp_path / "memory"), keep_days=1), Events(tmp_path / "events.jsonl"))
    asked._folder("first")
    then = time.time() - 2 * 86_400
    os.utime(tmp_path / "memory/first", (then, then))
    asked._folder("first")  # it goes on
    asked._folder("second")
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["second"]
    (line,) = (tmp_path / "events.jsonl").read_text().splitlines()
    assert json.loads(line)["run"] == "first"


def test_a_client_that_starts_deletes_what_is_old_and_says_so(tmp_path: Path) -> None:
    """Whether or not a new run ever comes."""
    (tmp_path / "client.yaml").write_text("id: 0\nkeep_days: 2\n")
    for run, ago in {"old": 3, "young": 1}.items():
        place = tmp_path / "memory" / run
        place.mkdir(parents=True)
        os.utime(place, (time.time() - ago * 86_400,) * 2)
    answers = io.BytesIO()
    warm_worker.serve(warm_worker.OwnersWord(tmp_path / "client.yaml", None), io.BytesIO(), answers)
    assert wire.read_frame(io.BytesIO(answers.getvalue()))[0] == {"ready": True}
    assert [path.name for path in (tmp_path / "memory").iterdir()] == ["young"]
    lines = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert [(line["kind"], line.get("run")) for line in lines] == [("limits", None), ("forgotten", "old")]


def test_rows_of_new_clients() -> None:
    from protofed.methods import build_method

    assignment = torch.tensor([1, 0])
    sent = Broadcast({"w": torch.zeros(2)}, kept={"assignment": assignment, "centres/w": torch.zeros(3, 2)})
    found = build_method("fesem", {}).with_room(sent, 4)
    assert found.kept["assignment"].tolist() == [1, 0, -1, -1]
    assert build_method("fesem", {}).with_room(found, 3) is not None
    assert build_method("fesem", {}).send(found, 3) is found
