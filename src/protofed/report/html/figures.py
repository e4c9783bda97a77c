"""The report's figures for a paper, as PDF, SVG and PNG of a column's width, with what LaTeX includes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.internal.atomic_files import write_text
from protofed.report.html.latex import figure_environments, lost_of, spread_of, table_environment
from protofed.report.plots import MARKERS, colour, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (3.4, 2.5)
"""Inches: a column of a two-column paper."""

FORMATS = ("pdf", "svg", "png")
"""Of a figure; LaTeX includes the first."""

OVER = {"rounds": "rounds", "bytes": "bytes sent, up and down", "seconds": "seconds"}
"""What curves are drawn over, in words."""

LINES = 10
"""Lines of a study that a figure of that size has room to name; with more it is taller, and names stand beside it."""

NUMBERED = 20
"""Rows and columns of a heat map up to which numbers in its cells can be read, and classes up to which a key can."""


def write_figures(data: Mapping[str, Any], folder: Path, columns: Sequence[str] = ()) -> list[Path]:
    """Write every figure there is data for, and what a paper includes of them.

    Args:
        data: what `gather` found; its `score` is the accuracy that is drawn.
        folder: a new folder or an old one.
        columns: of the table, names of accuracies, `bytes` and `seconds`; see `table_columns`.

    Returns:
        What was written: NAME.pdf, NAME.svg and NAME.png of each figure, figures.tex with their captions, tables.tex.
    """
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    captions: dict[str, str] = {}

    def add(name: str, caption: str, draw: Callable[[Axes], None]) -> None:
        made.extend(_figure(folder, name, draw, height if name in named else SIZE[1]))
        captions[name] = f"{caption}{lost_of(data)}" if name in named else caption

    score = data["score"]
    named, height = (*(f"curves-{over}" for over in OVER), "clients"), max(SIZE[1], 0.11 * len(data["lines"]))
    for over, words in OVER.items():
        if score:
            caption = f"{score} in percent over {words}: {spread_of(data)}."
            add(f"curves-{over}", caption, partial(_curves, data=data, score=score, over=over))
    if score:
        caption = f"{score} of each client after the last round, first seed; the bar is the mean."
        add("clients", caption, partial(_clients, data=data, score=score))
    for label, look in data["looks"].items():
        name = "".join(letter if letter.isalnum() else "-" for letter in label)
        words = f"{look['model']} model, {look['rule']}, first seed"
        add(
            f"holds-{name}",
            f"Training samples of each client and class ({label}).",
            partial(_heat, matrix=look["holds"], across="class", down="client"),
        )
        add(
            f"confusion-{name}",
            f"Confusion of {label}: {words}.",
            partial(_heat, matrix=look["confusion"], across="answer", down="class"),
        )
        kinds = ", ".join(look["kinds"])
        caption = f"t-SNE of features of test samples (dots) and of prototypes ({kinds}) of {label}, {words}."
        add(f"plane-{name}", caption, partial(_plane, look=look))
    write_text(folder / "figures.tex", figure_environments(captions))
    write_text(folder / "tables.tex", table_environment(data, columns))
    return [*made, folder / "figures.tex", folder / "tables.tex"]


def _figure(folder: Path, name: str, draw: Callable[[Axes], None], height: float) -> list[Path]:
    """In all formats. Fonts stay fonts: journals refuse outlines in a PDF, and text in an SVG can be edited."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(SIZE[0], height), layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(labelsize=7)
    draw(axes)
    paths = [folder / f"{name}.{kind}" for kind in FORMATS]
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "none"}):
        for path in paths:
            figure.savefig(path, dpi=300)
    return paths


