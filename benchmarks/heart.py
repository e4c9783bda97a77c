"""FLamby's table of Fed-Heart-Disease: pooled training, every hospital by itself, FedAvg and nine methods more.

    python -m benchmarks.heart --data-dir DIR --page docs/tutorials/README.md

As FLamby's code has it: 13 features (the first category of chest pain and of the ECG is left out), standardised with a
hospital's own mean and std where it trains, and with those of all hospitals for pooled training and for the test, which
is the accuracy over the 254 patients of all hospitals; batches of 4. Pooled and local training take 50 epochs of Adam
with 0.001; FedAvg 15 rounds of 100 steps of plain SGD with 0.001, as its files of results say. The other methods are
trained as FedAvg is; once more, all of them have rates that `tune` chooses for each by itself on validation data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any, cast

import torch
from torch import Tensor, nn

import protofed
from benchmarks.marked import RESULTS, write_part
from protofed.data import Client, Dataset, Federation, Preparation, Samples, load
from protofed.internal.atomic_files import write_text
from protofed.models.output import Output
from protofed.studies.comparison import Comparison

PUBLISHED = {"pooled": 79.5, "fedavg, FLamby's rate": 74.8}
"""FLamby's accuracies in percent, means over seeds, of rows here."""
ALONE = "48 to 78"
"""Those of its four hospitals by themselves, of which is not said which is whose."""
FIRST_CATEGORIES = (2, 8)
"""Features that FLamby leaves out, as the others of their column say the same."""
SEEDS = range(42, 47)
METHODS = ["fedavg", "fedprox", "scaffold", "feddyn", "fedlc", "fednh", "fedrod", "ditto", "fedproto", "mp-fedcl"]
"""Without those for which a network of one layer leaves nothing: FedBABU's body, FedPer's base, FedBN's statistics."""
RATES = (0.001, 0.01, 0.1)
METRICS = ("balanced", "auc")
AVERAGED = "global/all/head"
BEGIN, END = "<!-- begin: written by python -m benchmarks.heart -->", "<!-- end: heart -->"


class LogisticHead(nn.Linear):
    """One weight a feature, where a softmax of two classes has two, and learns twice as fast."""

    def __init__(self, features: int) -> None:
        super().__init__(features, 1)

    def forward(self, x: Tensor) -> Tensor:
        """The logit of illness after that of health, which is 0: [n, 2]."""
        ill = super().forward(x)
        return torch.cat([torch.zeros_like(ill), ill], 1)


class Logistic(nn.Module):
    """Logistic regression."""

    def __init__(self, shape: tuple[int, ...], _: int) -> None:
        super().__init__()
        self.feature_size = shape[0]
        self.head = LogisticHead(shape[0])

    def forward(self, x: Tensor) -> Output:
        """The features are the input."""
        return Output(x, self.head(x), (x,))


def standardised(samples: Samples, like: Samples) -> Samples:
    """Samples with the mean and std of others."""
    return Samples((samples.x - like.x.mean(0)) / (like.x.std(0) + 1e-9), samples.labels, samples.domains)


def without_first_categories(samples: Samples) -> Samples:
    """The 13 features of FLamby."""
    kept = [feature for feature in range(samples.x.shape[1]) if feature not in FIRST_CATEGORIES]
    return Samples(samples.x[:, kept], samples.labels, samples.domains)


def federations(dataset: Dataset) -> tuple[Federation, Federation]:
    """One client with everybody's patients, and the four hospitals; all are tested on everybody's."""
    train, test = without_first_categories(dataset.train), without_first_categories(dataset.test)
    tested = standardised(test, train)
    hospitals = [train.take((train.domains == number).nonzero().flatten()) for number in range(len(dataset.domains))]

    def client(own: Samples) -> Client:
        return Client.of(standardised(own, own), tested, preparation=Preparation())

    names = dataset.classes, dataset.domains
    return Federation((client(train),), *names), Federation(tuple(map(client, hospitals)), *names)


def trained_alone(federation: Federation, seed: int) -> list[dict[str, float]]:
    """The scores of each client that trains by itself, on the patients of all hospitals."""
    result = protofed.run(
        "local", model=Logistic, federation=federation, rounds=1, epochs=50, batch_size=4, optimiser="adam", lr=0.001,
        seed=seed, engine="sequential", quiet=True, metrics=",".join(METRICS), threads=1,
    )  # fmt: skip
    each = {name: result.accuracy[name].per_client for name in scores("own/all/head")}
    return [dict(zip(each, values, strict=True)) for values in zip(*each.values(), strict=True)]


