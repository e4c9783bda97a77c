"""An audit in plain language: for a terminal, as Markdown, or as a page that needs nothing else."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from protofed.deploy.audit import Audit, AuditedRun, Repeated, Shared, in_words
from protofed.errors import UserError

WIDTH = 110
"""Columns of a terminal's paragraphs."""
WORDS = {
    "weights": "weights of the model",
    "prototypes": "prototypes (class means)",
    "numbers": "counts and other numbers",
    "sums": "sums over classes",
    "accuracies": "accuracies",
    "metrics": "metrics of tests",
}
"""What may leave, for a reader who has not read the papers."""


class Section(NamedTuple):
    """A part of the report: a few sentences and a table."""

    title: str
    text: str
    titles: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def sections(found: Audit) -> list[Section]:
    """The report, in the order in which it is read."""
    about = "of the federation's server" if found.side == "server" else "of this client"
    period = f"from {found.first} to {found.last} (UTC)" if found.events else "but nothing has happened in this time"
    lack = [f"{found.unreadable} lines cannot be read"] if found.unreadable else []
    lack += [f"{found.lost} events were lost while the disk was full"] if found.lost else []
    note = f" The log has gaps: {'; '.join(lack)}." if lack else " The log has no gaps that it knows of."
    made = [Section("Report on a federation", f"Made from the log {about} in {found.folder}, {period}.{note}")]
    made += [_asked(found), _left(found), _refused(found)]
    if found.side == "client":
        text = (
            "What the owner of this client allows, and when that changed." if found.limits else "They have not changed."
        )
        rows = [[one.time, one.what] for one in found.limits]
        made.append(Section("The owner's limits", text, ("when", "what"), rows))
    else:
        text = "Who was admitted, removed or renewed." if found.members else "Nobody was admitted or removed."
        made.append(Section("Members", text, ("when", "what"), [[one.time, one.what] for one in found.members]))
    text = "Who connected, and who was turned away." if found.connections else "Nobody connected."
    return [
        *made,
        Section("Connections", text, ("who", "what", "times", "first", "last"), _repeated(found.connections)),
    ]


def _asked(found: Audit) -> Section:
    runs = list(found.runs.values())
    rows = [[one.run, one.method, in_words(one.rounds), one.began, one.ended, one.how or "not said"] for one in runs]
    what = f"{len(runs)} runs asked" if len(runs) != 1 else "1 run asked"
    whom = "this client" if found.side == "client" else "clients"
    text = f"{what} {whom} to train. Data stays where it is: a run sends a model or prototypes, and asks for the same."
    titles = ("run", "method", "rounds", "first message", "last message", "ended")
    return Section("Who asked for what", text, titles if found.side == "server" else titles[:-1], _cut(rows, found))


def _cut(rows: list[list[str]], found: Audit) -> list[list[str]]:
    """How a run ended is known at the server alone."""
    return rows if found.side == "server" else [row[:-1] for row in rows]


def _left(found: Audit) -> Section:
    pairs = [(run, one) for run in found.runs.values() for one in run.shared.values()]
    rows = [[run.run, str(one.client), *_numbers(one), _kinds(one), _protection(run, one, found)] for run, one in pairs]
    turns, total = sum(one.turns for _, one in pairs), sum(one.bytes_left for _, one in pairs)
    kinds = list(dict.fromkeys(part for _, one in pairs for part in one.sent))
    what = ", ".join(WORDS.get(part, part) for part in kinds) or "of which kind, the log does not say"
    where = "this client" if found.side == "client" else "the clients"
    text = f"{size(total)} have left {where} in {turns} turns of training: {what}. ProtoFed sends no samples, but what "
    text += "it sends can tell of them (docs/leakage.md). Besides, each run is told how many samples there are, their "
    text += "shape, and the names of their classes."
    titles = ("run", "client", "turns", "tests", "bytes", "samples", "what", "protection")
    return Section("What left" if found.side == "client" else "What came from clients", text, titles, rows)


