"""The papers' figures: a panel for what belongs together, drawn of what was run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from protofed.report import paper_figures
from protofed.report.html import looks
from tests.support.command_line import succeed


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of the figure that is drawn; places instead of t-SNE, and no file but the PNG."""
    found: list[Any] = []

    def kept(figure: Figure, path: Path, **_: Any) -> None:
        canvas: Any = FigureCanvasAgg(figure)  # matplotlib types only a part of it
        canvas.draw()
        found[:] = figure.axes
        path.touch()

    monkeypatch.setattr(Figure, "savefig", kept)
    for module in (paper_figures, looks):
        monkeypatch.setattr(module, "plane", lambda seen: [[1.0, 2.0]] * (len(seen.points) + len(seen.marks)))
    return found


def reproduce(folder: Path, *words: str) -> None:
    here = ("--variant", "stand-in", "--seeds", "1", "--jobs", "1", "--device", "cpu", "--engine", "sequential")
    succeed(folder, "reproduce", *words, *here, "--threads", "1", "--quiet", "--out", "made")
    made = {path.name for path in (folder / "made").iterdir()}
    assert {f"figure.{kind}" for kind in ("pdf", "svg", "png", "tex")} <= made
    assert not [name for name in made if name.startswith(".figure")]
    text = (folder / "made/figure.tex").read_text()
    assert f"({words[0]} of " in text
    assert "{figure.pdf}" in text


def words_of(axes: Any) -> list[str]:
    """The entries of a key."""
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_features_have_a_panel_a_method(tmp_path: Path, panels: list[Any]) -> None:
    reproduce(tmp_path, "fedproto/fig2", "--methods", "FedProto,fedavg")
    assert [axes.get_title() for axes in panels] == ["FedProto", "FedAvg"]
    dots, own, server, *_ = panels[0].collections
    assert len(dots.get_offsets()) > 20
    assert len(own.get_offsets()) > len(server.get_offsets()) > 2
    assert words_of(panels[0])[-2:] == ["client's class mean", "global prototype"]
    assert [len(one.get_paths()[0].vertices) for one in (own, server)] == [4, 5]  # triangles, squares
    assert dots.get_alpha() is None


@pytest.mark.slow
def test_clients_have_a_panel_each(tmp_path: Path, panels: list[Any]) -> None:
    reproduce(tmp_path, "mp-fedcl/fig1", "--methods", "fedavg")
    assert [axes.get_title() for axes in panels] == ["client 0", "client 1"]


@pytest.mark.slow
def test_who_holds_what_is_a_circle_a_client_and_class(tmp_path: Path, panels: list[Any]) -> None:
    reproduce(tmp_path, "mp-fedcl/fig6", "--only", "mnist")
    (axes,) = panels
    assert len(axes.collections) == 5
    assert all(len(one.get_sizes()) == 10 for one in axes.collections)
    inside, dots = axes.get_window_extent(), axes.figure.dpi / 72
    for one in axes.collections:
        centres, radii = axes.transData.transform(one.get_offsets()), (one.get_sizes() / np.pi) ** 0.5 * dots
        for (x, y), radius in zip(centres, radii, strict=True):
            assert inside.x0 <= x - radius <= x + radius <= inside.x1
            assert inside.y0 <= y - radius <= y + radius <= inside.y1


@pytest.mark.slow
def test_features_have_a_colour_a_client(tmp_path: Path, panels: list[Any]) -> None:
    reproduce(tmp_path, "mp-fedcl/fig7", "--only", "office-10")
    assert panels
    for axes in panels:
        (dots, *_) = axes.collections
        names = words_of(axes)
        assert all(name.startswith("client ") for name in names)
        assert len(names) == len({tuple(ink) for ink in dots.get_facecolors().tolist()}) > 1


@pytest.mark.slow
@pytest.mark.parametrize(("target", "only"), [("fedplcc/fig2", "digit-5"), ("fedsc/fig7", "cifar10")])
def test_features_are_drawn_with_prototypes(tmp_path: Path, panels: list[Any], target: str, only: str) -> None:
    reproduce(tmp_path, target, "--only", only)
    assert len(panels) > 1
    for axes in panels:
        assert axes.get_title()
        assert len(axes.collections[0].get_offsets()) > 20
        assert "client's class mean" in words_of(axes)


@pytest.mark.slow
def test_curves_are_over_rounds(tmp_path: Path, panels: list[Any]) -> None:
    reproduce(tmp_path, "fedsc/fig1")
    (axes,) = panels
    assert [line.get_label() for line in axes.get_lines()] == ["FedAvg", "FedSC"]
    assert [len(line.get_xdata()) for line in axes.get_lines()] == [2, 2]


def test_values_are_over_what_is_varied(tmp_path: Path, panels: list[Any]) -> None:
    reproduce(tmp_path, "fedproto/fig3", "--methods", "fedavg", "--only", "shots=10,shots=20")
    (axes,) = panels
    assert axes.get_xlabel() == "shots"
    assert [text.get_text() for text in axes.get_xticklabels()] == ["10", "20"]
