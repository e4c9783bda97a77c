"""The report's figures for a paper, as PDF, SVG and PNG of a column's width, with what LaTeX includes of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from protofed.internal.atomic_files import write_text
from protofed.report.html.course_figures import (
    LINES,
    PROTOTYPES,
    draw_loss,
    draw_mean,
    draw_prototypes,
    draw_time,
    draw_traffic,
    finish,
    sets_of,
)
from protofed.report.html.latex import DAGGER, below_best, figure_environments, lost_of, spread_of, table_environment
from protofed.report.plots import colour, draw_sweep, key_of_shapes, palette, plain, save_figure, shape
from protofed.studies.significance import SURE

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from protofed.studies.sweeps import Sweep

SIZE = (3.4, 2.5)
"""Inches: a column of a two-column paper."""

OVER = {"rounds": "rounds", "bytes": "bytes sent, up and down", "seconds": "seconds"}
"""What curves are drawn over, in words."""

NUMBERED = 20
"""Rows and columns of a heat map up to which numbers in its cells can be read; of more, every second has a name, or
every third, and so on. And classes up to which a key can be read."""

LETTERS = 24
"""Of all names below a heat map, at most; longer ones stand upright."""


class Picture(NamedTuple):
    """One figure."""

    name: str  # of its files
    caption: str
    draw: Callable[[Axes], None]
    height: float = SIZE[1]


def write_figures(
    data: Mapping[str, Any], folder: Path, columns: Sequence[str] = (), sweeps: Sequence[Sweep] = ()
) -> list[Path]:
    """Write every figure there is data for, and what a paper includes of them.

    Args:
        data: what `gather` found; its `score` is the accuracy that is drawn.
        folder: a new folder or an old one.
        columns: of the table, names of accuracies, `bytes` and `seconds`; see `table_columns`.
        sweeps: those that the runs are of; a curve each.

    Returns:
        What was written: NAME.pdf, NAME.svg and NAME.png of each figure, figures.tex with their captions, tables.tex.
    """
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    made: list[Path] = []
    captions: dict[str, str] = {}
    for picture in (*_of_lines(data), *_of_looks(data["looks"]), *_of_sweeps(data, sweeps)):
        figure = Figure(figsize=(SIZE[0], picture.height), layout="constrained")
        axes = figure.add_subplot()
        axes.tick_params(labelsize=7)
        picture.draw(axes)
        made += save_figure(figure, folder, picture.name)
        captions[picture.name] = picture.caption
    write_text(folder / "figures.tex", figure_environments(captions))
    write_text(folder / "tables.tex", table_environment(data, columns))
    return [*made, folder / "figures.tex", folder / "tables.tex"]


def _of_lines(data: Mapping[str, Any]) -> Iterator[Picture]:
    """What has a line, a row or a bar for each line; tall where there are many to name."""
    score, lines = data["score"], _ended(data["lines"])
    height, spread = max(SIZE[1], 0.11 * len(data["lines"])), spread_of(data)
    below = f" {DAGGER}: clearly below the best after the last round (paired t-test over seeds, Holm, p < {SURE:g})."
    lost = lost_of(data)
    tested = below if score and any(below_best(row["cells"].get(score)) for row in data["summary"]) else ""
    for over, words in OVER.items():
        if score:
            caption = f"{score} in percent over {words}: {spread}.{tested}{lost}"
            yield Picture(f"curves-{over}", caption, partial(_curves, data=data, score=score, over=over), height)
    if score:
        caption = f"{score} of each client after the last round, first seed; the bar is the mean.{tested}{lost}"
        yield Picture("clients", caption, partial(_clients, data=data, score=score), height)
    caption = f"Training loss over rounds, mean over participants: {spread}. Methods add terms of their own.{lost}"
    yield Picture("loss", caption, partial(draw_loss, lines=lines), height)
    rows = {f"{label}: {name}": found for label, runs in lines.items() for name, found in runs[0]["domains"].items()}
    if rows:
        domains = list(dict.fromkeys(name for found in rows.values() for name in found))
        matrix = [[found.get(name) for name in domains] for found in rows.values()]
        draw = partial(_heat, matrix=matrix, rows=list(rows), columns=domains, across="domain", down="", most=100.0)
        yield Picture("domains", "Accuracy in percent by domain after the last round, first seed.", draw, height)
    for what, words in PROTOTYPES.items():
        if any(points for *_, points in sets_of(lines, what)):
            caption = f"{words[0].upper()}{words[1:]} over rounds, first seed."
            yield Picture(f"prototypes-{what}", caption, partial(draw_prototypes, lines=lines, what=what), height)
    yield Picture("traffic", "Bytes sent by part, first seed.", partial(draw_traffic, lines=lines), height)
    yield Picture("time", "Time of a round, first seed.", partial(draw_time, lines=lines), height)


def _of_looks(looks: Mapping[str, Mapping[str, Any]]) -> Iterator[Picture]:
    """How runs ended: a figure for each line, and the classes of all lines that have the same ones."""
    for number, classes in enumerate(dict.fromkeys(tuple(look["classes"]) for look in looks.values())):
        some = {label: look["confusion"] for label, look in looks.items() if tuple(look["classes"]) == classes}
        parts = [[100 * row[k] / sum(row) if sum(row) else None for k, row in enumerate(one)] for one in some.values()]
        caption = "Share of each class's test samples that is answered rightly, in percent, first seed."
        draw = partial(_heat, matrix=parts, rows=list(some), columns=classes, across="class", down="", most=100.0)
        yield Picture("classes" if not number else f"classes-{number + 1}", caption, draw)
    for label, look in looks.items():
        name = "".join(letter if letter.isalnum() else "-" for letter in label)
        words = f"{look['model']} model, {look['rule']}, first seed"
        classes, clients = look["classes"], [_client(look, n) for n in range(len(look["holds"]))]
        caption = f"Training samples of each client and class ({label})."
        draw = partial(_heat, matrix=look["holds"], rows=clients, columns=classes, across="class", down="client")
        yield Picture(f"holds-{name}", caption, draw)
        draw = partial(_heat, matrix=look["confusion"], rows=classes, columns=classes, across="answer", down="class")
        yield Picture(f"confusion-{name}", f"Confusion of {label}: {words}.", draw)
        kinds = ", ".join(look["kinds"])
        caption = f"t-SNE of features of test samples (dots) and of prototypes ({kinds}) of {label}, {words}."
        yield Picture(f"plane-{name}", caption, partial(_plane, look=look))


def _of_sweeps(data: Mapping[str, Any], sweeps: Sequence[Sweep]) -> Iterator[Picture]:
    """The curve of each sweep, by the accuracy that the other figures are drawn by."""
    for number, sweep in enumerate(sweeps):
        first, *_ = sweep.grid
        caption = f"{data['score']} in percent over {first}: {spread_of(data)}."
        draw = partial(draw_sweep, sweep=replace(sweep, score=data["score"]))
        yield Picture("sweep" if not number else f"sweep-{number + 1}", caption, draw)


def _client(look: Mapping[str, Any], number: int) -> str:
    """A client's number, and its name if it has one, or its domain where there are several."""
    home = look["homes"][number]
    name = look["names"][number] if look["names"] else ""
    if not name and home >= 0 and len(look["domains"]) > 1:
        name = look["domains"][home]
    return f"{number} ({name})" if name else str(number)