def _numbers(one: Shared) -> list[str]:
    return [
        str(one.turns),
        str(one.tests),
        size(one.bytes_left),
        "not said" if one.samples is None else str(one.samples),
    ]


def _kinds(one: Shared) -> str:
    return ", ".join(one.sent) or ("not said" if one.turns else "nothing")


def _protection(run: AuditedRun, one: Shared, found: Audit) -> str:
    parts = ["sums under masks (secure aggregation)"] if run.secure else []
    parts += [f"prototypes of at least {run.min_count} samples"] if run.min_count and run.min_count > 1 else []
    if one.clip is not None:
        parts.append(f"clipped to {one.clip:g}" + (f", noise {one.noise:g} × that" if one.noise else ""))
    if not parts:
        return "none" if found.side == "client" else "none that the server knows of"
    return "; ".join(parts)


def _refused(found: Audit) -> Section:
    times = sum(one.times for one in found.refused)
    text = f"{times} messages were refused, failed or came too late." if times else "Nothing was refused."
    return Section(
        "What was refused", text, ("for whom", "what and why", "times", "first", "last"), _repeated(found.refused)
    )


def _repeated(some: Sequence[Repeated]) -> list[list[str]]:
    return [[one.who, one.what, str(one.times), one.first, one.last] for one in some]


def size(number: int) -> str:
    """Bytes, for a reader."""
    if number < 1000:
        return f"{number} bytes"
    return f"{number / 1e3:.1f} kB" if number < 1e6 else f"{number / 1e6:.1f} MB"


def as_text(found: Audit) -> str:
    """For a terminal."""
    parts = []
    for title, text, titles, rows in sections(found):
        lines = [title, "─" * len(title), *textwrap.wrap(text, WIDTH)]
        if rows:
            cells = [list(titles), *map(list, rows)]
            widths = [max(len(row[at]) for row in cells) for at in range(len(titles))]
            lines.append("")
            lines += [
                "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells
            ]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def as_markdown(found: Audit) -> str:
    """For a file that is kept with others."""
    lines = []
    for number, (title, text, titles, rows) in enumerate(sections(found)):
        lines += [f"{'#' if number == 0 else '##'} {title}", "", _marked(text), ""]
        if rows:
            lines += [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
            lines += [f"| {' | '.join(map(_marked, row))} |" for row in rows]
            lines.append("")
    return "\n".join(lines)


def _marked(text: str) -> str:
    """A text without meaning of its own in Markdown."""
    return "".join(f"\\{one}" if one in "\\`*_[]<>|#" else one for one in text)


def as_html(found: Audit) -> str:
    """For a browser; it asks for nothing, and what the log says is never read as HTML."""
    parts = []
    for number, (title, text, titles, rows) in enumerate(sections(found)):
        level = "h1" if number == 0 else "h2"
        parts.append(f"<{level}>{escape(title)}</{level}><p>{escape(text)}</p>")
        if rows:
            head = "".join(f"<th>{escape(one)}</th>" for one in titles)
            body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
            parts.append(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>")
    return PAGE.format(body="\n".join(parts))


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Report on a federation</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em; }}
table {{ border-collapse: collapse; font-size: 13px; }}
td, th {{ padding: .3em .7em; text-align: left; vertical-align: top; border-bottom: 1px solid #ccc; }}
td {{ overflow-wrap: anywhere; }}
</style></head>
<body>
{body}
</body></html>
"""

FORMATS = {".html": as_html, ".md": as_markdown, ".txt": as_text}
"""What `--out` writes, by the end of the file's name."""


def written(found: Audit, path: Path) -> str:
    """The report in the form that a file's name asks for."""
    form = FORMATS.get(path.suffix)
    if form is None:
        raise UserError("--out", str(path), f"its name must end with {', '.join(FORMATS)}")
    return form(found)
