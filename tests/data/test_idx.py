"""IDX files, written here as the format's public description says."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import pytest
import torch
from data_toys import real_data

from protofed.data import find_files, load
from protofed.data.idx import MNIST, mnist, read_idx
from protofed.errors import UserError


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    return gzip.compress(header + content, mtime=0)  # the same bytes in every process


def write_mnist(folder: Path, train: int = 6, test: int = 4) -> dict[str, str]:
    """Four small files in MNIST's format, and their checksums."""
    folder.mkdir(parents=True, exist_ok=True)
    checksums = {}
    for name, number in zip(MNIST, (train, train, test, test), strict=True):
        shape = (number, 28, 28) if "images" in name else (number,)
        size = number * 784 if "images" in name else number
        packed = idx(shape, bytes(i % 10 for i in range(size)))
        (folder / name).write_bytes(packed)
        checksums[name] = hashlib.sha256(packed).hexdigest()
    return checksums


def test_read_idx(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(idx((2, 3, 1), bytes([1, 2, 3, 4, 5, 255])))
    assert read_idx(path, 3).tolist() == [[[1], [2], [3]], [[4], [5], [255]]]


@pytest.mark.parametrize("folder", [".", "mnist"])
def test_mnist_from_its_files(tmp_path: Path, folder: str) -> None:
    dataset = mnist(tmp_path, write_mnist(tmp_path / folder))
    assert dataset.train.images.shape == (6, 1, 28, 28)
    assert dataset.train.images[1, 0, 0, :3].tolist() == [4, 5, 6]  # pixel 784 of the file and on
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(dataset.test) == 4
    assert (dataset.mean, dataset.std) == ((0.1307,), (0.3081,))


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (idx((4,), b"abcd")[:-9], "damaged or cut short"),
        (b"not gzip at all", "damaged or cut short"),
        (idx((4,), b"abcd")[:12] + b"\xff\xff\xff" + idx((4,), b"abcd")[15:], "damaged or cut short"),
        (idx((4,), b"abc"), "3 bytes.*header says"),
        (idx((4,), b"abcde"), "5 bytes.*header says"),
        (idx((2, 2), b"abcd"), "starts with 00000801"),
        (gzip.compress(b"\0\0\x0d\1\0\0\0\4abcd", mtime=0), "starts with 00000801"),
        (gzip.compress(b"\0\0\x08\1\0", mtime=0), "starts with 00000801"),
        (gzip.compress(b"", mtime=0), "starts with 00000801"),
    ],
)
def test_broken_files_are_one_line_errors(tmp_path: Path, packed: bytes, message: str) -> None:
    path = tmp_path / "labels.gz"
    path.write_bytes(packed)
    with pytest.raises(UserError, match=message) as caught:
        read_idx(path, 1)
    assert "labels.gz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_checksum(tmp_path: Path) -> None:
    write_mnist(tmp_path)  # well formed, but not the real MNIST
    with pytest.raises(UserError, match=r"train-images-idx3-ubyte\.gz: .* sha256 should be 440fcabf"):
        load("mnist", tmp_path)


def test_missing_file_names_file_folders_and_flag(tmp_path: Path) -> None:
    write_mnist(tmp_path / "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(UserError, match=r"^--data-dir: .*t10k-labels-idx1-ubyte\.gz") as caught:
        load("mnist", tmp_path)
    assert str(tmp_path / "mnist") in str(caught.value)


def test_no_data_dir() -> None:
    with pytest.raises(UserError, match=r"^--data-dir: None .*train-images-idx3-ubyte\.gz"):
        load("mnist")


@pytest.mark.parametrize("folder", ["office-home", "office_home"])
@pytest.mark.parametrize("name", ["office-home", "office_home"])
def test_dashes_and_underscores_are_alike(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir()
    (tmp_path / folder / "a").touch()
    assert find_files(name, tmp_path, ["a"]) == [tmp_path / folder / "a"]


def test_real_mnist() -> None:
    folder = real_data()
    if folder is None:
        pytest.skip("no real data; set PROTOFED_DATA to the folder with mnist/")
    dataset = load("mnist", folder, 2000)
    assert (len(dataset.train), len(dataset.test)) == (2000, 10000)
    assert dataset.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert dataset.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = dataset.test.images.double() / 255
    assert float(pixels.mean()) == pytest.approx(0.1325, abs=1e-4)
    assert dataset.test.images.dtype == torch.uint8
