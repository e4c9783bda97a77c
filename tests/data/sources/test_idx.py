"""IDX files, written here as the format's public description says."""

from __future__ import annotations

import gzip
import tracemalloc
import zipfile
from pathlib import Path

import pytest
import torch

from protofed.data import load
from protofed.data.sources import archives as trees
from protofed.data.sources.catalogue import MNIST
from protofed.data.sources.idx import (
    emnist_byclass_zip,
    emnist_letters,
    emnist_letters_subset,
    emnist_letters_zip,
    fashion_mnist,
    mnist,
    read_idx,
)
from protofed.errors import UserError
from tests.support.toy_data import real_data


def idx(shape: tuple[int, ...], content: bytes) -> bytes:
    header = bytes([0, 0, 8, len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape)
    return gzip.compress(header + content, mtime=0)  # the same bytes in every process


def write_idx(folder: Path, names: list[str], first: int = 0) -> list[Path]:
    """Four small files in MNIST's format: six training images and their labels, four test images and theirs."""
    paths = [folder / name for name in names]
    for path, number in zip(paths, (6, 6, 4, 4), strict=True):
        shape = (number, 28, 28) if "images" in path.name else (number,)
        content = [i % 10 for i in range(number * 784)] if "images" in path.name else range(first, first + number)
        path.write_bytes(idx(shape, bytes(content)))
    return paths


def write_mnist(folder: Path) -> list[Path]:
    return write_idx(folder, [file.name for file in MNIST])


def test_read_idx() -> None:
    packed = idx((2, 3, 1), bytes([1, 2, 3, 4, 5, 255]))
    assert read_idx("a.gz", packed, 3).tolist() == [[[1], [2], [3]], [[4], [5], [255]]]


def test_mnist_from_its_files(tmp_path: Path) -> None:
    dataset = mnist(write_mnist(tmp_path), None)
    assert dataset.train.x.shape == (6, 1, 28, 28)
    assert dataset.train.x[1, 0, 0, :3].tolist() == [4, 5, 6]  # pixel 784 of the file and on
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(dataset.test) == 4
    assert (dataset.preparation.mean, dataset.preparation.std) == ((0.1307,), (0.3081,))


def test_fashion_mnist_names_its_classes(tmp_path: Path) -> None:
    assert fashion_mnist(write_mnist(tmp_path), None).classes[8:] == ("bag", "ankle boot")


LETTERS = [
    f"emnist-letters-{part}-{what}-ubyte.gz" for part in ("train", "test") for what in ("images-idx3", "labels-idx1")
]


def test_emnist_of_nist_is_transposed_and_a_subset_is_upright(tmp_path: Path) -> None:
    paths = write_idx(tmp_path, LETTERS, first=1)
    lying, upright = emnist_letters(paths, None), emnist_letters_subset(paths, None)
    assert lying.train.labels.tolist() == [0, 1, 2, 3, 4, 5]  # the files count from 1
    assert upright.train.x[0, 0, 0, :4].tolist() == [0, 1, 2, 3]
    assert lying.train.x[0, 0, :4, 0].tolist() == [0, 1, 2, 3]
    assert lying.classes[0] == "A"


def test_emnist_out_of_nists_zip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees.Tree.read, "__defaults__", (10,))  # NIST's are larger than a picture may be
    paths = write_idx(tmp_path, LETTERS, first=1)
    with zipfile.ZipFile(tmp_path / "gzip.zip", "w") as archive:
        for path in paths:
            archive.write(path, f"gzip/{path.name}")
    packed = emnist_letters_zip([tmp_path / "gzip.zip"], None)
    assert torch.equal(packed.train.x, emnist_letters(paths, None).train.x)
    with pytest.raises(UserError, match=r"gzip\.zip.*no gzip/emnist-byclass-train"):  # which was not packed
        emnist_byclass_zip([tmp_path / "gzip.zip"], None)


