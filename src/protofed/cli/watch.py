"""A look at runs: in progress, in the terminal or on a page; or all of a folder, on a page."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.cli.common import command, whole
from protofed.errors import UserError, misused

if TYPE_CHECKING:
    from protofed.internal.loopback import LoopbackServer
    from protofed.report.terminal import TextTable

SECONDS = 1.0
"""Between two looks at the files."""
Once = Annotated[bool, typer.Option("--once", help="Show the present state, and exit.")]
Serve = Annotated[bool, typer.Option("--serve", help="On a web page for this machine, until Ctrl-C.")]
Port = Annotated[str | None, typer.Option("--port", metavar="INT", help="Of the page. [default: a free one]")]


@command("watch", "watch runs/compare-digits")
def watch_command(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder of a run, comparison, sweep or reproduction.")
    ],
    once: Once = False,
    serve: Serve = False,
    port: Port = None,
) -> None:
    """Show runs in progress, until they have ended."""
    from protofed.report import viewer, watch

    def look() -> tuple[TextTable, bool]:
        view = watch.look(folder)
        return watch.table(view), view.ended

    show(look, partial(viewer.server, folder, everything=True), once, serve, port)


@command("ui", "ui runs")
def ui_command(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="With runs and studies in it or below it.")] = Path(
        "runs"
    ),
    port: Port = None,
) -> None:
    """Show every run and study below a folder on a web page for this machine, until Ctrl-C."""
    from protofed.report import viewer

    answer(viewer.server(folder, whole("--port", port, 0)))


def answer(server: LoopbackServer) -> None:
    """Say where pages are, and answer whoever asks for them until Ctrl-C."""
    with server, suppress(KeyboardInterrupt):
        print(server.address, flush=True)
        server.serve_forever()


def show(
    look: Callable[[], tuple[TextTable, bool]],
    page: Callable[[int], LoopbackServer],
    once: bool,
    serve: bool,
    port: str | None,
) -> None:
    """Show what changes: in the terminal until it has ended, or on a page until Ctrl-C.

    Args:
        look: a table of how it is now, and whether it has ended.
        page: the page at a port, 0 for any that is free.
        once: show it once only.
        serve: on the page.
        port: the page's.
    """
    from rich.live import Live

    from protofed.report.terminal import console

    if once and serve:
        raise misused("--once", "it does not go with --serve, which goes on until Ctrl-C")
    if port is not None and not serve:
        raise UserError("--port", port, "it is the port of a page, and only --serve makes one", hint="add --serve")
    number, (table, ended) = whole("--port", port, 0), look()
    if once:
        table.print()
        return
    if serve:
        answer(page(number))
        return
    with suppress(KeyboardInterrupt), Live(table, console=console(), auto_refresh=False) as live:
        while not ended:
            time.sleep(SECONDS)
            table, ended = look()
            live.update(table, refresh=True)
