"""What the papers' convergence theory says of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from protofed.cli.common import Json, Quiet, command

if TYPE_CHECKING:
    from protofed.studies.theory import Trend


@command("theory", "theory runs/fedproto-digits-seed0")
def theory_command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")],
    points: Annotated[
        int,
        typer.Option(help="How many points of the run, evenly spaced; 1: its end alone, without repeating the run."),
    ] = 5,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Estimate along a run the constants of the convergence conditions, and compare bounds with what was used."""
    from protofed.report.terminal import bounds_table, constants_table
    from protofed.runs.folder import RunFolder
    from protofed.runs.progress import progress
    from protofed.studies.theory import examine

    run = RunFolder.open(folder)
    shown_rounds = progress(quiet)
    try:
        report = examine(run, points, shown_rounds)
    finally:
        shown_rounds.end()
    if as_json:
        print(report.to_json(), end="")
        return
    constants_table(report).print()
    if report.points[-1].bounds:
        bounds_table(report).print()
    for note in report.notes:
        print(f"note: {note}")
    print(_losses(report.trends))


def _losses(trends: Sequence[Trend]) -> str:
    """Whether losses fell, client by client, in one line."""
    if not trends:
        return "no client has had two turns, so no loss could fall"
    fell, turns = sum(trend.fell for trend in trends), sum(trend.turns for trend in trends)
    always = sum(not trend.rose for trend in trends)
    worst = min(trends, key=lambda trend: trend.fell / trend.turns)
    seldom = f"; least often for client {worst.client}: {worst.fell} of {worst.turns}" if worst.rose else ""
    return (
        f"a client's loss fell from one of its turns to the next in {fell} of {turns} cases, "
        f"always for {always} of {len(trends)} clients{seldom}"
    )
