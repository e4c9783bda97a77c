"""The heat map of clients and classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protofed.report.split_heatmap import heat_map


@pytest.mark.parametrize("clients", [1, 5, 100])
def test_heat_map_is_a_readable_picture(tmp_path: Path, clients: int) -> None:
    counts = torch.randint(0, 50, (clients, 10), generator=torch.Generator().manual_seed(0))
    heat_map(counts, [f"class {c}" for c in range(10)], tmp_path / "map.png")
    with Image.open(tmp_path / "map.png") as image:
        assert image.format == "PNG"
        width, height = image.size
    assert 500 < width < 2000
    assert max(300, 10 * clients) < height < 2000


def test_counts_show(tmp_path: Path) -> None:
    """An empty table is all but white; a full one is coloured."""
    shares = []
    for name, value in (("empty", 0), ("full", 9)):
        heat_map(torch.full((20, 30), value), [str(c) for c in range(30)], tmp_path / f"{name}.png")
        with Image.open(tmp_path / f"{name}.png") as image:
            shares.append(float(np.mean(np.array(image.convert("L")) > 250)))
    assert shares[0] > 0.8
    assert shares[1] < 0.5
