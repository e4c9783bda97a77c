"""FINCH against numbers of the finch-clust package, which stay when the package changes or is not there."""

from __future__ import annotations

import json

import pytest
import torch

from protofed.prototypes.finch import finch, hierarchy
from tests.golden.finch_cases import CASES, OUTPUTS, Case, points

GOLDEN = json.loads(OUTPUTS.read_text(encoding="utf-8"))["levels"]
PAIRS = list(zip(CASES, GOLDEN, strict=True))


def by_first_member(level: list[int]) -> list[int]:
    """The same partition, its clusters numbered by their first members."""
    numbers: dict[int, int] = {}
    return [numbers.setdefault(cluster, len(numbers)) for cluster in level]


def test_every_input_has_its_output() -> None:
    assert [len(levels[0]) for levels in GOLDEN] == [case.rows for case in CASES]
    assert max(len(levels) for levels in GOLDEN) >= 3  # where a mean of all rows is not a mean of means


@pytest.mark.parametrize(("case", "levels"), PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_finch_finds_the_packages_levels(case: Case, levels: list[list[int]], dtype: torch.dtype) -> None:
    rows = torch.from_numpy(points(case)).to(dtype)
    found = hierarchy(rows.unsqueeze(0), torch.ones(1, len(rows), dtype=torch.bool))[0].T.tolist()
    assert found == [by_first_member(level) for level in levels]


@pytest.mark.parametrize(("case", "levels"), PAIRS)
def test_prototypes_are_the_means_of_the_packages_last_partition(case: Case, levels: list[list[int]]) -> None:
    rows = torch.from_numpy(points(case)).double()
    found = finch(rows.unsqueeze(0), torch.zeros(1, len(rows), dtype=torch.int64), 1)
    last = torch.tensor(by_first_member(levels[-1]))
    expected = torch.stack([rows[last == cluster].mean(0) for cluster in range(int(last.max()) + 1)])
    torch.testing.assert_close(found.vectors[0, 0], expected)
    assert found.counts[0, 0].tolist() == last.bincount().tolist()
