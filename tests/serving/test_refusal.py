"""Which distances are too large, and how much that refuses."""

from __future__ import annotations

import pytest
import torch

from protofed.errors import UserError
from protofed.serving.refusal import at, calibrate


@pytest.mark.parametrize("number", [2, 3, 7, 50, 201])
def test_at_most_the_part_is_refused(number: int) -> None:
    known = torch.rand(number, generator=torch.Generator().manual_seed(number)).double()
    table = calibrate(known, torch.empty(0))
    assert "unknown" not in table
    for percent in range(101):
        row = at(table, percent / 100)
        assert float((known > row["threshold"]).double().mean()) <= percent / 100 + 1e-9
        if percent:
            assert row["threshold"] <= at(table, (percent - 1) / 100)["threshold"]
    assert at(table, 0)["threshold"] == float(known.max())
    assert at(table, 1)["known"] == 1


def test_the_rate_is_of_images_that_did_not_set_the_threshold() -> None:
    """Of 1 to 4 in each half, at 40 %, the third of (4 + 1) · 0.6 is the limit: one of the same half exceeds it."""
    table = calibrate(torch.tensor([1.0, 11, 2, 12, 3, 13, 4, 14]), torch.tensor([9.0, 15]))
    row = at(table, 0.4)
    assert row["known"] == (0.25 * 0 + 1.0) / 2  # the near half under the far one's limit, and the other way round
    assert row["threshold"] == 12
    assert row["unknown"] == 0.5


def test_further_images_are_refused_as_often_as_said() -> None:
    draws = torch.Generator().manual_seed(0)
    rates = []
    for _ in range(300):
        threshold = at(calibrate(torch.rand(19, generator=draws), torch.empty(0)), 0.1)["threshold"]
        rates.append(1 - threshold)  # of numbers from 0 to 1
    assert sum(rates) / len(rates) == pytest.approx(0.1, abs=0.01)


def test_far_images_are_refused() -> None:
    table = calibrate(torch.rand(400), 2 + torch.rand(30))
    assert at(table, 0.05)["unknown"] == 1
    assert at(table, 0.05)["known"] == pytest.approx(0.05, abs=0.05)


def test_parts_between_percentages_are_rounded_down() -> None:
    table = calibrate(torch.rand(400), torch.empty(0))
    assert at(table, 0.0599) == at(table, 0.05)
    assert at(table, 0.29) == {name: column[29] for name, column in table.items()}  # 0.29 · 100 is a little less


def test_what_cannot_be_refused() -> None:
    for part in (-0.1, 1.1):
        with pytest.raises(UserError, match="from 0 to 1"):
            at(calibrate(torch.rand(9), torch.empty(0)), part)
    assert calibrate(torch.rand(1), torch.rand(5)) == {}
    with pytest.raises(UserError, match="without held-out images"):
        at({}, 0.05)
