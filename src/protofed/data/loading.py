"""A dataset by its name: from the catalogue, or a user's own folder or array file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch

from protofed.data.corpus import Corpus
from protofed.data.federation import Client, Federation
from protofed.data.holdout import interleaved
from protofed.data.images import resized
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.cache import cached, checksum
from protofed.data.sources.catalogue import DATASETS
from protofed.data.sources.download import fetch
from protofed.data.sources.files import Form, Source, lack, present, verify
from protofed.data.sources.hub import hub
from protofed.data.sources.image_files import folder
from protofed.data.sources.lines import beside
from protofed.data.sources.npz import npz
from protofed.data.sources.pfllib import partition, pooled
from protofed.data.sources.series import arff, ts
from protofed.data.sources.tables import TableOptions, table
from protofed.data.sources.texts import texts
from protofed.data.text_encoding import Tokenising
from protofed.errors import UserError, unknown
from protofed.experiment import KINDS, Experiment, kind_of
from protofed.internal.plugins import load_code

OWN: dict[str, Callable[[Sequence[Path], int | None], Dataset | Corpus]] = {
    "folder": folder,
    "npz": npz,
    "ts": ts,
    "arff": arff,
    "text": texts,
}
"""What reads a user's own data but tables."""
IN_TWO = ("ts", "arff", "text")
"""The kinds whose NAME_TEST may lie beside NAME_TRAIN."""
TABLES = ("csv", "parquet")
"""Kinds of a user's own tables."""
FEDERATION = "pfllib"
"""The kind of folders that hold a federation."""
HUB = "hf"
"""The kind of what the package `datasets` knows."""
GROUP = "protofed.datasets"
"""Entry points of packages that bring datasets along: functions that return a Dataset or a Federation."""


def load(
    name: str,
    data_dir: str | Path | None = None,
    train_size: int | None = None,
    image_size: int | None = None,
    columns: TableOptions | None = None,
    tokenising: Tokenising | None = None,
) -> Dataset:
    """Load a dataset by its name.

    Args:
        name: a name that `protofed datasets` lists, a kind and PATH (`folder:`, `npz:`, `csv:`, `parquet:`, `ts:`,
            `arff:`, `text:` or `hf:`), or `path/to/file.py:name`, a function that returns one.
        data_dir: the folder with the dataset's files, or with a folder named after the dataset.
        train_size: use only the first so many training samples; all unless given.
        image_size: resize images to this side; their own unless given.
        columns: which column of a table is what; as an Experiment has it unless given.
        tokenising: how text becomes token ids; as an Experiment has it unless given.

    Returns:
        The dataset: images uint8 [n, channels, height, width], rows of a table float32 [n, features], series float32
        [n, channels, steps], token ids of text int64 [n, length].

    Raises:
        UserError: there is no such dataset, its files are missing or damaged, or it has fewer training samples.

    Example:
        >>> from protofed.data import load
        >>> dataset = load("digits", train_size=120)
        >>> dataset.train.x.shape, len(dataset.test), len(dataset.classes)
        (torch.Size([120, 1, 8, 8]), 355, 10)
    """
    data_dir = None if data_dir is None else Path(data_dir)
    check_name(name)
    kind, _, path = name.partition(":")
    try:
        if is_made(name):
            dataset = _only_dataset(name, made_data(name))
            dataset = resized(dataset, image_size)
        elif path and kind in TABLES:
            dataset = _table(name, kind, Path(path), image_size, columns or TableOptions.of(Experiment()))
        elif path and kind == HUB:
            found = hub(path, columns or TableOptions.of(Experiment()))
            how = tokenising or Tokenising()
            key = _key(f"{kind}:{found.key}", [], image_size, how)
            dataset = cached(key, partial(found.decoded, image_size, how))
        elif path:
            dataset = _own(name, kind, Path(path), image_size, tokenising or Tokenising())
        elif DATASETS[name].parts:
            dataset = _together(name, DATASETS[name], data_dir, image_size)
        else:
            dataset = _one(name, DATASETS[name], data_dir, image_size, tokenising or Tokenising())
    except OSError as error:  # a folder where a file should be, or one that may not be read
        raise UserError("--dataset", name, f"its files cannot be read: {error.strerror or error}") from None
    if train_size is None:
        return dataset
    if not 1 <= train_size <= len(dataset.train):
        why = f"it must be from 1 to {len(dataset.train)}, the training samples of {name}"
        raise UserError("--train-size", train_size, why)
    return replace(dataset, train=dataset.train.take(torch.arange(train_size)))


