"""Pictures in folders and zips, written here in the layouts in which they are published."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from protofed.data import describe, load
from protofed.data.sources.archives import Tree
from protofed.data.sources.image_files import (
    DOMAINNET,
    PACS,
    TEN,
    domainnet,
    folder,
    mnist_m,
    office_caltech10,
    pacs,
    tiny_imagenet,
)
from protofed.errors import UserError
from tests.support.toy_data import real_data


def png(value: int, size: tuple[int, int] = (32, 32)) -> bytes:
    """A picture of one colour, which says which picture it is."""
    stream = io.BytesIO()
    Image.new("RGB", size, (value, 255 - value, 7)).save(stream, "png")
    return stream.getvalue()


def fill(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def first(images: torch.Tensor) -> list[int]:
    """Which pictures these are."""
    return images[:, 0, 0, 0].tolist()


def digits(part: str) -> dict[str, bytes]:
    return {f"mnist_m_{part}/0000{i}.png": png(i) for i in range(4)}


LABELS = b"00002.png 7\n00000.png 3\n"


@pytest.mark.parametrize("zipped", [True, False])
def test_mnist_m(tmp_path: Path, zipped: bool) -> None:
    place = tmp_path / "mnist_m"
    place.mkdir()
    for part in ("train", "test"):
        files = {**digits(part), f"mnist_m_{part}_labels.txt": LABELS}
        if zipped:
            pack(place / f"mnist_m_{part}_subset.zip", files)
        else:
            fill(place, files)
    dataset = load("mnist-m", tmp_path)
    assert dataset.train.labels.tolist() == [7, 3]
    assert first(dataset.train.x) == [2, 0]  # the order of the list
    assert dataset.train.x[0, :, 9, 9].tolist() == [2, 253, 7]


@pytest.mark.parametrize("line", ["00009.png 1", "00000.png x", "00000.png 12", "00000.png", "../secret 1"])
def test_a_wrong_list_of_labels(tmp_path: Path, line: str) -> None:
    path = pack(tmp_path / "a.zip", {**digits("train"), "mnist_m_train_labels.txt": line.encode()})
    with pytest.raises(UserError, match=r"a\.zip"):
        mnist_m([path, path], None)


def test_no_list_of_labels(tmp_path: Path) -> None:
    path = pack(tmp_path / "a.zip", digits("train"))
    with pytest.raises(UserError, match="no list of labels"):
        mnist_m([path, path], None)


@pytest.mark.parametrize("how", ["cut", "empty", "other", "corrupt", "picture", "no picture"])
def test_broken_zips_and_pictures(tmp_path: Path, how: str) -> None:
    files = {**digits("train"), "mnist_m_train_labels.txt": LABELS}
    if how == "picture":
        files["mnist_m_train/00000.png"] = png(0)[:60]
    if how == "no picture":
        files["mnist_m_train/00000.png"] = b"hello"
    path = pack(tmp_path / "a.zip", files)
    whole = path.read_bytes()
    at = whole.index(b"IDAT")
    changed = {
        "cut": whole[: len(whole) // 2],
        "empty": b"",
        "other": b"not a zip",
        "corrupt": whole[:at] + b"\0" * 20 + whole[at + 20 :],
    }
    path.write_bytes(changed.get(how, whole))
    with pytest.raises(UserError, match=r"a\.zip.*damaged") as caught:
        mnist_m([path, path], None)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["../out.png", "a/../../out.png", "/out.png"])
def test_a_path_that_leads_out_of_a_zip(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="leads out"):
        Tree(pack(tmp_path / "a.zip", {name: png(0)}))


def test_a_name_in_a_zip_that_is_no_text(tmp_path: Path) -> None:
    """In its directory, and in front of the file."""
    whole = pack(tmp_path / "a.zip", {"é.png": png(1)}).read_bytes()
    directory = whole.rindex("é".encode())
    for place in (directory, whole.index("é".encode())):
        (tmp_path / "a.zip").write_bytes(whole[:place] + b"\xff\xff" + whole[place + 2 :])
        with pytest.raises(UserError, match=r"a\.zip"):
            Tree(tmp_path / "a.zip").read("é.png")


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("big.png", "w") as file:
        for _ in range(65):
            file.write(bytes(2**20))
    assert path.stat().st_size < 2**17
    with pytest.raises(UserError, match="at most 67108864 are read"):
        Tree(path).read("big.png")


def test_a_picture_of_too_many_pixels_is_not_decoded(tmp_path: Path) -> None:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", 9_000, 9_000, 1, 0, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0")) + chunk(b"IEND", b"")
    fill(tmp_path, {"a.png": content})
    with pytest.raises(UserError, match="too many"):
        Tree(tmp_path).picture("a.png", 32)


def test_pictures_of_any_shape_and_kind_become_squares_in_colour(tmp_path: Path) -> None:
    for name, mode in (("grey.png", "L"), ("palette.gif", "P"), ("clear.png", "RGBA"), ("print.jpg", "CMYK")):
        Image.new(mode, (50, 20)).save(tmp_path / name)
    tree = Tree(tmp_path)
    assert [tree.picture(name, 16).shape for name in tree.pictures()] == [(3, 16, 16)] * 4
    ramp = np.tile(np.arange(64, dtype=np.uint8) * 4, (64, 1))
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    halved = Tree(tmp_path).picture("ramp.png", 32)[0].double()
    middle = torch.from_numpy(ramp.reshape(32, 2, 32, 2).mean((1, 3)))
    assert (halved - middle)[:, 1:-1].abs().max() <= 1


def office(number: int = 10) -> dict[str, dict[str, bytes]]:
    """Each domain's pictures, of two classes; the colour says which, counted over the domain."""
    made: dict[str, dict[str, bytes]] = {}
    for d, domain in enumerate(("caltech10", "amazon", "webcam", "dslr")):
        size = number + d
        made[domain] = {
            f"{'bike' if i < size // 2 else 'mug'}/frame_{i:04}.jpg": png(20 * d + i, (40, 30)) for i in range(size)
        }
    return made


