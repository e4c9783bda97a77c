"""Tables for the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import singledispatch
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from protofed.studies.choose_k import Choice
from protofed.studies.comparison import Comparison, Spread
from protofed.studies.reproduction import Reproduction
from protofed.studies.sweeps import Sweep

if TYPE_CHECKING:
    from protofed.data.federation import Federation
    from protofed.runs.result import Result
    from protofed.studies.theory import Estimates, Report

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


def console() -> Console:
    """Standard output; wide enough for a table when it is not a terminal."""
    found = Console()
    return found if found.is_terminal else Console(width=140)


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


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
    first = comparison.results[0]
    seeds = len(comparison.rows[0].rounds)
    promised = [f"\n{row.method}: {row.guarantee}" for row in comparison.rows if row.guarantee]
    table = Table(
        title=f"{first.dataset}, {first.split}, {first.clients} clients, {_model(first)}; {seeds} seeds, last round",
        caption="accuracy in %, mean ± sample std; * diagnostic: nearest own class mean" + "".join(promised),
        box=SIMPLE_HEAD,
    )
    titles = ["method", *names, "up a round", "down a round", "seconds"]
    lines = [titles]
    for row in comparison.rows:
        cells = [_cell(row.accuracy.get(name), name in row.diagnostic) for name in names]
        up, down = size(row.bytes_up_per_round.mean), size(row.bytes_down_per_round.mean)
        lines.append([row.method, *cells, up, down, f"{row.seconds.mean:.1f}"])
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
    first = sweep.results[0]
    about = {
        "dataset": first.dataset,
        "split": first.split,
        "clients": f"{first.clients} clients",
        "model": first.model,
    }
    common = ", ".join(text for name, text in about.items() if name not in sweep.grid)
    table = Table(
        title=f"{common}; {len(rows[0].rounds)} seeds, last round".removeprefix("; "),
        caption="accuracy in %, mean ± sample std; * diagnostic: nearest own class mean",
        box=SIMPLE_HEAD,
    )
    private = ["privacy"] if any(row.guarantee for row in rows) else []
    for title in (*sweep.grid, "method", *names, *private):
        table.add_column(title, justify="left" if title == "method" else "right", overflow="fold")
    for cell in sweep.cells:
        setting = [str(cell.setting.get(name, "–")) for name in sweep.grid]
        cells = [_cell(cell.row.accuracy.get(name), name in cell.row.diagnostic) for name in names]
        table.add_row(*setting, cell.method, *cells, *([cell.row.guarantee or "–"] if private else []))
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


def result_table(result: Result) -> Table:
    """Every accuracy of one run."""
    r = result
    limit = "" if r.stopped == "rounds" else f" (stopped by {r.stopped})"
    promised = "" if r.guarantee is None else f"\n{r.guarantee}"
    start = "" if r.drawn_anew is None else f"\ninitial weights from a file, but for {', '.join(r.drawn_anew)}"
    spent = f"{r.rounds} rounds{limit}, {r.seconds:.1f} s, {size(r.bytes_up)} up, {size(r.bytes_down)} down"
    table = Table(
        title=f"{r.method}, {r.dataset}, {r.split}, {r.clients} clients, {_model(r)}, seed {r.seed}",
        caption=f"{spent}{start}{promised}",
    )
    for name in ("model/test/rule", "last", "last 5", "best", "in round", "worst client"):
        table.add_column(name, justify="left" if name == "model/test/rule" else "right")
    for name, value in result.accuracy.items():
        mark = " *" if value.diagnostic else ""
        numbers = [f"{number:.2f}" for number in (value.last, value.last5, value.best)]
        if value.interval is not None:
            numbers[0] += f" ± {value.interval:.2f}"
        style = "bold" if name == result.score else None
        table.add_row(name + mark, *numbers, str(value.best_round), f"{min(value.per_client):.2f}", style=style)
    return table


def drift_table(drift: Mapping[str, Mapping[str, float]]) -> Table:
    """Every accuracy before, at and after what clients hold changed."""
    table = Table(title="drift: accuracy before, at and after", box=SIMPLE_HEAD)
    for name in ("model/test/rule", *drift):
        table.add_column(name, justify="left" if name == "model/test/rule" else "right")
    for name in next(iter(drift.values())):
        table.add_row(name, *(f"{found[name]:.2f}" for found in drift.values()))
    return table


def profile_table(report: Mapping[str, Any]) -> Table:
    """Where the time of a round went."""
    rounds, warm_up = report["rounds"], report["warm_up"]
    table = Table(
        title=f"where the time goes: a mean round of {len(rounds)} on {report['device']}",
        caption=f"milliseconds; warm-up: rounds {warm_up['rounds'][0]} to {warm_up['rounds'][-1]}",
        box=SIMPLE_HEAD,
    )
    for name in ("section", "a round", "share", "warm-up round"):
        table.add_column(name, justify="left" if name == "section" else "right")
    for name, found in report["sections"].items():
        first = warm_up["sections"][name]["per_round"]
        table.add_row(name, f"{1000 * found['per_round']:.1f}", f"{100 * found['share']:.1f} %", f"{1000 * first:.1f}")
    return table


def constants_table(report: Report) -> Table:
    """What the papers' assumptions bound, as far as it was found: a column for each point of the run."""
    table = Table(title=f"{report.method}: estimated constants, after round", box=SIMPLE_HEAD)
    table.add_column("")
    for point in report.points:
        table.add_column(str(point.round), justify="right")
    rows: dict[str, Callable[[Estimates], float]] = {
        "L1, smoothness": lambda found: found.L1,
        "L2, Lipschitz constant of the encoder": lambda found: found.L2,
        "σ², variance of gradients": lambda found: found.variance,
        "G, mean norm of gradients": lambda found: found.G,
        "‖∇L‖², squared norm of the gradient (mean)": lambda found: found.mean_gradient,
        "E, local steps in a round": lambda found: found.steps,
    }
    for name, of in rows.items():
        table.add_row(name, *(f"{of(point.estimates):.4g}" for point in report.points))
    return table


