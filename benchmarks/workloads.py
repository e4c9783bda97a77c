"""What is measured: each workload is a short object that says what is run, and how it is run on a CPU."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

import protofed
from benchmarks import plain
from benchmarks.measure import Contender, Deadline, floor, high_water, race
from protofed.data import Client, Dataset, Federation, Samples, Split, federate, load
from protofed.data.build import federation_of
from protofed.data.preparation import Preparation
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.methods.base import Clock, Server
from protofed.models import MODELS
from protofed.runs.process import process_settings
from protofed.runs.run import new_run
from protofed.server.participation import participants

PLAIN, OURS = "plain loop", "ProtoFed"
MNIST_WAYS = 40  # so many clients of 100 shots MNIST has images for; more are drawn from it again with the next seed


@dataclass(frozen=True)
class Setting:
    """How the command was called."""

    device: torch.device
    data_dir: Path | None
    repeats: int
    deadline: Deadline
    tiny: bool = False  # a smoke test: the figures mean nothing


@dataclass(frozen=True)
class Workload(ABC):
    """Something measured under a name."""

    name: str
    title: str

    @property
    def devices(self) -> tuple[str, ...]:
        """Where it is measured."""
        return ("cpu", "cuda")

    @abstractmethod
    def measure(self, setting: Setting) -> dict[str, Any]:
        """What is saved about it: the contenders, the first of which the others are compared with."""


@dataclass(frozen=True)
class Round(Workload):
    """A round of training, prototypes and aggregation, without evaluation, against the plain loop."""

    experiment: Experiment
    images: int | None = None  # random images for each client; None: MNIST, by the experiment's split
    shape: tuple[int, int, int] = (3, 32, 32)
    variants: Mapping[str, Mapping[str, Any]] = field(default_factory=lambda: {OURS: {}})
    target: str = ""
    gpu_only: bool = False
    on_cpu: Mapping[str, Any] = field(default_factory=dict)  # fields of this and of the experiment, smaller on a CPU

    @property
    def devices(self) -> tuple[str, ...]:
        """Where it is measured."""
        return ("cuda",) if self.gpu_only else ("cpu", "cuda")

    def measure(self, setting: Setting) -> dict[str, Any]:
        """Every variant and the plain loop, in one run."""
        work = self._fitted(setting)
        experiment = work.experiment
        federation, data = work.federation(setting)
        loops: list[plain.Local] = []
        engines: dict[str, str] = {}
        makers: dict[str, Callable[[], Contender]] = {PLAIN: partial(plain_contender, experiment, federation, loops)}
        variants = {name: dataclasses.replace(experiment, **changes) for name, changes in work.variants.items()}
        for name, variant in variants.items():
            makers[name] = partial(our_contender, variant, federation, engines, name)
        contenders = race(makers, setting.repeats, setting.deadline, setting.device)
        who = participants(experiment, len(federation.clients), 0)
        for name, variant in variants.items():
            loops[0].settings = variant  # the floor depends on the precision
            contenders[name] |= {"engine": engines[name], "floor": floor(loops[0], who, setting.device)}
        return {
            "data": data,
            "set-up": set_up(experiment, federation, len(who)),
            "target": work.target,
            "images": experiment.epochs * sum(len(federation.clients[k].train) for k in who),
            "contenders": contenders,
        }

    def _fitted(self, setting: Setting) -> Round:
        changes: dict[str, Any] = {"device": str(setting.device)}
        changes |= self.on_cpu if setting.device.type == "cpu" else {}
        if setting.tiny:
            changes |= {"clients": 3, "epochs": 1, "shots": 8, "batch_size": 8, "min_size": 2, "participation": 1.0}
            changes["train_size"] = 600 if self.experiment.split == "ways" else 60
            changes |= {} if self.images is None else {"images": 16, "shape": (self.shape[0], 16, 16)}
        mine = {name: changes.pop(name) for name in ("images", "shape") if name in changes}
        return dataclasses.replace(self, experiment=dataclasses.replace(self.experiment, **changes), **mine)

    def federation(self, setting: Setting) -> tuple[Federation, str]:
        """The clients, and what their images are."""
        e = self.experiment
        if self.images is not None:
            draws = torch.Generator().manual_seed(0)
            pool = random_samples(100, self.shape, draws)
            rows = torch.arange(100)
            preparation = Preparation("pixels", (0.5,) * self.shape[0], (0.25,) * self.shape[0])
            members = [
                Client(random_samples(self.images, self.shape, draws), pool, rows, None, preparation)
                for _ in range(e.number_of_clients)
            ]
            return Federation(tuple(members), tuple("0123456789")), f"random {'×'.join(map(str, self.shape))} images"
        dataset, data = mnist(setting.data_dir, e.train_size)
        split = Split(e.split, e.alpha, e.min_size, e.balance, e.ways, e.half_width, e.shots, e.test_shots)
        most = MNIST_WAYS if e.split == "ways" else e.number_of_clients
        parts = [
            federate(dataset, split, min(most, e.number_of_clients - first), e.seed + first, 0.0)
            for first in range(0, e.number_of_clients, most)
        ]
        return Federation(tuple(client for part in parts for client in part.clients), dataset.classes), data


@dataclass(frozen=True)
class Column(Workload):
    """A whole comparison with evaluation in every round, as `protofed compare` plays it, against the plain loop."""

    methods: Sequence[str]
    experiment: Experiment
    seeds: int = 3
    plain_rounds: int = 3  # the plain loop plays so many rounds of each method once; its time is scaled up
    target: str = ""

    def measure(self, setting: Setting) -> dict[str, Any]:
        """Once each, since it takes long."""
        seeds = self.seeds if setting.device.type == "cuda" else 1
        experiment, seeds, data = _comparison(self.experiment, seeds, setting, cpu_rounds=10)
        rounds = min(self.plain_rounds, experiment.rounds)

        def loops() -> Contender:
            federation = federation_of(experiment)
            made = [plain.METHODS[method](experiment, federation, setting.device) for method in self.methods]

            def play() -> None:
                for loop in made:
                    for _ in range(rounds):
                        loop.round(range(len(federation.clients)))
                        loop.evaluate()

            return Contender(play)

        def ours() -> Contender:
            run = new_run(dataclasses.replace(experiment, method=self.methods[0]))
            for _ in range(min(2, experiment.rounds - 1)):  # so that there is a round left to look at
                run.play_round()
            return Contender(_comparing(self.methods, seeds, experiment), brief=run.play_round)

        contenders = race({PLAIN: loops, OURS: ours}, 1, setting.deadline, setting.device)
        contenders[PLAIN]["seconds"] *= experiment.rounds / rounds * seeds
        what = f"{len(self.methods)} methods × {seeds} seeds × {experiment.rounds} rounds"
        note = f"{what}; the plain loop played {rounds} rounds of one seed, scaled up"
        return {"data": data, "set-up": note, "target": self.target, "contenders": contenders}


@dataclass(frozen=True)
class Spread(Workload):
    """A comparison spread over processes, against the same runs one after the other."""

    methods: Sequence[str]
    experiment: Experiment
    seeds: int = 3
    target: str = ""

    def measure(self, setting: Setting) -> dict[str, Any]:
        """The same runs both ways."""
        experiment, seeds, data = _comparison(self.experiment, self.seeds, setting, cpu_rounds=30)
        makers = {
            "one after the other": lambda: Contender(_comparing(self.methods, seeds, experiment, jobs=1)),
            "spread over processes": lambda: Contender(_comparing(self.methods, seeds, experiment)),
        }
        contenders = race(makers, setting.repeats, setting.deadline, setting.device)
        note = f"{len(self.methods)} methods × {seeds} seeds × {experiment.rounds} rounds, with evaluation"
        return {"data": data, "set-up": note, "target": self.target, "contenders": contenders}


@dataclass(frozen=True)
class Memory(Workload):
    """The most memory of a round beyond a round of one client, all clients taking part or 50 of them."""

    experiment: Experiment
    counts: Sequence[int] = (50, 100, 200, 400, 1600)
    taking_part: int = 50
    images: int = 16

    @property
    def devices(self) -> tuple[str, ...]:
        """A GPU's peak is given with every round above; what its allocator keeps would blur differences."""
        return ("cpu",)

    def measure(self, setting: Setting) -> dict[str, Any]:
        """Each in a process of its own: a process never gives its peak back."""
        counts = (2, 4) if setting.tiny else self.counts
        some = min(self.taking_part, counts[0])
        peaks: dict[str, dict[str, float]] = {"all take part": {}, f"{some} take part": {}}
        for clients in counts:
            for name, number in zip(peaks, (clients, some), strict=True):
                peaks[name][str(clients)] = self._peak(clients, number)
        e = self.experiment
        note = f"{e.method}, {e.model}, {self.images} images a client, batch {e.batch_size}"
        return {"data": "random 1×28×28 images", "set-up": note, "peaks": peaks}

    def _peak(self, clients: int, taking_part: int) -> float:
        code = f"from benchmarks.workloads import memory; print(memory().play({clients}, {taking_part}))"
        done = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=Path(__file__).parent.parent
        )
        return float(done.stdout)

    def play(self, clients: int, taking_part: int) -> float:
        """Bytes that a round of so many clients needs beyond one of a single client; their images are the same."""
        draws = torch.Generator().manual_seed(0)
        images = random_samples(self.images, (1, 28, 28), draws)
        pool = random_samples(10, (1, 28, 28), draws)
        one = Client(images, pool, torch.arange(10), None, Preparation("pixels", (0.5,), (0.25,)))

        def round_of(number: int, part: int) -> float:
            federation = Federation((one,) * number, tuple("0123456789"))
            changes: dict[str, Any] = {"clients": number, "participation": part / number, "device": "cpu"}
            experiment = dataclasses.replace(self.experiment, **changes)

            contender = our_contender(experiment, federation, {}, OURS)
            for _ in range(2):  # the first has no prototypes yet
                contender.play()
            return high_water()

        before = round_of(1, 1)
        return round_of(clients, taking_part) - before


