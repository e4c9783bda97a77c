"""Plots of results."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.internal.atomic_files import write_file
from protofed.studies.choose_k import Choice
from protofed.studies.sweeps import Sweep, SweepCell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, which the colour-blind can tell apart; markers and dashes differ too."""
MARKERS = "osD^vPX"
DASHES = ("-", "--", ":", "-.")


@singledispatch
def plot(outcome: object, folder: Path) -> None:
    """Write the plot of a study's outcome into its folder; most have none."""


@plot.register
def sweep_plot(sweep: Sweep, folder: Path) -> None:
    """Write sweep.png."""
    figure = sweep_figure(sweep)
    write_file(folder / "sweep.png", lambda draft: figure.savefig(draft, dpi=120, format="png"))


def sweep_figure(sweep: Sweep) -> Figure:
    """The score over the first swept name, a line for each method and setting of the other names."""
    from matplotlib.figure import Figure

    first, *_ = sweep.grid
    values = list(sweep.grid[first])
    places = places_of(values)
    lines = lines_of(sweep)
    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    axes = figure.add_subplot()
    for number, (label, cells) in enumerate(lines.items()):
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        spreads = [cell.row.accuracy[sweep.score_of(cell)] for cell in cells]
        if first not in cells[0].setting:  # the method lacks the parameter
            axes.axhline(spreads[0].mean, color=colour, linestyle=dashes, linewidth=1.2, label=label)
            continue
        axes.errorbar(
            [places[values.index(cell.setting[first])] for cell in cells],
            [spread.mean for spread in spreads],
            yerr=[spread.std for spread in spreads],
            color=colour,
            linestyle=dashes,
            marker=MARKERS[number % len(MARKERS)],
            capsize=3,
            label=label,
        )
    if is_wide(values):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, [str(value) for value in values])
    seeds = len(sweep.cells[0].row.rounds)
    axes.set(xlabel=first, ylabel=f"accuracy in %, mean ± std of {seeds} seed{'s' * (seeds > 1)}")
    axes.grid(alpha=0.3)
    if lines:
        axes.legend(fontsize=8, title=sweep.score)
    return figure


@plot.register
def choice_plot(choice: Choice, folder: Path) -> None:
    """Write the plot of the sweep over K."""
    sweep_plot(choice.sweep, folder)


def lines_of(sweep: Sweep) -> dict[str, list[SweepCell]]:
    """The cells of each line, by its label; those without the score are left out."""
    others = list(sweep.grid)[1:]
    lines: dict[str, list[SweepCell]] = {}
    for cell in sweep.cells:
        if sweep.score_of(cell) in cell.row.accuracy:
            rest = [f"{name}={cell.setting[name]}" for name in others if name in cell.setting]
            score = [] if sweep.score else [f"({cell.row.score})"]
            lines.setdefault(" ".join([cell.method, *rest, *score]), []).append(cell)
    return lines


def places_of(values: Sequence[Any]) -> list[float]:
    """Where values are on the axis: numbers at their place, anything else side by side."""
    return [float(value) for value in values] if _numbers(values) else [float(place) for place in range(len(values))]


def is_wide(values: Sequence[Any]) -> bool:
    """Whether numbers span so much that a logarithmic axis shows them better."""
    return _numbers(values) and min(values) > 0 and max(values) >= 20 * min(values)


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
