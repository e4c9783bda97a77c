"""What the papers' convergence theory says of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.common import Json, app


@app.command("theory")
def theory_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")],
    as_json: Json = False,
) -> None:
    """Estimate the constants of the convergence conditions, and compare bounds with what was used."""
    from protofed.results.folder import RunFolder
    from protofed.results.table import bounds_table, console, constants_table
    from protofed.theory import examine

    report = examine(RunFolder.open(folder))
    if as_json:
        print(report.to_json(), end="")
        return
    shown = console()
    shown.print(constants_table(report))
    if report.bounds:
        shown.print(bounds_table(report))
    for note in report.notes:
        print(f"note: {note}")
    rose = f"; not in round {', '.join(map(str, report.rose))}" if report.rose else ""
    print(f"the clients' mean loss fell in {report.fell} of {report.fell + len(report.rose)} rounds{rose}")