def plain_contender(settings: Experiment, federation: Federation, loops: list[plain.Local]) -> Contender:
    """Rounds of the plain loop; a loop over a few clients keeps a GPU as busy as one over all."""
    tf32 = settings.precision in ("tf32", "bf16")  # as in our runs; torch's own default differs from layer to layer
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    loop = plain.METHODS[settings.method](settings, federation, torch.device(settings.device))
    loops.append(loop)
    clients = len(loop.data)

    def some(number: int) -> float:
        return loop.round(participants(settings, clients, loop.rounds)[:number])

    def warm_up() -> None:
        for _ in range(2):  # the first has no prototypes yet
            some(5)

    return Contender(lambda: some(clients), warm_up, lambda: some(3))


def our_contender(experiment: Experiment, federation: Federation, engines: dict[str, str], name: str) -> Contender:
    """Rounds as `Run.play_round` plays them, without evaluation."""
    own = None if experiment.model in MODELS else [plain.MODELS[experiment.model]]
    run = new_run(experiment, federation=federation, models=own)
    clients, number = len(federation.clients), 0

    def play() -> None:
        nonlocal number
        who = participants(experiment, clients, number)
        clock = Clock(number, experiment.rounds, tuple(who), clients, experiment.seed)
        with process_settings(run.experiment):
            uploads = run.engine.round(who, run.broadcast, clock).uploads
            run.broadcast = run.method.aggregate(uploads, Server(run.broadcast, clock))
        number += 1

    def warm_up() -> None:
        for _ in range(2):  # the first has no prototypes yet
            play()
        engines[name] = run.engine.name

    return Contender(play, warm_up, play)


