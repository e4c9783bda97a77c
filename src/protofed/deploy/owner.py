"""client.yaml, without torch: what the owner of a client says, and what of an experiment it does not allow."""

from __future__ import annotations

import dataclasses
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from protofed.deploy.server_settings import elsewhere
from protofed.errors import RefusedError, UserError, unknown
from protofed.experiment import BY, INDICES, KINDS, TABLE, Experiment, kind_of
from protofed.internal.schema import Bounds, made
from protofed.internal.yaml_files import read_yaml

T = TypeVar("T")
PARTS = ("weights", "prototypes", "numbers", "sums")
"""What an upload may hold."""
SENT = (*PARTS, "accuracies", "metrics")
"""What may leave a client."""
CHOOSES_DATA = ("train_size", "long_tail", "val_fraction", "unseen", "test_fraction", *TABLE)
"""Options by which an experiment takes a part of a client's samples: two parts that differ by one would show it,
and a column that is named the label has its values sent."""
NOT_IN_FILE = ("key", "simulated")
PLACES = ("id", "server", "data", "columns", "data_dir", "public", "device", "threads", "memory")
"""Keys that say which client this is and where things are; the others are what it may be asked for."""


def _key(default: T, text: str, example: str = "", **bounds: float) -> T:
    return field(default=default, metadata={"help": text, "example": example, "bounds": Bounds(**bounds)})


