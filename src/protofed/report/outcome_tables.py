"""Tables for the terminal of what comes out of studies: `outcome_table` finds the one that fits."""

from __future__ import annotations

from functools import singledispatch

from rich.box import SIMPLE_HEAD
from rich.table import Table

from protofed.report.terminal import model_of, size
from protofed.studies.choose_k import Choice
from protofed.studies.comparison import Comparison, MethodRow, Spread
from protofed.studies.reproduced import Reproduction
from protofed.studies.sweeps import Sweep

COLUMNS = (
    "own/own/head",
    "own/own/nearest",
    "own/all/head",
    "own/all/nearest",
    "global/all/head",
    "global/domain/head",
)
"""The accuracies a comparison shows, where they exist; the rest is in compare.json."""


SIDE_BY_SIDE = 5
"""Up to so many methods fit beside each other into 80 columns; more are listed one below the other."""


@singledispatch
def outcome_table(outcome: object) -> Table:
    """The table of what came out of a study."""
    raise NotImplementedError(type(outcome))


@outcome_table.register
def comparison_table(comparison: Comparison) -> Table:
    """Mean ± std over seeds of the last round's accuracies, bytes per round and seconds, for each method."""
    found = [name for row in comparison.rows for name in row.accuracy]
    names = [name for name in COLUMNS if name in found]
    names += dict.fromkeys(name for name in found if "/novel/" in name)
    seeds = comparison.rows[0].seeds
    about = "no run came to its end"
    if comparison.results:
        first = comparison.results[0]
        about = f"{first.dataset}, {first.split}, {first.clients} clients, {model_of(first)}"
    promised = [f"\n{row.method}: {row.guarantee}" for row in comparison.rows if row.guarantee]
    table = Table(
        title=f"{about}; {seeds} seeds, last round",
        caption="accuracy in %, mean ± sample std; * diagnostic: nearest own class mean" + "".join(promised),
        box=SIMPLE_HEAD,
    )
    ended = ["runs"] if comparison.failures else []
    titles = ["method", *names, "up a round", "down a round", "seconds", *ended]
    lines = [titles]
    for row in comparison.rows:
        cells = [_cell(row.accuracy.get(name), name in row.diagnostic) for name in names]
        spent = [size(row.bytes_up_per_round.mean), size(row.bytes_down_per_round.mean), f"{row.seconds.mean:.1f}"]
        spent = spent if row.rounds else ["–"] * len(spent)
        lines.append([row.method, *cells, *spent, *([_ended(row)] if ended else [])])
    if len(comparison.rows) <= SIDE_BY_SIDE:
        lines = [list(column) for column in zip(*lines, strict=True)]
    for number, title in enumerate(lines[0]):
        table.add_column(title, justify="right" if number else "left", overflow="fold")
    for line in lines[1:]:
        table.add_row(*line)
    return table


@outcome_table.register
def sweep_table(sweep: Sweep) -> Table:
    """Mean ± std over seeds of the last round's accuracies, a row for each setting and method."""
    rows = [cell.row for cell in sweep.cells]
    scores = dict.fromkeys(sweep.score_of(cell) for cell in sweep.cells)
    usual = [name for name in COLUMNS if sweep.score is None and any(name in row.accuracy for row in rows)]
    names = list(dict.fromkeys([*scores, *usual]))
    common = "no run came to its end"
    if sweep.results:
        first = sweep.results[0]
        about = {"dataset": first.dataset, "split": first.split, "clients": f"{first.clients} clients"}
        about["model"] = first.model
        common = ", ".join(text for name, text in about.items() if name not in sweep.grid)
    table = Table(
        title=f"{common}; {rows[0].seeds} seeds, last round".removeprefix("; "),
        caption="accuracy in %, mean ± sample std; * diagnostic: nearest own class mean",
        box=SIMPLE_HEAD,
    )
    private = ["privacy"] if any(row.guarantee for row in rows) else []
    private += ["runs"] if sweep.failures else []
    for title in (*sweep.grid, "method", *names, *private):
        table.add_column(title, justify="left" if title == "method" else "right", overflow="fold")
    for cell in sweep.cells:
        setting = [str(cell.setting.get(name, "–")) for name in sweep.grid]
        cells = [_cell(cell.row.accuracy.get(name), name in cell.row.diagnostic) for name in names]
        more = {"privacy": cell.row.guarantee or "–", "runs": _ended(cell.row)}
        table.add_row(*setting, cell.method, *cells, *(more[name] for name in private))
    return table


@outcome_table.register
def reproduction_table(reproduction: Reproduction) -> Table:
    """Ours beside the paper's."""
    table = Table(title=reproduction.headline(), box=SIMPLE_HEAD)
    for number, name in enumerate(reproduction.COLUMNS):
        table.add_column(name, justify="left" if number < 4 else "right", overflow="fold")
    for line in reproduction.lines():
        table.add_row(*line)
    return table


@outcome_table.register
def choice_table(choice: Choice) -> Table:
    """Mean ± std over seeds of what speaks for each K; the chosen one stands out."""
    table = Table(
        title=f"{choice.method}, {choice.dataset}; {len(choice.lead.values)} seeds",
        caption="accuracy in % on held-out training data; silhouette within classes, trained with K = 1",
        box=SIMPLE_HEAD,
    )
    for title in ("K", "own/val/nearest", "silhouette"):
        table.add_column(title, justify="right")
    for found in choice.candidates:
        silhouette = found.silhouette
        cell = "–" if silhouette is None else f"{silhouette.mean:.3f}±{silhouette.std:.3f}"
        accuracy = f"{found.accuracy.mean:.2f}±{found.accuracy.std:.2f}"
        table.add_row(str(found.k), accuracy, cell, style="bold" if found.k == choice.k else None)
    return table


def _ended(row: MethodRow) -> str:
    """How the runs of a row ended; those that failed are in none of its numbers."""
    if not row.failed:
        return "ended"
    return row.failed[0] if len(row.failed) == row.seeds else f"{row.failed[0]}, {len(row.failed)} of {row.seeds}"


def _cell(spread: Spread | None, diagnostic: bool) -> str:
    if spread is None:
        return "–"
    return f"{spread.mean:.1f}±{spread.std:.1f}{'*' if diagnostic else ''}"
