"""What is run: one frozen dataclass, from flags, YAML or Python. Defaults live here and nowhere else."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, get_type_hints

import yaml

from protofed.errors import UserError, missing_value, unknown
from protofed.internal.plugins import WITH
from protofed.internal.schema import Bounds, check_type

__all__ = ["Experiment"]

T = TypeVar("T")

HELD_OUT = 0.2
"""Part of each client's training data that chooses in studies which choose; a run by itself holds nothing out."""
LARGEST_SIDE = 1024
"""Pixels of an image's side: more is a typing error, which would take all memory."""

Group = Literal["data", "model", "training", "trust", "machine"]
"""What an option is about. The machine's say how and where a run is played, not what: it may go on with others."""

KINDS = ("folder", "npz", "csv", "parquet", "ts", "arff", "text", "hf", "pfllib")
"""Kinds of files of a user's own data; before a path, as in csv:PATH."""
ENDINGS = {"csv": "csv", "tsv": "csv", "parquet": "parquet", "pq": "parquet", "npz": "npz", "ts": "ts", "arff": "arff"}
"""The kinds that the end of a file's name tells."""
CLIENTS = 5
"""How many clients there are where neither --clients nor the split says it."""
BY, INDICES = "by:", "indices:"
"""Splits that say by themselves how many clients there are: by a column's values, and as a file lists them."""
TABLE = ("label", "client_column", "domain_column", "test_column", "drop", "categories", "missing", "fill")
"""The options that say which column of a table is what."""
PATHS = ("data_dir", "start", "encoder")
"""The options that name a file or folder of the user's."""

SYNCHRONOUS = {
    "participation": "every client trains all the time",
    "drift": "what a client holds would change within its turn",
    "defence": "uploads of several ages are not compared",
    "privacy": "what a round costs is not known",
    "secure": "the server needs each client's own upload",
}
"""The options that asynchronous rounds do not go with, and why."""


def _about(text: str, group: Group, **bounds: float) -> dict[str, Any]:
    """All that is known of a field: the command line shows it, and `Experiment` checks the bounds."""
    return {"help": text, "group": group, "bounds": Bounds(**bounds)}


def _option(default: T, text: str, group: Group, **bounds: float) -> T:
    return field(default=default, metadata=_about(text, group, **bounds))


