"""Which distances are too large, and how much that refuses."""

from __future__ import annotations

import pytest
import torch

from protofed.errors import UserError
from protofed.use.refusal import at, calibrate


@pytest.mark.parametrize("number", [2, 3, 7, 50, 201])
def test_at_most_the_part_is_refused(number: int) -> None:
    known = torch.rand(number, generator=torch.Generator().manual_seed(number))
    table = calibrate(known, torch.empty(0))
    assert "unknown" not in table
    for percent in range(101):
        row = at(table, percent / 100)
        half = known[::2].double()
        assert float((half > row["threshold"]).double().mean()) <= percent / 100 + 1e-9
        assert row["known"] == pytest.approx(float((known[1::2].double() > row["threshold"]).double().mean()))
        if percent:
            assert row["threshold"] <= at(table, (percent - 1) / 100)["threshold"]
    assert at(table, 0)["threshold"] == float(known[::2].max())
    assert at(table, 1)["known"] == 1


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