def compared(hospitals: Federation, tune: Mapping[str, Sequence[float]] | None, folder: Path) -> Comparison:
    """All methods as FLamby trains FedAvg, with its rate or with rates chosen for each; goes on with what is there."""
    if folder.exists():
        return cast(Comparison, protofed.resume(folder, model=Logistic, jobs=1, quiet=True))
    return protofed.compare(
        METHODS, seeds=len(SEEDS), seed=SEEDS[0], model=Logistic, federation=hospitals, tune=tune, out=folder, jobs=1,
        rounds=15, steps=100, batch_size=4, momentum=0.0, lr=0.001, eval_every=15, metrics=",".join(METRICS), threads=1,
        quiet=True,
    )  # fmt: skip


def scores(name: str) -> list[str]:
    """The accuracy and its metrics."""
    return [name, *(f"{name}:{metric}" for metric in METRICS)]


def values_of(comparison: Comparison) -> dict[str, Any]:
    """Of each method: its rate, and for each seed the averaged model and the clients' by the rule of its paper."""
    rates = {one.method: one.chosen["lr"] for one in comparison.tuned}
    made = {}
    for row in comparison.rows:
        rule = row.score.rpartition("/")[2]
        names = [name for base in dict.fromkeys((AVERAGED, f"own/all/{rule}")) for name in scores(base)]
        values = {name: row.accuracy[name].values for name in names if name in row.accuracy}
        made[row.method] = {"lr": rates.get(row.method, 0.001), "values": values}
    return made


def measure(dataset: Dataset, folder: Path) -> dict[str, Any]:
    """Everything in the table, by how it was trained."""
    pooled, hospitals = federations(dataset)
    runs = [trained_alone(pooled, seed) + trained_alone(hospitals, seed) for seed in SEEDS]
    whose = ("pooled", *(f"{name} alone" for name in dataset.domains))
    alone = {
        who: {"lr": 0.001, "values": {name: [run[number][name] for run in runs] for name in runs[0][number]}}
        for number, who in enumerate(whose)
    }
    return {
        "by themselves": alone,
        "FLamby's rate": values_of(compared(hospitals, None, folder / "flamby")),
        "chosen rates": values_of(compared(hospitals, {"lr": RATES}, folder / "tuned")),
    }


def page(found: Mapping[str, Any]) -> str:
    """A table, and which rows of it are above FLamby's pooled training."""
    limit = PUBLISHED["pooled"]
    head = "| training | lr | score | accuracy | FLamby | balanced | AUC | seeds above 79.5 |"
    lines = [head, "|---|---:|---|" + "---:|" * 5]
    above: dict[str, list[str]] = {}
    for part, rows in found.items():
        for name, row in rows.items():
            for score in [score for score in row["values"] if ":" not in score]:
                each = [row["values"].get(scored) for scored in scores(score)]
                won = sum(value > limit for value in each[0])
                texts = [f"{mean(values):.1f} ± {stdev(values):.1f}" if values else "–" for values in each]
                what = name if part == "by themselves" else f"{name}, {part}"
                texts.insert(1, published(what, score))
                lines.append(f"| {what} | {row['lr']:g} | {score} | {' | '.join(texts)} | {won} of {len(each[0])} |")
                if mean(each[0]) > limit and part != "by themselves":
                    above.setdefault(part, []).append(f"{name} ({score}, {mean(each[0]):.1f}, {won} of {len(each[0])})")
    told = [
        f"Above {limit} on the mean with {part}: {', '.join(above.get(part, [])) or 'none'}."
        for part in list(found)[1:]
    ]
    return "\n".join([*lines, "", *told])


def published(what: str, score: str) -> str:
    """What FLamby has for a row of the table."""
    if what.endswith(" alone"):
        return ALONE
    return f"{PUBLISHED[what]:g}" if what in PUBLISHED and (score == AVERAGED or what == "pooled") else ""


def main() -> None:
    """Measure, keep the numbers and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument(
        "--out", type=Path, default=Path("runs/heart"), help="folder; what it holds is not played again"
    )
    parser.add_argument("--page", type=Path, help="Markdown page whose marked part is written anew")
    asked = parser.parse_args()
    found = measure(load("heart-disease", asked.data_dir), asked.out)
    write_text(RESULTS / "real-flamby.json", json.dumps(found, indent=1) + "\n")
    print(page(found))
    if asked.page:
        write_part(asked.page, page(found), BEGIN, END)


if __name__ == "__main__":
    main()
