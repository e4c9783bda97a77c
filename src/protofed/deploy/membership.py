"""What an operator does about clients, at the server's machine: admit, remove, renew, and see who there is."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from protofed.deploy.events import EVENTS, Events, member_changed
from protofed.deploy.federation import FederationFolder, write_bundle
from protofed.deploy.members import Admission, admit, member_of, present, remove, renew
from protofed.deploy.pki import (
    AUTHORITY_DAYS,
    certify,
    certify_authority,
    expiry,
    fingerprint,
    note,
    open_authority,
    public_pem,
    read_request,
)
from protofed.deploy.processes import is_running, logged
from protofed.errors import UserError
from protofed.internal.atomic_files import write_text


def admit_client(
    federation: FederationFolder, request: Path, passphrase: str, number: int | None = None, days: int | None = None
) -> int:
    """Let a client in that has asked for it, and write what it needs back; its number.

    Args:
        federation: it takes part from the next round, of a run that is going on too.
        request: the file that the client has sent.
        passphrase: of the authority's key.
        number: that of a client that was removed, whose place it takes; unless given, the next one.
        days: for how many it is admitted; the federation's, unless given.

    Raises:
        UserError: the request or the passphrase is not what it should be, or the key is that of another client.
    """
    key, name = read_request(request)
    authority = open_authority(federation.server, passphrase)
    with federation.members_file.changing() as members:
        number = admit(members, number, name, key, "client", authority, _days(federation, days))
        member = members[number]
    for name in ("key", "client.yaml"):  # of who had this number before
        (federation.client(number) / name).unlink(missing_ok=True)
    write_bundle(federation, number, member, authority[0])
    enrol(federation)
    _record(federation, "admitted", number, member)
    return number


def remove_client(federation: FederationFolder, number: int) -> Admission:
    """Stop answering a client, from its next call on."""
    with federation.members_file.changing() as members:
        remove(members, number)
        member = members[number]
    enrol(federation)
    _record(federation, "removed", number, member)
    return member


def renew_client(
    federation: FederationFolder, number: int, request: Path | None, passphrase: str, days: int | None = None
) -> Admission:
    """Let an admission hold for longer, by the key that the client has or by the one that it asks for."""
    asked = None if request is None else read_request(request)
    authority = open_authority(federation.server, passphrase)
    with federation.members_file.changing() as members:
        before = member_of(members, number).key
        renew(members, number, asked, authority, _days(federation, days))
        member = members[number]
    if public_pem(before) != public_pem(member.key):  # one that was made here is of no use any longer
        (federation.client(number) / "key").unlink(missing_ok=True)
    write_bundle(federation, number, member, authority[0])
    enrol(federation)
    _record(federation, "renewed", number, member)
    return member


def renew_server(federation: FederationFolder, passphrase: str, days: int | None = None) -> bool:
    """Make the server another certificate; whether clients need another one of the authority too, in time."""
    authority, for_days = open_authority(federation.server, passphrase), _days(federation, days)
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=for_days)
    if over := authority[0].not_valid_after_utc < ends:
        authority = certify_authority(federation.server, authority[1], AUTHORITY_DAYS), authority[1]
        for number, member in federation.members().items():
            write_bundle(federation, number, member, authority[0])
    certify(federation.server, "server", federation.host, authority, for_days)
    Events(federation.server / EVENTS).write(kind="certificate", change="renewed", until=ends.date().isoformat())
    return over


def _days(federation: FederationFolder, days: int | None) -> int:
    if days is not None and not 1 <= days <= AUTHORITY_DAYS:
        raise UserError("--days", days, f"it must be from 1 to {AUTHORITY_DAYS}")
    return federation.days if days is None else days


def _record(
    federation: FederationFolder, change: Literal["admitted", "removed", "renewed"], number: int, member: Admission
) -> None:
    about = {"name": member.name, "key": fingerprint(member.key), "until": member.until.date().isoformat()}
    member_changed(federation.server, number, change, **about)


def enrol(federation: FederationFolder, begin: bool = False) -> None:
    """Let the server know the keys of all members, and of nobody else; one that never ran does so when it begins."""
    if not (begin or federation.database.exists()):
        return
    from protofed.deploy import link  # and Flower

    members = federation.members_file.read()
    with logged(federation.server / "members.log", "members"):
        state = link.open_state(federation.database)
        nodes = {
            number: link.register(state, public_pem(member.key), f"client-{number}")
            for number, member in present(members).items()
        }
        write_text(federation.nodes_file, json.dumps(nodes, indent=1) + "\n")
        link.dismiss(state, nodes.values())


def listed(federation: FederationFolder) -> list[dict[str, Any]]:
    """Everybody who was ever admitted: who, by which key, since and until when, and when it was last there."""
    members, seen, nodes = federation.members_file.read(), {}, federation.nodes()
    if federation.database.exists():
        from protofed.deploy import link

        with logged(federation.server / "members.log", "members"):
            seen = link.last_seen(link.open_state(federation.database))
    running = is_running(federation.log)
    rows = []
    for number, member in members.items():
        there, last = seen.get(nodes.get(number, 0), (False, None))
        status = "removed" if member.removed else "ended" if member.objection else "admitted"
        rows.append(
            {
                "id": number,
                "name": member.name,
                "status": status,
                "connected": running and there and status == "admitted",
                "last_seen": last,
                "since": member.since.isoformat(timespec="seconds"),
                "until": member.until.isoformat(timespec="seconds"),
                "removed": member.removed,
                "key": fingerprint(member.key),
                "key_made_at": member.key_made_at,
            }
        )
    return rows


def warnings(federation: FederationFolder) -> Sequence[str]:
    """What ends within a month, or has ended, and the command that mends it: a line each."""
    again = f"`protofed deploy renew {federation.folder}"
    server = federation.server
    found = note("the server's certificate", expiry(server / "server.pem"), f"{again}`, then start the server again")
    found += note("the authority's certificate", expiry(server / "ca.crt"), f"{again}`, then give clients the new one")
    for number, member in federation.members().items():
        found += note(f"the admission of client {number}", member.until, f"{again} --id {number}`")
    return found
