"""The datasets that need no files, and the registry."""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from protofed.data import DATASETS, Dataset, load
from protofed.data.sources.digit_domains import FONTS, digit_domains, load_font
from protofed.errors import UserError


@pytest.fixture(scope="module")
def domains() -> Dataset:
    return load("digit-domains")


def digest(images: Tensor) -> str:
    return hashlib.sha256(images.numpy().tobytes()).hexdigest()


def rows(images: Tensor) -> set[bytes]:
    return {image.numpy().tobytes() for image in images}


def test_digits_are_all_of_scikit_learns() -> None:
    from sklearn.datasets import load_digits

    raw = load_digits()
    dataset = load("digits")
    assert (len(dataset.train), len(dataset.test)) == (1442, 355)
    assert dataset.train.x.shape[1:] == (1, 8, 8)
    train, test = iter(range(len(dataset.train))), iter(range(len(dataset.test)))
    seen = [0] * 10
    for image, label in zip(raw.images, raw.target.tolist(), strict=True):  # every fifth of its class is a test image
        seen[label] += 1
        part, index = (dataset.test, next(test)) if seen[label] % 5 == 0 else (dataset.train, next(train))
        assert part.labels[index] == label
        assert part.x[index, 0].double().sub(torch.from_numpy(image) * 255 / 16).abs().max() <= 0.5
    pixels = dataset.train.x.double() / 255
    assert dataset.preparation.mean == pytest.approx((float(pixels.mean()),))
    assert dataset.preparation.std == pytest.approx((float(pixels.std(correction=0)),))


def test_digit_domains_are_balanced_however_many_are_taken(domains: Dataset) -> None:
    assert domains.domains == ("scanned", "inverted", "texture", "printed")
    assert domains.train.x.shape == (1600, 3, 32, 32)
    assert domains.test.x.shape == (440, 3, 32, 32)
    for part, size in ((domains.train, 40), (domains.test, 11), (load("digit-domains", None, 80).train, 2)):
        assert (part.labels * 4 + part.domains).bincount().tolist() == [size] * 40


def test_digit_domains_are_the_same_every_time(domains: Dataset) -> None:
    again = digit_domains()
    assert digest(again.train.x) == digest(domains.train.x)
    assert digest(again.test.x) == digest(domains.test.x)


def test_digit_domains_share_no_image_between_train_and_test(domains: Dataset) -> None:
    assert not rows(domains.train.x) & rows(domains.test.x)


def test_labels_are_those_of_the_source(domains: Dataset) -> None:
    """Shrunk back to 8x8, a scanned digit is nearest to the class mean of its own label in most cases."""
    digits = load("digits").train
    means = torch.stack([digits.x[digits.labels == c].double().mean(0).flatten() for c in range(10)])
    for domain, sign in ((0, 1.0), (1, -1.0)):
        part = domains.train.take((domains.train.domains == domain).nonzero().flatten())
        small = torch.nn.functional.avg_pool2d(part.x[:, :1].double(), 4).flatten(1)
        small = small if sign > 0 else 255 - small
        assert (torch.cdist(small, means).argmin(1) == part.labels).double().mean() > 0.85


def test_domains_look_different(domains: Dataset) -> None:
    """Scanned and texture are dark, inverted and printed are light; only texture and printed have colour."""
    part = domains.train
    for d, (light, coloured) in enumerate([(False, False), (True, False), (False, True), (True, True)]):
        images = part.x[part.domains == d].double() / 255
        assert (float(images.median()) > 0.5) == light
        assert (float((images.amax(1) - images.amin(1)).mean()) > 0.05) == coloured


@pytest.mark.parametrize("name", FONTS)
def test_fonts_have_ten_different_digits(name: str) -> None:
    from matplotlib import get_data_path
    from matplotlib.ft2font import FT2Font

    charmap = FT2Font(str(Path(get_data_path()) / "fonts" / "ttf" / name)).get_charmap()
    assert all(ord(digit) in charmap for digit in "0123456789")
    font = load_font(name, 24)
    masks = [font.getmask(digit) for digit in "0123456789"]
    assert all(mask.getbbox() is not None for mask in masks)
    for a, b in itertools.combinations(masks, 2):
        assert (a.size, bytes(a)) != (b.size, bytes(b))


def test_train_size_takes_the_first_images() -> None:
    everything, few = load("digits"), load("digits", None, 7)
    assert torch.equal(few.train.x, everything.train.x[:7])
    assert torch.equal(few.test.labels, everything.test.labels)


@pytest.mark.parametrize("size", [0, -1, 1443])
def test_bad_train_size(size: int) -> None:
    with pytest.raises(UserError, match=f"'{size}' for --train-size: .* 1 to 1442"):
        load("digits", None, size)


def test_unknown_dataset() -> None:
    with pytest.raises(UserError, match="did you mean 'mnist'"):
        load("mnst")


def test_every_dataset_is_described_in_one_line() -> None:
    for source in DATASETS.values():
        assert source.about
        assert source.terms
        assert "\n" not in source.about


def test_importing_the_package_is_light() -> None:
    code = "import sys, protofed.data; print([m for m in ('matplotlib', 'sklearn', 'PIL') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
