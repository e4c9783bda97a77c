"""The first hour with ProtoFed: your own data, split, method and network; a comparison, a sweep, resuming, figures,
a notebook, a search.

python examples/first_hour.py [FOLDER]    two to three minutes on two cores; what it writes is in FOLDER
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

import protofed
from protofed.data import Dataset, Split, load
from protofed.methods.base import Batch, Turn, cross_entropy, param
from protofed.methods.fedavg import FedAvg
from protofed.report.html import gather, write_report
from protofed.report.html.figures import write_figures
from protofed.studies.comparison import Comparison

# Training: small enough to see everything within minutes.
TRAINING = {"rounds": 6, "lr": 0.05, "device": "cpu"}


def my_data() -> protofed.Federation:
    """Three clinics, each with images of its own; here they are scikit-learn's digits, unlike bright."""
    digits = load("digits")
    clients = []
    for number, brightness in enumerate((1.0, 0.8, 0.6)):
        rows = torch.arange(number, 600, 3)
        train, held_out = digits.train.take(rows[:160]), digits.train.take(rows[160:])
        images = (train.x * brightness).to(torch.uint8)
        mine = protofed.Samples.of(images, train.labels)
        clients.append(protofed.Client.of(mine, digits.test, validation=held_out))
    return protofed.Federation(tuple(clients), digits.classes, digits.domains)


def my_images() -> Dataset:
    """The same images in one pile, which a split divides."""
    clients = my_data().clients
    train = protofed.Samples.of(
        torch.cat([one.train.x for one in clients]), torch.cat([one.train.labels for one in clients])
    )
    return Dataset.of("my images", train, load("digits").test, [str(number) for number in range(10)])


def neighbours(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:  # noqa: ARG001
    """My split: client k holds the classes 2k, 2k + 1 and 2k + 2, a third of each that two clients share."""
    classes, labels = len(dataset.classes), dataset.train.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    owner = labels[order] // 2 % clients
    shared = (labels[order] % 2 == 0) & (torch.arange(len(labels)) % 2 == 0)
    owner = torch.where(shared, (owner - 1) % clients, owner)
    assert classes >= clients
    return [order[owner == client] for client in range(clients)]


@dataclass(frozen=True)
class Small(FedAvg):
    """My method: FedAvg whose features stay small."""

    name: ClassVar[str] = "small"
    weight: float = param(0.01, "weight of the features' squares", at_least=0)

    def loss(self, model: nn.Module, batch: Batch, turn: Turn) -> Tensor:  # noqa: ARG002
        """A value for each sample."""
        out = model(batch.x)
        return cross_entropy(out.logits, batch.y) + self.weight * out.features.square().mean(-1)


class MyNet(nn.Sequential):
    """My network: any nn.Module that is made of (shape, classes) and returns logits."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        pixels = torch.Size(shape).numel()
        super().__init__(
            nn.Flatten(), nn.Linear(pixels, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, classes)
        )


def main(here: Path) -> None:
    """All of it, in order."""
    print("1. One run on my data, with my method and my network, in memory")
    federation = my_data()
    print(federation)
    result = protofed.run(Small(weight=0.02), model=MyNet, federation=federation, patience=3, quiet=True, **TRAINING)
    print(result, "- stopped by", result.stopped)
    print("losses:", [round(played.loss, 2) for played in result.history])
    images = federation.clients[0].pool.x[:5]
    print("answers:", result.predictor().predict(images).classes, "models:", list(result.models))

    print("2. A comparison of names beside my class, on my data and with my split, in a folder")
    compared = here / "compared"
    mine = {"dataset": f"{Path(__file__).resolve()}:my_images", "split": neighbours, "clients": 5}
    comparison = protofed.compare(
        ["local", "fedproto", Small], seeds=2, model=MyNet, out=compared, quiet=True, **mine, **TRAINING
    )
    print(comparison)

    print("3. It was cut off, and goes on: in Python, or in a shell with `protofed resume`")
    (compared / "small-seed1" / "result.json").unlink()
    assert but_for_seconds(protofed.resume(compared, quiet=True)) == but_for_seconds(comparison)

    print("4. A sweep, on the three clinics")
    sweep = protofed.sweep(
        {"weight": [0.0, 0.1], "lr": [0.02, 0.1]},
        [Small],
        seeds=2,
        federation=federation,
        model=MyNet,
        out=here / "swept",
        quiet=True,
        rounds=4,
        device="cpu",
    )
    print(sweep)

    print("5. Figures for a paper, and a report")
    data = gather([compared])
    write_report(data, here / "report.html")
    print(len(write_figures(data, here / "figures")), "figures and tables in", here / "figures")
    comparison.plot().savefig(here / "comparison.pdf")
    sweep.plot().savefig(here / "sweep.pdf")
    federation.plot().savefig(here / "who-holds-what.pdf")

    print("6. In a notebook, and as data frames")
    notebook(here / "first-hour.ipynb")
    if find_spec("pandas"):
        frame = comparison.frame()
        last = frame[(frame["round"] == frame["round"].max()) & (frame["score"] == "own/all/head")]
        print(last.groupby(["method", "seed"])["accuracy"].mean().unstack().round(1))
    else:
        print("data frames: pip install 'protofed[frames]'")

    print("7. A search with Optuna, which gives up what does not learn")
    search(federation)


def but_for_seconds(comparison: Comparison) -> list[str]:
    """Every number of a comparison; how long runs take differs."""
    return [line for line in comparison.to_csv().splitlines() if ",seconds," not in line]


def notebook(path: Path) -> None:
    """Make a notebook and execute it, as Jupyter would."""
    if not (find_spec("nbclient") and find_spec("ipykernel")):
        print("skipped: pip install 'protofed[notebook]'")
        return
    import nbclient
    import nbformat

    cells = [
        "import protofed",
        'found = protofed.compare(["local", "fedavg"], seeds=1, rounds=2, train_size=200, device="cpu")\nfound',
        "found.plot()",
    ]
    made = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, cells)))
    nbclient.NotebookClient(made, timeout=300, kernel_name="python3").execute()
    nbformat.write(made, path)
    shown = {kind for cell in made.cells for output in cell.outputs for kind in output.get("data", {})}
    print("a notebook shows", ", ".join(sorted(shown)))


def search(federation: protofed.Federation) -> None:
    """The learning rate that is best on validation data."""
    if not find_spec("optuna"):
        print("skipped: pip install optuna")
        return
    import optuna

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-3, 0.3, log=True)

        def report(played: protofed.Round) -> bool:
            trial.report(played.accuracy["global/val/head"], played.round)
            return trial.should_prune()

        options = {**TRAINING, "lr": lr}
        result = protofed.run("fedavg", model=MyNet, federation=federation, on_round=report, quiet=True, **options)
        if result.stopped == "callback":
            raise optuna.TrialPruned
        return result.accuracy["global/val/head"].last

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    study.optimize(objective, n_trials=6)
    print(f"best lr {study.best_params['lr']:.3f}: {study.best_value:.1f} % on validation data")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="first-hour-")))
