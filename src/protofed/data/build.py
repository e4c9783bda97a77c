"""From an experiment to the federation that it describes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from protofed.data.augmentation import IMAGENET
from protofed.data.drift import Drift, gradual, sudden
from protofed.data.federation import Federation, divide, federate, join
from protofed.data.federation_file import is_federation, named_federation
from protofed.data.index_files import Division
from protofed.data.loading import check_name, has_columns, is_made, load, made_data
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, is_picture
from protofed.data.sources.tables import TableOptions
from protofed.data.splits import Split, check_split
from protofed.data.text_encoding import Tokenising
from protofed.errors import UserError
from protofed.experiment import BY, INDICES, Experiment, flag_of
from protofed.randomness import key


class FeatureExtractor(Protocol):
    """What turns images or text into features, such as models.encoder.Encoder."""

    @property
    def image_size(self) -> int | None:
        """The side of the images that it takes."""

    @property
    def tokenising(self) -> Tokenising | None:
        """How text becomes the token ids that it takes."""

    def dataset(self, dataset: Dataset) -> Dataset:
        """The dataset with features in the place of images or text."""


def federation_of(experiment: Experiment, encoder: FeatureExtractor | None = None, whole: bool = True) -> Federation:
    """The clients of an experiment; datasets joined with + get an equal number of clients each.

    Args:
        experiment: its options of data count.
        encoder: what models see the features of.
        whole: whether these are all clients there are; the samples of one by itself may be of a single class.
    """
    federation = _federation_of(experiment, encoder, whole)
    if whole:
        check_classes(experiment.dataset, federation.classes)
    return federation


def check_classes(name: str, classes: Sequence[str]) -> None:
    """Refuse data of a single class."""
    if len(classes) == 1:
        why = f"all samples are of the class {classes[0]!r}, and a model tells two or more apart"
        hint = "over a network one client may hold a single class, if others hold more"
        raise UserError("--dataset", name, why, hint=hint)


def _federation_of(experiment: Experiment, encoder: FeatureExtractor | None, whole: bool) -> Federation:
    if is_federation(experiment.dataset):
        if encoder is not None:
            raise UserError("--encoder", experiment.encoder, "a federation of your own may hold features instead")
        return _own(experiment, named_federation(experiment.dataset))
    if (
        "+" not in experiment.dataset
        and is_made(experiment.dataset)
        and isinstance(made := made_data(experiment.dataset), Federation)
    ):
        return _own(experiment, made)
    check_split(experiment.split)
    names = experiment.datasets
    _check_options(experiment, names)
    split, parts = split_of(experiment), []
    for number, name in enumerate(names):
        share = experiment.known_clients
        if share is not None and len(names) > 1:
            share = (share + len(names) - 1 - number) // len(names)
        dataset = divided_dataset(experiment, name, encoder)
        if whole and len(names) == 1:  # before it is found too small, too
            check_classes(name, dataset.classes)
        parts.append(federate(dataset, split, share, experiment.seed, experiment.val_fraction))
    federation = parts[0] if len(parts) == 1 else join(parts)
    return _prepared_clients(experiment, federation) if experiment.normalise == "client" else federation


def division_of(experiment: Experiment) -> Division:
    """Which rows of an experiment's dataset are whose, as `indices:FILE` reads them."""
    check_split(experiment.split)
    whole = is_federation(experiment.dataset) or (
        is_made(experiment.dataset) and isinstance(made_data(experiment.dataset), Federation)
    )
    if "+" in experiment.dataset or whole:
        hint = "write the clients' samples: --out FILE.safetensors"
        raise UserError("--dataset", experiment.dataset, "rows are written of one dataset that is divided", hint=hint)
    _check_options(experiment, [experiment.dataset])
    dataset = divided_dataset(experiment, experiment.dataset, None)
    check_classes(experiment.dataset, dataset.classes)
    return divide(dataset, split_of(experiment), experiment.known_clients, experiment.seed)


def split_of(experiment: Experiment) -> Split:
    """How an experiment divides its data."""
    return Split(
        name=experiment.split,
        alpha=experiment.alpha,
        min_size=experiment.min_size,
        balance=experiment.balance,
        ways=experiment.ways,
        half_width=experiment.half_width,
        shots=experiment.shots,
        test_shots=experiment.test_shots,
        rho=experiment.long_tail,
        shards=experiment.shards,
        per_domain=experiment.domain_clients,
        test_fraction=experiment.test_fraction,
    )


def divided_dataset(experiment: Experiment, name: str, encoder: FeatureExtractor | None) -> Dataset:
    """One of an experiment's datasets as it is divided: without novel classes and the unseen domain."""
    dataset = dataset_of(experiment, name, experiment.train_size, encoder).keep_out(experiment.novel)
    dataset = dataset.leave_out(experiment.unseen)
    prepared = preparation_of(experiment, dataset.train.x, dataset.preparation)
    dataset = dataclasses.replace(dataset, preparation=prepared)
    if encoder is not None:
        dataset = encoder.dataset(dataset)
    check_augment(experiment, dataset.train.x)
    return dataset


def preparation_of(experiment: Experiment, x: Tensor, before: Preparation | None = None) -> Preparation:
    """What happens to training samples [n, ...] and others of their kind.

    Args:
        experiment: says how they are normalised.
        x: the samples, whose statistics are taken.
        before: what a dataset says of its own; that of `Preparation.of` unless given.
    """
    how = "imagenet" if experiment.augment == "rethinkfl" else experiment.normalise
    return _prepared(x, before or Preparation.of(x), how)


