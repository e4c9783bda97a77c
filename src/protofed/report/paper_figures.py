"""The papers' figures, drawn of what `protofed reproduce` has run: figure.pdf, .svg and .png, and figure.tex."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.evaluation.snapshot import Snapshot
from protofed.internal.atomic_files import write_text
from protofed.report.html.latex import figure_environments
from protofed.report.html.looks import plane
from protofed.report.plots import colour, key_of_shapes, palette, plot, save_figure, shape
from protofed.runs.folder import RunFolder
from protofed.studies.papers import Drawing
from protofed.studies.reproduced import ReproducedCell, Reproduction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot"]

PANEL = (3.0, 2.6)
"""Inches."""
ACROSS = 4
"""Panels in a row, at most."""
LARGEST = 220.0
"""Square points of the largest circle of a figure of who holds what."""
ROOM = 0.12
"""Around the circles, as a part of the width: the largest one fits into it."""
WORDS = {
    "values": "The mean over {seeds}; bars are one standard deviation.",
    "rounds": "The mean over {seeds}.",
    "features": "t-SNE of features of test samples (dots) and of prototypes, first seed.",
    "features by client": "t-SNE of features of test samples, first seed.",
    "holdings": "The area of a circle is the number of training samples.",
}
"""What is drawn, for the caption."""


class Panel(NamedTuple):
    """A part of a figure."""

    title: str
    rows: list[ReproducedCell]
    client: int | None = None


@plot.register
def draw(outcome: Reproduction, folder: Path) -> None:
    """Write the figure, if the target is one and something of it was run; seeds are averaged, features the first's."""
    from matplotlib.figure import Figure

    drawn, panels = outcome.target.drawn, _panels(outcome)
    if drawn is None or not panels:
        return
    across = min(len(panels), drawn.clients or ACROSS)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(PANEL[0] * across, PANEL[1] * down), layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(down, across, number + 1)
        axes.set_title(panel.title, fontsize=8)
        axes.tick_params(labelsize=7)
        if drawn.what in ("features", "holdings"):
            seen = Snapshot.read(_snapshot(panel.rows[0], folder))
            _features(axes, seen, drawn, panel.client) if drawn.what == "features" else _holdings(axes, seen)
        else:
            _lines(axes, panel.rows, outcome, drawn.what)
    save_figure(figure, folder, "figure", dpi=200)
    write_text(folder / "figure.tex", figure_environments({"figure": _caption(outcome, drawn)}))


def _caption(outcome: Reproduction, drawn: Drawing) -> str:
    """What the figure shows, of which paper, and by which protocol."""
    target = outcome.target
    seeds = max(len(row.ours.values) for row in outcome.rows if row.ours is not None)
    what = f"{drawn.what} by client" if drawn.by == "client" else drawn.what
    words = WORDS[what].format(seeds=f"{seeds} seeds" if seeds > 1 else "one seed")
    protocol = f" Protocol: {target.about}." if target.variant else ""
    return f"{target.title} ({target.name} of {target.paper}). {words}{protocol}"


def _panels(outcome: Reproduction) -> list[Panel]:
    """What belongs together: lines of a dataset and setting, or each run by itself."""
    drawn = outcome.target.drawn
    if drawn is None:
        return []
    known = [row for row in outcome.rows if row.ours is not None]
    if drawn.what in ("features", "holdings"):
        words = [{getattr(row.cell, name) for row in known} for name in ("dataset", "setting", "method")]
        panels = []
        for row in known:
            told = (row.cell.dataset, row.cell.setting, row.cell.method)
            title = ", ".join(word for word, others in zip(told, words, strict=True) if len(others) > 1)
            for client in range(drawn.clients) if drawn.clients else [None]:
                named = title if client is None else f"{title}, client {client}".removeprefix(", ")
                panels.append(Panel(named or row.cell.method, [row], client))
        return panels
    together: dict[tuple[str, ...], list[ReproducedCell]] = {}
    for row in known:
        base, name, _ = _varied(row, drawn.varied)
        together.setdefault((row.cell.dataset, base, name, row.cell.metric), []).append(row)
    return [Panel(f"{dataset}, {base}", rows) for (dataset, base, *_), rows in together.items()]


