"""A look at runs in progress."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.common import command, whole
from protofed.errors import UserError, misused

SECONDS = 1.0
"""Between two looks at the files."""


@command("watch", "watch runs/compare-digits")
def watch_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, comparison, sweep or reproduction.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Show how it is now, and end.")] = False,
    serve: Annotated[bool, typer.Option("--serve", help="On a web page for this machine, until Ctrl-C.")] = False,
    port: Annotated[
        str | None, typer.Option("--port", metavar="INT", help="Of the page. [default: a free one]")
    ] = None,
) -> None:
    """Show runs in progress, until they have ended."""
    from rich.live import Live

    from protofed.internal.loopback import HERE
    from protofed.report import watch
    from protofed.report.terminal import console

    if once and serve:
        raise misused("--once", "it does not go with --serve, which shows runs until Ctrl-C")
    if port is not None and not serve:
        raise UserError("--port", port, "it is the port of a page, and only --serve makes one", hint="add --serve")
    view = watch.look(folder)
    if once:
        watch.table(view).print()
        return
    with suppress(KeyboardInterrupt):
        if serve:
            with watch.server(folder, whole("--port", port, 0)) as page:
                print(f"http://{HERE}:{page.server_address[1]}/", flush=True)
                page.serve_forever()
            return
        with Live(watch.table(view), console=console(), auto_refresh=False) as live:
            while not view.ended:
                time.sleep(SECONDS)
                view = watch.look(folder)
                live.update(watch.table(view), refresh=True)
