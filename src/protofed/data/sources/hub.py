"""Datasets of the package `datasets`: from its cache, the hub, or a folder; no code of a dataset is ever run."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from protofed.data.corpus import Corpus, Text
from protofed.data.holdout import fifth_out, interleaved
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.archives import decode
from protofed.data.sources.image_files import SIDE
from protofed.data.sources.table_files import AT_ONCE, TableFile
from protofed.data.sources.tables import TableOptions, dataset_from, label_among, rows_of
from protofed.data.text_encoding import Tokenising
from protofed.errors import UserError, listed, missing_value

READERS = ("arrow", "cache", "csv", "imagefolder", "json", "parquet", "text")
"""Parts of the package that read files; others may unpickle what they find."""
PART = "(part)"
"""A column that says of which part a row is."""
INSTALL = "pip install 'protofed[hf]'"


@dataclass(frozen=True)
class Hub:
    """The parts of a dataset, maybe with one for testing, and which of its columns is what."""

    name: str
    parts: dict[str, Any]  # train and maybe test, each a datasets.Dataset
    options: TableOptions
    roles: dict[str, str]

    @property
    def features(self) -> Any:
        """What the package says of the columns."""
        return self.parts["train"].features

    @property
    def columns(self) -> list[str]:
        """What a model sees."""
        return [name for name, role in self.roles.items() if role in ("feature", "category")]

    @property
    def key(self) -> str:
        """What tells it from another dataset: the package's own checksums."""
        said = [part._fingerprint for part in self.parts.values()]
        return hashlib.blake2b(f"{said}{self.options}".encode(), digest_size=16).hexdigest()

    def decoded(self, side: int | None, how: Tokenising) -> Dataset:
        """Pictures, text, or the rows of a table, by what the columns hold."""
        kinds = {name: _kind(self.features[name]) for name in self.columns}
        if "other" in kinds.values():
            name = next(name for name, kind in kinds.items() if kind == "other")
            why = f"its column {name!r} holds {self.features[name]}, and a model may see pictures, text and numbers"
            raise UserError("--dataset", self.name, why, hint=f"--drop {name}")
        pictures = [name for name, kind in kinds.items() if kind == "picture"]
        if not pictures and [*kinds.values()] != ["text"]:
            return self._table()
        if self.options.test_column is not None:
            raise UserError("--test-column", self.options.test_column, "it is for tables")
        if len(pictures) > 1:
            hint = f"--drop {','.join(pictures[1:])}"
            raise UserError(
                "--dataset", self.name, f"it has several columns of pictures: {listed(pictures)}", hint=hint
            )
        return self._pictures(pictures[0], side or SIDE) if pictures else self._corpus().encoded(how, self._short)

    @property
    def _short(self) -> str:
        return Path(self.name).name

    def _table(self) -> Dataset:
        names = (*self.parts["train"].column_names, PART)
        halved = len(self.parts) > 1 and self.options.test_column is None
        options = dataclasses.replace(self.options, test_column=PART) if halved else self.options
        file = TableFile(names if halved else names[:-1], self._rows(halved))
        return dataset_from(rows_of(Path(self._short), file, options))

    def _rows(self, halved: bool) -> Iterator[Sequence[Sequence[object]]]:
        for half, part in self.parts.items():
            names = {name: _names(part.features[name]) for name in part.column_names}
            for start in range(0, len(part), AT_ONCE):
                some = part[start : start + AT_ONCE]
                columns = [_named(some[name], told) for name, told in names.items()]
                yield [*columns, [half] * len(columns[0])] if halved else columns

    def _told(self, half: str, role: str) -> list[str]:
        """The classes or the domains of a part, by name; "" where there are none."""
        part, name = self.parts[half], next((name for name, is_a in self.roles.items() if is_a == role), None)
        if name is None:
            return [""] * len(part)
        told = _named(part[:][name] if len(part.column_names) == 1 else part[name][:], _names(part.features[name]))
        if None in told:
            why = f"row {told.index(None) + 1} of its {half} part has no {role}"
            raise UserError("--dataset", self.name, why)
        return [str(one) for one in told]

    def _corpus(self) -> Corpus:
        (column,) = self.columns
        halves: dict[str, list[Text]] = {"train": [], "test": []}
        for half, part in self.parts.items():
            for row, (text, *about) in enumerate(
                zip(part[column][:], self._told(half, "label"), self._told(half, "domain"), strict=True), 1
            ):
                if not text or not text.strip():
                    raise UserError("--dataset", self.name, f"the text in row {row} of its {half} part is empty")
                halves[half].append(Text(text, *about))
        return Corpus(Path(self.name), halves["train"], halves["test"])

    def _pictures(self, column: str, side: int) -> Dataset:
        import datasets

        told = {role: [one for half in self.parts for one in self._told(half, role)] for role in ("label", "domain")}
        names = {role: sorted(set(some), key=_place(self._class_names(role))) for role, some in told.items()}
        numbers = {role: {name: place for place, name in enumerate(some)} for role, some in names.items()}
        images = torch.empty(len(told["label"]), 3, side, side, dtype=torch.uint8)
        row = 0
        for half, part in self.parts.items():
            for number, one in enumerate(part.cast_column(column, datasets.Image(decode=False))[column], 1):
                images[row] = decode(self._content(one, f"row {number} of its {half} part"), side, f"row {number}")
                row += 1
        labels, domains = (torch.tensor([numbers[role][name] for name in told[role]]) for role in ("label", "domain"))
        samples, cut = Samples(images, labels, domains), len(self.parts["train"])
        if len(self.parts) > 1:
            train, test = samples.take(torch.arange(cut)), samples.take(torch.arange(cut, len(samples)))
        else:
            train, test = fifth_out(samples)
        if not len(test):
            raise UserError("--dataset", self.name, "every fifth of a class is for testing, and no class has five")
        several = names["domain"] if len(names["domain"]) > 1 else ()
        train, test = (interleaved(half) if several else half for half in (train, test))
        return Dataset.of(self._short, train, test, names["label"], several)

    def _class_names(self, role: str) -> Sequence[str]:
        name = next((name for name, is_a in self.roles.items() if is_a == role), None)
        return (None if name is None else _names(self.features[name])) or ()

    def _content(self, one: Any, where: str) -> bytes:
        """The bytes of a picture, which lie in the table or in a file."""
        if one is None or (one["bytes"] is None and not Path(one["path"] or "").is_file()):
            raise UserError("--dataset", self.name, f"{where} has no picture")
        content: bytes = one["bytes"] or Path(one["path"]).read_bytes()
        return content


