"""Which images are tests, which come first, and a dataset that is made of others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from protofed.data import DATASETS, Dataset, Samples, describe, load
from protofed.data.holdout import fifth_out, interleaved, places
from protofed.data.preparation import statistics
from protofed.data.sources.files import Form, Source
from tests.support.toy_data import samples

LABELS = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(1)).tolist()
DOMAINS = torch.randint(0, 2, (60,), generator=torch.Generator().manual_seed(2)).tolist()


def test_places_count_what_came_before() -> None:
    groups = [2, 0, 2, 2, 5, 0]
    assert places(torch.tensor(groups)).tolist() == [groups[:i].count(group) for i, group in enumerate(groups)]


def test_every_fifth_of_a_class_and_domain_is_a_test_image() -> None:
    seen: dict[tuple[int, int], int] = {}
    train, test = list[int](), list[int]()
    for row, pair in enumerate(zip(LABELS, DOMAINS, strict=True)):
        seen[pair] = seen.get(pair, 0) + 1
        (test if seen[pair] % 5 == 0 else train).append(row)
    parts = fifth_out(samples(LABELS, DOMAINS))
    assert [part.x[:, 0, 0, 0].tolist() for part in parts] == [train, test]


def test_domains_and_classes_take_turns_as_long_as_they_last() -> None:
    queues = {
        (c, d): [row for row in range(60) if (LABELS[row], DOMAINS[row]) == (c, d)] for c in range(3) for d in range(2)
    }
    expected = []
    while any(queues.values()):
        expected += [queues[c, d].pop(0) for c in range(3) for d in range(2) if queues[c, d]]
    assert interleaved(samples(LABELS, DOMAINS)).x[:, 0, 0, 0].tolist() == expected


def test_statistics_of_pixels_are_exact() -> None:
    images = torch.randint(0, 256, (50, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    images[:, 2] = 9
    pixels = images.double() / 255
    mean, std = statistics(images, "pixels")
    assert mean == pytest.approx(pixels.mean((0, 2, 3)).tolist(), abs=1e-12)
    assert std == pytest.approx([*pixels[:, :2].std((0, 2, 3), correction=0).tolist(), 1.0], abs=1e-12)


def part(name: str, channels: int, side: int, number: int, shade: int) -> Source:
    """A dataset whose images are all of one shade."""
    images = torch.full((number, channels, side, side), shade, dtype=torch.uint8)
    labels = torch.arange(number) % 10
    every = Samples.of(images, labels)
    made = Dataset.of(name, every, every.take(torch.arange(10)), "0123456789")
    return Source(name, "none", 10, (channels, side, side), (Form((), lambda *_: made, number, 10, f"{name} toys"),))


def test_digit5_is_its_parts_in_colour_at_one_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    for d, (name, channels, side) in enumerate(
        [("mnist", 1, 28), ("usps", 1, 16), ("svhn", 3, 32), ("synth-digits", 3, 32), ("mnist-m", 3, 32)]
    ):
        monkeypatch.setitem(DATASETS, name, part(name, channels, side, 10 + 10 * d, 50 * d))
    dataset = load("digit5")
    assert dataset.domains == ("mnist", "usps", "svhn", "synth", "mnist-m")
    assert dataset.train.domains.bincount().tolist() == [10, 20, 30, 40, 50]
    assert dataset.train.x.shape == (150, 3, 32, 32)
    shades = dataset.train.x.flatten(1)
    assert torch.equal(shades.amin(1), shades.amax(1))
    assert torch.equal(shades[:, 0].long(), 50 * dataset.train.domains)
    assert load("digit5", None, 50).train.domains.bincount().tolist() == [10] * 5
    assert load("digit5", image_size=8).test.x.shape == (50, 3, 8, 8)
    row = next(row for row in describe(None) if row["name"] == "digit5")
    assert (row["present"], row["train"], row["test"]) == (True, 150, 50)
    assert "usps: usps toys" in row["note"]