@dataclass(frozen=True)
class Owner:
    """What the owner of a client says: which client it is, what data it has, and what it may be asked for."""

    id: int = field(metadata={"help": "Which client this is.", "bounds": Bounds(at_least=0)})
    server: str | None = _key(None, "Where the server is.", "server.example.org:9092")
    data: str | None = _key(
        None,
        "A folder of images, an npz, CSV or Parquet file, or a dataset's name; `deploy client --data` says it too. "
        "Without it, this client takes its part of the experiment's dataset, which may be a name but no path.",
        "/path/to/images",
    )
    columns: Mapping[str, str] = field(
        default_factory=dict,
        metadata={
            "help": "Of a table, which column is what, by the names of the options: label, drop, missing and so on.",
            "example": "{label: ill, drop: name}",
            "bounds": Bounds(),
        },
    )
    data_dir: str | None = _key(None, "Where the files of datasets are that are named.", "/path")
    public: str | None = _key(
        None, "Public images, for methods that exchange some; in place of those that the server names.", "digit-domains"
    )
    methods: tuple[str, ...] | None = _key(
        None, "Which may be run; any of protofed's own, unless given. Code of a method, model or split must be listed.",
        "[fedproto, mp-fedcl]",
    )  # fmt: skip
    send: tuple[str, ...] = _key(
        SENT,
        "What may leave: of weights, prototypes, numbers, sums, accuracies, metrics (of a test, with accuracies).",
        "[prototypes, numbers]",
    )
    secure: Literal["optional", "required"] = _key(
        "optional", "required: uploads leave under the masks of secure aggregation alone.", "required"
    )
    turns: int = _key(
        1_000_000, "Turns of one run at most, as this client counts them; and as many tests.", "200", at_least=1
    )
    turns_per_day: int = _key(
        1_000_000, "Turns of all runs in a day at most (UTC); and as many tests.", "500", at_least=1
    )
    megabytes: float = _key(1000.0, "Of one message at most, in or out.", "100", above=0)
    megabytes_per_day: float = _key(1_000_000.0, "Sent in a day at most (UTC).", "2000", above=0)
    min_samples: int = _key(10, "Training on fewer samples is refused: little hides one among few.", "50", at_least=1)
    min_batch: int = _key(8, "A smaller batch is refused, a last one too: one of one image shows it.", "16", at_least=1)
    max_epochs: int = _key(100, "Local epochs of a turn at most.", "10", at_least=1)
    min_count: int = _key(0, "An experiment whose min_count is smaller is refused.", "5", at_least=0)
    clip: float | None = _key(
        None, "What a turn changes is scaled to this norm at most, before it is sent.", "1.0", above=0
    )
    noise: float = _key(0.0, "Gaussian noise on what is sent, as a multiple of clip.", "0.5", at_least=0)
    disk_megabytes: float = _key(10_000.0, "What is kept of all runs together at most.", "1000", above=0)
    keep_days: float = _key(
        90.0, "After so many days without a message what is kept of a run is deleted.", "365", above=0
    )
    device: str = _key("cpu", "What it trains on.", "cuda")
    threads: int | None = _key(None, "CPU threads.", "1", at_least=1)
    memory: str | None = _key(None, "Folder of what is kept between rounds; beside client.yaml, unless given.", "/path")
    key: str | None = None  # the file of its own private key
    simulated: bool = False  # all clients are on one machine, and its user names files

    @classmethod
    def read(cls, path: Path) -> Owner:
        """From a client.yaml; whether its data is there is for `with_data` to see.

        Raises:
            UserError: a key is unknown, or its value not usable.
        """
        given = {"memory": str(path.parent / "memory"), **read_yaml(path)}
        says = made(str(path), cls, given, key=str(path.parent / "key"), simulated=False)
        for item in keys():
            item.metadata["bounds"].check(f"{item.name} in {path}", getattr(says, item.name))
        for part in says.send:
            if part not in SENT:
                raise unknown(f"send in {path}", part, SENT)
        for name in says.columns:
            if name not in TABLE:
                raise unknown(f"columns in {path}", name, TABLE)
        if says.noise and says.clip is None:
            raise UserError(f"noise in {path}", says.noise, "it is a multiple of clip, which must be given too")
        return says

    def with_data(self, data: str | None) -> Owner:
        """With this data in place of what client.yaml names, if it is given; either must be there.

        Raises:
            UserError: there is no such file, folder or dataset.
        """
        named = {"data": self.data if data is None else data, "public": self.public}
        flags = {"data": "data in client.yaml" if data is None else "--data", "public": "public in client.yaml"}
        found: dict[str, Any] = {name: dataset_at(flags[name], said) for name, said in named.items() if said}
        return replace(self, **found)

    def objections(self, experiment: Experiment) -> list[str]:
        """What an experiment asks for that the owner does not allow, each in a few words."""
        found = [*self.named_files(experiment), *self._not_allowed(experiment)]
        if self.methods is not None and experiment.method not in self.methods:
            found.append(f"method {experiment.method}: {', '.join(self.methods)} may be run")
        if self.secure == "required" and not experiment.secure:
            found.append("no secure aggregation: it is required")
        if experiment.rounds > self.turns and experiment.participation == 1:
            found.append(f"{experiment.rounds} rounds: {self.turns} turns of a run are allowed")
        for name, value, least in (
            ("batch_size", experiment.batch_size, self.min_batch),
            ("min_count", experiment.min_count, self.min_count),
        ):
            if value < least:
                found.append(f"{name} {value}: it must be {least} or more")
        return found

    def check(self, experiment: Experiment) -> None:
        """Refuse what is not allowed."""
        refuse(self.objections(experiment))

    def epoch_objections(self, number: int) -> list[str]:
        """To a turn of so many epochs in all its phases."""
        return [f"{number} epochs: {self.max_epochs} are allowed"] if number > self.max_epochs else []

    def sample_objections(self, number: int, experiment: Experiment) -> list[str]:
        """To training on few samples, or too often on them; how many there are is not said."""
        found = [f"it would train on fewer than {self.min_samples} samples"] if number < self.min_samples else []
        batches = -(-number // experiment.batch_size)
        if experiment.steps is not None and experiment.steps > self.max_epochs * batches:
            found.append(f"{experiment.steps} steps: {self.max_epochs} epochs are allowed")
        return found

    def size_objections(self, number: int, what: str = "a message") -> list[str]:
        """To a message of so many bytes, in or out."""
        large = number > self.megabytes * 1e6
        return [f"{what} of {number / 1e6:.3g} MB: {self.megabytes:g} MB are allowed"] if large else []

    def part_objections(self, parts: Sequence[str]) -> list[str]:
        """To sending what may not be sent."""
        return [f"{part} may not be sent" for part in parts if part not in self.send]

    def _not_allowed(self, experiment: Experiment) -> list[str]:
        """Options that no run over a network has, or that would take a part of this client's own samples."""
        found = [f"{name} {getattr(experiment, name)}: not over a network" for name in elsewhere(experiment)]
        if self.data is not None and not self.simulated:
            chosen = [name for name in CHOOSES_DATA if getattr(experiment, name) != getattr(Experiment, name)]
            found += [f"{name} {getattr(experiment, name)}: its own data is trained on whole" for name in chosen]
        return found

    def named_files(self, experiment: Experiment) -> list[str]:
        """Files of this machine that an experiment names: the server is not to know, or choose, what is here."""
        if self.simulated:
            return []
        split = "" if experiment.split.startswith((BY, INDICES)) else experiment.split
        code = [name for name in (experiment.method, split, *experiment.model.split(",")) if ":" in name]
        found = [f"the code of {name}: it is not listed under methods" for name in code if name not in self._listed()]
        named = {} if self.data is not None else {"dataset": experiment.dataset}
        named |= {} if self.public is not None else {"public": experiment.public or ""}
        named |= {"split": experiment.split} if experiment.split.startswith(INDICES) else {}
        found += [f"{name} {value}: a server names no path" for name, value in named.items() if ":" in value]
        return found

    def _listed(self) -> Sequence[str]:
        return self.methods or ()


def refuse(objections: Sequence[str]) -> None:
    """Refuse what there are objections to; all of them are said."""
    if objections:
        raise RefusedError("; ".join(objections))


def keys() -> list[dataclasses.Field[Any]]:
    """What client.yaml may say, in the order of the file."""
    return [item for item in dataclasses.fields(Owner) if item.name not in NOT_IN_FILE]


def template(number: int, server: str) -> str:
    """A client.yaml that names every key; what is not given yet is commented out."""
    lines = [
        "# What this client is and allows; checked when it starts, and held against every message (docs/deployment.md)."
    ]
    lines.append(yaml.safe_dump({"id": number, "server": server}).strip())
    for item in keys():
        if item.name not in ("id", "server"):
            lines += ["", *textwrap.wrap(item.metadata["help"], 110, initial_indent="# ", subsequent_indent="# ")]
            default = item.default if isinstance(item.default, str | int | float) else None
            shown = item.metadata["example"] if default is None else yaml.safe_dump(default).splitlines()[0]
            lines.append(f"#{item.name}: {shown}")
    return "\n".join(lines) + "\n"


def dataset_at(argument: str, data: str) -> str:
    """A path as the dataset that it is, with or without its kind; the name of a dataset as it is."""
    if kind := re.fullmatch(f"({'|'.join(KINDS)}):(.*)", data):
        return f"{kind[1]}:{_there(argument, kind[2])}"
    if "/" not in data and "." not in data:
        from protofed.data import DATASETS  # and torch, which who only reads client.yaml has no use for

        if data in DATASETS:
            return data
        if not Path(data).exists():
            raise unknown(argument, data, DATASETS, see="protofed datasets")
    path = _there(argument, data)
    return f"{kind_of(argument, path)}:{path}"


def _there(argument: str, path: str) -> Path:
    """A client whose own data is not there would be online, and fail in every run."""
    try:
        return Path(path).resolve(strict=True)
    except (OSError, ValueError):
        raise UserError(argument, path, f"there is no {path}") from None
