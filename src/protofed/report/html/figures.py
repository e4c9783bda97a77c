"""The report's figures for a paper: PNG and SVG of a column's width, and tables as LaTeX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.internal.atomic_files import write_text
from protofed.report.plots import MARKERS, colour, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (3.4, 2.5)
"""Inches: a column of a two-column paper."""

NUMBERED = 20
"""Rows and columns of a heat map up to which numbers in its cells can be read, and classes up to which a key can."""


def write_figures(data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Every figure there is data for, as NAME.png and NAME.svg, and tables.tex; what was written."""
    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    score = data["score"]
    for over in ("rounds", "bytes", "seconds") if score else ():
        made += _figure(folder, f"curves-{over}", lambda axes, over=over: _curves(axes, data, score, over))
    if score:
        made += _figure(folder, "clients", lambda axes: _clients(axes, data, score))
    for label, look in data["looks"].items():
        name = "".join(letter if letter.isalnum() else "-" for letter in label)
        for what, across, down in (("holds", "class", "client"), ("confusion", "answer", "class")):
            made += _figure(folder, f"{what}-{name}", partial(_heat, matrix=look[what], across=across, down=down))
        made += _figure(folder, f"plane-{name}", lambda axes, look=look: _plane(axes, look))
    write_text(folder / "tables.tex", latex(data))
    return [*made, folder / "tables.tex"]


def latex(data: Mapping[str, Any]) -> str:
    """The summary as a table in booktabs' style: the best mean of each setting bold, diagnostics with a star."""
    rows = data["summary"]
    shown: dict[str, list[str]] = {}
    for name in sorted(data["scores"], key=lambda name: bool(name != data["score"])):  # the common one first
        cells = [_cell(row["cells"].get(name)) for row in rows]
        if cells not in shown.values() and any(name in row["cells"] for row in rows):
            shown[name] = cells
    lines = [f"\\begin{{tabular}}{{l{'r' * len(shown)}}}", "\\toprule"]
    lines += [" & ".join(["method", *map(_escaped, shown)]) + " \\\\"]
    for number, row in enumerate(rows):
        if not number or row["setting"] != rows[number - 1]["setting"]:
            lines.append("\\midrule")
        lines.append(" & ".join([_escaped(row["label"]), *(cells[number] for cells in shown.values())]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "--"
    value = f"{cell['mean']:.2f}" + ("" if cell["std"] is None else f" $\\pm$ {cell['std']:.2f}")
    return f"\\textbf{{{value}}}" if cell["best"] else f"{value}$^*$" if cell["diagnostic"] else value


def _escaped(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)


def _figure(folder: Path, name: str, draw: Any) -> list[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.add_subplot()
    axes.tick_params(labelsize=7)
    draw(axes)
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    for path in paths:
        figure.savefig(path, dpi=300)
    return paths


def _curves(axes: Axes, data: Mapping[str, Any], score: str, over: str) -> None:
    import numpy as np

    styles = palette(data["lines"])
    for label, runs in data["lines"].items():
        having = [run for run in runs if score in run["curves"]]
        if not having:
            continue
        rounds = min((run["tested"] for run in having), key=len)
        xs = [[run[over][run["rounds"].index(at)] for at in rounds] for run in having]
        ys = np.array([run["curves"][score][: len(rounds)] for run in having], dtype=float)
        x, mean = np.mean(xs, axis=0), ys.mean(0)
        style = styles[label]
        axes.plot(x, mean, color=style.colour, linestyle=style.dashes, linewidth=1.2, label=label)
        if len(having) > 1:
            std = ys.std(0, ddof=1)
            axes.fill_between(x, mean - std, mean + std, color=style.colour, alpha=0.18, linewidth=0)
    axes.set_xlabel({"rounds": "round"}.get(over, over), fontsize=8)
    axes.set_ylabel(f"{score}, %", fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)


def _clients(axes: Axes, data: Mapping[str, Any], score: str) -> None:
    styles = palette(data["lines"])
    found = {label: runs[0]["clients"][score] for label, runs in data["lines"].items() if score in runs[0]["clients"]}
    for number, (label, values) in enumerate(found.items()):
        heights = [number + ((client * 7) % 11 - 5) / 30 for client in range(len(values))]
        axes.scatter(values, heights, s=8, alpha=0.6, color=styles[label].colour, label=label)
        axes.plot([sum(values) / len(values)] * 2, [number - 0.3, number + 0.3], color="black", linewidth=1.2)
    axes.set_yticks(range(len(found)), list(found), fontsize=7)
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
