"""CIFAR and FC100: pickles written here as their pages describe them, and pickles that want to do harm."""

from __future__ import annotations

import collections
import io
import os
import pickle
import pickletools
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from protofed.data import load
from protofed.data.sources.pickles import cifar10, cifar100, fc100, read_pickle
from protofed.errors import UserError
from tests.support.toy_data import real_data


def rows(number: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, (number, 3072), dtype=np.uint8)


def write_cifar10(folder: Path) -> list[Path]:
    """Python 2 wrote these with bytes for text; so does this."""
    folder.mkdir()
    content: dict[str, dict[bytes, object]] = {}
    for number in range(1, 6):
        content[f"data_batch_{number}"] = {
            b"data": rows(4, number),
            b"labels": [number, 0, 1, 2],
            b"filenames": [b"x.png"],
        }
    content["test_batch"] = {b"data": rows(2, 0), b"labels": [9, 8]}
    content["batches.meta"] = {b"label_names": [f"c{i}".encode() for i in range(10)], b"num_vis": 3072}
    for name, value in content.items():
        (folder / name).write_bytes(pickle.dumps(value, protocol=2))
    return [folder / name for name in content]


def pack(path: Path, files: list[Path]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for file in files:
            archive.add(file, f"cifar/{file.name}")
    return path


def test_cifar10_from_batches_and_from_the_archive(tmp_path: Path) -> None:
    paths = write_cifar10(tmp_path / "cifar-10-batches-py")
    dataset, packed = cifar10(paths, None), cifar10([pack(tmp_path / "cifar.tar.gz", paths)], None)
    assert dataset.train.labels.tolist() == [v for n in range(1, 6) for v in (n, 0, 1, 2)]
    assert dataset.test.labels.tolist() == [9, 8]
    assert dataset.classes[3] == "c3"
    third = rows(4, 1)[3]
    for c, y, x in ((0, 0, 0), (1, 2, 3), (2, 31, 31)):
        assert dataset.train.x[3, c, y, x] == third[c * 1024 + y * 32 + x]
    assert torch.equal(packed.train.x, dataset.train.x)


def test_cifar100_takes_its_fine_classes(tmp_path: Path) -> None:
    content: dict[str, dict[bytes, object]] = {
        "train": {b"data": rows(2, 0), b"fine_labels": [99, 0], b"coarse_labels": [1, 2]},
        "test": {b"data": rows(1, 1), b"fine_labels": [5], b"coarse_labels": [1]},
        "meta": {b"fine_label_names": [str(i).encode() for i in range(100)]},
    }
    for name, value in content.items():
        (tmp_path / name).write_bytes(pickle.dumps(value, protocol=2))
    dataset = cifar100([tmp_path / name for name in content], None)
    assert dataset.train.labels.tolist() == [99, 0]
    assert len(dataset.classes) == 100


def test_fc100_puts_its_test_classes_last(tmp_path: Path) -> None:
    paths = []
    for name, labels in (("train", [7, 3]), ("val", [5]), ("test", [0, 9])):
        every = [label for label in labels for _ in range(5)]
        data = np.stack([np.full((32, 32, 3), label, np.uint8) for label in every])
        paths.append(tmp_path / f"FC100_{name}.pickle")
        paths[-1].write_bytes(pickle.dumps({"data": data, "labels": every}, protocol=2))
    dataset = fc100(paths, None)
    assert dataset.classes == ("3", "7", "5", "0", "9")
    assert dataset.train.labels.bincount().tolist() == [4] * 5
    assert dataset.test.labels.bincount().tolist() == [1] * 5
    for image, label in zip(dataset.train.x, dataset.train.labels, strict=True):
        assert int(image[0, 0, 0]) == int(dataset.classes[label])
    with pytest.raises(UserError, match="none in common"):
        fc100([paths[0], paths[0], paths[1]], None)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["u1", "<i4", ">i2", "<f8", "b"])
def test_arrays_come_back(protocol: int, kind: str) -> None:
    array = np.arange(6).reshape(2, 3).astype(kind)
    value = {"a": array, "f": np.asfortranarray(array), "n": 3, "t": "text", "l": [1.5, None], "s": array[1, 2]}
    loaded = read_pickle("a", pickle.dumps(value, protocol=protocol))
    assert np.array_equal(loaded["a"], array)
    assert np.array_equal(loaded["f"], array)
    assert (loaded["n"], loaded["l"], loaded["s"]) == (3, [1.5, None], 5)


class Evil:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.target}",)


class Getter:
    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, ("text", "upper")


@pytest.mark.parametrize(
    "value",
    [
        Getter(),
        collections.OrderedDict(a=1),
        eval,
        np.array([Getter()], dtype=object),
        np.array([None], dtype=object),
        np.zeros(2, dtype=[("a", "i4")]),
        np.array(["text"]),
        np.datetime64("2020-01-01"),
        Path("/"),
        1 + 2j,
    ],
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_anything_else_is_refused(value: object, protocol: int) -> None:
    with pytest.raises(UserError, match=r"^invalid value 'a' for FILE: "):
        read_pickle("a", pickle.dumps({"data": value}, protocol=protocol))


@pytest.mark.parametrize("protocol", [0, 2, 4, 5])
def test_a_malicious_pickle_does_nothing(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    content = pickle.dumps({"data": Evil(mark)}, protocol=protocol)
    with pytest.raises(UserError, match=r"system, which arrays do not need"):
        read_pickle("a", content)
    assert not mark.exists()
    pickle.loads(content)  # it would have
    assert mark.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"cos\nsystem\n(S'true'\ntR.",
        b"cnumpy\nload\n(S'x'\ntR.",
        b"cnumpy.core.multiarray\n_reconstruct.__globals__\n.",
        b"\x80\x04\x8c\x05numpy\x8c\x10ndarray.__dict__\x93.",
        b"ccodecs\nencode\n.",
        b"c_codecs\nencode\n(S'a'\nS'rot13'\ntR.",
        b"Pother\n.",
        b"ibuiltins\neval\n.",
        b"]" + b"(" * 100,
        b"\x80\x02N.",
        b"N.",
        b"",
    ],
)
def test_hand_written_pickles(content: bytes) -> None:
    with pytest.raises(UserError, match=r"^invalid value 'a' for FILE: "):
        read_pickle("a", content)


