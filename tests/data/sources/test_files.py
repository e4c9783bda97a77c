"""Where datasets are looked for, what is said when they are not there, and what is kept of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load as load_tensors

from protofed.data import DATASETS, Dataset, Samples, describe, load
from protofed.data.sources import cache
from protofed.data.sources.cache import cached, checksum
from protofed.data.sources.files import File, Form, Source, find, folders, missing, present, verify
from protofed.errors import UserError
from protofed.internal.tensor_files import read_tensors
from tests.support.toy_data import toy


def source(*forms: tuple[str, ...]) -> Source:
    """A dataset in forms of these files."""
    made = tuple(
        Form(tuple(File(name, url=f"https://example.org/{name}") for name in names), lambda *_: toy(5), 1, 1)
        for names in forms
    )
    return Source("toys", "none", 10, (1, 2, 2), made, page="https://example.org")


@pytest.mark.parametrize("folder", [".", "office-home", "office_home"])
@pytest.mark.parametrize("name", ["office-home", "office_home"])
def test_dashes_and_underscores_are_alike(tmp_path: Path, folder: str, name: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / "a").touch()
    assert find(["a"], folders(name, tmp_path)) == [tmp_path / folder / "a"]


def test_own_folder_first_then_the_folder_of_all_then_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, other = tmp_path / "given", tmp_path / "other"
    monkeypatch.setenv("PROTOFED_DATA", str(other))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    fetched = tmp_path / "protofed" / "downloads"
    assert folders("mnist", given) == [given / "mnist", given, other / "mnist", other, fetched / "mnist", fetched]
    assert folders("mnist", None) == [other / "mnist", other, fetched / "mnist", fetched]
    assert folders("emnist-letters", given, "emnist")[2] == given / "emnist"


def test_the_first_whole_form_is_taken(tmp_path: Path) -> None:
    two = source(("a", "b"), ("c",))
    for name in ("a", "c"):
        (tmp_path / name).touch()
    found = present("toys", two, tmp_path)
    assert found == (two.forms[1], [tmp_path / "c"])
    (tmp_path / "b").touch()
    assert present("toys", two, tmp_path) == (two.forms[0], [tmp_path / "a", tmp_path / "b"])


def test_a_pattern_takes_its_first_match(tmp_path: Path) -> None:
    for name in ("x-2.gz", "x-1.gz"):
        (tmp_path / name).touch()
    assert find(["x-*.gz"], [tmp_path]) == [tmp_path / "x-1.gz"]


def test_what_is_missing_says_what_from_where_and_where_to(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    error = missing("toys", source(("a", "b", "c")), tmp_path)
    assert str(error) == f"invalid value '{tmp_path}' for --data-dir: it needs b and 1 more file for toys: not found"
    put = f"put them into {tmp_path / 'toys'}, or name their folder with --data-dir"
    assert error.hint == f"get b, c from https://example.org and {put}"
    alone = missing("toys", source(("a",)), None, "no time")
    assert str(alone) == "invalid value 'toys' for --dataset: it needs a: no time"
    assert str(alone.hint).startswith("get a from https://example.org/a and put it into ")


@pytest.mark.parametrize(
    "kind",
    [
        "md5:900150983cd24fb0d6963f7d28e17f72",
        "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    ],
)
def test_checksums(tmp_path: Path, kind: str) -> None:
    """The published digests of the text abc (RFC 1321, FIPS 180)."""
    path = tmp_path / "a"
    path.write_text("abc")
    verify(File("a", kind), path)
    path.write_text("abd")
    with pytest.raises(UserError, match="should be"):
        verify(File("a", kind), path)


def test_a_dataset_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = []

    def make() -> Dataset:
        made.append(1)
        return toy(3, domains=2)

    first = cached("toy", make)
    second = cached("toy", make)
    assert made == [1]
    for part in ("train", "test"):
        for name in ("x", "labels", "domains"):
            assert torch.equal(getattr(getattr(first, part), name), getattr(getattr(second, part), name))
    for name in ("name", "classes", "domains", "preparation"):
        assert getattr(first, name) == getattr(second, name)


@pytest.mark.parametrize("damage", ["cut", "empty", "other"])
def test_a_damaged_cache_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cached("toy", lambda: toy(3))
    path = tmp_path / "protofed" / "data" / "toy.safetensors"
    whole = path.read_bytes()
    tensors = load_tensors(whole)
    path.write_bytes({"cut": whole[:-20], "empty": b"", "other": b"\xff" * 40}[damage])
    assert len(cached("toy", lambda: toy(3)).train) == 30
    again = read_tensors(path, always=True)[0]  # the order of what is said of them is not always the same
    assert again.keys() == tensors.keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in tensors.items())
    assert [file.name for file in path.parent.iterdir()] == ["toy.safetensors"]


def test_from_the_cache_it_takes_no_more_than_twice_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most memory the process ever holds, while all pixels are looked at."""
    status, peak = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not peak.exists():
        pytest.skip("Linux tells")

    def kilobytes(name: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(name))

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    size = 64 * 2**20

    def make() -> Dataset:
        number = size // 2**12
        made = Samples.of(torch.ones(number, 1, 64, 64, dtype=torch.uint8), torch.zeros(number).long())
        return Dataset.of("large", made, made.take(torch.arange(2)), "0")

    cached("large", make)
    try:
        peak.write_text("5")  # from here on the peak counts
    except OSError:
        pytest.skip("the peak cannot be reset")
    before = kilobytes("VmRSS")
    images = cached("large", lambda: toy(1)).train.x
    assert bool((images.view(-1, 2**16).amin(1) == 1).all())
    assert images.numel() == size
    assert kilobytes("VmHWM") - before < 2 * size / 1024


