"""A picture of who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torch import Tensor

from protofed.report.plots import plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def heat_map(counts: Tensor, classes: Sequence[str], path: Path) -> None:
    """Write a PNG of the number of training images per client (rows) and class (columns); white is none."""
    heat_map_figure(counts, classes).savefig(path, dpi=120, format="png")


def heat_map_figure(counts: Tensor, classes: Sequence[str]) -> Figure:
    """The same as a figure."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    clients, columns = counts.shape
    width, height = min(max(5.0, 1.8 + 0.45 * columns), 16.0), min(max(2.6, 1.2 + 0.32 * clients), 14.0)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    values = counts.double().masked_fill(counts == 0, float("nan")).numpy()
    image = axes.imshow(values, aspect="auto", cmap="viridis_r", vmin=0, interpolation="nearest")
    figure.colorbar(image, ax=axes, label="training images")
    axes.set(xlabel="class", ylabel="client")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=25, integer=True))
    if columns <= 30:
        longest = max(len(name) for name in classes)
        axes.set_xticks(range(columns), [plain(name) for name in classes], rotation=0 if longest <= 4 else 60)
    if clients * columns <= 400:
        dark = counts.max() / 2
        for row, line in enumerate(counts.tolist()):
            for column, count in enumerate(line):
                if count:
                    colour = "white" if count > dark else "black"
                    axes.text(column, row, str(count), ha="center", va="center", color=colour, fontsize=7)
    return figure