def random_samples(number: int, shape: tuple[int, int, int], draws: torch.Generator) -> Samples:
    """Random images with labels from 0 to 9 in turn."""
    images = torch.randint(0, 256, (number, *shape), generator=draws, dtype=torch.uint8)
    return Samples.of(images, torch.arange(number) % 10)


def mnist(data_dir: Path | None, train_size: int | None) -> tuple[Dataset, str]:
    """MNIST if its files are there, otherwise random images in its shape."""
    try:
        return load("mnist", data_dir, train_size), "MNIST"
    except UserError:
        draws = torch.Generator().manual_seed(0)
        train, test = (random_samples(number, (1, 28, 28), draws) for number in (train_size or 60_000, 10_000))
        return Dataset(
            "random", train, test, tuple("0123456789"), ("random",), Preparation("pixels", (0.5,), (0.25,))
        ), "random 1×28×28 images"


def set_up(experiment: Experiment, federation: Federation, taking_part: int) -> str:
    """The size of a round in words."""
    e, sizes = experiment, [len(client.train) for client in federation.clients]
    each = f"{min(sizes)}" if min(sizes) == max(sizes) else f"{min(sizes)} to {max(sizes)}"
    number = f"{len(sizes):,} clients" if taking_part == len(sizes) else f"{taking_part} of {len(sizes):,} clients"
    epochs = "1 epoch" if e.epochs == 1 else f"{e.epochs} epochs"
    return f"{e.method}, {e.model}, {number} × {each} images, batch {e.batch_size}, {epochs}, {e.precision}"