def _marked(data: Mapping[str, Any], label: str, score: str) -> str:
    """The name of a line, with the mark of what is clearly below the best."""
    cells: Any = next((row["cells"] for row in data["summary"] if row["label"] == label), {})
    name = _called(label, data["lines"][label])
    return f"{name} {DAGGER}" if below_best(cells.get(score)) else name


def _curves(axes: Axes, data: Mapping[str, Any], score: str, over: str) -> None:
    lines: dict[str, list[tuple[list[float], list[float]]]] = {}
    for label, runs in _ended(data["lines"]).items():
        having = [run for run in runs if score in run["curves"]]
        if having:
            rounds = min((run["tested"] for run in having), key=len)
            places = [[run[over][run["rounds"].index(at)] for at in rounds] for run in having]
            lines[label] = [(xs, run["curves"][score]) for xs, run in zip(places, having, strict=True)]
    draw_mean(axes, lines, data["lines"])
    for line in axes.get_lines():
        line.set_label(_marked(data, str(line.get_label()), score))
    finish(axes, {"rounds": "round"}.get(over, over), f"{score}, %", len(data["lines"]))


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
        axes.scatter(values, heights, s=8, color=styles[label].colour, label=label)
        axes.plot([sum(values) / len(values)] * 2, [number - 0.3, number + 0.3], color="black", linewidth=1.2)
    names = [_marked(data, label, score) for label in found]
    axes.set_yticks(range(len(found)), names, fontsize=5 if len(found) > LINES else 7)
    axes.set_xlabel(f"{score} of a client, %", fontsize=8)


def _heat(
    axes: Axes,
    matrix: Sequence[Sequence[float | None]],
    rows: Sequence[str],
    columns: Sequence[str],
    across: str,
    down: str,
    most: float = 0.0,
) -> None:
    """Numbers as colours from 0 on, with a scale, and as text where there is room; every row and column has a name."""
    most = most or max(1, *(value or 0 for row in matrix for value in row))
    image = axes.imshow(
        [[value or 0 for value in row] for row in matrix], cmap="Blues", aspect="auto", vmin=0, vmax=most
    )
    scale = axes.figure.colorbar(image, ax=axes)
    scale.ax.tick_params(labelsize=6)
    if max(len(rows), len(columns)) <= NUMBERED:
        for y, row in enumerate(matrix):
            for x, value in enumerate(row):
                ink = "white" if (value or 0) > most / 2 else "black"
                text = "–" if value is None else f"{value:.0f}"
                axes.text(x, y, text, ha="center", va="center", color=ink, fontsize=4.5)
    for set_ticks, names in ((axes.set_xticks, columns), (axes.set_yticks, rows)):
        places = range(0, len(names), -(-len(names) // NUMBERED))
        long = names is columns and sum(map(len, names)) > LETTERS
        set_ticks(places, [plain(names[n]) for n in places], fontsize=6, rotation=90 if long else 0)
    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(down, fontsize=8)


def _plane(axes: Axes, look: Mapping[str, Any]) -> None:
    x, y, classes, *_ = zip(*look["points"], strict=True)
    axes.scatter(x, y, s=4, c=[colour(number) for number in classes], linewidths=0)
    for kind in range(len(look["kinds"])):
        marks = [mark for mark in look["marks"] if mark[2] == kind]
        if marks:
            x, y, _, classes, _ = zip(*marks, strict=True)
            inks = [colour(number) for number in classes]
            axes.scatter(x, y, s=14, c=inks, marker=shape(kind), edgecolors="black", linewidths=0.4)
    if len(look["classes"]) <= NUMBERED:
        for number, name in enumerate(look["classes"]):
            axes.scatter([], [], s=8, color=colour(number), label=plain(name))
    key_of_shapes(axes, look["kinds"])
    axes.legend(fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    axes.set_xticks([])
    axes.set_yticks([])
