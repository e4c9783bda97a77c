"""When an accuracy agrees with a paper's."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protofed.studies.papers import find_target, read_paper, target_names
from protofed.studies.reproduced import agrees


@pytest.mark.parametrize(
    ("difference", "values", "agreed"),
    [
        (2.0, [50.0, 50.0, 50.0], True),
        (-2.01, [50.0, 50.0, 50.0], False),
        (3.4, [47.0, 50.0, 53.0], True),  # a standard error of 3 / √3
        (3.5, [47.0, 50.0, 53.0], False),
        (5.0, [20.0, 50.0, 80.0], True),
        (-5.1, [20.0, 50.0, 80.0], False),  # noise excuses 5 points at most
        (2.1, [50.0], False),  # a single seed says nothing of noise
    ],
)
def test_agreement_is_two_points_or_twice_the_standard_error(
    difference: float, values: list[float], agreed: bool
) -> None:
    assert agrees(difference, values) is agreed


@given(st.floats(-10, 10), st.lists(st.floats(0, 100), min_size=1, max_size=6))
def test_agreement_is_that_of_a_slow_reference(difference: float, values: list[float]) -> None:
    allowed = 2.0
    if len(values) > 1:
        mean = math.fsum(values) / len(values)
        error = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / (len(values) - 1) / len(values))
        assert error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)
        allowed = 5.0 if 2 * error > 5 else max(allowed, 2 * error)
    if abs(abs(difference) - allowed) > 1e-6:
        assert agrees(difference, values) is (abs(difference) < allowed)


def test_what_is_reduced_says_so() -> None:
    """A variant at full length says that it is; rounds, images or time less than the paper's are none."""
    shorter = {"rounds", "epochs", "time_budget", "start"}
    for stem in dict.fromkeys(name.split("/")[0] for name in target_names()):
        assert find_target(next(name for name in target_names() if name.startswith(stem))).full
        for name, variant in read_paper(stem).get("variants", {}).items():
            changed = {key for said in variant["protocol"] for key in said}
            assert not (variant.get("full") and changed & shorter), name
