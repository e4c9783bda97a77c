"""Running a federation for months: who did what, how it stands, and what keeps it running."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.common import Json, command
from protofed.cli.deploy import Dir, group
from protofed.cli.watch import Once, Port, Serve, show
from protofed.errors import UserError

Side = Annotated[Path, typer.Argument(metavar="DIR", help="The folder of the federation, or of a client.")]


@command("audit", "deploy audit federation --out audit.html", group)
def audit_command(
    folder: Side,
    since: Annotated[str | None, typer.Option("--since", metavar="TIME", help="A day or a time, UTC.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TIME", help="The last day, or a time.")] = None,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="One run alone.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Write it as .html, .md or .txt, to a new file.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show who asked for what, what left, and what was refused."""
    from protofed.deploy.audit import audit, moment
    from protofed.deploy.audit_page import as_text, written
    from protofed.internal.atomic_files import write_text

    found = audit(folder, moment("--since", since), moment("--until", until, ends=True), run)
    if out is not None:
        if out.exists():
            raise UserError("--out", str(out), "it exists already", hint="name a new file")
        text = written(found, out)
        try:
            write_text(out, text)
        except OSError as error:
            raise UserError("--out", str(out), f"it cannot be written: {error.strerror}") from None
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    elif out is None:
        print(as_text(found), end="")
    else:
        print(f"report: {out}")


@command("watch", "deploy watch federation", group)
def deploy_watch_command(folder: Dir, once: Once = False, serve: Serve = False, port: Port = None) -> None:
    """Show who has answered and who is awaited, until Ctrl-C."""
    from protofed.deploy import situation
    from protofed.deploy.federation import FederationFolder

    watching = situation.Watching(FederationFolder.open(folder))
    show(lambda: (situation.table(watching.look()), False), partial(situation.page, watching), once, serve, port)


@command("package", "deploy package federation --out package", group)
def package_command(
    folder: Side,
    out: Annotated[Path, typer.Option("--out", metavar="FOLDER", help="New folder for the files.")],
) -> None:
    """Write files that keep server and clients running: containers, compose, systemd."""
    from protofed.deploy.package import write_package

    for path in write_package(folder, out):
        print(path)
