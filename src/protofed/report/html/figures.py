"""The report's figures for a paper: PNG and SVG of a column's width, and tables as LaTeX."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from protofed.internal.atomic_files import write_text
from protofed.report.plots import COLOURS, DASHES, MARKERS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (3.4, 2.5)
"""Inches: a column of a two-column paper."""


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
        made += _figure(folder, f"holds-{name}", lambda axes, look=look: _heat(axes, look["holds"], "class", "client"))
        made += _figure(
            folder, f"confusion-{name}", lambda axes, look=look: _heat(axes, look["confusion"], "answer", "class")
        )
        made += _figure(folder, f"plane-{name}", lambda axes, look=look: _plane(axes, look))
    write_text(folder / "tables.tex", latex(data))
    return [*made, folder / "tables.tex"]


def latex(data: Mapping[str, Any]) -> str:
    """The summary as a table in booktabs' style, the best mean in bold."""
    scores = [name for name in data["scores"] if any(name in row["cells"] for row in data["summary"])]
    lines = [f"\\begin{{tabular}}{{l{'r' * len(scores)}}}", "\\toprule"]
    lines += [" & ".join(["method", *map(_escaped, scores)]) + " \\\\", "\\midrule"]
    for row in data["summary"]:
        cells = [_cell(row["cells"].get(name)) for name in scores]
        lines.append(" & ".join([_escaped(row["label"]), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def _cell(cell: Mapping[str, Any] | None) -> str:
    if cell is None:
        return "--"
    value = f"{cell['mean']:.2f}" + ("" if cell["std"] is None else f" $\\pm$ {cell['std']:.2f}")
    return f"\\textbf{{{value}}}" if cell["best"] else value


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

    for number, (label, runs) in enumerate(data["lines"].items()):
        having = [run for run in runs if score in run["curves"]]
        if not having:
            continue
        rounds = min((run["tested"] for run in having), key=len)
        xs = [[run[over][run["rounds"].index(at)] for at in rounds] for run in having]
        ys = np.array([run["curves"][score][: len(rounds)] for run in having], dtype=float)
        x, mean = np.mean(xs, axis=0), ys.mean(0)
        colour, dashes = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
        axes.plot(x, mean, color=colour, linestyle=dashes, linewidth=1.2, label=label)
        if len(having) > 1:
            std = ys.std(0, ddof=1)
            axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.18, linewidth=0)
    axes.set_xlabel({"rounds": "round"}.get(over, over), fontsize=8)
    axes.set_ylabel(f"{score}, %", fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)


def _clients(axes: Axes, data: Mapping[str, Any], score: str) -> None:
    found = {label: runs[0]["clients"][score] for label, runs in data["lines"].items() if score in runs[0]["clients"]}
    for number, (label, values) in enumerate(found.items()):
        heights = [number + ((client * 7) % 11 - 5) / 30 for client in range(len(values))]
        axes.scatter(values, heights, s=8, alpha=0.6, color=COLOURS[number % len(COLOURS)], label=label)
        axes.plot([sum(values) / len(values)] * 2, [number - 0.3, number + 0.3], color="black", linewidth=1.2)
    axes.set_yticks(range(len(found)), list(found), fontsize=7)
    axes.set_xlabel(f"{score} of a client, %", fontsize=8)


def _heat(axes: Axes, matrix: list[list[int]], across: str, down: str) -> None:
    axes.imshow(matrix, cmap="Blues", aspect="auto")
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(down, fontsize=8)


def _plane(axes: Axes, look: Mapping[str, Any]) -> None:
    def colours(classes: Iterable[int]) -> list[str]:
        return [COLOURS[number % len(COLOURS)] for number in classes]

    x, y, classes, *_ = zip(*look["points"], strict=True)
    axes.scatter(x, y, s=4, c=colours(classes), alpha=0.7, linewidths=0)
    for kind in range(len(look["kinds"])):
        marks = [mark for mark in look["marks"] if mark[2] == kind]
        if marks:
            x, y, _, classes, _ = zip(*marks, strict=True)
            shape = MARKERS[(kind + 1) % len(MARKERS)]
            axes.scatter(x, y, s=14, c=colours(classes), marker=shape, edgecolors="black", linewidths=0.4)
    axes.set_xticks([])
    axes.set_yticks([])
