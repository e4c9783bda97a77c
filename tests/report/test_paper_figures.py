"""The papers' figures: a panel for what belongs together, drawn of what was run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from protofed.report import paper_figures
from protofed.report.html import looks
from tests.support.command_line import succeed


@pytest.fixture
def panels(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The axes of the figure that is drawn; places instead of t-SNE, and no file but the PNG."""
    found: list[Any] = []

    def kept(figure: Figure, path: Path, **_: Any) -> None:
        found[:] = figure.axes
        path.touch()

    monkeypatch.setattr(Figure, "savefig", kept)
    for module in (paper_figures, looks):
        monkeypatch.setattr(module, "plane", lambda seen: [[1.0, 2.0]] * (len(seen.points) + len(seen.marks)))
    return found


def reproduce(folder: Path, *words: str) -> None:
    here = ("--variant", "stand-in", "--seeds", "1", "--jobs", "1", "--device", "cpu", "--engine", "sequential")
    succeed(folder, "reproduce", *words, *here, "--threads", "1", "--quiet", "--out", "made")
    assert {f"figure.{kind}" for kind in ("pdf", "svg", "png")} <= {path.name for path in (folder / "made").iterdir()}


def test_features_have_a_panel_a_method(tmp_path: Path, panels: list[Any]) -> None:
    reproduce(tmp_path, "fedproto/fig2", "--methods", "FedProto,fedavg")
    assert [axes.get_title() for axes in panels] == ["FedProto", "FedAvg"]
    dots, own, server, *_ = panels[0].collections
    assert len(dots.get_offsets()) > 20
    assert len(own.get_offsets()) > len(server.get_offsets()) > 2


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
