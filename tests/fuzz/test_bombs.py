"""Small files that would take much memory or time, and things that are no files at all, in the place of each file."""

from __future__ import annotations

import bz2
import functools
import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from protofed.data import load
from tests.fuzz.limits import limited
from tests.fuzz.readers import CLEAN, READERS, Place

pytestmark = pytest.mark.fuzz


def safetensors(header: object, rest: bytes = b"") -> bytes:
    """A file with any header."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + rest


def huge_tensor() -> bytes:
    return safetensors({"weights/w": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}})


def overflowing_tensor() -> bytes:
    return safetensors({"weights/w": {"dtype": "F32", "shape": [2**32, 2**32], "data_offsets": [0, 0]}})


def huge_header() -> bytes:
    return (2**63 - 1).to_bytes(8, "little") + b"{}"


def zip_bomb() -> bytes:
    """A few megabytes of zeros, of which the directory says that they are 4 GB."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("images.npy", "labels.npy", "part/one.png", "part_labels.txt"):
            archive.writestr(name, bytes(2**20))
    data = bytearray(made.getvalue())
    place = data.find(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 2**32 - 2)
    return bytes(data)


def understated_zip() -> bytes:
    """Four files of which the directory says that they have a hundred bytes, and which unpack to 64 MB each."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("images.npy", "labels.npy", "part/one.png", "part_labels.txt"):
            archive.writestr(name, bytes(2**26))
    data = made.getvalue()
    return data.replace(struct.pack("<I", 2**26), struct.pack("<I", 100))


def endless_rows() -> bytes:
    """A table whose only row has 2**28 characters."""
    return gzip.compress(b"x,label\n" + b"1" * 2**28)


def long_header() -> bytes:
    """A tar of which a name has 1 GB."""
    entry = tarfile.TarInfo("data_batch_1")
    entry.type, entry.size = tarfile.GNUTYPE_LONGNAME, 2**30
    return gzip.compress(entry.tobuf(tarfile.USTAR_FORMAT) + bytes(2**28))


def huge_array() -> bytes:
    """An array of which the header says that it has a million million numbers."""
    made = io.BytesIO()
    np.lib.format.write_array_header_1_0(made, {"descr": "|u1", "fortran_order": False, "shape": (10**12, 2, 2)})
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("images.npy", made.getvalue() + b"1234")
        archive.writestr("labels.npy", made.getvalue() + b"1234")
    return packed.getvalue()


def far_place() -> bytes:
    """A pickle that keeps something in place 2**32 - 1 of its memory."""
    return b"\x80\x02}r\xff\xff\xff\xff."


def tuple_of_tuples() -> bytes:
    """A key of 2**60 empty tuples: forever to hash."""
    return b"\x80\x02})" + b"".join(b"q\x01h\x01\x86" for _ in range(60)) + b"K\x01s."


def list_of_lists() -> bytes:
    """Labels in which 2**40 numbers seem to be."""
    labels: list[object] = [1]
    for _ in range(40):
        labels = [labels, labels]
    return pickle.dumps({"data": np.zeros((2, 3072), np.uint8), "fine_labels": labels, "fine_label_names": labels}, 2)


BOMBS: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "not text": lambda: b"\xff\xfe" * 100,
    "zeros": lambda: bytes(2**12),
    "deep lists": lambda: b"[" * 3_000,
    "deep JSON": lambda: b"[" * 3_000 + b"]" * 3_000,
    "deep YAML": lambda: b"a: " + b"[" * 1_000 + b"]" * 1_000,
    "deep mappings": lambda: b'{"a":' * 3_000 + b"1" + b"}" * 3_000,
    "aliases": lambda: "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else '1'}]\n" for n in range(12)
    ).encode(),
    "an alias of itself": lambda: b"params: &a\n  k: *a\nrounds: *a\n",
    "digits": lambda: b'{"rounds": ' + b"9" * 10_000 + b"}",
    "hexadecimal digits": lambda: b"rounds: 0x" + b"f" * 10_000,
    "no numbers": lambda: b'{"round": NaN, "loss": -Infinity, "seconds": 1e999}\n',
    "a date": lambda: b"rounds: 2024-99-99\n",
    "code": lambda: b"rounds: !!python/object/apply:os.system ['true']\n",
    "a tensor of 4 TB": huge_tensor,
    "a tensor beyond counting": overflowing_tensor,
    "a header of 8 EB": huge_header,
    "a bomb in gzip": lambda: gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">III", 2**31, 2**31, 4) + bytes(2**24)),
    "a bomb in zip": zip_bomb,
    "a zip that says less than it holds": understated_zip,
    "a bomb in bzip2": lambda: bz2.compress(bytes(2**28)),
    "lines in bzip2": lambda: bz2.compress(b"\n" * 2**26),
    "a row without an end": endless_rows,
    "a name of 1 GB in tar": long_header,
    "an array of 4 TB": huge_array,
    "a place far away": far_place,
    "tuples of tuples": tuple_of_tuples,
    "lists of lists": list_of_lists,
    "EPS": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9999 9999\n",
    "a picture of 4 gigapixels": lambda: b"P6 65535 65535 255\n" + bytes(100),
}


@functools.cache
def _bombs() -> dict[str, bytes]:
    return {name: make() for name, make in BOMBS.items()}


@pytest.mark.parametrize("name", READERS)
def test_a_bomb_in_the_place_of_any_file_does_no_harm(name: str) -> None:
    place = Place(READERS[name])
    for bomb, content in _bombs().items():
        for file in place.reader.files:
            try:
                with limited():
                    place.read(file, content)
            except BaseException as error:
                error.add_note(f"{bomb} as {file}")
                raise
    place.remove()


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def nowhere(path: Path) -> None:
    path.symlink_to(path.with_name("absent"))


@pytest.mark.parametrize("instead", [folder, loop, nowhere])
@pytest.mark.parametrize(
    "name", ["config", "plans", "deployment", "watch", "report", "result", "resume", "model", "encoder"]
)
def test_what_is_no_file_is_refused(name: str, instead: Callable[[Path], None]) -> None:
    place = Place(READERS[name])
    for file in place.reader.files:
        path = place.folder / file
        path.unlink()
        instead(path)
        with limited():
            place.try_reading()
        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        path.write_bytes(place.whole[path])
    place.remove()


def test_links_in_a_folder_of_pictures_lead_nowhere(tmp_path: Path) -> None:
    place = Place(READERS["pictures"])
    own = place.folder / "own"
    (own / "a" / "loop").symlink_to(own)
    (own / "a" / "self.png").symlink_to(own / "a" / "self.png")
    (own / "a" / "absent.png").symlink_to(tmp_path / "absent")
    with limited():
        assert len(load(f"folder:{own}").classes) == 2
    place.remove()


def test_a_folder_in_the_place_of_a_dataset_file_is_refused(tmp_path: Path) -> None:
    from protofed.data.sources.catalogue import MNIST

    for file in MNIST:
        (tmp_path / file.name).mkdir()
    with pytest.raises(CLEAN), limited():
        load("mnist", tmp_path)