@pytest.mark.parametrize("zipped", [True, False])
def test_office_caltech10(tmp_path: Path, zipped: bool) -> None:
    place = tmp_path / "office_caltech10"
    place.mkdir()
    for domain, files in office().items():
        if zipped:
            pack(place / f"{domain}.zip", {f"{domain}/{name}": content for name, content in files.items()})
        else:
            fill(place / domain, files)
    dataset = load("office-caltech10", tmp_path)
    assert dataset.domains == ("caltech", "amazon", "webcam", "dslr")
    assert dataset.classes == ("bike", "mug")
    for d in range(4):
        for part, rest in ((dataset.train, range(8)), (dataset.test, (8, 9))):
            mine = part.x[part.domains == d]
            assert sorted(first(mine)) == [20 * d + i for i in range(10 + d) if i % 10 in rest]
            for image, label in zip(mine, part.labels[part.domains == d], strict=True):
                assert (int(image[0, 0, 0]) - 20 * d < (10 + d) // 2) == (int(label) == 0)
    assert dataset.train.domains[:8].tolist() == [0, 1, 2, 3, 0, 1, 2, 3]  # the first n are balanced
    assert dataset.train.labels[:8].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert load("office-caltech10", tmp_path, image_size=48).train.x.shape[1:] == (3, 48, 48)


def test_office_without_a_domain(tmp_path: Path) -> None:
    paths = [fill(tmp_path / domain, files) for domain, files in office().items() if domain != "dslr"]
    with pytest.raises(UserError, match="no pictures of the domain dslr"):
        office_caltech10(paths, None)


def test_pacs_with_and_without_its_lists(tmp_path: Path) -> None:
    files = {f"{domain}/{kind}/{i}.jpg": png(i) for domain in PACS for kind in ("dog", "horse") for i in range(5)}
    tree = pack(tmp_path / "PACS.zip", {f"PACS/{name}": content for name, content in files.items()})
    assert len(pacs([tree], None).test) == 4 * 2
    lists = {f"{domain}_train_kfold.txt": f"{domain}/dog/1.jpg 1\n{domain}/horse/2.jpg 5\n" for domain in PACS}
    lists |= {f"{domain}_crossval_kfold.txt": f"{domain}/dog/4.jpg 1\n" for domain in PACS}
    fill(tmp_path, {name: text.encode() for name, text in lists.items()})
    dataset = load("pacs", tmp_path)
    assert sorted(first(dataset.train.x)) == [1] * 4 + [2] * 4
    assert first(dataset.test.x) == [4] * 4
    assert dataset.classes == ("dog", "horse")


@pytest.fixture
def domain_net(tmp_path: Path) -> list[Path]:
    paths = []
    for domain in DOMAINNET:
        files = {f"{domain}/{kind}/{domain}_{i}.jpg": png(i) for kind in (*TEN, "axe") for i in (1, 2)}
        paths.append(pack(tmp_path / f"{domain}.zip", files))
    for part, number in (("train", 1), ("test", 2)):
        for domain in DOMAINNET:
            lines = [f"{domain}/{kind}/{domain}_{number}.jpg {c}" for c, kind in enumerate(("axe", *reversed(TEN)))]
            paths.append(tmp_path / f"{domain}_{part}.txt")
            paths[-1].write_text("\n".join(lines) + "\n")
    return paths


def test_domainnet_takes_ten_classes_by_its_lists(domain_net: list[Path]) -> None:
    dataset = domainnet(domain_net, 8)
    assert (dataset.classes, dataset.domains) == (TEN, DOMAINNET)
    for part, number in ((dataset.train, 1), (dataset.test, 2)):
        assert first(part.x) == [number] * 60
        assert (part.labels * 6 + part.domains).sort().values.tolist() == list(range(60))


def test_lists_without_any_of_the_classes(domain_net: list[Path]) -> None:
    for path in domain_net[6:]:
        path.write_text("")
    with pytest.raises(UserError, match="at least one sample"):
        domainnet(domain_net, 8)


@pytest.mark.parametrize("line", ["clipart/zebra/clipart_9.jpg 1", "../../zebra/x.jpg 3"])
def test_a_list_that_names_no_picture(domain_net: list[Path], line: str) -> None:
    domain_net[6].write_text(line)
    with pytest.raises(UserError, match=r"clipart_train\.txt.*there is no picture"):
        domainnet(domain_net, 8)


def tiny() -> dict[str, bytes]:
    files = {f"train/n0{c}/images/n0{c}_{i}.JPEG": png(10 * c + i, (64, 64)) for c in (1, 2) for i in range(3)}
    files |= {f"val/images/val_{i}.JPEG": png(100 + i, (64, 64)) for i in range(2)}
    files |= {"test/images/test_0.JPEG": png(200, (64, 64)), "wnids.txt": b"n02\nn01\n"}
    return files | {"val/val_annotations.txt": b"val_1.JPEG\tn02\t0\t0\t5\t5\nval_0.JPEG\tn01\t0\t0\t5\t5\n"}


@pytest.mark.parametrize("zipped", [True, False])
def test_tiny_imagenet(tmp_path: Path, zipped: bool) -> None:
    if zipped:
        files = {f"tiny-imagenet-200/{name}": content for name, content in tiny().items()}
        path = pack(tmp_path / "tiny.zip", files)
    else:
        path = fill(tmp_path / "tiny-imagenet-200", tiny())
    dataset = tiny_imagenet([path], None)
    assert dataset.classes == ("n01", "n02")
    assert first(dataset.train.x) == [10, 11, 12, 20, 21, 22]
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert (first(dataset.test.x), dataset.test.labels.tolist()) == ([101, 100], [1, 0])
    assert dataset.train.x.shape[1:] == (3, 64, 64)


@pytest.mark.parametrize(
    "text",
    [b"val_1.JPEG\tn09\t0\n", b"val_7.JPEG\tn01\t0\n", b"val_1.JPEG\n", b"../../../secret.png\tn01\t0\n"],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_tiny_imagenet_with_wrong_annotations(tmp_path: Path, text: bytes, zipped: bool) -> None:
    fill(tmp_path, {"secret.png": png(0)})
    files = {**tiny(), "val/val_annotations.txt": text}
    path = pack(tmp_path / "tiny.zip", files) if zipped else fill(tmp_path / "tiny", files)
    with pytest.raises(UserError, match="tiny"):
        tiny_imagenet([path], None)


def test_tiny_imagenet_that_is_something_else(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it has no train/CLASS/images"):
        tiny_imagenet([pack(tmp_path / "tiny.zip", {"a.png": png(0)})], None)


def test_a_folder_of_classes(tmp_path: Path) -> None:
    place = fill(tmp_path / "pets", {f"{kind}/{i}.png": png(i) for kind in ("cat", "dog") for i in range(10)})
    fill(place, {"cat/notes.txt": b"hello", "cat/.hidden.png": b"not read"})
    dataset = load(f"folder:{place}")
    assert (dataset.name, dataset.classes, dataset.domains) == ("pets", ("cat", "dog"), ("pets",))
    assert dataset.train.x.shape == (16, 3, 32, 32)
    assert sorted(first(dataset.test.x)) == [4, 4, 9, 9]
    fill(place, {"dog/a.png": png(99)})  # comes last in the order of names
    assert len(load(f"folder:{place}", image_size=8).train) == 17
    assert load(f"folder:{place}", image_size=8).train.x.shape[1:] == (3, 8, 8)


def test_a_folder_of_domains_with_its_own_test_part(tmp_path: Path) -> None:
    files = {f"train/{d}/{kind}/0.png": png(1) for d in ("b", "a") for kind in ("cat", "dog")}
    place = fill(tmp_path, {**files, "test/a/dog/0.png": png(2)})
    dataset = folder([place], None)
    assert (dataset.domains, dataset.classes) == (("a", "b"), ("cat", "dog"))
    assert dataset.train.domains.tolist() == [0, 1, 0, 1]
    assert dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert (first(dataset.test.x), dataset.test.labels.tolist()) == ([2], [1])


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ([], "it has no pictures"),
        (["a.png"], "its pictures must all lie in class/"),
        (["cat/a.png", "b/cat/a.png"], "its pictures must all lie in class/"),
        (["a/b/c/d.png"], "its pictures must all lie in class/"),
        (["cat/1.png", "cat/2.png"], "no class has five"),
    ],
)
def test_wrong_folders(tmp_path: Path, names: list[str], reason: str) -> None:
    fill(tmp_path, {name: png(0) for name in names})
    with pytest.raises(UserError, match=f"^invalid value '{tmp_path}' for PATH: .*{reason}"):
        folder([tmp_path], None)


def test_real_pictures_and_digit5() -> None:
    place = real_data()
    if place is None or not (place / "office_caltech10").is_dir():
        pytest.skip("no real data")
    things = load("office-caltech10", place)
    assert things.train.domains.bincount().tolist() == [899, 768, 237, 127]  # RethinkFL's numbers
    assert things.test.domains.bincount().tolist() == [224, 190, 58, 30]
    assert (len(things.classes), things.classes[0], things.classes[9]) == (10, "backpack", "projector")
    blended = load("mnist-m", place)
    assert (blended.train.labels.bincount().tolist(), len(blended.test)) == ([700] * 10, 2500)
    sizes = {row["name"]: (row["train"], row["test"]) for row in describe(place) if row["present"]}
    assert sizes["office-caltech10"] == (len(things.train), len(things.test))
    assert sizes["mnist-m"] == (len(blended.train), len(blended.test))


def test_a_picture_is_of_a_format_that_is_asked_for(tmp_path: Path) -> None:
    """Pillow would hand EPS to Ghostscript, whatever the file is called."""
    fill(tmp_path, {f"a/{i}.png": png(i) for i in range(5)})
    fill(tmp_path, {"a/5.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n"})
    with pytest.raises(UserError, match=r"5\.png.*no picture"):
        folder([tmp_path], None)


def test_links_that_lead_nowhere_are_no_pictures(tmp_path: Path) -> None:
    fill(tmp_path, {f"{name}/{i}.png": png(i) for name in "ab" for i in range(5)})
    (tmp_path / "a" / "self.png").symlink_to(tmp_path / "a" / "self.png")
    (tmp_path / "a" / "absent.png").symlink_to(tmp_path / "absent")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    assert len(load(f"folder:{tmp_path}").train) == 8


def test_a_folder_in_the_place_of_a_file_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "usps.h5").mkdir()
    with pytest.raises(UserError, match="usps"):
        load("usps", tmp_path)
    (tmp_path / "own.npz").mkdir()
    with pytest.raises(UserError, match=r"own\.npz"):
        load(f"npz:{tmp_path / 'own.npz'}")