def test_an_array_that_says_it_is_huge_is_refused() -> None:
    content = pickle.dumps({"data": np.zeros((2, 3), np.uint8)}, protocol=2)
    huge = content.replace(b"K\x02K\x03\x86", b"J\xff\xff\xff\x7fJ\xff\xff\xff\x7f\x86")
    assert huge != content
    pickletools.dis(huge, io.StringIO())
    with pytest.raises(UserError, match="bytes of an array"):
        read_pickle("a", huge)


@pytest.mark.parametrize("how", ["cut", "empty", "other", "data", "shape", "labels", "many", "text"])
def test_broken_cifar(tmp_path: Path, how: str) -> None:
    paths = write_cifar10(tmp_path / "batches")
    whole = paths[0].read_bytes()
    value = pickle.loads(whole)
    changed: dict[str, dict[bytes, object]] = {
        "data": {b"data": [1, 2]},
        "shape": {b"data": np.zeros((4, 3071), np.uint8)},
        "labels": {b"labels": [1, 2, 3]},
        "many": {b"labels": [1, 2, 3, 10]},
        "text": {b"labels": ["a"] * 4},
    }
    broken = {"cut": whole[: len(whole) // 2], "empty": b"", "other": b"not a pickle at all"}
    paths[0].write_bytes(broken.get(how) or pickle.dumps({**value, **changed.get(how, {})}, protocol=2))
    if how == "empty":
        paths[0].write_bytes(b"")
    with pytest.raises(UserError) as caught:
        cifar10(paths, None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("how", ["cut", "other", "lacking"])
def test_broken_archive(tmp_path: Path, how: str) -> None:
    paths = write_cifar10(tmp_path / "batches")
    archive = pack(tmp_path / "cifar.tar.gz", paths if how != "lacking" else paths[1:])
    whole = archive.read_bytes()
    archive.write_bytes({"cut": whole[: len(whole) // 2], "other": b"no archive", "lacking": whole}[how])
    with pytest.raises(UserError, match=r"cifar\.tar\.gz"):
        cifar10([archive], None)


def test_a_member_of_the_archive_that_points_elsewhere_is_not_followed(tmp_path: Path) -> None:
    paths = write_cifar10(tmp_path / "batches")
    with tarfile.open(tmp_path / "cifar.tar.gz", "w:gz") as archive:
        for path in paths[1:]:
            archive.add(path, path.name)
        link = tarfile.TarInfo("data_batch_1")
        link.type, link.linkname = tarfile.SYMTYPE, str(paths[0])
        archive.addfile(link)
    with pytest.raises(UserError, match="does not hold data_batch_1"):
        cifar10([tmp_path / "cifar.tar.gz"], None)


def test_real_cifar10() -> None:
    """Where the official batches are."""
    places = [Path(__file__).parents[3] / "data", real_data()]
    folder = next((place for place in places if place and (place / "cifar10" / "cifar-10-batches-py").is_dir()), None)
    if folder is None:
        pytest.skip("no real CIFAR-10")
    dataset = load("cifar10", folder)
    assert dataset.train.labels[:10].tolist() == [6, 9, 9, 4, 1, 1, 2, 7, 8, 3]
    assert dataset.test.labels.bincount().tolist() == [1000] * 10
    assert dataset.preparation.mean == pytest.approx((0.4914, 0.4822, 0.4465), abs=1e-4)  # the values everyone uses
    assert dataset.preparation.std == pytest.approx((0.2470, 0.2435, 0.2616), abs=1e-4)


def _nested(depth: int) -> list[Any]:
    """A list in which 2**depth numbers seem to be."""
    made: list[Any] = [1]
    for _ in range(depth):
        made = [made, made]
    return made


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x80\x02}r\xff\xff\xff\xff.", "keeps something in place 4294967295"),  # 64 GB of memory
        (b"\x80\x02})" + b"q\x01h\x01\x86" * 60 + b"K\x01s.", "repeats a tuple"),  # a key that takes forever to hash
        (b"\x80\x02}K\x012\x86K\x01s.", "repeats a tuple"),
    ],
)
def test_a_few_bytes_cannot_ask_for_much(content: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_pickle("batch", content)


def test_names_that_are_no_text_are_left_out() -> None:
    assert read_pickle("batch", pickle.dumps({b"a": 1, 2: 3, 16**10_000: 4}, 2)) == {"a": 1}


def test_lists_in_lists_are_no_labels_and_no_names(tmp_path: Path) -> None:
    content: dict[str, dict[bytes, object]] = {
        "train": {b"data": rows(2, 0), b"fine_labels": [0, 1]},
        "test": {b"data": rows(1, 1), b"fine_labels": [1]},
        "meta": {b"fine_label_names": [b"a", b"b"]},
    }
    for name, what, message in (("train", b"fine_labels", "labels"), ("meta", b"fine_label_names", "names")):
        for member, values in content.items():
            changed = {**values, what: _nested(40)} if member == name else values
            (tmp_path / member).write_bytes(pickle.dumps(changed, protocol=2))
        with pytest.raises(UserError, match=message):
            cifar100([tmp_path / member for member in content], None)
