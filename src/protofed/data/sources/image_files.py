"""Pictures in folders or zips: every file an image, its class and domain in its path or in a list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from zipfile import is_zipfile

import torch

from protofed.data.holdout import fifth_out, interleaved
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.archives import SUFFIXES, Tree, arranged
from protofed.data.sources.files import damaged
from protofed.errors import UserError

SIDE = 32  # of pictures that have no size of their own
OFFICE = ("caltech", "amazon", "webcam", "dslr")
PACS = ("photo", "art_painting", "cartoon", "sketch")
DOMAINNET = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TEN = ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra")
"""The classes of DomainNet that the papers use."""

Picture = tuple[Tree, str]


def mnist_m(paths: Sequence[Path], side: int | None) -> Dataset:
    """MNIST-M from a training and a test part: zips with a label list in each, or two folders and then their lists."""
    lists = paths[2:] or (None, None)
    train, test = (_listed(Tree(path), labels, side or SIDE) for path, labels in zip(paths[:2], lists, strict=True))
    return Dataset.of("mnist-m", train, test, "0123456789")


def _listed(tree: Tree, labels: Path | None, side: int) -> Samples:
    """Pictures of a list `name label`."""
    if labels is None:
        lists = [name for name in tree.names if name.endswith("labels.txt")]
        if not lists:
            raise damaged(tree.path, "it holds no list of labels, ..._labels.txt")
        lines = tree.lines(lists[0])
    else:
        lines = _lines(labels)
    where = {PurePosixPath(name).name: name for name in tree.pictures()}
    rows = []
    for line in lines:
        name, _, label = line.strip().rpartition(" ")
        if name not in where:
            raise damaged(tree.path, f"the line {line!r} of its list does not name a picture of it")
        rows.append(((tree, where[name]), label, 0))
    return _samples(rows, "0123456789", side)


def office_caltech10(paths: Sequence[Path], side: int | None) -> Dataset:
    """Office-Caltech10 from a folder or zip of each domain, `class/picture`; RethinkFL's split."""
    found = _by_domain(paths, OFFICE, {"caltech10": "caltech"})
    parts = [_eight_of_ten(pictures) for pictures in found]
    return _dataset("office-caltech10", parts, OFFICE, _classes(found), side)


def pacs(paths: Sequence[Path], side: int | None) -> Dataset:
    """PACS from a folder or zip with `domain/class/picture`, then its training and test lists, if there are these."""
    found = _by_domain(paths[:1], PACS)
    parts = [_eight_of_ten(pictures) for pictures in found] if not paths[1:] else _by_lists(found, paths[1:])
    return _dataset("pacs", parts, PACS, _classes(found), side)


def domainnet(paths: Sequence[Path], side: int | None) -> Dataset:
    """Ten classes of DomainNet from a folder or zip of each domain, then its training and its test lists."""
    found = _by_domain(paths[: len(DOMAINNET)], DOMAINNET)
    return _dataset("domainnet", _by_lists(found, paths[len(DOMAINNET) :], TEN), DOMAINNET, TEN, side)


def tiny_imagenet(paths: Sequence[Path], side: int | None) -> Dataset:
    """Tiny ImageNet from its folder or zip; its validation part is the test part."""
    tree = Tree(paths[0])
    where = {"/".join(name.split("/")[-4:]): name for name in tree.pictures()}
    train: dict[str, list[str]] = {}
    for tail, name in where.items():
        if tail.startswith("train/"):
            train.setdefault(tail.split("/")[1], []).append(name)
    classes = sorted(train)
    lists = [name for name in tree.names if name.endswith("val/val_annotations.txt")]
    if not train or not lists:
        raise damaged(paths[0], "it has no train/CLASS/images or no val/val_annotations.txt")
    folder = lists[0].removesuffix("val_annotations.txt")
    rows = [line.split("\t") for line in tree.lines(lists[0])]
    held = [((tree, f"{folder}images/{row[0]}"), row[1] if row[1:] else "") for row in rows]
    given = [((tree, name), label) for label in classes for name in train[label]]
    parts = [[(picture, label, 0) for picture, label in part] for part in (given, held)]
    train_samples, test_samples = (_samples(part, classes, side or 64) for part in parts)
    return Dataset.of("tiny-imagenet", train_samples, test_samples, classes)


