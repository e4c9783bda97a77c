"""What notebooks show: a table and a picture of each kind of outcome; `Result.plot()` and the others ask here."""

from __future__ import annotations

import statistics
from base64 import b64encode
from collections.abc import Sequence
from functools import singledispatch
from html import escape
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from protofed.data.federation import Federation
from protofed.report.outcome_tables import outcome_table
from protofed.report.plots import COLOURS, DASHES, palette, sweep_figure
from protofed.report.split_heatmap import heat_map_figure
from protofed.report.terminal import TextTable, result_table, split_table
from protofed.runs.result import Result, common_score
from protofed.serving.predictor import Predictions
from protofed.studies.comparison import Comparison
from protofed.studies.sweeps import Sweep

MOST = 20
"""Images of predictions that are listed and drawn."""


class ShownFigure(Figure):
    """A figure that a notebook shows when it is the last line of a cell."""

    def _repr_png_(self) -> bytes:
        image = BytesIO()
        self.savefig(image, dpi=100, format="png")
        return image.getvalue()


def figure_of(outcome: object) -> ShownFigure:
    """The picture of an outcome."""
    figure: Any = drawing_of(outcome)
    figure.__class__ = ShownFigure
    shown: ShownFigure = figure
    return shown


@singledispatch
def drawing_of(outcome: object) -> Figure:
    """The same as any program may use it."""
    raise NotImplementedError(type(outcome))


@singledispatch
def table_of(outcome: object) -> TextTable:
    """The table of an outcome; that of a study is the one of the terminal."""
    return outcome_table(outcome)


def html_of(outcome: Any) -> str:
    """The table and the picture as HTML that needs nothing else."""
    picture = b64encode(figure_of(outcome)._repr_png_()).decode()
    return f'{html_table(table_of(outcome))}<img alt="" src="data:image/png;base64,{picture}">'


def html_table(table: TextTable) -> str:
    """A table of the terminal as one of HTML."""
    heads = "".join(f"<th>{_plain(title)}</th>" for title in table.titles)
    rows = "".join(f"<tr>{''.join(f'<td>{_plain(cell)}</td>' for cell in row)}</tr>" for row in table.rows)
    notes = "".join(f"<div>{_plain(text)}</div>" for text in (table.title,) if text)
    after = "".join(f"<div><small>{_plain(text)}</small></div>" for text in (table.caption,) if text)
    return f"{notes}<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{after}"


def _plain(text: str) -> str:
    return escape(text).replace("\n", "<br>")


table_of.register(Result)(result_table)
table_of.register(Federation)(split_table)


@table_of.register
def predictions_table(found: Predictions) -> TextTable:
    """The first images: class, distance, margin, and whose prototype won."""
    lines = []
    for number, row in enumerate(found.rows()[:MOST]):
        answer = "unknown" if row["refused"] else str(row["class"])
        margin = "" if row["margin"] is None else f"{row['margin']:.3f}"
        then = ", ".join(f"{one['class']} {one['distance']:.3f}" for one in row["top"][0 if row["refused"] else 1 :])
        client = "" if row["client"] is None else str(row["client"])
        lines.append([str(number), answer, f"{row['distance']:.3f}", margin, client, then])
    titles = ("image", "class", "distance", "margin", "client", "then")
    return TextTable(titles, lines, caption=f"{len(found)} images" if len(found) > MOST else "")


@drawing_of.register
def result_figure(result: Result) -> Figure:
    """Accuracies on the left, the training loss on the right, over rounds; the method's score is thick."""
    figure, (left, right) = _figure(2)
    for number, name in enumerate(result.accuracy):
        tested = [(played.round, played.accuracy[name]) for played in result.history if name in played.accuracy]
        style: dict[str, Any] = {"linewidth": 2.4 if name == result.score else 1.1, "label": name}
        left.plot(*zip(*tested, strict=True), **_look(number), **style)
    right.plot([played.round for played in result.history], [played.loss for played in result.history], **_look(0))
    _finish(left, "accuracy in %")
    left.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    _finish(right, "training loss")
    figure.suptitle(f"{result.method}, {result.dataset}, seed {result.seed}", fontsize=10)
    return figure


@drawing_of.register
def comparison_figure(comparison: Comparison) -> Figure:
    """One accuracy of every method over rounds: the mean over seeds, and one standard deviation around it."""
    figure, (axes,) = _figure(1)
    rows = [row for row in comparison.rows if row.rounds]
    score = common_score([(row.score, row.accuracy.keys() - {*row.diagnostic}) for row in rows])
    styles = palette(row.method for row in comparison.rows)
    for row in rows:
        runs = [result for result in comparison.results if result.method == row.method]
        rounds, means, spreads = mean_curve(runs, score)
        style = styles[row.method]
        axes.plot(rounds, means, color=style.colour, linestyle=style.dashes, label=row.method)
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        axes.fill_between(rounds, low, high, color=style.colour, alpha=0.15, linewidth=0)
    _finish(axes, f"{score} in %, mean ± std over seeds")
    axes.legend(fontsize=8)
    return figure


def mean_curve(runs: Sequence[Result], score: str) -> tuple[list[int], list[float], list[float]]:
    """Over the rounds that all runs have evaluated: round, mean and standard deviation of an accuracy."""
    curves = [{one.round: one.accuracy[score] for one in run.history if score in one.accuracy} for run in runs]
    rounds = sorted(set.intersection(*(set(curve) for curve in curves))) if curves else []
    values = [[curve[number] for curve in curves] for number in rounds]
    spreads = [statistics.stdev(one) if len(one) > 1 else 0.0 for one in values]
    return rounds, [statistics.fmean(one) for one in values], spreads


drawing_of.register(Sweep)(sweep_figure)


@drawing_of.register
def federation_figure(federation: Federation) -> Figure:
    """Who holds what."""
    return heat_map_figure(federation.counts, federation.classes)


@drawing_of.register
def predictions_figure(found: Predictions) -> Figure:
    """A bar for each of an image's best classes, as long as its distance; of what is refused they are grey."""
    figure, (axes,) = _figure(1)
    shown, width = min(len(found), MOST), 0.8 / found.top.shape[1]
    for place in range(found.top.shape[1]):
        heights = found.distances[:shown, place].tolist()
        at = [number + place * width for number in range(shown)]
        colours = [
            "#bbbbbb" if refused else COLOURS[place % len(COLOURS)] for refused in found.refused[:shown].tolist()
        ]
        axes.bar(at, heights, width, color=colours)
        for x, height, label in zip(at, heights, found.top[:shown, place].tolist(), strict=True):
            axes.text(x, height, found.names[label], ha="center", va="bottom", fontsize=7)
    axes.set(xlabel="image", ylabel="distance to the class; the nearest is the answer")
    axes.set_xticks([number + (0.8 - width) / 2 for number in range(shown)], [str(number) for number in range(shown)])
    return figure


def _figure(panels: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(10.0 if panels > 1 else 7.0, 4.0), layout="constrained")
    return figure, [figure.add_subplot(1, panels, place + 1) for place in range(panels)]


def _look(number: int) -> dict[str, Any]:
    """The colour and dashes of a line."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}


def _finish(axes: Axes, label: str) -> None:
    axes.set(xlabel="round", ylabel=label)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
