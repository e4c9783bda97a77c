"""FLamby's table of Fed-Heart-Disease: pooled training, FedAvg and every hospital by itself, five seeds each.

    python -m benchmarks.heart --data-dir DIR

As FLamby's code has it: 13 features (the first category of chest pain and of the ECG is left out), standardised with a
hospital's own mean and std where it trains, and with those of all hospitals for pooled training and for the test, which
is the accuracy over the 254 patients of all hospitals; batches of 4. Pooled and local training take 50 epochs of Adam
with 0.001; FedAvg 15 rounds of 100 steps of plain SGD with 0.001, as its files of results say.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import Tensor, nn

import protofed
from protofed.data import Client, Dataset, Federation, Preparation, Samples, load
from protofed.models.output import Output

PUBLISHED = {"pooled": 79.5, "fedavg": 74.8}
"""FLamby's accuracies in percent, means over seeds."""
FIRST_CATEGORIES = (2, 8)
"""Features that FLamby leaves out, as the others of their column say the same."""
SEEDS = range(42, 47)


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


def accuracies(dataset: Dataset, seed: int) -> dict[str, float]:
    """The accuracy of each way to train, on the patients of all hospitals."""
    pooled, hospitals = federations(dataset)
    alone = protofed.run(
        "local", model=Logistic, federation=pooled, rounds=1, epochs=50, batch_size=4, optimiser="adam", lr=0.001,
        seed=seed, engine="sequential", quiet=True,
    )  # fmt: skip
    local = protofed.run(
        "local", model=Logistic, federation=hospitals, rounds=1, epochs=50, batch_size=4, optimiser="adam", lr=0.001,
        seed=seed, engine="sequential", quiet=True,
    )  # fmt: skip
    together = protofed.run(
        "fedavg", model=Logistic, federation=hospitals, rounds=15, steps=100, batch_size=4, momentum=0.0, lr=0.001,
        seed=seed, engine="sequential", quiet=True, eval_every=15,
    )  # fmt: skip
    found = {
        "pooled": alone.accuracy["own/all/head"].last,
        "fedavg": together.accuracy["global/all/head"].last,
    }
    return found | {
        f"local {name}": value
        for name, value in zip(dataset.domains, local.accuracy["own/all/head"].per_client, strict=True)
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    dataset = load("heart-disease", parser.parse_args().data_dir)
    runs = [accuracies(dataset, seed) for seed in SEEDS]
    print(f"{'training':<20} {'mean':>6} {'std':>6} {'FLamby':>7}")
    for name in runs[0]:
        values = [run[name] for run in runs]
        published = f"{PUBLISHED[name]:.1f}" if name in PUBLISHED else ""
        print(f"{name:<20} {mean(values):>6.1f} {stdev(values):>6.1f} {published:>7}")


if __name__ == "__main__":
    main()