def folder(paths: Sequence[Path], side: int | None) -> Dataset:
    """A user's own pictures, `class/picture` or `domain/class/picture`, below `train` and `test` if there are these."""
    place = str(paths[0])
    if not paths[0].is_dir() and not is_zipfile(paths[0]):
        raise UserError("PATH", place, "it is neither a folder nor a zip file")
    tree = Tree(paths[0])
    names = tree.pictures()
    if not names:
        raise UserError("PATH", place, "it has no pictures", hint=f"pictures are {', '.join(sorted(SUFFIXES))}")
    files = arranged(tree, names, "pictures")
    classes = sorted({file.label for file in files})
    domains = sorted({file.domain for file in files})
    rows = {
        half: [((tree, file.name), file.label, domains.index(file.domain)) for file in files if file.half == half]
        for half in ("train", "test")
    }
    train, test = (_samples(part, classes, side or SIDE) for part in rows.values())
    if not len(test):
        train, test = fifth_out(train)
    if not len(test):
        raise UserError("PATH", place, "every fifth of a class is for testing, and no class has five")
    names = domains if domains[0] else [paths[0].name]
    return Dataset.of(paths[0].name, interleaved(train), interleaved(test), classes, names)


def _by_domain(paths: Sequence[Path], domains: Sequence[str], alias: Mapping[str, str] = {}) -> list[list[Picture]]:
    """The pictures of each domain in order: the last folders are domain and class, or a zip's name is the domain."""
    found: dict[str, list[Picture]] = {domain: [] for domain in domains}
    for path in paths:
        tree = Tree(path)
        for name in tree.pictures():
            parts = f"{path.stem}/{name}".split("/")
            domain = parts[-3] if len(parts) > 2 else ""
            found.get(alias.get(domain, domain), []).append((tree, name))
    for domain, pictures in found.items():
        if not pictures:
            raise damaged(paths[0], f"no pictures of the domain {domain}")
    return list(found.values())


def _classes(found: Iterable[list[Picture]]) -> list[str]:
    return sorted({PurePosixPath(name).parent.name for pictures in found for _, name in pictures})


def _eight_of_ten(pictures: list[Picture]) -> tuple[list[Picture], list[Picture]]:
    """In their order, eight for training and two for testing, and so on (RethinkFL)."""
    numbered = list(enumerate(pictures))
    return [p for i, p in numbered if i % 10 < 8], [p for i, p in numbered if i % 10 >= 8]


def _by_lists(
    found: Sequence[list[Picture]], lists: Sequence[Path], classes: Sequence[str] | None = None
) -> list[tuple[list[Picture], list[Picture]]]:
    """Each domain's pictures as the training lists of all, then the test lists of all, say."""
    train, test = lists[: len(found)], lists[len(found) :]
    return [
        (_chosen(pictures, first, classes), _chosen(pictures, second, classes))
        for pictures, first, second in zip(found, train, test, strict=True)
    ]


def _chosen(pictures: list[Picture], path: Path, classes: Sequence[str] | None) -> list[Picture]:
    """Those that the lines `domain/class/picture number` of a list name, in its order, of some classes or of all."""
    where = {"/".join(f"{tree.path.stem}/{name}".split("/")[-3:]): (tree, name) for tree, name in pictures}
    chosen = []
    for line in _lines(path):
        name = line.rpartition(" ")[0]
        if classes is None or PurePosixPath(name).parent.name in classes:
            if name not in where:
                raise damaged(path, f"there is no picture {name!r}")
            chosen.append(where[name])
    return chosen


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]


def _dataset(
    name: str,
    parts: Sequence[tuple[list[Picture], list[Picture]]],
    domains: Sequence[str],
    classes: Sequence[str],
    side: int | None,
) -> Dataset:
    """A dataset of each domain's training and test pictures, whose classes are their last folders."""
    halves = []
    for half in (0, 1):
        rows = [
            (picture, PurePosixPath(picture[1]).parent.name, domain)
            for domain, part in enumerate(parts)
            for picture in part[half]
        ]
        halves.append(interleaved(_samples(rows, classes, side or SIDE)))
    train, test = halves
    return Dataset.of(name, train, test, classes, domains)


def _samples(rows: Sequence[tuple[Picture, str, int]], classes: Sequence[str], side: int) -> Samples:
    """Samples of pictures, each with its class and its domain's number."""
    number = {label: i for i, label in enumerate(classes)}
    images = torch.empty(len(rows), 3, side, side, dtype=torch.uint8)
    labels = torch.empty(len(rows), dtype=torch.int64)
    for i, ((tree, name), label, _) in enumerate(rows):
        if label not in number:
            raise damaged(f"{tree.path}/{name}", f"{label!r} is not one of the {len(classes)} classes")
        images[i], labels[i] = tree.picture(name, side), number[label]
    return Samples(images, labels, torch.tensor([domain for *_, domain in rows], dtype=torch.int64))