def _comparison(experiment: Experiment, seeds: int, setting: Setting, cpu_rounds: int) -> tuple[Experiment, int, str]:
    """A comparison's experiment, on scikit-learn's digits if its data is not there; fewer rounds on a CPU."""
    changes: dict[str, Any] = {"device": str(setting.device)}
    data = experiment.dataset
    try:
        load(data, setting.data_dir)
        changes["data_dir"] = None if setting.data_dir is None else str(setting.data_dir)
    except UserError:
        data = "digits"
        changes |= {"dataset": data, "train_size": None}
    if setting.device.type == "cpu":
        changes["rounds"] = min(cpu_rounds, experiment.rounds)
    if setting.tiny:
        changes |= {"rounds": 1, "train_size": 100}
        seeds = 1
    return dataclasses.replace(experiment, **changes), seeds, data


def _comparing(
    methods: Sequence[str], seeds: int, experiment: Experiment, jobs: int | None = None
) -> Callable[[], object]:
    options = dataclasses.asdict(experiment)
    del options["method"]
    return lambda: protofed.compare(methods, seeds, jobs=jobs, quiet=True, **options)


FEDPROTO = Experiment(
    method="fedproto",
    model="cnn",
    dataset="mnist",
    split="ways",
    ways=4,
    half_width=2,
    shots=100,
    clients=20,
    batch_size=8,
    rounds=100,
)
TABLE_VI = Experiment(
    dataset="mnist", train_size=2000, split="dirichlet", alpha=0.05, clients=5, model="mlp", rounds=60, lr_decay=0.95
)
# A small learning rate: random labels at λ = 100 must not diverge, and the time does not depend on it.
RESNET = Experiment(
    method="fedavg", model="resnet10", clients=5, batch_size=64, lr=0.001, momentum=0.9, weight_decay=1e-5, rounds=100
)
ENGINES = {OURS: {}, "stacked": {"engine": "stacked"}, "sequential": {"engine": "sequential"}}


def _model(model: str, clients: int, images: int, batch: int, shape: tuple[int, int, int]) -> Round:
    experiment = Experiment(method="fedavg", model=model, clients=clients, batch_size=batch, lr=0.001, rounds=100)
    return Round(f"model-{model}", f"FedAvg, {model}: each engine", experiment, images, shape, ENGINES)


