"""From an experiment to the federation that it describes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from protofed.data.augmentation import IMAGENET
from protofed.data.drift import Drift, gradual, sudden
from protofed.data.federation import Federation, federate, join
from protofed.data.federation_file import is_federation, named_federation
from protofed.data.loading import load
from protofed.data.samples import Dataset
from protofed.data.splits import Split, check_split
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.randomness import key


class FeatureExtractor(Protocol):
    """What turns images into features, such as models.encoder.Encoder."""

    @property
    def image_size(self) -> int:
        """The side of the images that it takes."""

    def dataset(self, dataset: Dataset) -> Dataset:
        """The dataset with features in the place of images."""


def federation_of(experiment: Experiment, encoder: FeatureExtractor | None = None) -> Federation:
    """The clients of an experiment; datasets joined with + get an equal number of clients each."""
    if is_federation(experiment.dataset):
        if encoder is not None:
            raise UserError("--encoder", experiment.encoder, "a federation of your own may hold features instead")
        return named_federation(experiment.dataset).holding_out(experiment.val_fraction, experiment.seed)
    check_split(experiment.split)
    names = experiment.dataset.split("+")
    split = Split(
        name=experiment.split,
        alpha=experiment.alpha,
        min_size=experiment.min_size,
        balance=experiment.balance,
        ways=experiment.ways,
        half_width=experiment.half_width,
        shots=experiment.shots,
        test_shots=experiment.test_shots,
        rho=experiment.long_tail,
    )
    if experiment.clients < len(names):
        raise UserError("--clients", experiment.clients, f"{len(names)} datasets need at least as many clients")
    if experiment.novel and len(names) > 1:
        raise UserError("--novel", experiment.novel, "the classes of one dataset may be novel, not of several")
    parts = []
    for number, name in enumerate(names):
        share = (experiment.clients + len(names) - 1 - number) // len(names)
        dataset = dataset_of(experiment, name, experiment.train_size, encoder).keep_out(experiment.novel)
        if experiment.normalise == "imagenet" or experiment.augment == "rethinkfl":
            dataset = dataset.normalised(*IMAGENET)
        if encoder is not None:
            dataset = encoder.dataset(dataset)
        parts.append(federate(dataset, split, share, experiment.seed, experiment.val_fraction))
    return parts[0] if len(parts) == 1 else join(parts)


def dataset_of(experiment: Experiment, name: str, train_size: int | None, encoder: FeatureExtractor | None) -> Dataset:
    """One of an experiment's datasets, with images of the size that models, or the encoder before them, see."""
    folder = None if experiment.data_dir is None else Path(experiment.data_dir)
    return load(name, folder, train_size, experiment.image_size if encoder is None else encoder.image_size)


def drift_of(experiment: Experiment, encoder: FeatureExtractor | None = None) -> Drift | None:
    """What clients hold at first and in the end, if that differs."""
    if experiment.drift == "none":
        return None
    if is_federation(experiment.dataset):
        raise UserError("--drift", experiment.drift, "what the clients of your own federation hold stays as it is")
    rounds = experiment.rounds
    if experiment.drift == "sudden":
        shares = sudden(rounds, experiment.drift_round or rounds // 2 + 1)
    else:
        shares = gradual(rounds)
    later = dataclasses.replace(experiment, seed=key(experiment.seed, "drift"))
    before, after = (federation_of(given, encoder) for given in (experiment, later))
    return Drift(before, after, shares, experiment.seed)