def _curves(axes: Axes, data: Mapping[str, Any], score: str, over: str) -> None:
    import numpy as np
    from matplotlib.ticker import MaxNLocator

    styles = palette(data["lines"])
    for label, runs in _ended(data["lines"]).items():
        having = [run for run in runs if score in run["curves"]]
        if not having:
            continue
        rounds = min((run["tested"] for run in having), key=len)
        xs = [[run[over][run["rounds"].index(at)] for at in rounds] for run in having]
        ys = np.array([run["curves"][score][: len(rounds)] for run in having], dtype=float)
        x, mean = np.mean(xs, axis=0), ys.mean(0)
        style = styles[label]
        axes.plot(x, mean, color=style.colour, linestyle=style.dashes, linewidth=1.2, label=_called(label, runs))
        if len(having) > 1:
            std = ys.std(0, ddof=1)
            axes.fill_between(x, mean - std, mean + std, color=style.colour, alpha=0.18, linewidth=0)
    axes.set_xlabel({"rounds": "round"}.get(over, over), fontsize=8)
    axes.set_ylabel(f"{score}, %", fontsize=8)
    if over == "rounds":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if len(data["lines"]) > LINES:
        axes.legend(fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    else:
        axes.legend(fontsize=6)


def _ended(lines: Mapping[str, Sequence[Mapping[str, Any]]]) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The lines of which a run came to its end, for no other is in a figure; or all, if there is none."""
    return {label: runs for label, runs in lines.items() if runs[0]["complete"]} or lines


def _called(label: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """A line's name, with how its runs ended where none came to its end."""
    unfinished = dict.fromkeys(run["ending"] for run in runs if not run["complete"])
    return f"{label} ({', '.join(unfinished)})" if unfinished else label


def _clients(axes: Axes, data: Mapping[str, Any], score: str) -> None:
    styles = palette(data["lines"])
    first = {label: runs[0]["clients"] for label, runs in _ended(data["lines"]).items()}
    found = {label: clients[score] for label, clients in first.items() if score in clients}
    for number, (label, values) in enumerate(found.items()):
        heights = [number + ((client * 7) % 11 - 5) / 30 for client in range(len(values))]
        axes.scatter(values, heights, s=8, alpha=0.6, color=styles[label].colour, label=label)
        axes.plot([sum(values) / len(values)] * 2, [number - 0.3, number + 0.3], color="black", linewidth=1.2)
    names = [_called(label, data["lines"][label]) for label in found]
    axes.set_yticks(range(len(found)), names, fontsize=5 if len(found) > LINES else 7)
    axes.set_xlabel(f"{score} of a client, %", fontsize=8)


def _heat(axes: Axes, matrix: list[list[int]], across: str, down: str) -> None:
    """Counts as colours from 0 on, with a scale, and as numbers where there is room for them."""
    from matplotlib.ticker import MaxNLocator

    most = max(1, *(max(row) for row in matrix))
    image = axes.imshow(matrix, cmap="Blues", aspect="auto", vmin=0, vmax=most)
    scale = axes.figure.colorbar(image, ax=axes)
    scale.ax.tick_params(labelsize=6)
    if max(len(matrix), len(matrix[0])) <= NUMBERED:
        for y, row in enumerate(matrix):
            for x, value in enumerate(row):
                ink = "white" if value > most / 2 else "black"
                axes.text(x, y, str(value), ha="center", va="center", color=ink, fontsize=4.5)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(down, fontsize=8)


def _plane(axes: Axes, look: Mapping[str, Any]) -> None:
    x, y, classes, *_ = zip(*look["points"], strict=True)
    axes.scatter(x, y, s=4, c=[colour(number) for number in classes], alpha=0.7, linewidths=0)
    for kind in range(len(look["kinds"])):
        marks = [mark for mark in look["marks"] if mark[2] == kind]
        if marks:
            x, y, _, classes, _ = zip(*marks, strict=True)
            shape = MARKERS[(kind + 1) % len(MARKERS)]
            axes.scatter(
                x, y, s=14, c=[colour(number) for number in classes], marker=shape, edgecolors="black", linewidths=0.4
            )
    if len(look["classes"]) <= NUMBERED:
        for number, name in enumerate(look["classes"]):
            axes.scatter([], [], s=8, color=colour(number), label=name)
        axes.legend(fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set_xticks([])
    axes.set_yticks([])