@dataclass(frozen=True)
class Experiment:
    """Describe a federated experiment: method, data, split, model, training, trust and machine.

    Raises:
        UserError: a value is of a wrong type, out of bounds, or does not go with another.

    Example:
        >>> import protofed
        >>> experiment = protofed.Experiment(method="fedproto", rounds=10)
        >>> experiment.rounds, experiment.lr
        (10, 0.01)
        >>> protofed.Experiment(lr=0)
        Traceback (most recent call last):
            ...
        protofed.errors.UserError: invalid value '0.0' for --lr: it must be above 0
    """

    method: str = _option(
        "mp-fedcl", "Method: a name that `protofed methods` lists, or path/to/file.py:ClassName.", "training"
    )
    params: Mapping[str, Any] = field(default_factory=dict, metadata=_about("Parameters of the method.", "training"))
    dataset: str = _option(
        "digits", "Dataset that `protofed datasets` lists; several joined with + share only prototypes.", "data"
    )
    data_dir: str | None = _option(
        None, "Folder with the dataset's files, or with a folder named after the dataset.", "machine"
    )
    public: str | None = _option(None, "Dataset of public, unlabelled images, for methods that need one.", "data")
    train_size: int | None = _option(None, "Number of training samples to use: the first ones.", "data")
    image_size: int | None = _option(
        None,
        "Resize images to so many pixels a side; photographs are resized to 32 by default.",
        "data",
        at_least=1,
        at_most=LARGEST_SIDE,
    )
    tokenizer: str = _option(
        "words",
        "How text becomes token ids: words, a tokenizer.json, or a name that the package tokenizers finds.",
        "data",
    )
    vocabulary: int = _option(
        10_000,
        "Size of the vocabulary: the most frequent words of the training text.",
        "data",
        at_least=1,
        at_most=10**6,
    )
    length: int = _option(
        128,
        "Length of a text in token ids: a longer one is cut off, a shorter one padded.",
        "data",
        at_least=1,
        at_most=2**15,
    )
    normalise: Literal["dataset", "none", "pixels", "all", "client", "imagenet"] = _option(
        "dataset",
        "Mean and std that samples are standardised with: as the dataset says, of all training samples, of each "
        "client's, or ImageNet's; pixels only scales to 0..1, none leaves samples as they are.",
        "data",
    )
    augment: Literal["none", "crop", "crop-flip", "rethinkfl"] = _option(
        "none",
        "Training pictures are cropped and mirrored at random; rethinkfl also takes ImageNet's mean and std.",
        "data",
    )
    label: str | None = _option(
        None, "Column of the classes (tables); by default the one named label, class, target or y.", "data"
    )
    client_column: str | None = _option(None, "Column that names the client of a row (tables).", "data")
    domain_column: str | None = _option(None, "Column that names the domain of a row (tables).", "data")
    test_column: str | None = _option(
        None, "Column that says train or test (tables); without it, every fifth row of a class is a test row.", "data"
    )
    drop: str | None = _option(None, "Columns that models do not see, comma-separated (tables).", "data")
    categories: str | None = _option(
        None, "Columns whose numbers are categories, comma-separated (tables); text columns always are.", "data"
    )
    missing: str = _option(
        ",NA,NaN,?,null",
        "Values that stand for a missing one, comma-separated, in upper or lower case; the first is empty (tables).",
        "data",
    )
    fill: Literal["mean", "drop-row"] = _option(
        "mean",
        "What a missing value becomes (tables): with mean, the mean of the training rows, or a category of its own; "
        "with drop-row, its row is left out.",
        "data",
    )
    split: str = _option(
        "dirichlet",
        "How training data is divided among clients: a name that `protofed splits` lists, by:COLUMN (by:label, "
        "by:domain), indices:FILE.json, or path/to/file.py:function.",
        "data",
    )
    alpha: float = _option(
        0.1, "Concentration of the Dirichlet draws (dirichlet, nid1, quantity): small is unequal.", "data", above=0
    )
    min_size: int = _option(10, "Least number of samples of a client (dirichlet, quantity).", "data", at_least=1)
    balance: bool = _option(
        True, "A client that has its share of samples gets none of the classes that follow (dirichlet).", "data"
    )
    ways: int = _option(
        3, "Number of classes of a client (pathological), or its mean (ways, ways-packed).", "data", at_least=1
    )
    half_width: int = _option(2, "How far a client's number of classes may be from --ways.", "data", at_least=0)
    shots: int = _option(100, "Mean number of samples of a class at a client (ways, ways-packed).", "data", at_least=1)
    test_shots: int = _option(
        40, "Images of each of its classes in a client's own test set (ways, ways-packed).", "data", at_least=1
    )
    shards: int = _option(2, "Parts of the rows sorted by class that a client gets (shards).", "data", at_least=1)
    clients_per_domain: str | None = _option(
        None,
        "Number of clients of each domain, in the domains' order, comma-separated (domains); their sum is --clients.",
        "data",
    )
    unseen: str | None = _option(
        None, "Domain that nobody trains on; models are also tested on it, as global/unseen/head.", "data"
    )
    test_fraction: float | None = _option(
        None,
        "Pool training and test data, divide all of it, and test each client on this part of what it holds.",
        "data",
        above=0,
        below=1,
    )
    long_tail: float | None = _option(
        None, "Ratio rho of the largest to the smallest class; combines with any split.", "data", at_least=1
    )
    drift: Literal["none", "sudden", "gradual"] = _option(
        "none", "Each client's data changes, during the run, into what the same split gives with another seed.", "data"
    )
    drift_round: int | None = _option(None, "First round after a sudden drift; by default the middle one.", "data")
    novel: int = _option(
        0,
        "Number of classes, the last ones, that are kept from training; few-shot episodes are made of them.",
        "data",
        at_least=0,
    )
    episode_ways: int = _option(5, "Novel classes in an episode.", "training", at_least=2)
    episode_shots: int = _option(
        5, "Examples of each class in an episode; 15 further images of each are classified.", "training", at_least=1
    )
    episodes: int = _option(600, "Episodes at each evaluation, always the same ones.", "training", at_least=2)
    val_fraction: float = _option(
        0.0, "Part of each client's training data held out for validation.", "data", at_least=0, below=1
    )
    clients: int | None = _option(
        None, f"Number of clients; by default {CLIENTS}, or what the split says.", "data", at_least=1
    )
    participation: float = _option(
        1.0, "Part of the clients that take part in a round.", "training", above=0, at_most=1
    )
    async_: int | None = _option(
        None,
        "Asynchronous rounds: aggregate whenever this many uploads have arrived; older ones count less.",
        "training",
        at_least=1,
    )
    delays: str | None = _option(
        None,
        "Seconds of a virtual clock that a client's turn takes; several, comma-separated, are assigned as models are.",
        "training",
    )
    model: str = _option(
        "mlp",
        "Model that `protofed models` lists, or path/to/file.py:Name; clients take several, comma-separated, in turn.",
        "model",
    )
    start: str | None = _option(
        None,
        "Initial weights (safetensors), by name and shape; the first and the last layer are initialised anew.",
        "model",
    )
    encoder: str | None = _option(
        None,
        "Frozen encoder (safetensors, or path/to/file.py:make): models see its features instead of the samples.",
        "model",
    )
    defence: str = _option(
        "none",
        "Robust aggregation that `protofed defences` lists, before the method's own; several, comma-separated.",
        "trust",
    )
    trusted: str | None = _option(
        None,
        "Clients that the operator answers for, comma-separated numbers: --defence default measures others by them.",
        "trust",
    )
    attack: str = _option("none", "What attackers do, for experiments: a name that `protofed attacks` lists.", "trust")
    attackers: float = _option(0.2, "Part of the clients that attack, with --attack.", "trust", above=0, below=1)
    privacy: Literal["none", "client", "example"] = _option(
        "none",
        "Differential privacy of a whole client, or of each of its training examples; see also --noise.",
        "trust",
    )
    clip: float | None = _option(
        None, "Largest norm of what a client, or an example, adds to a sum (--privacy).", "trust", above=0
    )
    noise: float = _option(
        0.0, "Standard deviation of the noise as a multiple of --clip (--privacy).", "trust", at_least=0
    )
    epsilon: float | None = _option(
        None, "Privacy budget: stop before the round that would exceed it (--privacy).", "trust", above=0
    )
    delta: float = _option(1e-5, "Chance with which --epsilon may not hold (--privacy).", "trust", above=0, below=1)
    min_count: int = _option(0, "Prototypes of fewer samples never leave a client.", "trust", at_least=0)
    secure: bool = _option(False, "Secure aggregation: the server learns only sums (over a network).", "trust")
    rounds: int = _option(100, "Communication rounds.", "training", at_least=1)
    epochs: int = _option(1, "Local epochs in a round.", "training", at_least=1)
    steps: int | None = _option(
        None,
        "Local steps (batches) per round in place of epochs; the same number for every client.",
        "training",
        at_least=1,
    )
    batch_size: int = _option(32, "Local batch size.", "training", at_least=1)
    optimiser: Literal["sgd", "adam", "adamw"] = _option(
        "sgd", "Local optimiser; a method whose paper has another takes that in place of sgd.", "training"
    )
    lr: float = _option(0.01, "Learning rate of local training.", "training", above=0)
    lr_decay: float = _option(1.0, "Factor on the learning rate after each round.", "training", above=0)
    momentum: float = _option(0.5, "Momentum of local SGD (--optimiser sgd).", "training", at_least=0)
    weight_decay: float = _option(0.0, "Weight decay of local training.", "training", at_least=0)
    seed: int = _option(0, "Seed of splits, initial weights, batches, dropout and clustering.", "training", at_least=0)
    engine: Literal["auto", "sequential", "stacked", "flower-sim"] = _option(
        "auto", "How clients are trained; all give the same results.", "machine"
    )
    width: int | None = _option(
        None, "Clients in one batched step (stacked engine); by default all of a round.", "machine", at_least=1
    )
    device: str = _option("auto", "cpu, cuda or cuda:N; auto takes a GPU if there is one.", "machine")
    threads: int | None = _option(
        None, "CPU threads; by default all cores, shared by the runs of a comparison.", "machine", at_least=1
    )
    precision: Literal["float32", "float64", "tf32", "bf16"] = _option(
        "float32", "Arithmetic of the models; tf32 and bf16 keep weights and statistics in float32.", "training"
    )
    deterministic: bool = _option(
        False, "Use only operations that give the same bits each time on a GPU; slower.", "training"
    )
    eval_every: int = _option(
        1, "Rounds between evaluations; the last round is always evaluated.", "training", at_least=1
    )
    metrics: str = _option(
        "none",
        "Metrics beside accuracy, comma-separated: balanced, f1, auc, ece, many, medium, few, class (recall of each), "
        "class=NAME, worst, worst10.",
        "training",
    )
    val_metric: str = _option(
        "accuracy",
        "Metric by which validation data decides (--patience, --tune), one that --metrics knows.",
        "training",
    )
    time_budget: float | None = _option(
        None, "Stop after the round in which this many seconds have passed.", "training", above=0
    )
    patience: int | None = _option(
        None,
        "Stop when validation accuracy, or --val-metric, has not improved for this many evaluations (--val-fraction).",
        "training",
        at_least=1,
    )
    checkpoint_every: int = _option(1, "Rounds between checkpoints.", "machine", at_least=1)
    motion: bool = _option(
        True,
        "Keep features of 300 test samples and prototypes at up to 30 rounds, for the report to play: at most 6 MB.",
        "machine",
    )

    def __post_init__(self) -> None:
        for item in dataclasses.fields(self):
            flag = flag_of(item.name)
            checked = check_type(flag, getattr(self, item.name), _hints()[item.name])
            item.metadata["bounds"].check(flag, checked)
            object.__setattr__(self, item.name, checked)
        if self.drift_round is not None:
            self._require(
                "drift_round", 2 <= self.drift_round <= self.rounds, "it must be from 2 to --rounds: one before it"
            )
            self._require("drift_round", self.drift == "sudden", "it is the round of --drift sudden")
        either = self.steps is None or self.epochs == Experiment.epochs
        self._require("steps", either, f"give either it or --epochs, which is {self.epochs}")
        usual = self.momentum == Experiment.momentum
        self._require("momentum", usual or self.optimiser == "sgd", f"it is for --optimiser sgd, not {self.optimiser}")
        if self.clients_per_domain is not None:
            self._require("clients_per_domain", self.split == "domains", "it is for --split domains")
            whole = re.fullmatch(r"[1-9]\d{0,5}(,[1-9]\d{0,5})*", self.clients_per_domain)
            self._require("clients_per_domain", whole is not None, "give whole numbers from 1, as in 3,7,6,4")
            total = sum(self.domain_clients or ())
            agrees = self.clients in (None, total)
            self._require("clients", agrees, f"--clients-per-domain gives {total}: leave --clients out")
        if self.trusted is not None:
            numbers = re.fullmatch(r"\d{1,6}(,\d{1,6})*", self.trusted)
            self._require("trusted", numbers is not None, "give the numbers of clients, as in 0,3")
            asked = "default" in [name.strip() for name in self.defence.split(",")]
            self._require("trusted", asked, "it is for --defence default")
        if self.privacy == "none":
            for name in ("clip", "noise", "epsilon", "delta"):
                unset = getattr(self, name) == getattr(Experiment, name)
                self._require(name, unset, "it is for --privacy client or --privacy example")
        if self.async_ is not None:
            for name, why in SYNCHRONOUS.items():
                usual = getattr(self, name) == getattr(Experiment, name)
                self._require(name, usual, f"with --async {why}")
        if self.delays is not None:
            self._require("delays", all(map(_is_time, self.delays.split(","))), "they must be numbers above 0")
        self._require("noise", self.noise == 0 or self.clip is not None, "without --clip no noise is enough")
        self._require("epsilon", self.epsilon is None or self.noise > 0, "without --noise no budget is enough")

    def turn_seconds(self, clients: int) -> list[float]:
        """Return how long a turn of each of so many clients takes, on the virtual clock; 1 second unless given."""
        values = [float(value) for value in (self.delays or "1").split(",")]
        return [values[member * len(values) // clients] for member in range(clients)]

    def _require(self, name: str, holds: bool, reason: str) -> None:
        if not holds:
            raise UserError(flag_of(name), getattr(self, name), reason)

    @property
    def domain_clients(self) -> tuple[int, ...] | None:
        """How many clients each domain has, if that is said."""
        return None if self.clients_per_domain is None else tuple(map(int, self.clients_per_domain.split(",")))

    @property
    def datasets(self) -> list[str]:
        """The names of the datasets that are joined with +; a file may have one in its path."""
        own = re.fullmatch(rf"(?:{'|'.join(KINDS)}):(.+)", self.dataset)
        alone = own is not None and Path(own[1]).expanduser().exists()
        return [self.dataset] if alone else self.dataset.split("+")

    @property
    def trusted_clients(self) -> tuple[int, ...]:
        """The clients that the operator answers for."""
        return () if self.trusted is None else tuple(map(int, self.trusted.split(",")))

    @property
    def known_clients(self) -> int | None:
        """How many clients there are; None where only the data says it."""
        if self.clients is not None:
            return self.clients
        if self.domain_clients is not None:
            return sum(self.domain_clients)
        return None if self.split.startswith((BY, INDICES)) else CLIENTS

    @property
    def number_of_clients(self) -> int:
        """How many clients there are, where somebody has to know it without the data.

        Raises:
            UserError: only the data says it.
        """
        if self.known_clients is None:
            raise missing_value("--clients", f"say how many clients --split {self.split} gives: the server has no data")
        return self.known_clients

    @property
    def hides_clients(self) -> bool:
        """Whether differential privacy is that of whole clients."""
        return self.privacy == "client"

    @property
    def hides_examples(self) -> bool:
        """Whether differential privacy is that of single training examples."""
        return self.privacy == "example"

    def without_privacy(self) -> Experiment:
        """Return the experiment without differential privacy, for those who have no part in it."""
        usual: dict[str, Any] = {name: getattr(Experiment, name) for name in ("privacy", "clip", "noise", "epsilon")}
        return dataclasses.replace(self, **usual, delta=Experiment.delta)

    def to_yaml(self) -> str:
        """Return the experiment as YAML that `from_mapping` reads back."""
        return yaml.safe_dump(dataclasses.asdict(self), sort_keys=False, allow_unicode=True)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Experiment:
        """Make an experiment from named values; a misspelt name is an error with a suggestion."""
        for name in values:
            if name not in options():
                raise unknown("OPTION", str(name), options(), see="protofed run --help")
        return cls(**values)


# Options: written by `make typed-options`.
class Options(TypedDict, total=False):
    """The fields of Experiment that calls name, with their types."""

    params: Mapping[str, Any]
    dataset: str
    data_dir: Path | str | None
    public: str | None
    train_size: int | None
    image_size: int | None
    tokenizer: str
    vocabulary: int
    length: int
    normalise: Literal["dataset", "none", "pixels", "all", "client", "imagenet"]
    augment: Literal["none", "crop", "crop-flip", "rethinkfl"]
    label: str | None
    client_column: str | None
    domain_column: str | None
    test_column: str | None
    drop: str | None
    categories: str | None
    missing: str
    fill: Literal["mean", "drop-row"]
    alpha: float
    min_size: int
    balance: bool
    ways: int
    half_width: int
    shots: int
    test_shots: int
    shards: int
    clients_per_domain: str | None
    unseen: str | None
    test_fraction: float | None
    long_tail: float | None
    drift: Literal["none", "sudden", "gradual"]
    drift_round: int | None
    novel: int
    episode_ways: int
    episode_shots: int
    episodes: int
    val_fraction: float
    clients: int | None
    participation: float
    async_: int | None
    delays: str | None
    start: Path | str | None
    encoder: Path | str | None
    defence: str
    trusted: str | None
    attack: str
    attackers: float
    privacy: Literal["none", "client", "example"]
    clip: float | None
    noise: float
    epsilon: float | None
    delta: float
    min_count: int
    secure: bool
    rounds: int
    epochs: int
    steps: int | None
    batch_size: int
    optimiser: Literal["sgd", "adam", "adamw"]
    lr: float
    lr_decay: float
    momentum: float
    weight_decay: float
    seed: int
    engine: Literal["auto", "sequential", "stacked", "flower-sim"]
    width: int | None
    device: str
    threads: int | None
    precision: Literal["float32", "float64", "tf32", "bf16"]
    deterministic: bool
    eval_every: int
    metrics: str
    val_metric: str
    time_budget: float | None
    patience: int | None
    checkpoint_every: int
    motion: bool


# End of Options.


def options(group: Group | None = None) -> tuple[str, ...]:
    """The names of the options of a group, or of all, in the order of their declaration."""
    return tuple(item.name for item in dataclasses.fields(Experiment) if group in (None, item.metadata["group"]))


def flag_of(name: str) -> str:
    """An option's name on the command line; that of `async_` is a word that Python reserves."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def with_absolute_paths(experiment: Experiment) -> Experiment:
    """The experiment with the user's files and folders named so that they are found from any folder."""
    paths = {name: getattr(experiment, name) for name in PATHS}
    named: dict[str, Any] = {name: str(Path(path).resolve()) for name, path in paths.items() if path is not None}
    if experiment.encoder is not None and ":" in experiment.encoder:
        code, at, file = experiment.encoder.partition(WITH)
        named["encoder"] = absolute_name(code) + (f"{WITH}{Path(file).resolve()}" if at else "")
    if experiment.tokenizer.endswith(".json"):
        named["tokenizer"] = str(Path(experiment.tokenizer).resolve())
    named |= {"method": absolute_name(experiment.method), "split": absolute_name(experiment.split)}
    named["model"] = ",".join(map(absolute_name, experiment.model.split(",")))
    named["dataset"] = "+".join(map(absolute_name, experiment.datasets))
    if experiment.public is not None:
        named["public"] = absolute_name(experiment.public)
    return dataclasses.replace(experiment, **named)


def absolute_name(name: str) -> str:
    """A name of ours as it is; `file.py:Name`, `csv:PATH`, `federation:PATH` and the like with the whole path."""
    if own := re.fullmatch(rf"({'|'.join(KINDS)}|federation|indices):(.+)", name):
        if own[1] == "hf" and not Path(own[2]).exists():  # a name on the hub
            return name
        return f"{own[1]}:{Path(own[2]).expanduser().resolve()}"
    if code := re.fullmatch(r"(.+\.py):([\w.]+)", name):
        return f"{Path(code[1]).resolve()}:{code[2]}"
    return name


def kind_of(argument: str, path: Path) -> str:
    """The kind of a user's own data, by the end of its name; see `KINDS`."""
    if path.is_dir():
        return "folder"
    ending = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if ending not in ENDINGS:
        hint = f"say what it is: {', '.join(f'{kind}:PATH' for kind in KINDS)}"
        raise UserError(argument, str(path), "the end of its name does not say what it is", hint=hint)
    return ENDINGS[ending]


def _is_time(text: str) -> bool:
    """Whether it is a number of seconds."""
    try:
        return 0 < float(text) < math.inf
    except ValueError:
        return False


@cache
def _hints() -> dict[str, Any]:
    return get_type_hints(Experiment)
