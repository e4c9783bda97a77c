"""Crops and mirrors, against a slow loop over images."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protofed.data.augmentation import PADDING, augmented
from protofed.randomness import bits


def slowly(image: Tensor, down: int, right: int, mirror: bool) -> Tensor:
    """One image: padded with black, cropped, mirrored."""
    channels, height, width = image.shape
    wide = torch.zeros(channels, height + 2 * PADDING, width + 2 * PADDING, dtype=image.dtype)
    wide[:, PADDING:-PADDING, PADDING:-PADDING] = image
    crop = wide[:, down : down + height, right : right + width]
    return crop.flip(-1) if mirror else crop


@settings(max_examples=25, deadline=None)
@given(
    clients=st.integers(1, 3),
    batch=st.integers(1, 4),
    channels=st.sampled_from([1, 3]),
    height=st.integers(1, 9),
    width=st.integers(1, 9),
    how=st.sampled_from(["crop", "crop-flip", "rethinkfl"]),
    seed=st.integers(0, 99),
)
def test_each_image_has_its_own_crop(
    clients: int, batch: int, channels: int, height: int, width: int, how: str, seed: int
) -> None:
    draws = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (clients, batch, channels, height, width), generator=draws, dtype=torch.uint8)
    keys = torch.randint(0, 2**32, (clients,), generator=draws)
    found = augmented(images, keys, how)
    assert found.dtype == torch.uint8
    assert found.shape == images.shape
    random = bits(keys, 0, (batch, 3))
    for k in range(clients):
        assert torch.equal(augmented(images[k], keys[k], how), found[k])  # as the sequential engine sees it
        for b in range(batch):
            down, right, mirror = random[k, b].tolist()
            mirrored = how != "crop" and mirror % 2 == 1
            expected = slowly(images[k, b], down % (2 * PADDING + 1), right % (2 * PADDING + 1), mirrored)
            assert torch.equal(found[k, b], expected)


def test_a_batch_with_padding_draws_the_same_for_its_first_images() -> None:
    images = torch.randint(0, 256, (8, 3, 6, 6), dtype=torch.uint8)
    key = torch.tensor(7)
    assert torch.equal(augmented(images, key, "crop-flip")[:5], augmented(images[:5], key, "crop-flip"))


def test_all_crops_and_both_sides_come_up() -> None:
    images = torch.arange(1, 65, dtype=torch.uint8).view(1, 1, 8, 8).expand(500, -1, -1, -1)
    found = augmented(images, torch.tensor(3), "crop-flip")
    assert len({tuple(image.flatten().tolist()) for image in found}) > 140  # of 9 · 9 · 2
    assert torch.equal(augmented(images, torch.tensor(3), "none"), images)


@pytest.mark.parametrize("how", ["crop", "crop-flip"])
def test_another_step_draws_anew(how: str) -> None:
    images = torch.randint(0, 256, (16, 1, 8, 8), dtype=torch.uint8)
    assert not torch.equal(augmented(images, torch.tensor(1), how), augmented(images, torch.tensor(2), how))
