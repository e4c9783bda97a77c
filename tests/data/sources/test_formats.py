"""USPS, the .mat files, LEAF's JSON and a user's own arrays: small files in the public formats, whole and broken."""

from __future__ import annotations

import bz2
import io
import json
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from protofed.data import load
from protofed.data.preparation import Preparation
from protofed.data.sources.leaf import femnist, femnist_split
from protofed.data.sources.mat import read_mat, svhn, svhn_beginning
from protofed.data.sources.npz import npz, npz_samples
from protofed.data.sources.synth_digits import drawn_digits
from protofed.data.sources.usps import usps_h5, usps_libsvm
from protofed.errors import UserError
from tests.support.toy_data import real_data

Array = NDArray[Any]


def broken(whole: bytes) -> dict[str, bytes]:
    """What may happen to a file on its way."""
    middle = len(whole) // 2
    return {
        "cut": whole[:middle],
        "empty": b"",
        "other": b"this is not the file you are looking for" * 20,
        "corrupt": whole[:8] + bytes(255 - byte for byte in whole[8:400]) + whole[400:],
    }


def refused(read: Callable[[], object], path: Path) -> None:
    """A broken file gives an error of one line that names it."""
    with pytest.raises(UserError) as caught:
        read()
    assert path.name in str(caught.value)
    assert "\n" not in str(caught.value)


def libsvm(pixels: Array, labels: list[int]) -> bytes:
    """Lines `label index:value`, from 1, zeros left out, as LIBSVM's page writes them."""
    rows = []
    for row, label in zip(pixels, labels, strict=True):
        rows.append(f"{label + 1} " + " ".join(f"{i + 1}:{v:.6g}" for i, v in enumerate(row) if v != 0))
    return bz2.compress(("\n".join(rows) + "\n").encode())


def write_libsvm(folder: Path) -> tuple[list[Path], Array]:
    pixels = np.linspace(-1, 1, 3 * 256).reshape(3, 256)
    pixels[1, 5] = 0
    paths = [folder / "usps.bz2", folder / "usps.t.bz2"]
    paths[0].write_bytes(libsvm(pixels, [0, 9, 3]))
    paths[1].write_bytes(libsvm(pixels[:1], [5]))
    return paths, pixels