def hub(name: str, options: TableOptions) -> Hub:
    """A dataset by its name on the hub, NAME or NAME/CONFIG, or a folder or file: nothing is decoded yet.

    Raises:
        UserError: the package is missing, the dataset is not there, or not one that can be read without running code.
    """
    try:
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        import datasets
    except ImportError:
        raise UserError("--dataset", f"hf:{name}", "it needs the package datasets", hint=INSTALL) from None
    datasets.disable_progress_bars()
    datasets.logging.set_verbosity_error()
    try:
        found = _folder(datasets, Path(name)) if Path(name).exists() else _named_one(datasets, name)
    except UserError:
        raise
    except Exception as error:  # whatever the package stumbles over
        raise _failed(name, error) from None
    parts = _halves(name, found, options)
    features = parts["train"].features
    if options.label is None:
        classes = [column for column, feature in features.items() if _names(feature)]
        if len(classes) > 1:
            raise missing_value("--label", f"name the column of the classes: it has {listed(classes)}")
        label = classes[0] if classes else label_among(Path(name), [*features], None)
        options = dataclasses.replace(options, label=label)
    return Hub(name, parts, options, options.roles(Path(name), [*features]))


def _failed(name: str, error: Exception) -> UserError:
    """One line of what went wrong in the package."""
    why = " ".join(str(error).split())[:200]
    kind, hint = type(error).__name__, None
    if "script" in why.lower():
        why = "it is made by a script, which is code and is not run"
    elif isinstance(error, ConnectionError | FileNotFoundError | OSError) or "NotFound" in kind or "Offline" in kind:
        why = f"it is neither in the cache of the package datasets nor to be had: {why}"
        hint = "without a network, fetch it on another machine and copy ~/.cache/huggingface, or `save_to_disk` it"
    else:
        why = f"it cannot be read: {why}"
    return UserError("--dataset", f"hf:{name}", why, hint=hint)