def test_only_a_test_part_of_emnist_is_split_by_class(tmp_path: Path) -> None:
    names = [f"emnist-byclass-test-first20-{what}-ubyte.gz" for what in ("images-idx3", "labels-idx1")]
    (tmp_path / "emnist").mkdir()
    (tmp_path / "emnist" / names[0]).write_bytes(idx((20, 28, 28), bytes(20 * 784)))
    (tmp_path / "emnist" / names[1]).write_bytes(idx((20,), bytes([3, 61] * 10)))
    dataset = load("emnist", str(tmp_path))  # a path may be text
    assert dataset.train.labels.bincount()[[3, 61]].tolist() == [8, 8]
    assert dataset.test.labels.tolist() == [3, 61, 3, 61]
    assert (dataset.classes[10], dataset.classes[61]) == ("A", "z")


def test_labels_must_match_images(tmp_path: Path) -> None:
    paths = write_mnist(tmp_path)
    paths[1].write_bytes(idx((5,), bytes(5)))
    with pytest.raises(UserError, match=r"train-labels.*5 labels for 6 images"):
        mnist(paths, None)


def test_a_label_below_the_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"train-labels.*labels"):
        emnist_letters(write_idx(tmp_path, LETTERS, first=0), None)


def test_a_bomb_is_not_unpacked() -> None:
    """A megabyte of nothing that says it is 2**62 bytes, and one that says it is a pixel."""
    for shape in ((2**31, 2**31), (1, 1)):
        with pytest.raises(UserError, match="header says"):
            read_idx("bomb.gz", idx(shape, bytes(2**20)), 2)


def test_room_is_made_for_what_comes_not_for_what_a_header_says() -> None:
    tracemalloc.start()
    with pytest.raises(UserError, match=r"4 bytes.*header says"):
        read_idx("labels.gz", idx((2**31,), b"abcd"), 1)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**24


@pytest.mark.parametrize(
    ("packed", "message"),
    [
        (idx((4,), b"abcd")[:-9], "damaged or cut short"),
        (b"not gzip at all", "damaged or cut short"),
        (idx((4,), b"abcd")[:12] + b"\xff\xff\xff" + idx((4,), b"abcd")[15:], "starts with 00000801"),
        (idx((4,), b"abc"), "3 bytes.*header says"),
        (idx((4,), b"abcde"), "more than 4 bytes.*header says"),
        (idx((2, 2), b"abcd"), "starts with 00000801"),
        (gzip.compress(b"\0\0\x0d\1\0\0\0\4abcd", mtime=0), "starts with 00000801"),
        (gzip.compress(b"\0\0\x08\1\0", mtime=0), "starts with 00000801"),
        (gzip.compress(b"", mtime=0), "starts with 00000801"),
    ],
)
def test_broken_files_are_one_line_errors(packed: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        read_idx("labels.gz", packed, 1)
    assert "labels.gz" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_wrong_checksum(tmp_path: Path) -> None:
    write_mnist(tmp_path)  # well formed, but not the real MNIST
    with pytest.raises(
        UserError, match=r"train-images-idx3-ubyte\.gz' for FILE: its sha256 is .* and should be 440fcabf"
    ):
        load("mnist", tmp_path)


def test_real_mnist() -> None:
    folder = real_data()
    if folder is None:
        pytest.skip("no real data; set PROTOFED_DATA to the folder with mnist/")
    dataset = load("mnist", folder, 2000)
    assert (len(dataset.train), len(dataset.test)) == (2000, 10000)
    assert dataset.train.labels[:10].tolist() == [5, 0, 4, 1, 9, 2, 1, 3, 1, 4]
    assert dataset.test.labels.bincount().tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]
    pixels = dataset.test.x.double() / 255
    assert float(pixels.mean()) == pytest.approx(0.1325, abs=1e-4)
    assert dataset.test.x.dtype == torch.uint8


def test_real_emnist_is_upright() -> None:
    folder = real_data()
    if folder is None or not (folder / "emnist").is_dir():
        pytest.skip("no real data")
    letters, characters = load("emnist-letters", folder), load("emnist", folder)
    assert (len(letters.train), len(letters.test)) == (10_400, 5_200)
    assert (len(characters.train), len(characters.test)) == (24_029, 5_971)
    ones = characters.train.x[characters.train.labels == 1].double().mean((0, 1))
    assert ones.sum(0).max() > 1.5 * ones.sum(1).max()  # an upright stroke is a column
