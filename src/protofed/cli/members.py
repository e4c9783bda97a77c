"""Who takes part in a federation: clients ask, and whoever runs the server admits, removes and renews."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from protofed.cli.common import Json, command
from protofed.cli.deploy import Dir, group, need_flower
from protofed.errors import missing_value, misused

Request = Annotated[Path, typer.Argument(metavar="REQUEST", help="The request.csr that the client has sent.")]
Number = Annotated[int, typer.Option("--id", help="Which client.")]
Days = Annotated[int | None, typer.Option("--days", help="For how many days; by default `days` of federation.yaml.")]


def _passphrase(folder: Path) -> str:
    """That of the authority's key, typed without being shown, or a line of the input."""
    asked = f"passphrase of {folder}/server/ca.key: "
    found = getpass.getpass(asked) if sys.stdin.isatty() else sys.stdin.readline()
    if not found.strip():
        raise missing_value("passphrase", f"it is that of {folder}/server/ca.key, which `deploy init` printed")
    return found.strip()


@command("join", "deploy join site --name north", group)
def join_command(
    place: Annotated[Path, typer.Argument(metavar="PLACE", help="The client's folder; it is made.")],
    name: Annotated[str, typer.Option("--name", help="The client's name, for people.")],
    renew: Annotated[
        bool, typer.Option("--renew", help="Make another key; the old one holds until the new one is admitted.")
    ] = False,
) -> None:
    """At the client: make its key, which stays there, and a request to be admitted."""
    need_flower()
    from protofed.deploy.joining import REQUEST, join

    fingerprint = join(place, name, renew)
    print(f"{place / REQUEST}: send it to whoever runs the server; it holds no secret")
    print(f"fingerprint of the key, to be compared by telephone: {fingerprint}")
    print(f"what comes back (ca.crt, client.crt, client.yaml) goes into {place}, beside the key")


@command("admit", "deploy admit federation request.csr", group)
def admit_command(
    folder: Dir,
    request: Request,
    number: Annotated[
        int | None,
        typer.Option("--id", help="The number of a client that was removed; by default the next new number."),
    ] = None,
    days: Days = None,
) -> None:
    """Admit a client that has asked for it, from the next round on, also to a run in progress."""
    need_flower()
    from protofed.deploy import membership
    from protofed.deploy.federation import FederationFolder
    from protofed.deploy.pki import fingerprint, read_request

    federation = FederationFolder.open(folder)
    key, name = read_request(request)
    print(f"{name} asks, with the key {fingerprint(key)}: the client must say the same", flush=True)
    made = membership.admit_client(federation, request, _passphrase(folder), number, days)
    print(f"{name} is client {made}: send it {federation.client(made)}, which holds no secret")
    print(f"there: `protofed deploy client PLACE --id {made}`")


@command("remove", "deploy remove federation --id 2", group)
def remove_command(folder: Dir, number: Number) -> None:
    """Stop answering a client, from its next call on."""
    need_flower()
    from protofed.deploy import membership
    from protofed.deploy.federation import FederationFolder

    member = membership.remove_client(FederationFolder.open(folder), number)
    print(f"client {number}, {member.name}, is a member no longer")


@command("renew", "deploy renew federation", group)
def renew_command(
    folder: Dir,
    numbers: Annotated[
        list[int] | None,
        typer.Option("--id", help="A client whose admission is renewed, not the server's certificate; repeatable."),
    ] = None,
    request: Annotated[
        Path | None, typer.Option("--request", metavar="REQUEST", help="Of a client with another key (`join --renew`).")
    ] = None,
    days: Days = None,
) -> None:
    """Renew the server's certificate, or the admission of clients."""
    need_flower()
    from protofed.deploy import membership
    from protofed.deploy.federation import FederationFolder
    from protofed.deploy.pki import fingerprint, read_request

    federation = FederationFolder.open(folder)
    if request is not None:
        if len(numbers or ()) != 1:
            raise misused("--request", "it is for one client", hint="name it: --id K")
        key, name = read_request(request)
        print(f"{name} asks, with the key {fingerprint(key)}: the client must say the same", flush=True)
    passphrase = _passphrase(folder)
    for number in numbers or ():
        member = membership.renew_client(federation, number, request, passphrase, days)
        print(
            f"client {number} is admitted until {member.until.date()}: send it {federation.client(number)}/client.crt"
        )
    if not numbers:
        anew = membership.renew_server(federation, passphrase, days)
        print("the server's certificate is renewed: end the server and start it again; runs go on then")
        if anew:
            print(f"so is the authority's: send every client {folder}/server/ca.crt before its own one ends")


@command("members", "deploy members federation", group)
def members_command(folder: Dir, as_json: Json = False) -> None:
    """Show who was admitted, since and until when, by which key, and who is connected."""
    need_flower()
    from protofed.deploy import membership
    from protofed.deploy.federation import FederationFolder

    federation = FederationFolder.open(folder)
    rows, warnings = membership.listed(federation), membership.warnings(federation)
    if as_json:
        print(json.dumps({"members": rows, "warnings": warnings}, indent=2))
        return
    for row in rows:
        print(_line(row))
    for line in warnings:
        print(f"warning: {line}")


def _line(row: dict[str, Any]) -> str:
    there = "connected" if row["connected"] else f"last seen {row['last_seen'] or 'never'}"
    what = {"admitted": f"until {row['until'][:10]}", "ended": f"ended {row['until'][:10]}"}
    status = what.get(row["status"], f"removed {(row['removed'] or '')[:10]}")
    made = ", a key that was made at the server" if row["key_made_at"] == "server" else ""
    return f"client {row['id']}, {row['name']}: since {row['since'][:10]}, {status}, {there}, {row['key']}{made}"
