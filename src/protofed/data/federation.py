"""Who holds what: clients with their training data and their test sets."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from protofed.data.encodings import Encoding
from protofed.data.index_files import Division
from protofed.data.preparation import Preparation
from protofed.data.samples import Dataset, Samples, check, joined
from protofed.data.splits import TESTED_BY_SHOTS, Split, cut, draw, group, listed_rows, name_of_holder
from protofed.errors import UserError, listed
from protofed.experiment import BY, INDICES
from protofed.internal.higher import ask
from protofed.randomness import generator

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_STATISTICS = 1000
"""Means of channels of all clients together that a result holds."""


@dataclass(frozen=True, eq=False)
class Client:
    """Hold one client's data: what it trains on and what it is tested on.

    Args:
        train: the training samples.
        pool: the test samples of all classes; clients of one dataset share the same object.
        own: rows of the pool [m], int64: the test set with this client's own distribution.
        validation: samples held out of training; None without any.
        preparation: what happens to samples before a model sees them.
        name: what the data call the client; empty where they do not.

    Example:
        >>> import torch
        >>> from protofed.data import Client, Samples
        >>> def samples(*labels):
        ...     return Samples.of(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), torch.tensor(labels))
        >>> client = Client.of(samples(0, 1, 1), samples(0, 1), own=torch.tensor([1]))
        >>> client.counts(2).tolist(), client.domain
        ([1, 2], 0)
    """

    train: Samples
    pool: Samples
    own: Tensor
    validation: Samples | None
    preparation: Preparation
    name: str = ""

    @classmethod
    def of(
        cls,
        train: Samples,
        test: Samples,
        own: Tensor | None = None,
        validation: Samples | None = None,
        preparation: Preparation | None = None,
    ) -> Client:
        """Make a client from its own data.

        Args:
            train: the training samples.
            test: the test samples.
            own: rows of `test` with this client's own distribution [m]; all of them unless given.
            validation: samples held out of training.
            preparation: that of `Preparation.of(train.x)`, with the client's own statistics, unless given.

        Returns:
            The client.
        """
        rows = torch.arange(len(test)) if own is None else own
        return cls(train, test, rows, validation, preparation or Preparation.of(train.x))

    @property
    def domain(self) -> int | None:
        """The single domain of the training data, None if it is mixed."""
        first = int(self.train.domains[0])
        return first if bool((self.train.domains == first).all()) else None

    def counts(self, classes: int) -> Tensor:
        """Count the training samples of each class [C]."""
        return torch.bincount(self.train.labels, minlength=classes)


@dataclass(frozen=True, eq=False)
class Federation:
    """Hold clients that agree on the names of classes and domains; the shapes of samples may differ between them.

    Args:
        clients: the clients.
        classes: the names of the classes, by number.
        domains: the names of the domains, by number.
        novel: samples of other classes, which nobody trains on, for few-shot episodes; None without any.
        numbers: who these clients are, where the others are elsewhere; None if all are here.
        size: how many clients there are in all then.
        sizes: then the training samples of each class over all clients [C], where they are known.
        encoding: how records of a file became samples; see `Dataset`.
        unseen: test samples of a domain that nobody trains on; None without any.

    Raises:
        UserError: there is no client, a number has no name, or `own` does not name rows of the pool.

    Example:
        >>> import torch
        >>> from protofed.data import Client, Federation, Samples
        >>> def samples(*labels):
        ...     return Samples.of(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), torch.tensor(labels))
        >>> clients = (Client.of(samples(0, 0), samples(0, 1)), Client.of(samples(0, 1, 1), samples(0, 1)))
        >>> Federation(clients, ("cat", "dog")).counts.tolist()
        [[2, 0], [1, 2]]
    """

    clients: tuple[Client, ...]
    classes: tuple[str, ...]
    domains: tuple[str, ...] = ("all",)
    novel: Samples | None = None
    numbers: tuple[int, ...] | None = None
    size: int | None = None
    sizes: Tensor | None = None
    encoding: Encoding | None = None
    unseen: Samples | None = None

    def __repr__(self) -> str:
        samples = sum(len(client.train) for client in self.clients)
        return f"Federation({len(self.clients)} clients, {samples} training samples, {len(self.classes)} classes)"

    def plot(self) -> Figure:
        """Draw who holds what: training samples of each client and class."""
        figure: Figure = ask("figure_of", self)
        return figure

    def _repr_html_(self) -> str:
        return str(ask("html_of", self))

    def __post_init__(self) -> None:
        if not self.clients:
            raise UserError("clients", 0, "a federation needs at least one")
        for client in self.clients:
            for samples in (client.train, client.pool, client.validation):
                if samples is not None:
                    check(samples, self.classes, self.domains, client.preparation)
            for name, others in (("novel", self.novel), ("unseen", self.unseen)):
                if others is not None and others.x.shape[1:] != client.train.x.shape[1:]:
                    raise UserError(name, list(others.x.shape), "its samples must be of the clients' shape")
            if not len(client.own) or not 0 <= int(client.own.min()) <= int(client.own.max()) < len(client.pool):
                raise UserError("own", client.own.tolist(), f"give rows of the pool, from 0 to {len(client.pool) - 1}")

    @cached_property
    def members(self) -> dict[int, Client]:
        """The clients by number."""
        return dict(zip(self.numbers or range(len(self.clients)), self.clients, strict=True))

    def named(self, classes: Sequence[str], domains: Sequence[str]) -> Federation:
        """Number classes and domains as in these lists, which hold all of theirs."""
        for word, mine, given in (("classes", self.classes, classes), ("domains", self.domains, domains)):
            if not set(mine) <= set(given):
                raise UserError(word, listed(given), f"here there are also {listed(sorted(set(mine) - set(given)))}")
        label = torch.tensor([classes.index(name) for name in self.classes])
        domain = torch.tensor([domains.index(name) for name in self.domains])
        pools: dict[int, Samples] = {}  # by identity, so that clients go on sharing one pool
        members = []
        for client in self.clients:
            if id(client.pool) not in pools:
                pools[id(client.pool)] = _renumber(client.pool, label, domain)
            train = _renumber(client.train, label, domain)
            validation = None if client.validation is None else _renumber(client.validation, label, domain)
            members.append(replace(client, train=train, pool=pools[id(client.pool)], validation=validation))
        sizes = (
            None if self.sizes is None else torch.zeros(len(classes), dtype=torch.int64).index_add(0, label, self.sizes)
        )
        return replace(self, clients=tuple(members), classes=tuple(classes), domains=tuple(domains), sizes=sizes)

    @property
    def total(self) -> int:
        """How many clients there are, here and elsewhere."""
        return self.size or len(self.clients)

    def holding_out(self, fraction: float, seed: int) -> Federation:
        """Return the federation with a part of the training samples of clients without validation samples as such."""
        members = list(self.clients)
        for k, client in enumerate(self.clients):
            if client.validation is None:
                train, validation = _hold_out(client.train, fraction, seed, k)
                members[k] = replace(client, train=train, validation=validation)
        return replace(self, clients=tuple(members)) if fraction > 0 else self

    @property
    def prepared(self) -> list[dict[str, Any]]:
        """What happens to samples before models see them, as JSON: for all clients, or for those in `clients`.

        Where means and stds are more than MOST_STATISTICS numbers they are left out.
        """
        alike: dict[Preparation, list[int]] = {}
        for number, client in self.members.items():
            alike.setdefault(client.preparation, []).append(number)
        small = sum(len(prepared.mean) for prepared in alike) <= MOST_STATISTICS
        found = []
        for prepared, members in alike.items():
            said = asdict(prepared) | {name: list(getattr(prepared, name)) for name in ("mean", "std")}
            said = said if small else {name: value for name, value in said.items() if name not in ("mean", "std")}
            found.append(said | ({"clients": members} if len(alike) > 1 else {}))
        return found

    def digest(self, features: bool = False) -> str:
        """Return a checksum of who holds what.

        Args:
            features: whether samples are features of an encoder, which differ a little from device to device; they are
                then left out, and labels count.
        """
        made = hashlib.blake2b(json.dumps([self.classes, self.domains]).encode(), digest_size=16)
        parts = [(client.train, client.validation, client.pool) for client in self.clients]
        seen: set[int] = set()
        for part in (*(samples for some in parts for samples in some), self.novel, self.unseen):
            if part is not None and id(part) not in seen:  # clients share a pool
                seen.add(id(part))
                for tensor in (part.labels, part.domains) if features else (part.x, part.labels, part.domains):
                    made.update(f"{tensor.dtype} {list(tensor.shape)}".encode())
                    made.update(tensor.contiguous().numpy().data)
        for client in self.clients:
            made.update(client.own.contiguous().numpy().data)
        return made.hexdigest()

    @property
    def counts(self) -> Tensor:
        """Training samples per client and class [N, C]."""
        return torch.stack([client.counts(len(self.classes)) for client in self.clients])

    @property
    def class_sizes(self) -> Tensor | None:
        """Training samples of each class over all clients [C]; None where those of others are not known."""
        return self.counts.sum(0) if self.numbers is None else self.sizes


def federate(dataset: Dataset, split: Split, clients: int | None, seed: int, val_fraction: float) -> Federation:
    """Divide a dataset among clients.

    Each client gets a test set with its own distribution and, if asked for, validation samples.

    Args:
        dataset: what is divided.
        split: how it is divided.
        clients: the number of clients, N; None where the split says it (`by:COLUMN`, `indices:FILE`).
        seed: the seed of all draws.
        val_fraction: the part of each client's training samples that is held out for validation; from 0 to below 1.

    Returns:
        The N clients; all share the dataset's test samples as their pool, or all that clients test on where training
        and test samples are pooled.

    Raises:
        UserError: the dataset cannot be divided like that.

    Example:
        >>> from protofed.data import Split, federate, load
        >>> split = Split("iid", alpha=0.1, min_size=1, balance=True, ways=3, half_width=0, shots=5, test_shots=5)
        >>> federation = federate(load("digits", train_size=120), split, clients=3, seed=0, val_fraction=0.1)
        >>> [(len(client.train), len(client.validation)) for client in federation.clients]
        [(36, 4), (36, 4), (36, 4)]
    """
    if not 0 <= val_fraction < 1:
        raise UserError("--val-fraction", val_fraction, "it must be at least 0 and below 1")
    division = divide(dataset, split, clients, seed)
    assert division.test is not None  # divide says all
    train, pool, own = dataset.train, dataset.test, list(division.test)
    if division.pooled:
        train = everything(dataset)
        rows, places = torch.unique(torch.cat(own), return_inverse=True)
        pool, own = train.take(rows), list(places.split([len(one) for one in own]))
    members = []
    for k, (rows, tested) in enumerate(zip(division.train, own, strict=True)):
        held = train.take(rows)
        mine, validation = _hold_out(replace(held, holders=None), val_fraction, seed, k)
        name = name_of_holder(dataset, split.name, held)
        members.append(Client(mine, pool, tested, validation, dataset.preparation, name))
    return Federation(
        tuple(members),
        dataset.classes,
        dataset.domains,
        dataset.novel,
        encoding=dataset.encoding,
        unseen=dataset.unseen,
    )


def divide(dataset: Dataset, split: Split, clients: int | None, seed: int) -> Division:
    """Say which rows of a dataset each client trains on, and which it is tested on as its own test set.

    Args:
        dataset: what is divided.
        split: how it is divided.
        clients: the number of clients; None where the split says it.
        seed: the seed of all draws.

    Returns:
        The rows, those for testing too; `write_division` writes them.

    Raises:
        UserError: the dataset cannot be divided like that.
    """
    if split.name.startswith(INDICES):
        said = listed_rows(dataset, split, clients)
        return said if said.test is not None else replace(said, test=_own_tests(dataset, split, said.train, seed))
    if split.test_fraction is None:
        train = cut(dataset, split, clients, seed)
        return Division(train, _own_tests(dataset, split, train, seed))
    pooled = replace(dataset, train=everything(dataset))
    halves = [_part(rows, split.test_fraction, seed, k) for k, rows in enumerate(cut(pooled, split, clients, seed))]
    return Division([train for train, _ in halves], [test for _, test in halves], pooled=True)


def everything(dataset: Dataset) -> Samples:
    """Its training samples, then its test samples."""
    pooled = joined([dataset.train, dataset.test])
    if dataset.train.holders is None or dataset.test.holders is None:
        return pooled
    return replace(pooled, holders=torch.cat([dataset.train.holders, dataset.test.holders]))


def _part(rows: Tensor, fraction: float, seed: int, k: int) -> tuple[Tensor, Tensor]:
    """Rows to train on, rounded down as PFLlib does, and the rest to test on; at least one of each."""
    if len(rows) < 2:
        why = f"client {k} holds a single sample, which cannot be trained on and tested"
        raise UserError("--test-fraction", fraction, why, hint="raise --min-size, or lower --clients")
    size = min(max(1, math.floor((1 - fraction) * len(rows) + 1e-9)), len(rows) - 1)
    order = torch.randperm(len(rows), generator=generator(seed, "test-fraction", k))
    return rows[order[:size].sort().values], rows[order[size:].sort().values]


def _own_tests(dataset: Dataset, split: Split, parts: Sequence[Tensor], seed: int) -> list[Tensor]:
    """The test rows of each client's own test set, by the rule of the split."""
    scale = len(dataset.test) / sum(len(rows) for rows in parts)
    number = len(dataset.classes) * len(dataset.domains)
    pool = group(_cells(dataset.test, dataset), number)
    found = []
    for k, rows in enumerate(parts):
        held = dataset.train.take(rows)
        own = _of_holder(held, dataset.test) if split.name.startswith(BY) else None
        if own is None and split.name in TESTED_BY_SHOTS:
            own = _own_slice(held, dataset.test, k, split.test_shots)
        elif own is None:
            counts = torch.bincount(_cells(held, dataset), minlength=number)
            own = _own(counts, pool, scale, generator(seed, "own-test", k))
        if not len(own):
            raise UserError("test set", dataset.name, f"it holds no sample of the classes and domains of client {k}")
        found.append(own)
    return found


