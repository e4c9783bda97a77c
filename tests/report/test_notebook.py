"""What notebooks show, and what pandas is given."""

from __future__ import annotations

import re
import sys
from base64 import b64decode
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import protofed
from protofed.data import federate, load
from protofed.errors import UserError
from protofed.report.notebook import html_table, mean_curve
from protofed.report.terminal import result_table
from protofed.runs.result import OF_ROUND, Result
from protofed.serving.predictor import Predictions
from protofed.studies.comparison import Comparison
from protofed.studies.sweeps import Sweep
from tests.support.toy_data import PLAIN

SMALL: dict[str, Any] = {
    **{"model": "cnn", "train_size": 150, "clients": 3, "rounds": 3, "device": "cpu", "threads": 1, "quiet": True},
}


@pytest.fixture(scope="module")
def result() -> Result:
    return protofed.run("fedproto", eval_every=2, **SMALL)


@pytest.fixture(scope="module")
def comparison() -> Comparison:
    return protofed.compare(["fedavg", "local"], 2, jobs=1, **SMALL)


@pytest.fixture(scope="module")
def sweep() -> Sweep:
    return protofed.sweep({"lr": [0.01, 0.1], "lam": [1.0]}, ["fedavg", "fedproto"], 2, jobs=1, **SMALL)


def predictions() -> Predictions:
    return Predictions(
        names=["cat", "<dog>"],
        top=torch.tensor([[1, 0], [0, 1]]),
        distances=torch.tensor([[1.0, 10.0], [2.0, 3.0]]),
        margin=torch.tensor([9.0, torch.inf]),
        clients=torch.tensor([4, -1]),
        numbers=torch.tensor([0, -1]),
        counts=torch.tensor([30.0, 0.0]),
        refused=torch.tensor([False, True]),
    )


def federation() -> protofed.Federation:
    return federate(load("digits", train_size=120), PLAIN, 3, 0, 0.0)


def picture(html: str) -> bytes:
    """The PNG inside."""
    found = re.search(r'src="data:image/png;base64,([^"]+)"', html)
    assert found
    return b64decode(found[1])


def test_everything_has_a_table_and_a_picture(result: Result, comparison: Comparison, sweep: Sweep) -> None:
    for outcome, words in (
        (result, ["own/own/nearest", "worst client", f"{result.accuracy['own/own/head'].last:.2f}"]),
        (comparison, ["fedavg", "local", "global/all/head"]),
        (sweep, ["fedproto", "lam"]),
        (federation(), ["client", "own test"]),
        (predictions(), ["&lt;dog&gt;", "unknown", "9.000"]),
    ):
        html = outcome._repr_html_()
        assert picture(html).startswith(b"\x89PNG")
        table = html[html.index("<table>") : html.index("</table>")]
        assert all(word in table for word in words), (words, table)
        assert "<dog>" not in html
        figure: Any = outcome.plot()
        assert figure._repr_png_().startswith(b"\x89PNG")  # which is how a notebook shows it
        assert isinstance(figure, Figure)


def test_a_table_of_the_terminal_is_one_of_html(result: Result) -> None:
    html = html_table(result_table(result))
    assert html.count("<tr>") == len(result.accuracy) + 1
    assert html.count("<th>") == 6


def test_a_results_curves_are_its_rounds(result: Result) -> None:
    accuracy, loss = result.plot().axes
    lines = {str(line.get_label()): line for line in accuracy.get_lines()}
    assert {*lines} == {*result.accuracy}
    assert np.asarray(lines[result.score].get_xdata()).tolist() == [2, 3]
    assert np.asarray(lines[result.score].get_ydata()).tolist() == [
        p.accuracy[result.score] for p in result.history if p.accuracy
    ]
    assert np.asarray(loss.get_lines()[0].get_ydata()).tolist() == [played.loss for played in result.history]


def test_a_comparisons_curves_are_means(comparison: Comparison) -> None:
    (axes,) = comparison.plot().axes
    first = axes.get_lines()[0]
    row = comparison.rows[0]
    assert row.score == "global/all/head"  # which local has not
    assert axes.get_ylabel().startswith("own/own/head")
    assert np.asarray(first.get_ydata())[-1] == pytest.approx(row.accuracy["own/own/head"].mean)
    rounds, _, spreads = mean_curve(comparison.results[:2], row.score)
    assert rounds == [1, 2, 3]
    assert spreads[-1] == pytest.approx(row.accuracy[row.score].std)


def test_what_is_printed_is_short(result: Result, comparison: Comparison, sweep: Sweep) -> None:
    for shown in (result, comparison, sweep, federation(), predictions()):
        assert len(repr(shown)) < 250
    assert repr(federation()) == "Federation(3 clients, 120 training samples, 10 classes)"
    assert repr(predictions()) == "Predictions(2 images: <dog>, None)"
    last = result.accuracy["own/own/nearest"].last
    assert repr(result) == (
        f"Result(fedproto on digits, dirichlet, 3 clients, seed 0: own/own/nearest {last:.2f} % after 3 rounds)"
    )


def test_frames_have_a_row_for_each_round_client_and_score(
    result: Result, comparison: Comparison, sweep: Sweep
) -> None:
    pytest.importorskip("pandas")
    frame = result.frame()
    assert list(frame.columns) == ["round", "client", "score", "accuracy", *OF_ROUND]
    last = frame[(frame["round"] == 3) & (frame["score"] == result.score)]
    assert last["accuracy"].tolist() == result.accuracy[result.score].per_client
    assert set(frame["round"]) == {2, 3}
    frame = comparison.frame()
    assert list(frame.columns) == ["method", "seed", "round", "client", "score", "accuracy", *OF_ROUND]
    row = comparison.rows[0]
    chosen = frame[(frame["method"] == "fedavg") & (frame["score"] == row.score) & (frame["round"] == 3)]
    assert chosen.groupby("seed")["accuracy"].mean().tolist() == pytest.approx(row.accuracy[row.score].values)
    frame = sweep.frame()
    assert list(frame.columns) == ["method", "lr", "lam", "seed", "round", "client", "score", "accuracy", *OF_ROUND]
    assert frame[frame["method"] == "fedavg"]["lam"].isna().all()
    for cell in sweep.cells:
        of_cell = (frame["method"] == cell.method) & (frame["lr"] == cell.setting["lr"]) & (frame["round"] == 3)
        chosen = frame[of_cell & (frame["score"] == cell.row.score)]
        values = chosen.groupby("seed")["accuracy"].mean().tolist()
        assert values == pytest.approx(cell.row.accuracy[cell.row.score].values)


def test_without_pandas_the_extra_is_named(result: Result, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UserError, match=r"pip install 'protofed\[frames\]'"):
        result.frame()