def memory() -> Memory:
    """The one workload that is also played in processes of its own."""
    return Memory("memory", "Peak memory of a round", FEDPROTO)


WORKLOADS: tuple[Workload, ...] = (
    Round("fedproto-20", "FedProto, 20 clients, n=4±2, 100 shots", FEDPROTO, target="25 ms"),
    Round("fedproto-100", "FedProto, 100 clients", dataclasses.replace(FEDPROTO, clients=100), target="75 ms"),
    Round(
        "fedproto-1000",
        "FedProto, 1,000 clients",
        dataclasses.replace(FEDPROTO, clients=1000),
        target="450 ms",
        gpu_only=True,
    ),
    Round(
        "mp-fedcl",
        "MP-FedCL, K=2",
        Experiment(
            method="mp-fedcl", dataset="mnist", train_size=2000, split="iid", clients=5, model="mlp", rounds=100
        ),
        target="8 ms",
    ),
    Column(
        "table-vi",
        "MP-FedCL's Table VI, MNIST column",
        ("mp-fedcl", "sp-fedcl", "fedproto", "fedavg", "fedprox", "local"),
        TABLE_VI,
        target="60 s",
    ),
    Round(
        "fedplcc",
        "FedPLCC, FINCH on both sides",
        dataclasses.replace(RESNET, method="fedplcc", params={"lambda1": 100.0}, epochs=10, precision="tf32"),
        300,
        target="450 ms",
        on_cpu={"images": 32, "batch_size": 16, "epochs": 1},
    ),
    Round(
        "fedsc",
        "FedSC in bf16",
        dataclasses.replace(RESNET, method="fedsc", params=plain.FEDSC, clients=10, precision="bf16"),
        5000,
        target="1.11 s (45,000 images/s)",
        gpu_only=True,
    ),
    Round(
        "pfllib",
        "PFLlib's quick start (our CNN for its own)",
        Experiment(
            method="fedproto",
            model="cnn",
            dataset="mnist",
            train_size=52_500,
            split="dirichlet",
            alpha=0.1,
            min_size=40,
            clients=20,
            batch_size=10,
            lr=0.005,
            momentum=0.0,
            rounds=100,
        ),
    ),
    Round(
        "pfl-research",
        "pfl-research's CIFAR-10 benchmark",
        Experiment(
            method="fedavg",
            model="two-layer-cnn",
            clients=1000,
            participation=0.05,
            batch_size=10,
            lr=0.1,
            momentum=0.0,
            rounds=100,
        ),
        50,
    ),
    _model("mlp", 5, 320, 32, (1, 28, 28)),
    _model("cnn", 10, 160, 8, (1, 28, 28)),
    _model("resnet10", 3, 32, 16, (3, 32, 32)),
    _model("mobilenet-v2", 3, 32, 16, (3, 32, 32)),
    Spread(
        "compare",
        "A comparison spread over processes",
        ("local", "fedavg", "fedproto", "sp-fedcl", "mp-fedcl"),
        dataclasses.replace(TABLE_VI, dataset="digits", train_size=None, rounds=30),
        target="1.7 times as fast on 2 CPU cores",
    ),
    memory(),
    Round(
        "precision",
        "ResNet-10 in each precision",
        RESNET,
        320,
        variants={"float32": {}, "tf32": {"precision": "tf32"}, "bf16": {"precision": "bf16"}},
        gpu_only=True,
    ),
    Round(
        "deterministic-cnn",
        "What --deterministic costs: FedProto's CNN",
        FEDPROTO,
        variants={OURS: {}, "deterministic": {"deterministic": True}},
        gpu_only=True,
    ),
    Round(
        "deterministic-resnet10",
        "What --deterministic costs: ResNet-10",
        RESNET,
        320,
        variants={OURS: {}, "deterministic": {"deterministic": True}},
        gpu_only=True,
    ),
)
