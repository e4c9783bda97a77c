"""Plots: colours that are told apart and stay, and one accuracy on an axis."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import matplotlib.figure
import numpy as np
import pytest
from matplotlib.colors import to_rgb

from protofed.report.page import build
from protofed.report.plots import COLOURS, colour, palette, sweep_figure, sweep_plot
from protofed.studies.comparison import MethodRow
from protofed.studies.spread import Spread
from protofed.studies.sweeps import Sweep, SweepCell

TOLD_APART = 20.0
"""A distance in CIELAB (ΔE76) that nobody overlooks; about 2 is the least that is seen."""

EYES = {
    "most": [(1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)],
    "protanopia": [(0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)],
    "deuteranopia": [(0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.01182, 0.04294, 0.968881)],
    "tritanopia": [(1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.3039)],
}
"""What eyes make of linear red, green and blue: Machado, Oliveira and Fernandes (2009), severity 1."""


def lab(name: str, eyes: str = "most") -> list[float]:
    """A colour in CIELAB, where distances are what eyes see."""
    sent = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(name)]
    seen = [sum(weight * part for weight, part in zip(row, sent, strict=True)) for row in EYES[eyes]]
    linear = [min(1.0, max(0.0, part)) for part in seen]
    weights = [(0.4124, 0.3576, 0.1805), (0.2126, 0.7152, 0.0722), (0.0193, 0.1192, 0.9505)]
    white = (0.9505, 1.0, 1.089)
    x, y, z = (
        sum(w * part for w, part in zip(row, linear, strict=True)) / most
        for row, most in zip(weights, white, strict=True)
    )
    f = [part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in (x, y, z)]
    return [116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])]


def distance(one: str, other: str, eyes: str) -> float:
    return float(sum((a - b) ** 2 for a, b in zip(lab(one, eyes), lab(other, eyes), strict=True)) ** 0.5)


def grounds() -> set[str]:
    """What the page draws on: the page and its sections, light and dark."""
    style = (build.HERE / "page.css").read_text(encoding="utf-8")
    return {*re.findall(r"--(?:paper|panel): (#[0-9a-f]{6})", style)}


@pytest.mark.parametrize("eyes", EYES)
def test_ten_classes_are_told_apart_on_a_light_page_and_on_a_dark_one(eyes: str) -> None:
    assert len(COLOURS) >= 10
    assert len(grounds()) == 4
    for one, other in itertools.combinations(COLOURS, 2):
        assert distance(one, other, eyes) > TOLD_APART, (one, other)
    for one, ground in itertools.product(COLOURS, grounds()):
        assert distance(one, ground, eyes) > TOLD_APART, (one, ground)


def test_the_colour_blind_see_other_colours() -> None:
    assert distance("#d62728", "#5b7a1f", "most") > 50
    assert distance("#d62728", "#5b7a1f", "protanopia") < 25


def test_there_are_as_many_colours_as_classes() -> None:
    assert len({colour(number) for number in range(200)}) == 200


def test_a_line_keeps_its_style_whatever_a_figure_leaves_out() -> None:
    names = [f"method {number}" for number in range(25)]
    styles = palette(names)
    assert len({*styles.values()}) == 25
    assert [styles[name].colour for name in names] == [colour(number) for number in range(25)]


def cell(method: str, score: str, values: dict[str, float], **setting: Any) -> SweepCell:
    accuracy = {name: Spread.of([mean - 1, mean + 1]) for name, mean in values.items()}
    other = Spread.of([1.0, 1.0])
    return SweepCell(setting, MethodRow(method, score, [3, 3], accuracy, [], other, other, other))


def test_a_sweep_is_drawn_by_one_accuracy_and_its_axis_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[matplotlib.figure.Figure] = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda figure, draft, **_: _kept(drawn, figure, draft))
    cells = [
        cell(method, score, {"own/own/head": 50.0 + alpha, score: 10.0}, alpha=alpha)
        for alpha in (1, 2)
        for method, score in (("mp-fedcl", "own/all/nearest"), ("fedavg", "global/all/head"))
    ]
    sweep_plot(Sweep({"alpha": [1, 2]}, None, cells, []), tmp_path)
    (axes,) = drawn[0].axes
    assert axes.get_ylabel().startswith("own/own/head in %")
    heights = [y for line in axes.get_lines() for y in np.asarray(line.get_ydata()).tolist()]
    assert min(heights) > 45  # nothing of the methods' own scores, which are 10


@pytest.mark.parametrize(
    ("seeds", "says"), [((2, 2), "2 seeds"), ((1, 1), "1 seed"), ((0, 2), "2 seeds"), ((1, 3), "1 to 3 seeds")]
)
def test_the_axis_of_a_sweep_says_how_many_seeds_its_means_are_of(seeds: tuple[int, int], says: str) -> None:
    """The first cell may have lost some, or all."""
    cells = [cell("fedavg", "own/own/head", {"own/own/head": 50.0}, alpha=alpha) for alpha in (1, 2)]
    for one, number in zip(cells, seeds, strict=True):
        one.row.accuracy.clear()
        if number:
            one.row.accuracy["own/own/head"] = Spread.of([50.0] * number)
    (axes,) = sweep_figure(Sweep({"alpha": [1, 2]}, None, cells, [])).axes
    assert axes.get_ylabel() == f"own/own/head in %, mean ± std of {says}"


def _kept(drawn: list[matplotlib.figure.Figure], figure: matplotlib.figure.Figure, draft: Path) -> None:
    drawn.append(figure)
    draft.touch()
