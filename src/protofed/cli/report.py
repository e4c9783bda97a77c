"""Looking at results: the report, and the motion of prototypes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from protofed.cli.common import command
from protofed.errors import UserError, unknown


@command("report", "report runs/compare-digits")
def report_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, comparisons, sweeps or reproductions.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="The HTML file. [default: DIR/report.html]")
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option("--figures", metavar="DIR", help="Also every figure as PDF, SVG and PNG, with LaTeX to include."),
    ] = None,
    score: Annotated[
        str | None,
        typer.Option("--score", metavar="NAME", help="The accuracy that is shown first and drawn, model/test/rule."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            "--columns", metavar="NAMES", help="Columns of the LaTeX table (--figures): accuracies, bytes, seconds."
        ),
    ] = None,
) -> None:
    """Write one HTML file about runs: tables, curves, clients, confusion, features and prototypes."""
    from protofed.report.html import gather, write_report
    from protofed.report.html.figures import write_figures
    from protofed.report.html.latex import table_columns
    from protofed.studies.sweeps import Sweep, SweepStudy

    path = out or folders[0] / "report.html"
    if not path.parent.is_dir() and out is not None:
        raise UserError("--out", str(out), f"there is no folder {path.parent}")
    if path.is_dir():
        raise UserError("--out", str(path), "it is a folder", hint="name a file")
    if figures is not None and figures.exists() and not figures.is_dir():
        raise UserError("--figures", str(figures), "it is a file", hint="name a folder")
    if columns is not None and figures is None:
        raise UserError("--columns", columns, "it is of the table that --figures writes")
    data = gather(folders)
    if score is not None:
        if score not in data["scores"]:
            raise unknown("--score", score, data["scores"])
        data["score"] = score
    asked = table_columns(data, columns.split(",") if columns else ())
    ended = [one for folder in folders if (one := folder / SweepStudy.end).is_file()] if figures else []
    sweeps = [Sweep.read(one) for one in ended]
    write_report(data, path)
    print(path)
    if figures is not None:
        made = write_figures(data, figures, asked, sweeps)
        print(f"{len(made)} figures and tables: {figures}", file=sys.stderr)


@command("animate", "animate runs/compare-digits --out motion.gif")
def animate_command(
    folders: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, comparisons, sweeps or reproductions.")
    ],
    out: Annotated[Path, typer.Option("--out", metavar="FILE", help="The file: .gif, .mp4 (needs ffmpeg) or .html.")],
) -> None:
    """Show how features and prototypes of runs move from round to round, in a picture, a video or a page."""
    from protofed.report.html.content import motion_of
    from protofed.report.motion import check_format, write_animation
    from protofed.report.motion.animation import PANELS

    if not out.parent.is_dir():
        raise UserError("--out", str(out), f"there is no folder {out.parent}")
    if out.is_dir():
        raise UserError("--out", str(out), "it is a folder", hint="name a file")
    check_format(out)
    data = motion_of(folders)
    lines = len(data["motion"]["runs"])
    if lines > PANELS and out.suffix != ".html":
        print(f"note: it shows the first {PANELS} of {lines} lines", file=sys.stderr)
    write_animation(data, out)
    print(out)