def check_name(name: str, argument: str = "--dataset") -> None:
    """Refuse a name that is no dataset's; whether its files are there is not asked.

    Args:
        name: a name that `protofed datasets` lists, or a kind of a user's own data and its path, such as `folder:PATH`.
        argument: what gave the name.

    Raises:
        UserError: there is no such dataset; the error suggests the nearest name.

    Example:
        >>> from protofed.data import check_name
        >>> from protofed.errors import UserError
        >>> check_name("digits")
        >>> try:
        ...     check_name("digit")
        ... except UserError as error:
        ...     print(error)
        ...     print(error.hint)
        invalid value 'digit' for --dataset: there is none of that name
        did you mean 'digits'? `protofed datasets` lists them all
    """
    kind, _, path = name.partition(":")
    if name not in DATASETS and not (path and kind in KINDS) and not is_made(name):
        if Path(name).exists():
            hint = f"did you mean {kind_of(argument, Path(name))}:{name}?"
            raise UserError(argument, name, "a file or folder needs its kind before it", hint=hint)
        raise unknown(argument, name, (*DATASETS, *(f"{kind}:PATH" for kind in KINDS)), see="protofed datasets")


def is_made(name: str) -> bool:
    """Whether a name may be of a Federation: a function (`path/to/file.py:name`, or a package's), or a folder."""
    return ".py:" in name or name.startswith(f"{FEDERATION}:") or bool(entry_points(group=GROUP, name=name))


def made_data(name: str) -> Dataset | Federation:
    """What the function of this name returns, which is called with nothing, or what the folder holds."""
    if name.startswith(f"{FEDERATION}:"):
        return _partition(name, Path(name.partition(":")[2]))
    if points := entry_points(group=GROUP, name=name):
        make = next(iter(points)).load()
    else:
        make = load_code("--dataset", name)
    if not callable(make):
        raise UserError("--dataset", name, "it must be a function that returns a Dataset or a Federation")
    try:
        data = make()
    except UserError:
        raise
    except Exception as error:  # it is the user's own
        raise UserError("--dataset", name, f"calling it failed: {type(error).__name__}: {error}") from error
    if not isinstance(data, Dataset | Federation):
        raise UserError("--dataset", name, f"it must return a Dataset or a Federation, not {type(data).__name__}")
    return data


def _partition(name: str, folder: Path) -> Federation:
    """The clients of PFLlib's files, who test on all test samples, and each on its own."""
    train, test, classes = partition(_there(name, folder))
    pool, own = pooled(test)
    ids = pool.x.dtype == torch.int64
    tokens = 1 + max(int(part.x.max()) for part in (*train, *test)) if ids else 0
    preparation = Preparation(tokens=tokens)  # numbers were standardised before
    parts = zip(train, own, strict=True)
    return Federation(tuple(Client(samples, pool, rows, None, preparation) for samples, rows in parts), classes)


def _only_dataset(name: str, data: Dataset | Federation) -> Dataset:
    if isinstance(data, Federation):
        raise UserError("--dataset", name, "it is a Federation, which cannot be divided, joined or public")
    return data


def is_table(name: str) -> bool:
    """Whether a dataset of this name is a table, which has columns."""
    return name.partition(":")[0] in TABLES


def has_columns(name: str) -> bool:
    """Whether the options of tables say something of a dataset of this name."""
    return is_table(name) or name.startswith(f"{HUB}:")


def _table(name: str, kind: str, path: Path, side: int | None, columns: TableOptions) -> Dataset:
    """A user's own table."""
    path = _there(name, path)
    key = checksum(f"{kind}:{path.name}:{columns}", [path], side)
    return cached(key, lambda: resized(table(path, columns), side))


