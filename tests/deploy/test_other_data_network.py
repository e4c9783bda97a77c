"""Data that is no pictures, at clients that are processes of their own: series and arrays of floats, over TLS."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.test_other_data import vectors, waves
from tests.deploy.test_rounds import lines
from tests.support.command_line import succeed
from tests.support.federation_processes import Deployment

pytestmark = pytest.mark.network


def test_series_and_floats_are_trained_on_and_two_methods_compared(tmp_path: Path) -> None:
    """The clients come back with other data for the second part; who has vectors of another size is left out."""
    plan = {"rounds": 3, "lr": 0.1, "batch_size": 8}
    with Deployment(tmp_path, 3) as made:
        made.server()
        for number in range(3):
            made.client(number, "--data", waves(tmp_path, number, steps=9 + number))
        ended = made.run("series", method="fedavg", model="cnn1d", **plan)
        assert ended.code == 0, ended.err
        assert [line["participants"] for line in lines(tmp_path / "series")] == [[0, 1, 2]] * 3
        for number in range(3):
            made.stop(f"client-{number}")
            made.client(number, "--data", vectors(tmp_path, number, size=6 - (number == 2)))
        for method in ("fedavg", "fedproto"):
            ended = made.run(method, method=method, model="mlp", **plan)
            assert ended.code == 0, ended.err
        found = {method: lines(tmp_path / method) for method in ("fedavg", "fedproto")}
        assert [line["participants"] for line in found["fedavg"]] == [[0, 1]] * 3
        assert [line["participants"] for line in found["fedproto"]] == [[0, 1, 2]] * 3
    succeed(tmp_path, "report", "fedavg", "fedproto", "--out", "both.html")
    page = (tmp_path / "both.html").read_text()
    assert "3 clients' own data" in page.replace("&#x27;", "'").replace("&#39;", "'")