def _check_options(experiment: Experiment, names: Sequence[str]) -> None:
    """Refuse options that these datasets, or several, have no use for."""
    for name in names:
        check_name(name)
    columns = any(map(has_columns, names))
    column = experiment.split.removeprefix(BY) if experiment.split.startswith(BY) else "label"
    if not columns and column not in ("label", "domain"):
        why = f"columns are of tables, and {experiment.dataset} is none"
        raise UserError("--split", experiment.split, why, hint="by:label, or by:domain where it has domains")
    if not columns:
        TableOptions.of(experiment).check_unused(experiment.dataset)
    if len(names) == 1:
        return
    if experiment.split.startswith((BY, INDICES)):
        raise UserError("--split", experiment.split, "it divides one dataset, not several")
    if (clients := experiment.known_clients) is not None and clients < len(names):
        raise UserError("--clients", clients, f"{len(names)} datasets need at least as many clients")
    for flag, value in (("--unseen", experiment.unseen), ("--clients-per-domain", experiment.clients_per_domain)):
        if value is not None:
            raise UserError(flag, value, "it is about the domains of one dataset, not of several")
    if experiment.novel:
        raise UserError("--novel", experiment.novel, "the classes of one dataset may be novel, not of several")


def _own(experiment: Experiment, own: Federation) -> Federation:
    """A federation of the user's own, which is not divided any more."""
    TableOptions.of(experiment).check_unused(experiment.dataset)
    if experiment.clients not in (None, len(own.clients)):
        raise UserError("--clients", experiment.clients, f"your own federation has {len(own.clients)}")
    for name in ("unseen", "test_fraction", "clients_per_domain"):
        if getattr(experiment, name) is not None:
            raise UserError(flag_of(name), getattr(experiment, name), "your own federation is divided already")
    if experiment.split.startswith((BY, INDICES)):
        raise UserError("--split", experiment.split, "your own federation is divided already")
    return _prepared_clients(experiment, own.holding_out(experiment.val_fraction, experiment.seed))


def _prepared(x: Tensor, before: Preparation, how: str) -> Preparation:
    """What happens to training samples [n, ...] and others of their kind, if it is to be done in another way."""
    if how == "dataset":
        return before
    if how == "none":
        return Preparation(tokens=before.tokens, masked=before.masked)
    if before.tokens:
        raise UserError("--normalise", how, "token ids are names, and stay as they are")
    if how in ("pixels", "imagenet") and not is_picture(x):
        raise UserError("--normalise", how, f"it is for pictures, and these samples are {x.dtype} {list(x.shape[1:])}")
    if how == "pixels":
        return Preparation("pixels", (0.0,) * x.shape[1], (1.0,) * x.shape[1])
    if how == "imagenet":
        if x.shape[1] != len(IMAGENET[0]):
            raise UserError("--normalise", how, f"it is for {len(IMAGENET[0])} colours, and these have {x.shape[1]}")
        return Preparation("pixels", *IMAGENET)
    return Preparation.of(x, "pixels" if is_picture(x) else "standardise", before.masked)


def _prepared_clients(experiment: Experiment, federation: Federation) -> Federation:
    """The clients with statistics of their own, or of all of them, or without any."""
    how, clients = experiment.normalise, federation.clients
    check_augment(experiment, clients[0].train.x)
    if how == "dataset":
        return federation
    if how == "all":
        if len({client.train.x.shape[1:] for client in clients}) > 1:
            raise UserError("--normalise", how, "the clients' samples differ in shape")
        everything = torch.cat([client.train.x for client in clients])
        common = _prepared(everything, clients[0].preparation, how)
        return dataclasses.replace(
            federation, clients=tuple(dataclasses.replace(client, preparation=common) for client in clients)
        )
    mine = [
        dataclasses.replace(client, preparation=_prepared(client.train.x, client.preparation, how))
        for client in clients
    ]
    return dataclasses.replace(federation, clients=tuple(mine))


def check_augment(experiment: Experiment, x: Tensor) -> None:
    """Refuse to crop and mirror what is no picture."""
    if experiment.augment != "none" and not is_picture(x):
        why = f"it crops and mirrors pictures, and these samples are {x.dtype} {list(x.shape[1:])}"
        raise UserError("--augment", experiment.augment, why)


def dataset_of(experiment: Experiment, name: str, train_size: int | None, encoder: FeatureExtractor | None) -> Dataset:
    """One of an experiment's datasets, with images of the size that models, or the encoder before them, see."""
    folder = None if experiment.data_dir is None else Path(experiment.data_dir)
    side = experiment.image_size if encoder is None else encoder.image_size
    said = Tokenising(experiment.tokenizer, experiment.vocabulary, experiment.length)
    tokenising = said if encoder is None else encoder.tokenising or said
    return load(name, folder, train_size, side, TableOptions.of(experiment), tokenising)


def drift_of(experiment: Experiment, encoder: FeatureExtractor | None = None) -> Drift | None:
    """What clients hold at first and in the end, if that differs."""
    if experiment.drift == "none":
        return None
    if is_federation(experiment.dataset):
        raise UserError("--drift", experiment.drift, "what the clients of your own federation hold stays as it is")
    if experiment.split.startswith((BY, INDICES)) or experiment.test_fraction is not None:
        which = "--test-fraction" if experiment.test_fraction is not None else f"--split {experiment.split}"
        why = "what was tested would be trained on" if experiment.test_fraction else "another seed gives the same"
        raise UserError("--drift", experiment.drift, f"with {which} {why}")
    rounds = experiment.rounds
    if experiment.drift == "sudden":
        shares = sudden(rounds, experiment.drift_round or rounds // 2 + 1)
    else:
        shares = gradual(rounds)
    later = dataclasses.replace(experiment, seed=key(experiment.seed, "drift"))
    before, after = (federation_of(given, encoder) for given in (experiment, later))
    return Drift(before, after, shares, experiment.seed)