def _varied(row: ReproducedCell, names: Sequence[str]) -> tuple[str, str, str]:
    """The setting without what is varied, the name of that, and its value."""
    base, _, last = row.cell.setting.rpartition(";")
    name, _, value = last.partition("=")
    return (base, name, value) if name in names else (row.cell.setting, "", "")


def _snapshot(row: ReproducedCell, folder: Path) -> Path:
    """How the first seed of a cell ended."""
    return RunFolder(min((folder / row.trials[0]).glob("seed*"), key=lambda path: int(path.name[4:]))).snapshot


def _lines(axes: Axes, rows: Sequence[ReproducedCell], outcome: Reproduction, what: str) -> None:
    """Of each method a line over rounds, or over what is varied, side by side where that is no number."""
    styles = palette(dict.fromkeys(row.cell.method for row in outcome.rows))
    varied = outcome.target.drawn.varied if outcome.target.drawn else ()
    values = list(dict.fromkeys(_varied(row, varied)[2] for row in rows))
    for method, style in styles.items():
        mine = [row for row in rows if row.cell.method == method]
        if what == "rounds":
            for row in mine:
                curve = row.rounds or []
                axes.plot(range(1, len(curve) + 1), curve, color=style.colour, linestyle=style.dashes, label=method)
        elif mine:
            places = [values.index(_varied(row, varied)[2]) for row in mine]
            found = [row.ours for row in mine if row.ours is not None]
            look: dict[str, Any] = {"color": style.colour, "linestyle": style.dashes, "marker": style.marker}
            means, spreads = [one.mean for one in found], [one.std or 0.0 for one in found]
            axes.errorbar(places, means, yerr=spreads, capsize=2, markersize=4, label=method, **look)
    if what == "values":
        axes.set_xticks(range(len(values)), values)
    axes.set_xlabel("round" if what == "rounds" else _varied(rows[0], varied)[1], fontsize=8)
    axes.set_ylabel(rows[0].cell.metric if what == "values" else "accuracy in %", fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)


def _features(axes: Axes, seen: Snapshot, drawn: Drawing, client: int | None) -> None:
    """t-SNE of test samples' features, small, and of prototypes, large; with a client, its own and the server's."""
    places = plane(seen)
    points, marks = places[: len(seen.points)], places[len(seen.points) :]
    column = {"class": 0, "client": 2}[drawn.by]
    every = zip(points, seen.points.tolist(), strict=True)
    shown = [(place, what) for place, what in every if client in (None, what[2])]
    inks = [colour(what[column]) for _, what in shown]
    _scatter(axes, [place for place, _ in shown], inks, s=5)
    if drawn.by == "class":
        for kind in range(len(seen.kinds)):
            some = [
                (place, cls)
                for place, (of, cls, owner) in zip(marks, seen.marks.tolist(), strict=True)
                if of == kind and (client is None or owner in (client, -1))
            ]
            if some:
                inks = [colour(cls) for _, cls in some]
                _scatter(axes, [place for place, _ in some], inks, s=26, marker=shape(kind), edgecolors="black")
    for number in sorted({what[column] for _, what in shown})[:10]:
        name = seen.classes[number] if drawn.by == "class" else f"client {number}"
        axes.scatter([], [], s=8, color=colour(number), label=name)
    if drawn.by == "class":
        key_of_shapes(axes, seen.kinds)
    axes.legend(fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set(xticks=[], yticks=[])


def _scatter(axes: Axes, places: Sequence[Sequence[float]], inks: Sequence[str], **look: Any) -> None:
    """Marks at places [x, y]."""
    axes.scatter([x for x, _ in places], [y for _, y in places], c=inks, **look)


def _holdings(axes: Axes, seen: Snapshot) -> None:
    """A circle for each client and class, as large as there are training samples."""
    most = max(1, int(seen.holds.max()))
    for client, counts in enumerate(seen.holds.tolist()):
        sizes = [LARGEST * count / most for count in counts]
        axes.scatter(range(len(counts)), [client] * len(counts), s=sizes, color=colour(client))
    axes.margins(ROOM)
    axes.set_yticks(range(len(seen.holds)))
    if len(seen.classes) <= 20:
        axes.set_xticks(range(len(seen.classes)), seen.classes, rotation=90 if max(map(len, seen.classes)) > 2 else 0)
    axes.set_xlabel("class", fontsize=8)
    axes.set_ylabel("client", fontsize=8)
