"""Tables for the terminal; those of studies are in outcome_tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from protofed.data.federation import Federation
    from protofed.methods.convergence import Estimates
    from protofed.runs.result import Result
    from protofed.studies.theory import Report


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


def result_table(result: Result) -> Table:
    """Every accuracy of one run."""
    r = result
    limit = "" if r.stopped == "rounds" else f" (stopped by {r.stopped})"
    promised = "" if r.guarantee is None else f"\n{r.guarantee}"
    start = "" if r.drawn_anew is None else f"\ninitial weights from a file, but for {', '.join(r.drawn_anew)}"
    spent = f"{r.rounds} rounds{limit}, {r.seconds:.1f} s, {size(r.bytes_up)} up, {size(r.bytes_down)} down"
    table = Table(
        title=f"{r.method}, {r.dataset}, {r.split}, {r.clients} clients, {model_of(r)}, seed {r.seed}",
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


def model_of(result: Result) -> str:
    """With the encoder before it."""
    card = result.encoder
    return result.model if card is None else f"{result.model} on features of {card['model']} ({card['source']})"
