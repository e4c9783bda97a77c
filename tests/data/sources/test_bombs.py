"""Small files that would inflate to much: what is made of them in memory stays within three times what they declare."""

from __future__ import annotations

import bz2
import gzip
import io
import re
import struct
import tarfile
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from protofed.data.sources import table_files
from protofed.data.sources.archives import Tree, decode, unpacked
from protofed.data.sources.idx import read_idx
from protofed.data.sources.image_files import folder
from protofed.data.sources.mat import read_mat
from protofed.data.sources.npz import npz
from protofed.data.sources.texts import texts
from protofed.data.sources.usps import usps_libsvm
from protofed.errors import UserError
from protofed.models.published import imported

BOMB = 2**24
"""Bytes that each file would inflate to."""
SLACK = 2**22
"""Bytes for what is read at once, and for the reader itself."""


@contextmanager
def within(declared: int) -> Iterator[None]:
    """Let what is done within raise an error of one line, and have three times as much memory as was declared."""
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert "\n" not in str(caught.value)
    assert peak < 3 * declared + SLACK


def understated(path: Path, names: list[str], declared: int, method: int = zipfile.ZIP_DEFLATED) -> Path:
    """A zip of which the directory declares fewer bytes than come out of it."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name in names:
            archive.writestr(name, bytes(BOMB))
    data = bytearray(made.getvalue())
    for mark, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):
        for found in re.finditer(re.escape(mark), bytes(data)):
            data[found.start() + place : found.start() + place + 4] = struct.pack("<I", declared)
    path.write_bytes(data)
    assert len(data) < BOMB / 100
    return path


METHODS = {"deflate": zipfile.ZIP_DEFLATED, "bzip2": zipfile.ZIP_BZIP2, "lzma": zipfile.ZIP_LZMA}


@pytest.mark.parametrize("method", METHODS)
def test_an_npz_that_declares_a_hundred_bytes(tmp_path: Path, method: str) -> None:
    path = understated(tmp_path / "x.npz", ["images.npy", "labels.npy"], 100, METHODS[method])
    with within(200):
        npz([path], None)


@pytest.mark.parametrize("method", METHODS)
def test_a_zip_of_pictures_that_declares_a_hundred_bytes(tmp_path: Path, method: str) -> None:
    path = understated(tmp_path / "x.zip", ["a/one.png", "b/one.png"], 100, METHODS[method])
    with within(200):
        folder([path], 8)


def test_a_zip_of_texts_that_declares_a_hundred_bytes(tmp_path: Path) -> None:
    path = understated(tmp_path / "x.zip", ["a/one.txt", "b/one.txt"], 100)
    with within(200):
        texts([path], None)


def test_a_zip_of_weights_that_declares_a_hundred_bytes(tmp_path: Path) -> None:
    path = understated(tmp_path / "x.pth", ["archive/data.pkl"], 100)
    with within(100):
        imported(path, 32)


def test_what_a_zip_says_is_cut_to_what_it_declares_or_refused(tmp_path: Path) -> None:
    """Neither less nor more than it declares comes out of it."""
    for declared in (1, 100, BOMB - 1):
        tree = Tree(understated(tmp_path / "x.zip", ["a/one.png"], declared))
        with pytest.raises(UserError, match="damaged"):
            tree.read("a/one.png")
    tree = Tree(understated(tmp_path / "x.zip", ["a/one.png"], BOMB))
    assert tree.read("a/one.png") == bytes(BOMB)


def test_an_array_takes_what_it_declares(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "x.npz", x=np.zeros((2**16, 8, 8), np.uint8), labels=np.zeros(2**16, np.float32))
    with within(2**22 + 2**18):  # its labels are not whole numbers
        npz([tmp_path / "x.npz"], None)


def test_a_gzip_that_has_more_than_its_header_says() -> None:
    packed = gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 1, 8, 8) + bytes(BOMB))
    with within(64 + len(packed)):
        read_idx("x.gz", packed, 3)


@pytest.mark.parametrize("what", ["a pax header", "a long name", "a file"])
def test_a_tar_of_which_a_part_is_far_too_large(tmp_path: Path, what: str) -> None:
    kind = {"a pax header": tarfile.XHDTYPE, "a long name": tarfile.GNUTYPE_LONGNAME, "a file": tarfile.REGTYPE}[what]
    entry = tarfile.TarInfo("0.json")
    entry.type, entry.size = kind, BOMB
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(entry.tobuf(tarfile.USTAR_FORMAT) + bytes(BOMB)))
    with within(0):
        unpacked(tmp_path / "x.tar.gz", ["0.json"], 100)


@pytest.mark.parametrize("row", ["a" * BOMB, "a,b\n" + '"x\n",' * (BOMB // 8), "a,b\n" + "," * BOMB])
def test_a_packed_table_of_one_endless_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: str) -> None:
    monkeypatch.setattr(table_files, "LONGEST", 2**18)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(row.encode()))
    with within(8 * 2**18), table_files.opened(tmp_path / "x.csv.gz") as file:  # eight bytes for each value
        list(file.parts)


def test_a_packed_table_of_endless_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_files, "MOST", 2**18)
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * (BOMB // 4)))
    with within(2**18), table_files.opened(tmp_path / "x.csv.gz") as file:
        for part in file.parts:
            assert len(part) == 2


@pytest.mark.parametrize("line", [b"1 1:0.5 ", b"\n"])
def test_a_packed_list_of_digits_with_endless_lines(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "usps.bz2").write_bytes(bz2.compress(line * (2**21 // len(line)), 1))
    with within(0):
        usps_libsvm([tmp_path / "usps.bz2"] * 2, None)


def _mat(declared: int) -> bytes:
    """A MATLAB file whose only element is packed."""
    packed = zlib.compress(struct.pack("<II", 14, declared) + bytes(BOMB))
    return bytes(124) + b"\x00\x01IM" + struct.pack("<II", 15, len(packed)) + packed


def test_a_matrix_that_has_more_than_it_declares(tmp_path: Path) -> None:
    (tmp_path / "x.mat").write_bytes(_mat(100))
    with within(100 + 2 * len(_mat(100))):
        read_mat(tmp_path / "x.mat")


def test_a_part_of_hdf5_that_is_far_too_large(tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    from protofed.data.sources.usps import usps_h5

    with h5py.File(tmp_path / "usps.h5", "w") as file:
        for name in ("train", "test"):
            group = file.create_group(name)
            more: dict[str, object] = {"chunks": (2**18, 256), "maxshape": (None, 256), "compression": "gzip"}
            group.create_dataset("data", (3, 256), "f8", **more)
            group["target"] = np.zeros(3, np.int64)
    with within(0):
        usps_h5([tmp_path / "usps.h5"], None)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(width: int, height: int, *chunks: bytes) -> bytes:
    header = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + _chunk(b"IEND", b"")


PICTURES: dict[str, Callable[[], bytes]] = {
    "more pixels than it says": lambda: _png(8, 8, _chunk(b"IDAT", zlib.compress(b"\1" * BOMB))),
    "a comment": lambda: _png(8, 8, _chunk(b"zTXt", b"a\0\0" + zlib.compress(bytes(BOMB)))),
    "a profile of colours": lambda: _png(8, 8, _chunk(b"iCCP", b"a\0\0" + zlib.compress(bytes(BOMB)))),
    "many pixels": lambda: _png(2**14, 2**14, _chunk(b"IDAT", zlib.compress(bytes(BOMB)))),
}


@pytest.mark.parametrize("what", PICTURES)
def test_a_picture_with_a_bomb_in_it(tmp_path: Path, what: str) -> None:
    (tmp_path / "own/a").mkdir(parents=True)
    (tmp_path / "own/a/one.png").write_bytes(PICTURES[what]())
    tree = Tree(tmp_path / "own")
    decode(_png(1, 1, _chunk(b"IDAT", zlib.compress(bytes(4)))), 1, "a picture")  # Pillow imports its decoders
    tracemalloc.start()
    try:
        with suppress(UserError):
            assert tree.picture("a/one.png", 8).shape == (3, 8, 8)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 3 * 8 * 8 * 3 + SLACK
