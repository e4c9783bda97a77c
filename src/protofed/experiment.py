"""What is run: one frozen dataclass, from flags, YAML or Python. Defaults live here and nowhere else."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import yaml

from protofed.errors import UserError, unknown
from protofed.internal.schema import check_type

T = TypeVar("T")

LARGEST_SIDE = 1024
"""Pixels of an image's side: more is a typing error, which would take all memory."""


def _option(default: T, text: str) -> T:
    """A field with its help text, which the command line shows."""
    return field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class Experiment:
    """A federated experiment: method, data, split, model, training."""

    method: str = _option("mp-fedcl", "Method: a name that `protofed methods` lists, or path/to/file.py:ClassName.")
    params: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "Parameters of the method."})
    dataset: str = _option(
        "digits", "Dataset that `protofed datasets` lists; several joined with + share only prototypes."
    )
    data_dir: str | None = _option(None, "Folder with the dataset's files, or with a folder named after the dataset.")
    public: str | None = _option(None, "Dataset of public, unlabelled images, for methods that need one.")
    train_size: int | None = _option(None, "Use only the first so many training images.")
    image_size: int | None = _option(None, "Resize images to this side; photographs are 32 unless given.")
    normalise: Literal["dataset", "imagenet"] = _option(
        "dataset", "Whose mean and std pixels are normalised with: the dataset's own or ImageNet's."
    )
    augment: Literal["none", "crop", "crop-flip", "rethinkfl"] = _option(
        "none", "Training images are cropped and mirrored at random; rethinkfl also takes ImageNet's mean and std."
    )
    split: Literal["iid", "dirichlet", "nid1", "ways", "ways-packed", "domains", "quantity", "nid2"] = _option(
        "dirichlet", "How training data is divided among clients; `protofed split` shows it."
    )
    alpha: float = _option(0.1, "Concentration of the Dirichlet draws (dirichlet, quantity): small is unequal.")
    min_size: int = _option(10, "Least number of samples of a client (dirichlet, quantity).")
    balance: bool = _option(True, "A client that has its share gets nothing of the next classes (dirichlet).")
    ways: int = _option(3, "Mean number of classes of a client (ways).")
    half_width: int = _option(2, "Classes of a client vary by so many around --ways (ways).")
    shots: int = _option(100, "Mean number of samples of a class at a client (ways).")
    test_shots: int = _option(40, "Images of each of its classes in a client's own test set (ways).")
    long_tail: float | None = _option(None, "Ratio rho of the largest to the smallest class; combines with any split.")
    drift: Literal["none", "sudden", "gradual"] = _option(
        "none", "What clients hold changes into what the same split gives with another seed."
    )
    drift_round: int | None = _option(None, "First round of what follows a sudden drift; the middle unless given.")
    novel: int = _option(0, "The last so many classes are kept from training; few-shot episodes are played on them.")
    episode_ways: int = _option(5, "Novel classes in an episode.")
    episode_shots: int = _option(5, "Examples of each class in an episode; 15 further images of each are told apart.")
    episodes: int = _option(600, "Episodes at each evaluation, always the same ones.")
    val_fraction: float = _option(0.0, "Part of each client's training data held out for validation.")
    clients: int = _option(5, "Number of clients.")
    participation: float = _option(1.0, "Part of the clients that take part in a round.")
    model: str = _option(
        "mlp", "Model that `protofed models` lists, or path/to/file.py:Name; several, comma-separated, are dealt out."
    )
    start: str | None = _option(None, "Initial weights (safetensors), by name and shape; stem and head are drawn anew.")
    encoder: str | None = _option(None, "Frozen encoder (safetensors): models see its features instead of images.")
    defence: str = _option(
        "none", "Robust aggregation that `protofed defences` lists, before the method's own; several, comma-separated."
    )
    attack: str = _option("none", "What attackers do, for experiments: a name that `protofed attacks` lists.")
    attackers: float = _option(0.2, "Part of the clients that attack, with --attack.")
    privacy: Literal["none", "client", "example"] = _option(
        "none", "Differential privacy of a whole client, or of each of its training examples; see also --noise."
    )
    clip: float | None = _option(None, "Largest norm of what a client, or an example, adds to a sum (--privacy).")
    noise: float = _option(0.0, "Standard deviation of the noise as a multiple of --clip (--privacy).")
    epsilon: float | None = _option(None, "Privacy budget: stop before the round that would exceed it (--privacy).")
    delta: float = _option(1e-5, "Chance with which --epsilon may not hold (--privacy).")
    min_count: int = _option(0, "Prototypes of fewer samples never leave a client.")
    secure: bool = _option(False, "Secure aggregation: the server learns only sums (over a network).")
    rounds: int = _option(60, "Communication rounds.")
    epochs: int = _option(1, "Local epochs in a round.")
    batch_size: int = _option(32, "Local batch size.")
    lr: float = _option(0.01, "Learning rate of local SGD.")
    lr_decay: float = _option(1.0, "Factor on the learning rate after each round.")
    momentum: float = _option(0.5, "Momentum of local SGD.")
    weight_decay: float = _option(0.0, "Weight decay of local SGD.")
    seed: int = _option(0, "Seed of splits, initial weights, batches, dropout and clustering.")
    engine: Literal["auto", "sequential", "stacked", "flower-sim"] = _option(
        "auto", "How clients are trained; all give the same results."
    )
    width: int | None = _option(None, "Clients in one batched step (stacked engine); all of a round, unless given.")
    device: str = _option("auto", "cpu, cuda or cuda:N; auto takes a GPU if there is one.")
    threads: int | None = _option(None, "CPU threads; unless given, all cores, shared by the runs of a comparison.")
    precision: Literal["float32", "float64", "tf32", "bf16"] = _option(
        "float32", "Arithmetic of the models; tf32 and bf16 keep weights and statistics in float32."
    )
    deterministic: bool = _option(False, "Only operations that repeat bit by bit on a GPU; slower.")
    eval_every: int = _option(1, "Rounds between evaluations; the last round is always evaluated.")
    time_budget: float | None = _option(None, "Stop after the round in which so many seconds have passed.")
    checkpoint_every: int = _option(1, "Rounds between checkpoints.")

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            checked = check_type(f"--{item.name.replace('_', '-')}", getattr(self, item.name), _hints()[item.name])
            object.__setattr__(self, item.name, checked)
        for name in self.params:
            check_type("--params", name, str)
        for name in (
            "clients",
            "rounds",
            "epochs",
            "batch_size",
            "checkpoint_every",
            "eval_every",
            "min_size",
            "ways",
            "shots",
            "test_shots",
            "episode_shots",
        ):
            self._require(name, getattr(self, name) >= 1, "it must be 1 or more")
        for name in ("lr", "lr_decay", "alpha"):
            self._require(name, getattr(self, name) > 0, "it must be above 0")
        for name in ("momentum", "weight_decay", "half_width", "novel", "seed"):
            self._require(name, getattr(self, name) >= 0, "it must be 0 or more")
        for name in ("episode_ways", "episodes"):
            self._require(name, getattr(self, name) >= 2, "it must be 2 or more")
        self._require("participation", 0 < self.participation <= 1, "it must be above 0 and at most 1")
        self._require("val_fraction", 0 <= self.val_fraction < 1, "it must be at least 0 and below 1")
        if self.drift_round is not None:
            self._require("drift_round", 2 <= self.drift_round <= self.rounds, "from 2 to --rounds: one before it")
            self._require("drift_round", self.drift == "sudden", "it is the round of --drift sudden")
        self._require("long_tail", self.long_tail is None or self.long_tail >= 1, "it must be 1 or more")
        for name in ("width", "threads"):
            self._require(name, getattr(self, name) is None or getattr(self, name) >= 1, "it must be 1 or more")
        sides = self.image_size is None or 1 <= self.image_size <= LARGEST_SIDE
        self._require("image_size", sides, f"it must be from 1 to {LARGEST_SIDE}")
        self._require("attackers", 0 < self.attackers < 1, "it must be above 0 and below 1")
        self._check_privacy()
        self._require("time_budget", self.time_budget is None or self.time_budget > 0, "it must be above 0 seconds")

    def _check_privacy(self) -> None:
        self._require("min_count", self.min_count >= 0, "it must be 0 or more")
        self._require("noise", self.noise >= 0, "it must be 0 or more")
        self._require("delta", 0 < self.delta < 1, "it must be above 0 and below 1")
        for name in ("clip", "epsilon"):
            self._require(name, getattr(self, name) is None or getattr(self, name) > 0, "it must be above 0")
        if self.privacy == "none":
            for name in ("clip", "noise", "epsilon", "delta"):
                unset = getattr(self, name) == getattr(Experiment, name)
                self._require(name, unset, "it is for --privacy client or --privacy example")
        self._require("noise", self.noise == 0 or self.clip is not None, "without --clip no noise is enough")
        self._require("epsilon", self.epsilon is None or self.noise > 0, "without --noise no budget is enough")

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise UserError(f"--{name.replace('_', '-')}", getattr(self, name), allowed)

    @property
    def hides_clients(self) -> bool:
        """Whether differential privacy is that of whole clients."""
        return self.privacy == "client"

    @property
    def hides_examples(self) -> bool:
        """Whether differential privacy is that of single training examples."""
        return self.privacy == "example"

    def to_yaml(self) -> str:
        """The experiment as YAML that `from_mapping` reads back."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Experiment:
        """An experiment from named values; a misspelt name is an error with a suggestion."""
        names = [item.name for item in dataclasses.fields(cls)]
        for name in values:
            if name not in names:
                raise unknown("configuration key", str(name), names)
        return cls(**values)


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """The experiment with the user's files and folders named so that they are found from any folder."""
    paths = {name: getattr(experiment, name) for name in ("data_dir", "encoder", "start")}
    named: dict[str, Any] = {name: str(Path(path).resolve()) for name, path in paths.items() if path is not None}
    named |= {"method": absolute_name(experiment.method)}
    for name, between in (("model", ","), ("dataset", "+"), ("public", "+")):
        if isinstance(words := getattr(experiment, name), str):
            named[name] = between.join(map(absolute_name, words.split(between)))
    return dataclasses.replace(experiment, **named)


def absolute_name(name: str) -> str:
    """A name of ours as it is; `file.py:Name`, `npz:PATH` and `folder:PATH` with the whole path."""
    if own := re.fullmatch(r"(npz|folder):(.+)", name):
        return f"{own[1]}:{Path(own[2]).resolve()}"
    if code := re.fullmatch(r"(.+\.py):(\w+)", name):
        return f"{Path(code[1]).resolve()}:{code[2]}"
    return name


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Experiment)
