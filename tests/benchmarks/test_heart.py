"""FLamby's table of the hospitals: our numbers beside its own."""

from __future__ import annotations

import json
from statistics import mean

import pytest

from benchmarks.heart import AVERAGED, BEGIN, END, PUBLISHED, page
from benchmarks.marked import RESULTS

FOUND = json.loads((RESULTS / "real-flamby.json").read_text())


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ("pooled", FOUND["by themselves"]["pooled"]["values"]["own/all/head"]),
        ("fedavg, FLamby's rate", FOUND["FLamby's rate"]["fedavg"]["values"][AVERAGED]),
    ],
)
def test_means_are_within_two_points_of_the_published_ones(row: str, values: list[float]) -> None:
    assert len(values) == 5
    assert mean(values) == pytest.approx(PUBLISHED[row], abs=2)


def test_the_page_is_made_of_the_file() -> None:
    text = (RESULTS.parent / "tutorials" / "README.md").read_text()
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == page(FOUND)
    rows = {line.split(" | ")[0]: line.split(" | ")[4] for line in page(FOUND).splitlines() if line.startswith("| ")}
    assert (rows["| pooled"], rows["| va alone"], rows["| fednh, FLamby's rate"]) == ("79.5", "48 to 78", "")
    fedavg = [line for line in page(FOUND).splitlines() if line.startswith("| fedavg, FLamby's rate")]
    assert [line.split(" | ")[4] for line in fedavg] == ["74.8", ""]