def _of_holder(held: Samples, pool: Samples) -> Tensor | None:
    """The test rows of whose column has the client's value, if there are any."""
    if held.holders is None or pool.holders is None:
        return None
    rows = (pool.holders == held.holders[0]).nonzero().flatten()
    return rows if len(rows) else None


def _cells(samples: Samples, dataset: Dataset) -> Tensor:
    """One number for each pair of class and domain."""
    return samples.labels * len(dataset.domains) + samples.domains


def _own(held: Tensor, pool: list[Tensor], scale: float, rng: torch.Generator) -> Tensor:
    """Test rows in the client's proportions of classes and domains: its counts, scaled, but at least one each."""
    quota = torch.where(held > 0, (held * scale).round().long().clamp(min=1), 0)
    return draw(pool, quota, rng).sort().values


def _own_slice(data: Samples, pool: Samples, k: int, shots: int) -> Tensor:
    """FedProto's test set: so many images of each of the client's classes, from offset k · shots, wrapping around."""
    near = torch.isin(pool.domains, data.domains)
    rows = []
    for label in data.labels.bincount().nonzero().flatten():
        found = (near & (pool.labels == label)).nonzero().flatten()
        rows.append(found.roll(-shots * k)[:shots])
    return torch.cat(rows)


def _hold_out(data: Samples, fraction: float, seed: int, k: int) -> tuple[Samples, Samples | None]:
    """Training and validation samples: the fraction, at least one, but one is always left for training."""
    size = min(max(1, round(fraction * len(data))), len(data) - 1)
    if fraction == 0 or size == 0:
        return data, None
    order = torch.randperm(len(data), generator=generator(seed, "validation", k))
    return data.take(order[size:].sort().values), data.take(order[:size].sort().values)


def join(federations: Sequence[Federation]) -> Federation:
    """Join several federations into one of all their clients.

    Args:
        federations: what is joined; classes and domains are united by name, in the order of first appearance.

    Returns:
        The federation, without novel samples.

    Example:
        >>> import torch
        >>> from protofed.data import Client, Federation, Samples, join
        >>> def one(*labels):
        ...     samples = Samples.of(torch.zeros(len(labels), 1, 8, 8, dtype=torch.uint8), torch.tensor(labels))
        ...     return (Client.of(samples, samples),)
        >>> both = join([Federation(one(0, 1), ("cat", "dog")), Federation(one(0, 0), ("dog",))])
        >>> both.classes, both.counts.tolist()
        (('cat', 'dog'), [[1, 1], [0, 2]])
    """
    classes = tuple(dict.fromkeys(name for f in federations for name in f.classes))
    domains = tuple(dict.fromkeys(name for f in federations for name in f.domains))
    members = [client for f in federations for client in f.named(classes, domains).clients]
    return Federation(tuple(members), classes, domains)


def _renumber(samples: Samples, label: Tensor, domain: Tensor) -> Samples:
    return Samples(samples.x, label[samples.labels], domain[samples.domains])
