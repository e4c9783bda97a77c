"""The figure of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from benchmarks.report import plot


def test_ratios_are_points_on_the_logarithmic_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar would begin anywhere, so that its length would mean nothing."""
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: drawn.append(figure))
    seconds = {"plain loop": {"seconds": 6.0}, "ProtoFed": {"seconds": 2.0}, "other": {"seconds": 12.0}}
    plot({"a machine": {"workloads": {"training": {"contenders": seconds}}}}, tmp_path / "performance.png")
    (axes,) = drawn[0].axes
    assert axes.get_xscale() == "log"
    assert not axes.patches
    points = next(line for line in axes.get_lines() if line.get_marker() == "o")
    assert list(points.get_xdata()) == [3.0, 0.5]  # type: ignore[arg-type]