def _folder(datasets: Any, path: Path) -> Any:
    """What `save_to_disk` wrote, or the arrow or parquet files of a folder, or one such file."""
    if path.is_dir() and ((path / "dataset_dict.json").is_file() or (path / "state.json").is_file()):
        return datasets.load_from_disk(str(path))
    every = [path] if path.is_file() else sorted(path.rglob("*"))
    for suffix in ("parquet", "arrow"):
        files = [file for file in every if file.suffix == f".{suffix}"]
        if files:
            halves = {half: [str(file) for file in files if half in file.stem.lower()] for half in ("train", "test")}
            named = halves if all(halves.values()) else {"train": [str(file) for file in files]}
            return datasets.load_dataset(suffix, data_files=named)
    why = "there is neither what save_to_disk wrote nor a .parquet or .arrow file"
    raise UserError("--dataset", f"hf:{path}", why)


def _named_one(datasets: Any, name: str) -> Any:
    """A dataset by name; of two or three parts the last may be a configuration."""
    head, _, config = name.rpartition("/")
    tries = [(name, None)] if name.count("/") < 2 else []
    errors = []
    for place, chosen in [*tries, (head, config)] if head else tries:
        try:
            builder = datasets.load_dataset_builder(place, chosen)
            break
        except Exception as error:  # whatever the package stumbles over
            errors.append(error)
    else:  # a wrong configuration says more than that there is nothing of the whole name
        raise next((error for error in errors if isinstance(error, ValueError)), errors[0])
    kind = type(builder).__module__.split(".")
    if kind[:2] != ["datasets", "packaged_modules"] or kind[2] not in READERS:
        raise UserError("--dataset", f"hf:{name}", f"it is read by {kind[-1]}; only {listed(READERS)} are run")
    builder.download_and_prepare()
    return builder.as_dataset()


def _halves(name: str, found: Any, options: TableOptions) -> dict[str, Any]:
    """What is for training and, if there is such a part, for testing: test, or validation where test has no classes."""
    if not isinstance(found, dict):
        return {"train": found}
    if "train" not in found and len(found) > 1:
        raise UserError("--dataset", f"hf:{name}", f"it has the parts {listed([*found])}, and none is named train")
    train = found.get("train") or next(iter(found.values()))
    label = options.label or next((one for one, feature in train.features.items() if _names(feature)), None)
    for half in ("test", "validation"):
        part = found.get(half)
        if part is None or part is train or part.column_names != train.column_names or not len(part):
            continue
        if label in part.column_names and _names(part.features[label]) and min(part[label][:]) < 0:
            continue  # a contest's, whose classes are kept back
        return {"train": train, "test": part}
    return {"train": train}


def _kind(feature: Any) -> str:
    import datasets

    if isinstance(feature, datasets.Image):
        return "picture"
    if isinstance(feature, datasets.ClassLabel):
        return "number"
    kind = getattr(feature, "dtype", "") if isinstance(feature, datasets.Value) else ""
    if kind in ("string", "large_string"):
        return "text"
    return "number" if kind.startswith(("int", "uint", "float", "bool")) else "other"


def _names(feature: Any) -> list[str] | None:
    """The names of a column of classes."""
    return getattr(feature, "names", None) or None


def _named(values: Sequence[Any], names: Sequence[str] | None) -> list[Any]:
    """Classes by name, as other columns have theirs."""
    if names is None:
        return list(values)
    return [None if one is None or one < 0 else names[one] for one in values]


def _place(names: Sequence[str]) -> Callable[[str], tuple[int, str]]:
    """Classes in the order that the dataset gives them; others by name."""
    return lambda name: (names.index(name) if name in names else 0, name)