def test_usps_of_libsvm(tmp_path: Path) -> None:
    paths, pixels = write_libsvm(tmp_path)
    dataset = usps_libsvm(paths, None)
    assert dataset.train.labels.tolist() == [0, 9, 3]
    assert dataset.test.labels.tolist() == [5]
    for row in range(3):
        for i in range(256):
            value = int(dataset.train.x[row, 0, i // 16, i % 16])
            assert abs(value - (pixels[row, i] + 1) / 2 * 255) <= 0.51


@pytest.mark.parametrize("how", ["cut", "empty", "other", "corrupt"])
def test_broken_libsvm(tmp_path: Path, how: str) -> None:
    paths, _ = write_libsvm(tmp_path)
    paths[0].write_bytes(broken(paths[0].read_bytes())[how])
    refused(lambda: usps_libsvm(paths, None), paths[0])


@pytest.mark.parametrize("line", ["1 300:0.5", "1 5:abc", "x 5:0.5", "99 5:0.5", "1 5:7", "1 0:0.5", "1 5", ""])
def test_wrong_lines_of_libsvm(tmp_path: Path, line: str) -> None:
    paths, _ = write_libsvm(tmp_path)
    paths[1].write_bytes(bz2.compress(f"{line}\n".encode()))
    refused(lambda: usps_libsvm(paths, None), paths[1])


def write_h5(path: Path, pixels: Array, labels: Array) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        for part in ("train", "test"):
            file[f"{part}/data"], file[f"{part}/target"] = pixels.astype(np.float32), labels


def test_usps_of_hdf5(tmp_path: Path) -> None:
    path = tmp_path / "usps.h5"
    write_h5(path, np.linspace(0, 1, 512).reshape(2, 256), np.array([7, 0]))
    dataset = load("usps", tmp_path)
    assert dataset.train.labels.tolist() == [7, 0]
    assert dataset.test.x.shape == (2, 1, 16, 16)
    assert (int(dataset.train.x[0, 0, 0, 0]), int(dataset.train.x[1, 0, 15, 15])) == (0, 255)


@pytest.mark.parametrize("how", ["cut", "empty", "other"])
def test_broken_hdf5(tmp_path: Path, how: str) -> None:
    path = tmp_path / "usps.h5"
    write_h5(path, np.zeros((2, 256)), np.array([7, 0]))
    path.write_bytes(broken(path.read_bytes())[how])
    refused(lambda: usps_h5([path], None), path)


def test_hdf5_without_h5py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "usps.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"pip install 'protofed\[h5\]'"):
        load("usps", tmp_path)


def test_hdf5_of_another_kind(tmp_path: Path) -> None:
    import h5py

    path = tmp_path / "usps.h5"
    for pixels, labels in ((np.zeros((2, 255)), np.zeros(2)), (np.full((2, 256), 2.0), np.zeros(2))):
        write_h5(path, pixels, labels.astype(np.int64))
        refused(lambda: usps_h5([path], None), path)
    write_h5(path, np.zeros((2, 256)), np.array([7, 10]))
    refused(lambda: usps_h5([path], None), path)
    with h5py.File(path, "w") as file:
        file["train"] = np.zeros(3)
    refused(lambda: usps_h5([path], None), path)


def write_mat(path: Path, number: int, packed: bool = True, **changed: Any) -> Array:
    from scipy.io import savemat

    rng = np.random.default_rng(number)
    images = rng.integers(0, 256, (32, 32, 3, number), dtype=np.uint8)
    labels = (np.arange(number, dtype=np.uint8) % 10 + 1).reshape(-1, 1)  # 1 to 10: ten is the digit 0
    savemat(path, {"X": images, "y": labels, **changed}, do_compression=packed)
    return images


@pytest.mark.parametrize("packed", [True, False])
def test_svhn(tmp_path: Path, packed: bool) -> None:
    paths = [tmp_path / "train_32x32.mat", tmp_path / "test_32x32.mat"]
    images = write_mat(paths[0], 12, packed, other=np.array(["text"]), more=np.eye(3))
    write_mat(paths[1], 3)
    dataset = svhn(paths, None)
    assert dataset.train.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert len(dataset.test) == 3
    for n, c, y, x in ((0, 0, 0, 0), (3, 1, 30, 2), (11, 2, 5, 31)):
        assert dataset.train.x[n, c, y, x] == images[y, x, c, n]


def test_the_beginning_of_svhn_is_divided_in_order(tmp_path: Path) -> None:
    path = tmp_path / "svhn_train_first1083_32x32.mat"
    write_mat(path, 310)
    dataset = load("svhn", tmp_path)
    everything = read_mat(path)
    assert torch.equal(dataset.train.x, everything.x[:300])
    assert torch.equal(dataset.test.x, everything.x[300:])
    write_mat(path, 300)
    refused(lambda: svhn_beginning([path], None), path)


def test_labels_of_any_number_type(tmp_path: Path) -> None:
    for kind in ("u1", "i2", "i4", "f4", "f8", ">i4"):
        write_mat(tmp_path / "a.mat", 4, y=np.array([[1], [2], [10], [9]], kind))
        assert read_mat(tmp_path / "a.mat").labels.tolist() == [1, 2, 0, 9]


def test_a_mat_bomb(tmp_path: Path) -> None:
    """A deflated matrix that says it has 4 GB; and one that holds more than it says."""
    path = tmp_path / "a.mat"
    header = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x00\x01IM"
    for size in (2**32 - 1, 8):
        packed = zlib.compress(struct.pack("<II", 14, size) + bytes(2**20))
        path.write_bytes(header + struct.pack("<II", 15, len(packed)) + packed)
        refused(lambda: read_mat(path), path)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("how", ["cut", "empty", "other", "corrupt"])
def test_broken_mat(tmp_path: Path, how: str, packed: bool) -> None:
    path = tmp_path / "train_32x32.mat"
    write_mat(path, 5, packed)
    path.write_bytes(broken(path.read_bytes())[how])
    refused(lambda: read_mat(path), path)


@pytest.mark.parametrize(
    "changed",
    [
        {"X": np.zeros((28, 28, 3, 5), np.uint8)},
        {"X": np.zeros((32, 32, 3, 5), np.float64)},
        {"y": np.zeros((4, 1))},
        {"y": np.full((5, 1), 11)},
    ],
)
def test_mat_of_another_kind(tmp_path: Path, changed: dict[str, Any]) -> None:
    path = tmp_path / "train_32x32.mat"
    write_mat(path, 5, **changed)
    refused(lambda: read_mat(path), path)


def test_drawn_digits_are_readable_and_the_same_every_time() -> None:
    """A digit's ink differs from its paper, the classes are in turn, and no image is in both parts."""
    dataset, again = drawn_digits(20, 10), drawn_digits(20, 10)
    assert torch.equal(dataset.train.x, again.train.x)
    assert dataset.train.labels.tolist() == [*range(10), *range(10)]
    assert dataset.train.x.shape == (20, 3, 32, 32)
    assert (dataset.train.x.double().flatten(2).std(2).amax(1) > 10).all()
    both = {image.numpy().tobytes() for part in (dataset.train, dataset.test) for image in part.x}
    assert len(both) == 30


def leaf(writers: dict[str, list[int]]) -> str:
    """LEAF's JSON of writers with these labels; the first pixel says which image it is."""
    data = {
        name: {"x": [[i / 255] + [1.0] * 783 for i in range(len(labels))], "y": labels}
        for name, labels in writers.items()
    }
    return json.dumps(
        {"users": list(writers), "num_samples": [len(labels) for labels in writers.values()], "user_data": data}
    )


def test_femnist_before_it_is_divided(tmp_path: Path) -> None:
    folder = tmp_path / "femnist" / "data" / "all_data"
    folder.mkdir(parents=True)
    (folder / "all_data_0.json").write_text(leaf({"f0001_41": [3] * 5 + [61] * 6}))
    (folder / "all_data_1.json").write_text(leaf({"f0000_14": [3] * 4}))
    dataset = load("femnist", tmp_path)
    assert dataset.domains == ("f0000_14", "f0001_41")
    assert dataset.test.labels.tolist() == [3, 61]  # the fifth of each of the first writer's classes
    assert dataset.test.domains.tolist() == [1, 1]
    assert dataset.test.x[:, 0, 0, 0].tolist() == [4, 9]
    assert dataset.test.x[0, 0, 0, 1] == 255
    assert len(dataset.train) == 13


def test_femnist_divided_by_leaf(tmp_path: Path) -> None:
    paths = [tmp_path / "train", tmp_path / "test"]
    for path, labels in zip(paths, ([1, 2, 3], [4]), strict=True):
        path.mkdir()
        (path / "all_data_niid.json").write_text(leaf({f"w{i}": labels for i in range(101)}))
    dataset = femnist_split(paths, None)
    assert (len(dataset.train), len(dataset.test)) == (303, 101)
    assert dataset.domains == ("femnist",)  # too many writers to be domains


@pytest.mark.parametrize("how", ["cut", "empty", "other", "pixels", "range", "huge", "labels", "users"])
def test_broken_leaf(tmp_path: Path, how: str) -> None:
    whole = leaf({"a": [1, 2]})
    content = json.loads(whole)
    if how == "pixels":
        content["user_data"]["a"]["x"][0].pop()
    elif how == "range":
        content["user_data"]["a"]["x"][0][3] = 3.5
    elif how == "huge":
        content["user_data"]["a"]["x"][0][3] = 10**400
    elif how == "labels":
        content["user_data"]["a"]["y"] = [1, 62]
    elif how == "users":
        content["users"].append("b")
    path = tmp_path / "all_data_0.json"
    texts = {"cut": whole[:-10], "empty": "", "other": "[1, 2]"}
    path.write_text(texts.get(how, json.dumps(content)))
    refused(lambda: femnist([tmp_path], None), path)


def test_a_folder_without_leaf_files(tmp_path: Path) -> None:
    refused(lambda: femnist([tmp_path], None), tmp_path)


@pytest.mark.parametrize("shape", [(10, 6, 5), (10, 6, 5, 3), (10, 3, 6, 5), (10, 1, 6, 5)])
def test_npz_in_every_layout(tmp_path: Path, shape: tuple[int, ...]) -> None:
    path = tmp_path / "mine.npz"
    images = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    np.savez_compressed(path, images=images, labels=np.array([0, 1] * 5))
    dataset = load(f"npz:{path}")
    channels = {3: 1, 4: 3 if 3 in shape else 1}[len(shape)]
    assert dataset.train.x.shape == (8, channels, 6, 5)
    assert dataset.test.labels.tolist() == [0, 1]  # the fifth of each class, images 8 and 9
    expected = images[8] if images[8].ndim == 2 or shape[1] in (1, 3) else images[8].transpose(2, 0, 1)
    assert np.array_equal(dataset.test.x[0].numpy().reshape(expected.shape), expected)
    assert (dataset.name, dataset.classes, dataset.domains) == ("mine", ("0", "1"), ("mine",))


def test_npz_with_names_and_its_own_test_part(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    np.savez(
        path,
        images=np.zeros((3, 4, 4), np.uint8),
        labels=np.array(["dog", "cat", "dog"]),
        domains=np.array(["b", "a", "b"]),
        test_images=np.ones((2, 4, 4), np.uint8),
        test_labels=np.array(["cat", "emu"]),
        test_domains=np.array(["a", "c"]),
    )
    dataset = npz([path], None)
    assert dataset.classes == ("cat", "dog", "emu")
    assert dataset.train.labels.tolist() == [1, 0, 1]
    assert dataset.test.labels.tolist() == [0, 2]
    assert (dataset.domains, dataset.train.domains.tolist()) == (("a", "b", "c"), [1, 0, 1])
    assert int(dataset.test.x.max()) == 1


IDS, FLOATS = np.arange(40).reshape(10, 4), np.arange(40.0).reshape(10, 4)
PIXELS = np.zeros((10, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("array", "said", "expected"),
    [
        (FLOATS, {"mean": np.arange(4), "std": np.ones(4)}, Preparation("standardise", (0, 1, 2, 3), (1, 1, 1, 1))),
        (PIXELS, {"mean": np.array([0.5]), "std": np.array([0.25])}, Preparation("pixels", (0.5,), (0.25,))),
        (IDS, {"tokens": np.int64(99)}, Preparation(tokens=99)),
    ],
)
def test_an_npz_may_say_what_happens_to_its_samples(
    array: Array, said: dict[str, Any], expected: Preparation, tmp_path: Path
) -> None:
    np.savez(tmp_path / "mine.npz", x=array, labels=np.arange(10) // 5, **said)
    assert load(f"npz:{tmp_path / 'mine.npz'}").preparation == expected
    assert load(f"npz:{tmp_path / 'mine.npz'}").preparation == expected  # from the cache


@pytest.mark.parametrize(
    ("array", "said", "why"),
    [
        (FLOATS, {"mean": np.arange(4)}, "numbers have `mean` and `std`"),
        (FLOATS, {"tokens": np.int64(9)}, "token ids have `tokens`"),
        (FLOATS, {"mean": np.arange(3), "std": np.ones(3)}, "give 4 of each"),
        (FLOATS, {"mean": np.arange(4), "std": np.zeros(4)}, "above 0"),
        (FLOATS, {"mean": np.full(4, np.nan), "std": np.ones(4)}, "finite"),
        (FLOATS, {"mean": np.ones((4, 1)), "std": np.ones(4)}, "one for each channel"),
        (IDS, {"mean": np.arange(4), "std": np.ones(4)}, "token ids have `tokens`"),
        (IDS, {"tokens": np.int64(9)}, "ids go up to 35"),
        (IDS, {"tokens": np.array([99])}, "a whole number"),
    ],
)
def test_what_an_npz_says_of_its_samples_must_fit(array: Array, said: dict[str, Any], why: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=array, labels=np.arange(10) // 5, **said)
    with pytest.raises(UserError, match=f"mine.npz.*{why}"):
        load(f"npz:{tmp_path / 'mine.npz'}")


@pytest.mark.parametrize(
    ("array", "dtype", "kind"),
    [
        (np.arange(40.0).reshape(10, 4), torch.float32, "standardise"),
        (np.arange(240, dtype=np.float16).reshape(10, 2, 3, 4), torch.float32, "standardise"),
        (np.arange(40).reshape(10, 4), torch.int64, "none"),
        (np.arange(40, dtype=np.uint16).reshape(10, 4), torch.int64, "none"),
    ],
)
def test_numbers_and_token_ids_of_a_user(tmp_path: Path, array: Array, dtype: torch.dtype, kind: str) -> None:
    np.savez(tmp_path / "mine.npz", x=array, labels=np.arange(10) // 5)
    dataset = load(f"npz:{tmp_path / 'mine.npz'}")
    assert (dataset.train.x.dtype, dataset.preparation.kind) == (dtype, kind)
    assert np.array_equal(dataset.train.x.numpy(), np.delete(array, [4, 9], 0))
    assert np.array_equal(dataset.test.x.numpy(), array[[4, 9]])
    assert dataset.preparation.tokens == (40 if dtype == torch.int64 else 0)


GOOD: dict[str, Any] = {"images": np.zeros((10, 4, 4), np.uint8), "labels": np.zeros(10, np.int64)}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"labels": None}, "has no array `labels`"),
        ({"domains": np.zeros(9, np.int64)}, "domains"),
        ({"test_images": GOOD["images"]}, "has no array `test_labels`"),
        ({"images": np.full((10, 4, 4), np.inf)}, "sample 0 holds a number that is not finite"),
        ({"images": np.full((10, 4), 1e300)}, "sample 0 holds a number that is not finite, or too large"),
        ({"images": np.zeros(10)}, r"its samples are float64 \[10\], and must be numbers"),
        ({"images": np.zeros((10, 0))}, r"its samples are float64 \[10, 0\]"),
        ({"images": np.full((10, 4), "a")}, "its samples are <U1"),
        ({"images": np.full((10, 4), -1)}, "token ids, from 0, and go from -1 to -1"),
        ({"images": np.full((10, 4), 2**31)}, "token ids, from 0"),
        ({"images": None}, "has no array `x` or `images`"),
        ({"labels": np.zeros(9, np.int64)}, "labels"),
        ({"labels": np.zeros(10)}, "whole numbers or text"),
        ({"labels": np.full(10, -1)}, "start at 0"),
        ({"labels": np.full(10, 2**40)}, "start at 0"),
        ({"labels": np.array([None] * 10)}, "no pickle is read"),
        ({"images": GOOD["images"][:4], "labels": np.zeros(4, np.int64)}, "no class has five"),
    ],
)
def test_wrong_npz(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez(path, **{name: array for name, array in {**GOOD, **changed}.items() if array is not None})
    with pytest.raises(UserError, match=message):
        npz([path], None)


@pytest.mark.parametrize("how", ["cut", "empty", "other"])
def test_broken_npz(tmp_path: Path, how: str) -> None:
    path = tmp_path / "mine.npz"
    np.savez_compressed(path, **GOOD)
    path.write_bytes(broken(path.read_bytes())[how])
    refused(lambda: npz([path], None), path)


def test_an_npz_bomb(tmp_path: Path) -> None:
    """Small in the file, too much when unpacked, or so its directory says."""
    path = tmp_path / "mine.npz"
    np.savez(path, **GOOD)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02")  # the directory's last entry; its unpacked size is at 24
    content[at + 24 : at + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    first = content.index(b"PK\x01\x02")
    content[first + 24 : first + 28] = (0xFFFFFFF0).to_bytes(4, "little")
    path.write_bytes(content)
    assert zipfile.is_zipfile(path)
    with pytest.raises(UserError, match=r"it unpacks to \d+ bytes"):
        npz([path], None)


def test_own_data_that_is_not_there() -> None:
    for name in ("npz:no/such.npz", "folder:no/such"):
        with pytest.raises(UserError, match="there is no no/such"):
            load(name)


def test_real_usps_and_svhn() -> None:
    folder = real_data()
    if folder is None or not (folder / "usps").is_dir():
        pytest.skip("no real data")
    usps, houses = load("usps", folder), load("svhn", folder)
    assert usps.train.labels.bincount().tolist() == [1194, 1005, 731, 658, 652, 556, 664, 645, 542, 644]
    assert usps.test.labels.bincount().tolist() == [359, 264, 198, 166, 200, 160, 170, 147, 166, 177]
    labels = torch.cat([houses.train.labels, houses.test.labels])
    assert labels[:10].tolist() == [1, 9, 2, 3, 2, 5, 9, 3, 3, 1]
    assert labels.bincount().tolist() == [66, 227, 141, 134, 110, 112, 78, 70, 78, 67]


def npy(shape: tuple[int, ...], content: bytes, kind: str = "|u1") -> bytes:
    """An array's file, whatever its header says."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": kind, "fortran_order": False, "shape": shape})
    return made.getvalue() + content


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (npy((10**12, 2, 2), b"1234"), "header says .*4 bytes follow"),
        (npy((2**40, 0, 2**40), b"1234"), "header says"),
        (npy((1, 2, 2), b"12345"), "header says"),
        (npy((1,), b"12345678", "|O"), "no pickle is read"),
        (b"no array", "damaged"),
    ],
)
def test_an_array_is_what_its_header_says(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "mine.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", content)
    with pytest.raises(UserError, match=message):
        npz_samples(path)


def test_hdf5_of_long_texts_is_not_unpacked(tmp_path: Path) -> None:
    """A file of a few kilobytes whose pixels, as text, would be 50 GB; and labels in a grid."""
    import h5py

    path = tmp_path / "usps.h5"
    for kind, shape in (("S100000", (2000,)), ("f4", (2000, 1))):
        with h5py.File(path, "w") as file:
            for part in ("train", "test"):
                file.create_dataset(f"{part}/data", (2000, 256), dtype=kind, chunks=True)
                file.create_dataset(f"{part}/target", shape, dtype="i8")
        refused(lambda: usps_h5([path], None), path)
