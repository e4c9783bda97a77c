"""Figures of how runs went: the training loss, prototypes over rounds, traffic and time, and domains."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protofed.report.plots import DASHES, colour, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Runs = Mapping[str, Sequence[Mapping[str, Any]]]
"""The runs of each line, by its label."""

LINES = 10
"""Lines of a study that a figure of a column's width has room to name; with more, names stand beside it."""

PROTOTYPES = {
    "each": "prototypes of a class",
    "mean": "prototypes that a client sends",
    "drift": "movement of class means in a round",
    "padded": "share of a full grid that is padding",
}
"""What is known of prototypes in each round, in words."""

PARTS = {"weights up": 0, "prototypes up": 1, "headers, counts and the like up": 6, "down": 5}
"""Of the traffic, with the colours that they have on the page."""


def draw_mean(axes: Axes, lines: Mapping[str, Sequence[tuple[Sequence[float], Sequence[float]]]], every: Runs) -> None:
    """Of each line the mean of its runs' values [xs, ys], as far as all have some, and one standard deviation."""
    import numpy as np

    styles = palette(every)
    for label, runs in lines.items():
        rounds = min((len(xs) for xs, _ in runs), default=0)
        if not rounds:
            continue
        x = np.mean([xs[:rounds] for xs, _ in runs], axis=0)
        ys = np.array([values[:rounds] for _, values in runs], dtype=float)
        mean, style = ys.mean(0), styles[label]
        axes.plot(x, mean, color=style.colour, linestyle=style.dashes, linewidth=1.2, label=label)
        if len(runs) > 1:
            std = ys.std(0, ddof=1)
            axes.fill_between(x, mean - std, mean + std, color=style.colour, alpha=0.18, linewidth=0)


def finish(axes: Axes, across: str, up: str, named: int) -> None:
    """Axes and the key of a figure of lines."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel(across, fontsize=8)
    axes.set_ylabel(up, fontsize=8)
    if across == "round":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.grid(alpha=0.3)
    if named > LINES:
        axes.legend(fontsize=5, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    elif named:
        axes.legend(fontsize=6)


def draw_loss(axes: Axes, lines: Runs) -> None:
    """The training loss over rounds."""
    draw_mean(axes, {label: [(run["rounds"], run["loss"]) for run in runs] for label, runs in lines.items()}, lines)
    finish(axes, "round", "training loss", len(lines))


def sets_of(lines: Runs, what: str) -> Iterator[tuple[str, str, int, list[tuple[int, float]]]]:
    """Of each line and set of prototypes that have it: both names, the place of the set, and values by round."""
    for label, runs in lines.items():
        run = next((run for run in runs if run["prototypes"]), None)
        sets = {} if run is None else {name: one[what] for name, one in run["prototypes"].items() if what in one}
        for place, (name, values) in enumerate(sets.items()):
            assert run is not None
            means = [statistics.fmean(one) if isinstance(one, list) and one else one for one in values]
            yield (
                label,
                name,
                place,
                [(at, one) for at, one in zip(run["rounds"], means, strict=True) if isinstance(one, int | float)],
            )


def draw_prototypes(axes: Axes, lines: Runs, what: str) -> None:
    """One number about prototypes over rounds: a colour a line, dashes tell its sets apart."""
    styles, drawn = palette(lines), [one for one in sets_of(lines, what) if one[-1]]
    for label, name, place, points in drawn:
        style: dict[str, Any] = {"color": styles[label].colour, "linestyle": DASHES[place % len(DASHES)]}
        axes.plot(*zip(*points, strict=True), **style, linewidth=1.2, label=f"{label}: {name}")
    finish(axes, "round", PROTOTYPES[what], len(drawn))


def draw_traffic(axes: Axes, lines: Runs) -> None:
    """Megabytes of the first run of each line, by part."""
    for number, runs in enumerate(lines.values()):
        run, left = runs[0], 0.0
        weights, prototypes = (4 * run["scalars"][name] for name in ("weights", "prototypes"))
        parts = (weights, prototypes, max(0, run["up"] - weights - prototypes), run["down"])
        for size, tint in zip(parts, PARTS.values(), strict=True):
            axes.barh(number, size / 1e6, left=left, color=colour(tint))
            left += size / 1e6
    for name, tint in PARTS.items():
        axes.barh(0, 0, color=colour(tint), label=name)
    _bars(axes, list(lines), "MB, over all rounds")


def draw_time(axes: Axes, lines: Runs) -> None:
    """Seconds of a round of the first run of each line, by what it did where that was measured."""
    sections = list(dict.fromkeys(name for runs in lines.values() for name in _sections(runs[0])))
    for number, runs in enumerate(lines.values()):
        run, left = runs[0], 0.0
        seconds, shares = run["seconds"][-1] / len(run["rounds"]), _sections(run)
        for place, name in enumerate(sections):
            part = seconds * shares.get(name, 0.0)
            axes.barh(number, part, left=left, color=colour(place))
            left += part
        axes.barh(number, max(0.0, seconds - left), left=left, color="#999999")
    for place, name in enumerate(sections):
        axes.barh(0, 0, color=colour(place), label=name)
    if sections:
        axes.barh(0, 0, color="#999999", label="not measured apart")
    _bars(axes, list(lines), "seconds of a round")


def _sections(run: Mapping[str, Any]) -> dict[str, float]:
    """The part of a round that each section took."""
    return {name: one["share"] for name, one in ((run["profile"] or {}).get("sections") or {}).items()}


def _bars(axes: Axes, names: Sequence[str], across: str) -> None:
    """The names of bars, from above, and their key."""
    axes.set_yticks(range(len(names)), names, fontsize=5 if len(names) > LINES else 7)
    axes.invert_yaxis()
    axes.set_xlabel(across, fontsize=8)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=5, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2, frameon=False)