def bounds_table(report: Report) -> Table:
    """The conditions of the method's paper beside what was used."""
    table = Table(
        title="bounds that follow, from estimates",
        caption="a learning rate below 0 does not exist; ∞: any lambda, or no number of rounds",
        box=SIMPLE_HEAD,
    )
    for name in ("condition", "of", "after round", "bound", "used", "holds"):
        table.add_column(name, justify="left" if name in ("condition", "of") else "right")
    for last in report.points[-1].bounds:
        which = (last.quantity, last.equation)
        for point in report.points:
            for bound in point.bounds:
                if (bound.quantity, bound.equation) == which:
                    limit = "∞" if math.isinf(bound.bound) else f"{bound.bound:.4g}"
                    cells = (f"{bound.relation} {limit}", f"{bound.used:.4g}", "yes" if bound.holds else "no")
                    table.add_row(*which, str(point.round), *cells)
        table.add_section()
    return table


def split_table(federation: Federation) -> Table:
    """Training samples of each client and class."""
    table = Table(title="training samples: clients × classes")
    table.add_column("client")
    for name in (*federation.classes, "all", "own test"):
        table.add_column(name, justify="right")
    for number, (client, counts) in enumerate(zip(federation.clients, federation.counts.tolist(), strict=True)):
        cells = [str(count) if count else "·" for count in counts]
        table.add_row(str(number), *cells, str(sum(counts)), str(len(client.own)))
    return table


def _model(result: Result) -> str:
    """With the encoder before it."""
    card = result.encoder
    return result.model if card is None else f"{result.model} on features of {card['model']} ({card['source']})"


def _cell(spread: Spread | None, diagnostic: bool) -> str:
    if spread is None:
        return "–"
    return f"{spread.mean:.1f}±{spread.std:.1f}{'*' if diagnostic else ''}"
