"""Tests between methods: paired over seeds, corrected for many, with what they mean beside them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_1samp, ttest_rel

from protofed.studies.significance import Paired, against_best, corrected, paired

POINTS = st.floats(-100, 100, allow_nan=False).map(lambda value: round(value, 3))


@given(st.lists(st.tuples(POINTS, POINTS), min_size=2, max_size=12))
@settings(deadline=None)
def test_a_paired_test_is_scipys(pairs: list[tuple[float, float]]) -> None:
    ours, theirs = zip(*pairs, strict=True)
    differences = np.subtract(ours, theirs)
    found = paired(dict(enumerate(ours)), dict(enumerate(theirs)))
    assert found.difference == pytest.approx(differences.mean())
    assert found.seeds == len(pairs)
    if differences.std() < 1e-6:
        assert found.p is None
        return
    assert found.p == pytest.approx(float(ttest_rel(ours, theirs).pvalue), rel=1e-6, abs=1e-12)
    interval = ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert found.low == pytest.approx(interval.low)
    assert found.high == pytest.approx(interval.high)
    assert found.effect == pytest.approx(differences.mean() / differences.std(ddof=1))


def slow_holm(values: list[float]) -> list[float]:
    """As Holm writes it: step down through the sorted values."""
    found = [0.0] * len(values)
    ranked = sorted(range(len(values)), key=values.__getitem__)
    for place, number in enumerate(ranked):
        found[number] = max(min(1.0, (len(values) - k) * values[ranked[k]]) for k in range(place + 1))
    return found


@given(st.lists(st.floats(0, 1), min_size=1, max_size=10))
def test_many_comparisons_are_corrected(values: list[float]) -> None:
    tests = [Paired(1.0, 0.0, 2.0, 1.0, value, value, 3) for value in values]
    assert [test.p_holm for test in corrected(tests)] == pytest.approx(slow_holm(values))
    assert [test.p for test in corrected(tests)] == values


def test_what_has_no_spread_is_not_counted_as_a_comparison() -> None:
    steady = paired({0: 5.0, 1: 6.0}, {0: 4.0, 1: 5.0})
    real = Paired(1.0, 0.0, 2.0, 1.0, 0.03, 0.03, 3)
    assert [test.p_holm for test in corrected([steady, real])] == [None, 0.03]


def test_the_highest_mean_is_the_best_and_only_common_seeds_are_paired() -> None:
    lines = {"a": {0: 50.0, 1: 52.0, 2: 51.0}, "b": {0: 60.0, 1: 61.0, 2: 63.0}, "c": {7: 10.0}}
    best, tests = against_best(lines)
    assert (best, list(tests)) == ("b", ["a", "c"])
    assert (tests["a"].seeds, tests["c"].seeds) == (3, 0)
    assert tests["a"].difference == pytest.approx(10.333, abs=1e-3)


def test_what_is_said_of_a_difference() -> None:
    def words(*differences: float) -> str:
        return against_best({"a": dict(enumerate(differences)), "b": dict.fromkeys(range(len(differences)), 0.0)})[1][
            "b"
        ].words()

    assert words(5.0, 5.1, 4.9).startswith("clearly below the best (5.0 points, 4.8 to 5.2, d = 50.0, p = ")
    assert words(5.0, -4.0, 1.0).startswith("not clearly")
    assert words(0.0, 0.0) == "equal in every seed"
    assert words(2.0, 2.0) == "2.0 below the best in every seed"
    assert "nothing can be said" in words(1.0)
    assert not math.isnan(float(words(5.0, 5.1, 4.9).split("p = ")[1].split(",")[0]))