def _own(name: str, kind: str, path: Path, side: int | None, how: Tokenising) -> Dataset:
    """A user's own data."""
    path = _there(name, path)
    paths = [path, *(beside(path) if kind in IN_TWO else ())]

    def decode() -> Dataset:
        return _decoded(OWN[kind](paths, side), side, how, path.stem.removesuffix("_TRAIN"))

    return cached(_key(f"{kind}:{path.stem}", paths, side, how if kind == "text" else None), decode)


def _there(name: str, path: Path) -> Path:
    """The whole path of what is there; a shell leaves the ~ of csv:~/PATH as it is."""
    whole = path.expanduser()
    if not whole.exists():
        raise UserError("--dataset", name, f"there is no {path}")
    return whole.resolve()


def _key(name: str, paths: list[Path], side: int | None, how: Tokenising | None) -> str:
    """What a dataset is cached under; a tokenizer in a file counts by what the file holds."""
    if how is None:
        return checksum(name, paths, side)
    files = [Path(how.tokenizer)] if how.tokenizer.endswith(".json") else []
    return checksum(name, [*paths, *(file for file in files if file.is_file())], (side, how))


def _decoded(made: Dataset | Corpus, side: int | None, how: Tokenising, name: str) -> Dataset:
    """A dataset from what was read, with images of this side or token ids made in this way."""
    return resized(made.encoded(how, name) if isinstance(made, Corpus) else made, side)


def _one(name: str, source: Source, data_dir: Path | None, side: int | None, how: Tokenising) -> Dataset:
    """A dataset that is read from files, or made."""
    side = None if side == source.shape[-1] else side
    form, paths = present(name, source, data_dir) or fetch(name, source, data_dir)

    def decode() -> Dataset:
        for file, path in zip(form.files, paths, strict=True):
            verify(file, path)
        return _decoded(form.read(paths, side), side, how, name)

    return cached(_key(name, paths, side, how if source.text else None), decode)


def _together(name: str, source: Source, data_dir: Path | None, side: int | None) -> Dataset:
    """A dataset whose domains are datasets, in colour and of one size."""
    parts = [load(part, data_dir, None, side or source.shape[-1]) for part in source.parts]

    def every(samples: list[Samples]) -> Samples:
        return interleaved(
            Samples(
                torch.cat([part.x.expand(-1, 3, -1, -1) for part in samples]),
                torch.cat([part.labels for part in samples]),
                torch.arange(len(samples)).repeat_interleave(torch.tensor([len(part) for part in samples])),
            )
        )

    train, test = every([part.train for part in parts]), every([part.test for part in parts])
    return Dataset.of(name, train, test, parts[0].classes, source.domains)


def describe(data_dir: str | Path | None) -> list[dict[str, Any]]:
    """Describe each dataset as `protofed datasets` does; nothing is decoded.

    Args:
        data_dir: where files are looked for besides the usual folders; None for nowhere else.

    Returns:
        For each dataset its name, description, sizes, classes, shape, domains and terms, whether its files are present
        and, if not, the reason.

    Example:
        >>> from protofed.data import describe
        >>> first = describe(None)[0]
        >>> first["name"], first["train"], first["test"], first["shape"], first["present"]
        ('digits', 1442, 355, '1×8×8', True)
    """
    folder = None if data_dir is None else Path(data_dir)
    return [_about(name, source, folder) for name, source in DATASETS.items()]


def _about(name: str, source: Source, data_dir: Path | None) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name, "description": source.about}
    if source.parts:
        parts = [_about(part, DATASETS[part], data_dir) for part in source.parts]
        absent = [part["reason"] for part in parts if not part["present"]]
        notes = [f"{part['name']}: {part['note']}" for part in parts if part["note"]]
        row |= {size: sum(part[size] for part in parts) for size in ("train", "test")}
        row |= {"present": not absent, "note": "; ".join(notes), "reason": "; ".join(absent)}
    else:
        found = present(name, source, data_dir)
        form: Form = found[0] if found else source.forms[0]
        row |= {"train": form.train, "test": form.test, "present": found is not None, "note": form.note}
        row |= {"reason": "" if found else "; ".join(lack(name, source, data_dir))}
    shape = "×".join(str(side) for side in source.shape)
    return row | {"classes": source.classes, "shape": shape, "domains": source.domains, "terms": source.terms}