def test_without_a_place_for_a_cache_it_is_decoded_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert len(cached("toy", lambda: toy(3)).train) == 30


def test_the_checksum_is_of_what_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("one")
    first = checksum("toy", [path], None)
    copy = tmp_path / "b"
    copy.write_text("one")
    assert checksum("toy", [copy], None) == first
    assert checksum("toy", [path], 8) != first
    assert checksum("other", [path], None) != first
    path.write_text("two")
    assert checksum("toy", [path], None) != first
    folder = checksum("toy", [tmp_path], None)
    (tmp_path / "c").touch()
    assert checksum("toy", [tmp_path], None) != folder


def test_the_checksum_of_a_large_file_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "a"
    path.write_text("one")
    plain = checksum("toy", [path], None)
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr(cache, "LARGE", 3)
    assert checksum("toy", [path], None) == plain
    (note,) = (tmp_path / "cache" / "protofed" / "data").iterdir()
    note.write_bytes(b"x" * 64)
    assert checksum("toy", [path], None) != plain  # the note was read, not the file
    path.write_text("four")  # another size: hashed again
    assert checksum("toy", [path], None) not in (plain, checksum("toy", [note], None))
    assert len(list(note.parent.iterdir())) == 3


def test_image_size_resizes(tmp_path: Path) -> None:
    small = load("digits", tmp_path, image_size=4)
    assert small.train.x.shape == (1442, 1, 4, 4)
    for image, resized in zip(load("digits").train.x[:50, 0], small.train.x[:50, 0], strict=True):
        reference = Image.fromarray(image.numpy()).resize((4, 4), Image.Resampling.BILINEAR)
        assert (resized.double() - torch.from_numpy(np.array(reference)).double()).abs().max() <= 1


def test_every_dataset_says_what_is_missing(tmp_path: Path) -> None:
    for row in describe(tmp_path):
        assert row["present"] == (row["reason"] == "")
        if not row["present"]:
            assert "http" in row["reason"], row["name"]
            with pytest.raises(UserError, match=r"it needs \S+.* for .*: "):
                load(row["name"], tmp_path)


def test_what_is_fetched_is_checked_and_what_is_not_has_a_page() -> None:
    for name, each in DATASETS.items():
        for file in each.forms[0].files if each.forms else ():
            assert file.checksum or not file.url, (name, file)
            assert file.url or each.page, name
