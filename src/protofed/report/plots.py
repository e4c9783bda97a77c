"""Plots of results."""

from __future__ import annotations

import colorsys
from collections.abc import Iterable, Sequence
from functools import partial, singledispatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.internal.atomic_files import write_file
from protofed.internal.words import counted
from protofed.studies.choose_k import Choice
from protofed.studies.sweeps import Sweep, SweepCell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = (
    *("#0072B2", "#D55E00", "#1CCD8E", "#950072", "#F3A500", "#9AB4CF"),
    *("#644A21", "#E98AFF", "#B2B258", "#AA5C77"),
)
"""For ten classes: found by a search for the largest least distance, also as the colour-blind see them (tests), among
colours that are seen on a light page and on a dark one."""
MARKERS = "osD^vPX"
SHAPES = ("^", "s", "D")
"""Of prototypes in a plane: clients' class means, and the first and further sets of the server, as on the page."""
DASHES = ("-", "--", ":", "-.")
GOLDEN = 0.618034
"""Of a turn: hues so far apart come near each other as late as possible."""
FORMATS = ("pdf", "svg", "png")
"""Of a figure; LaTeX includes the first."""


class Style(NamedTuple):
    """How a line is drawn; markers and dashes tell apart what colours do not."""

    colour: str
    dashes: str
    marker: str


def colour(number: int) -> str:
    """The colour of a class, or of a line, by its number: no two are the same."""
    if number < len(COLOURS):
        return COLOURS[number]
    turn = number * GOLDEN % 1.0
    red, green, blue = colorsys.hls_to_rgb(turn, (0.35, 0.5, 0.65)[number % 3], 0.75)
    return f"#{round(255 * red):02X}{round(255 * green):02X}{round(255 * blue):02X}"


def palette(names: Iterable[str]) -> dict[str, Style]:
    """The style of each line of a study, by its place among all of them, also those that a figure leaves out."""
    return {
        name: Style(colour(n), DASHES[n // len(COLOURS) % len(DASHES)], MARKERS[n % len(MARKERS)])
        for n, name in enumerate(dict.fromkeys(names))
    }


def shape(kind: int) -> str:
    """The mark of a kind of prototypes."""
    return SHAPES[min(kind, len(SHAPES) - 1)]


def key_of_shapes(axes: Axes, kinds: Sequence[str]) -> None:
    """Entries for a legend: what the marks of prototypes in a plane are."""
    for number, kind in enumerate(kinds):
        name = "client's class mean" if kind == "local" else f"{kind} prototype"
        axes.scatter(
            [], [], s=12, color="#999999", marker=shape(number), edgecolors="black", linewidths=0.4, label=name
        )


def plain(name: str) -> str:
    """A name from the data as matplotlib shows it as it is: between two dollars it would read mathematics."""
    return name.replace("$", r"\$")


def save_figure(figure: Figure, folder: Path, name: str, dpi: int = 300) -> list[Path]:
    """Write NAME.pdf, NAME.svg and NAME.png.

    Fonts stay fonts: journals refuse outlines in a PDF, and text in an SVG can be edited.
    """
    from matplotlib import rc_context

    def draw(draft: Path, kind: str) -> None:
        figure.savefig(draft, dpi=dpi, format=kind)

    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "none"}):
        for path in paths:
            write_file(path, partial(draw, kind=path.suffix[1:]))
    return paths


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

    figure = Figure(figsize=(7.0, 4.2), layout="constrained")
    draw_sweep(figure.add_subplot(), sweep)
    return figure


def draw_sweep(axes: Axes, sweep: Sweep) -> None:
    """The same into axes."""
    first, *_ = sweep.grid
    values = list(sweep.grid[first])
    places = places_of(values)
    score, lines = sweep.shown_score, lines_of(sweep)
    styles = palette(lines)
    for label, cells in lines.items():
        style = styles[label]
        having = [cell for cell in cells if score in cell.row.accuracy]
        spreads = [cell.row.accuracy[score] for cell in having]
        if not having:
            continue
        if first not in having[0].setting:  # the method lacks the parameter
            axes.axhline(spreads[0].mean, color=style.colour, linestyle=style.dashes, linewidth=1.2, label=label)
            continue
        axes.errorbar(
            [places[values.index(cell.setting[first])] for cell in having],
            [spread.mean for spread in spreads],
            yerr=[spread.std or 0.0 for spread in spreads],
            color=style.colour,
            linestyle=style.dashes,
            marker=style.marker,
            capsize=3,
            label=label,
        )
    if is_wide(values):
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, [str(value) for value in values])
    axes.set(xlabel=first, ylabel=f"{score} in %, mean ± std of {_seeds_of(sweep, score)}")
    axes.grid(alpha=0.3)
    if axes.has_data():
        axes.legend(fontsize=8)


def _seeds_of(sweep: Sweep, score: str) -> str:
    """How many seeds a place of the plot is the mean of; fewer where some failed."""
    found = {len(cell.row.accuracy[score].values) for cell in sweep.cells if score in cell.row.accuracy}
    least, most = min(found, default=0), max(found, default=0)
    return counted(most, "seed") if least == most else f"{least} to {counted(most, 'seed')}"


@plot.register
def choice_plot(choice: Choice, folder: Path) -> None:
    """Write the plot of the sweep over K."""
    sweep_plot(choice.sweep, folder)


def lines_of(sweep: Sweep) -> dict[str, list[SweepCell]]:
    """The cells of each line, by its label."""
    others = list(sweep.grid)[1:]
    lines: dict[str, list[SweepCell]] = {}
    for cell in sweep.cells:
        rest = [f"{name}={cell.setting[name]}" for name in others if name in cell.setting]
        lines.setdefault(" ".join([cell.method, *rest]), []).append(cell)
    return lines


def places_of(values: Sequence[Any]) -> list[float]:
    """Where values are on the axis: numbers at their place, anything else side by side."""
    return [float(value) for value in values] if _numbers(values) else [float(place) for place in range(len(values))]


def is_wide(values: Sequence[Any]) -> bool:
    """Whether numbers span so much that a logarithmic axis shows them better."""
    return _numbers(values) and min(values) > 0 and max(values) >= 20 * min(values)


def _numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
