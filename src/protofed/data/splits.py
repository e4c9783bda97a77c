"""Ways to divide a dataset's training rows among clients."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from protofed.data.index_files import Division, check_rows, read_division
from protofed.data.samples import Dataset, Samples
from protofed.data.sources.catalogue import DATASETS
from protofed.errors import UserError, listed, unknown
from protofed.experiment import BY, INDICES
from protofed.internal.plugins import is_code, load_code, name_of
from protofed.randomness import generator

TRIES = 1000  # a Dirichlet split that has not come out by then will not


@dataclass(frozen=True)
class Split:
    """Describe how a dataset is divided; each split reads the values that it needs.

    Args:
        name: a key of `SPLITS`.
        alpha: the concentration of Dirichlet draws, small is uneven (dirichlet, nid1, quantity).
        min_size: the least number of training images of a client (dirichlet, quantity).
        balance: whether a client that holds its share already gets nothing of the next classes (dirichlet).
        ways: the number of classes of a client (pathological), or its mean (ways, ways-packed).
        half_width: by how many the numbers of classes, and of images of a class, vary (ways, ways-packed).
        shots: the mean number of images of a class at a client (ways, ways-packed).
        test_shots: images of each of its classes in a client's own test set (ways, ways-packed).
        rho: of a long tail, cut first: the first class has this many times the images of the last; None for none.
        shards: how many parts of the rows sorted by class a client gets (shards).
        per_domain: how many clients each domain has (domains); as equal numbers as can be unless given.
        test_fraction: the part of what a client holds of all samples, pooled, that is its own test set; None where
            training and test samples stay apart.

    Example:
        >>> from dataclasses import replace
        >>> from protofed.data import Split
        >>> even = Split("iid", alpha=0.1, min_size=1, balance=True, ways=3, half_width=0, shots=5, test_shots=5)
        >>> replace(even, name="dirichlet", alpha=0.5).alpha
        0.5
    """

    name: str
    alpha: float
    min_size: int
    balance: bool
    ways: int
    half_width: int
    shots: int
    test_shots: int
    rho: float | None = None
    shards: int = 2
    per_domain: tuple[int, ...] | None = None
    test_fraction: float | None = None


def check_split(name: str) -> None:
    """Refuse the name of a split that there is not, before any data is read; code is only run to divide data."""
    if name in ("by", BY, "indices", INDICES):
        raise UserError("--split", name, "name the column or the file, as in by:label or indices:FILE.json")
    if not (name in SPLITS or name in ALIASES or name.startswith((BY, INDICES)) or is_code(name)):
        raise unknown("--split", name, SPLITS, see="protofed splits")


def named_split(split: str | SplitFunction) -> str:
    """A split as an experiment has it: a key of `SPLITS`, or the name of a user's own function."""
    if isinstance(split, str):
        return split
    if not callable(split):
        raise UserError("split", split, "give a name, or a function of (dataset, split, clients, seed)")
    return name_of(split, getattr(split, "__name__", type(split).__name__))


def cut(dataset: Dataset, split: Split, clients: int | None, seed: int) -> list[Tensor]:
    """The training rows of each client, disjoint and none empty; the long tail, if any, is cut first.

    `clients` may be None where the split says how many there are, and must agree with it where both do.
    """
    check_split(split.name)
    kept = torch.arange(len(dataset.train))
    if split.rho is not None:
        kept = long_tail(dataset.train.labels, len(dataset.classes), split.rho, seed)
        dataset = replace(dataset, train=dataset.train.take(kept))
    if split.name.startswith(BY):
        parts: Sequence[Tensor] = by(dataset, split)
        check_number(split.name, clients, len(parts))
        return [kept[rows] for rows in parts]
    if split.per_domain is not None:
        clients = sum(split.per_domain)
    if clients is None or not 1 <= clients <= len(kept):
        raise UserError("--clients", clients, f"it must be from 1 to {len(kept)}, the number of training images")
    name = ALIASES.get(split.name, split.name)
    divide = SPLITS.get(name) or load_code("--split", name)
    parts = divide(dataset, split, clients, seed)
    if name not in SPLITS:
        _check_parts(name, parts, clients, len(kept))
    return [kept[rows] for rows in parts]


def listed_rows(dataset: Dataset, split: Split, clients: int | None) -> Division:
    """What the file of `indices:FILE` says, checked against the dataset."""
    for flag, value in (("--long-tail", split.rho), ("--test-fraction", split.test_fraction)):
        if value is not None:
            raise UserError(flag, value, f"{split.name} says which rows are whose")
    division = read_division(split.name)
    check_rows(split.name, division, len(dataset.train), len(dataset.test))
    check_number(split.name, clients, division.clients)
    return division


def check_number(name: str, clients: int | None, said: int) -> None:
    """Refuse a number of clients that is not the one that the split says."""
    if clients not in (None, said):
        raise UserError("--clients", clients, f"{name} has {said}", hint="leave --clients out")


def by(dataset: Dataset, split: Split) -> list[Tensor]:
    """A client for each class, each domain or each value of a column, in their order."""
    column = split.name.removeprefix(BY)
    if column == "domain" and len(dataset.domains) < 2:
        raise _no_domains(split.name, dataset)
    numbers = {"label": dataset.train.labels, "domain": dataset.train.domains}.get(column, dataset.train.holders)
    if numbers is None:
        raise UserError("--split", split.name, f"{dataset.name} has no column", hint="give by:label or by:domain")
    return [rows for rows in group(numbers, int(numbers.max()) + 1) if len(rows)]


def name_of_holder(dataset: Dataset, split: str, held: Samples) -> str:
    """What a client with these samples is called: `by:COLUMN` alone gives it a name, the column's value."""
    if not split.startswith(BY):
        return ""
    own = dataset.holders, held.holders
    names, numbers = {"label": (dataset.classes, held.labels), "domain": (dataset.domains, held.domains)}.get(
        split.removeprefix(BY), own
    )
    return names[int(numbers[0])] if names and numbers is not None else ""


def _check_parts(name: str, parts: object, clients: int, total: int) -> None:
    """Raise unless a user's own function gave each client rows, and no row twice."""
    if not isinstance(parts, Sequence) or not all(isinstance(rows, Tensor) for rows in parts):
        raise UserError("--split", name, "it must return a list with a tensor of rows for each client")
    if len(parts) != clients or not all(rows.dtype == torch.int64 and rows.dim() == 1 and len(rows) for rows in parts):
        got = [f"{rows.dtype} {list(rows.shape)}" for rows in parts]
        raise UserError("--split", name, f"it must give {clients} tensors, int64 [n] and none empty, not {got}")
    rows = torch.cat(list(parts))
    if int(rows.min()) < 0 or int(rows.max()) >= total:
        raise UserError("--split", name, f"rows are from 0 to {total - 1}")
    if int(rows.bincount().max()) > 1:
        raise UserError("--split", name, "a row may go to one client only")


def iid(dataset: Dataset, _: Split, clients: int, seed: int) -> list[Tensor]:
    """Equal parts of the shuffled rows."""
    order = torch.randperm(len(dataset.train), generator=generator(seed, "split", "iid"))
    return list(order.tensor_split(clients))


def dirichlet(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """Each class is divided in proportions ~ Dir(alpha), until every client has min_size images."""
    _check_alpha(split.alpha)
    _check_min_size(split.min_size, clients, len(dataset.train))
    for counts in _dirichlet_draws(dataset, split.alpha, split.balance, clients, seed):
        if counts.sum(axis=1).min() >= split.min_size:
            return _deal(dataset.train.labels, torch.from_numpy(counts), generator(seed, "split", "deal"))
    raise UserError(
        "--alpha",
        split.alpha,
        f"{TRIES} draws gave no split with {split.min_size} images for each of {clients} clients",
        hint="raise --alpha, or lower --min-size or --clients",
    )


def _dirichlet_draws(
    dataset: Dataset, alpha: float, balance: bool, clients: int, seed: int
) -> Iterator[NDArray[np.int64]]:
    """How many images of each class each client gets, drawn again and again."""
    rng = _numpy_generator(seed, "split", "dirichlet")
    totals = torch.bincount(dataset.train.labels, minlength=len(dataset.classes)).numpy()
    return (_dirichlet_counts(totals, alpha, balance, clients, rng) for _ in range(TRIES))


def _dirichlet_counts(
    totals: NDArray[np.int64], alpha: float, balance: bool, clients: int, rng: np.random.Generator
) -> NDArray[np.int64]:
    """One draw of how many images of each class each client gets, [clients, classes]."""
    share = totals.sum() / clients
    counts = np.zeros((clients, len(totals)), dtype=np.int64)
    for c, total in enumerate(totals):
        parts = rng.dirichlet(np.full(clients, alpha))
        if balance:
            room = counts.sum(axis=1) < share
            parts = parts * room
            if parts.sum() == 0:  # a tiny alpha put everything on clients that are full
                parts = room / room.sum()
        counts[:, c] = _sizes(parts, total)
    return counts


def nid1(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """FedSC's NID1 as its code has it: a balanced Dirichlet split, laid end to end and cut into equal parts.

    Every client has half its share before the cut; where no draw gives that, as with many clients, the nearest to it.
    """
    _check_alpha(split.alpha)
    half = len(dataset.train) // clients // 2
    best, most = np.zeros((0, 0), dtype=np.int64), -1
    for counts in _dirichlet_draws(dataset, split.alpha, True, clients, seed):
        smallest = int(counts.sum(axis=1).min())
        if smallest > most:
            best, most = counts, smallest
        if most >= half:
            break
    uneven = _deal(dataset.train.labels, torch.from_numpy(best), generator(seed, "split", "deal"))
    return list(torch.cat(uneven).tensor_split(clients))


def ways(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """FedProto's n-way k-shot: some classes per client, k consecutive images of each."""
    classes = len(dataset.classes)
    least, most = _shots(dataset, split)
    stride = split.shots + 10
    totals = torch.bincount(dataset.train.labels, minlength=classes)
    if stride * (clients - 1) + most > totals.min():
        raise UserError(
            "--shots",
            split.shots,
            f"{clients} clients need {stride * (clients - 1) + most} images of every class and the smallest class "
            f"has {int(totals.min())}",
            hint="lower --shots or --clients, or take --split ways-packed",
        )
    order = dataset.train.labels.argsort(stable=True)
    first = totals.cumsum(0) - totals
    parts = []
    for i in range(clients):
        rng = generator(seed, "split", "ways", i)
        number, k = _draw_ways(split, classes, least, most, rng)
        chosen = torch.randperm(classes, generator=rng)[:number].sort().values
        parts.append(order[(first[chosen] + stride * i).unsqueeze(1) + torch.arange(k)].flatten())
    return parts


def ways_packed(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """The same where classes are small or of unequal size: a client draws among those with k images left."""
    classes = len(dataset.classes)
    least, most = _shots(dataset, split)
    left = group(dataset.train.labels, classes)
    parts = []
    for i in range(clients):
        rng = generator(seed, "split", "ways", i)
        number, k = _draw_ways(split, classes, least, most, rng)
        open_classes = torch.tensor([len(rows) >= k for rows in left]).nonzero().flatten()
        if len(open_classes) < number:
            raise UserError(
                "--shots",
                split.shots,
                f"only {len(open_classes)} classes have {k} images left for client {i}, which needs {number}",
                hint="lower --shots, --ways or --clients",
            )
        chosen = open_classes[torch.randperm(len(open_classes), generator=rng)[:number]].sort().values.tolist()
        parts.append(torch.cat([left[c][:k] for c in chosen]))
        for c in chosen:
            left[c] = left[c][k:]
    return parts


def _shots(dataset: Dataset, split: Split) -> tuple[int, int]:
    """The least and the largest number of images of a class at a client."""
    n, s, shots, classes = split.ways, split.half_width, split.shots, len(dataset.classes)
    if not 2 <= n < classes:
        raise UserError("--ways", n, f"it must be from 2 to {classes - 1}, one less than the classes of {dataset.name}")
    if shots < 1:
        raise UserError("--shots", shots, "it must be 1 or more")
    if not 0 <= s <= min(12, shots):
        why = "it must be from 0 to 12 (more would make clients overlap) and at most --shots"
        raise UserError("--half-width", s, why)
    least = min(shots, shots - s + 1)
    return least, max(least, shots + s - 2)  # FedProto's range for MNIST; without the max it is empty for s = 1


def _draw_ways(split: Split, classes: int, least: int, most: int, rng: torch.Generator) -> tuple[int, int]:
    """A client's number of classes, and of images of each."""
    number = _uniform(max(2, split.ways - split.half_width), min(classes - 1, split.ways + split.half_width), rng)
    return number, _uniform(least, most, rng)


def domains(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """Every client holds one domain: client k the domain k modulo their number; equal shuffled parts within one.

    With `per_domain` the clients of the first domain come first, as many as it says, then those of the second.
    """
    number = len(dataset.domains)
    if number < 2:
        raise _no_domains("domains", dataset)
    if clients < number and split.per_domain is None:
        raise UserError("--clients", clients, f"it must be at least {number}, the number of domains of {dataset.name}")
    members_of = [range(d, clients, number) for d in range(number)]
    if split.per_domain is not None:
        if len(split.per_domain) != number:
            why = f"{dataset.name} has {number} domains to train on: {listed(dataset.domains)}"
            raise UserError("--clients-per-domain", ",".join(map(str, split.per_domain)), why)
        ends = list(itertools.accumulate(split.per_domain))
        members_of = [range(end - size, end) for end, size in zip(ends, split.per_domain, strict=True)]
    parts = [torch.empty(0)] * clients
    for d, (name, members) in enumerate(zip(dataset.domains, members_of, strict=True)):
        rows = (dataset.train.domains == d).nonzero().flatten()
        if len(rows) < len(members):
            raise UserError("--clients", clients, f"domain {name!r} has {len(rows)} images for {len(members)} clients")
        order = torch.randperm(len(rows), generator=generator(seed, "split", "domains", d))
        for k, part in zip(members, rows[order].tensor_split(len(members)), strict=True):
            parts[k] = part
    return parts


def _no_domains(name: str, dataset: Dataset) -> UserError:
    having = listed([name for name, source in DATASETS.items() if source.domains])
    return UserError("--split", name, f"{dataset.name} has no domains", hint=f"datasets that have: {having}")


def pathological(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """Every client has `ways` classes, drawn for each; the rows of a class are divided equally among its clients."""
    classes = len(dataset.classes)
    if not 1 <= split.ways <= classes:
        raise UserError("--ways", split.ways, f"it must be from 1 to {classes}, the classes of {dataset.name}")
    rng = generator(seed, "split", "pathological")
    chosen = [torch.randperm(classes, generator=rng)[: split.ways].tolist() for _ in range(clients)]
    parts: list[list[Tensor]] = [[] for _ in range(clients)]
    for c, rows in enumerate(group(dataset.train.labels, classes)):
        members = [k for k in range(clients) if c in chosen[k]]
        if len(rows) < len(members):
            why = f"class {dataset.classes[c]!r} has {len(rows)} images for {len(members)} clients"
            raise UserError("--clients", clients, why)
        order = torch.randperm(len(rows), generator=rng)
        for k, part in zip(members, rows[order].tensor_split(max(len(members), 1)), strict=False):
            parts[k].append(part)
    return [torch.cat(part) for part in parts]


def shards(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """FedAvg's split: rows sorted by class and cut into equal parts, of which each client gets `shards` at random."""
    total = split.shards * clients
    if not 1 <= split.shards <= len(dataset.train) // clients:
        why = f"it must be from 1 to {len(dataset.train) // clients} ({len(dataset.train)} images, {clients} clients)"
        raise UserError("--shards", split.shards, why)
    pieces = dataset.train.labels.argsort(stable=True).tensor_split(total)
    order = torch.randperm(total, generator=generator(seed, "split", "shards")).view(clients, split.shards)
    return [torch.cat([pieces[place] for place in places]) for places in order.tolist()]


def quantity(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:
    """Unequal sizes: min_size images each, the rest in proportions ~ Dir(alpha); the rows are shuffled first."""
    _check_alpha(split.alpha)
    _check_min_size(split.min_size, clients, len(dataset.train))
    parts = _numpy_generator(seed, "split", "sizes").dirichlet(np.full(clients, split.alpha))
    sizes = split.min_size + _sizes(parts, len(dataset.train) - clients * split.min_size)
    order = torch.randperm(len(dataset.train), generator=generator(seed, "split", "quantity"))
    return list(order.tensor_split(sizes.cumsum()[:-1].tolist()))


def nid2(dataset: Dataset, _: Split, clients: int, seed: int) -> list[Tensor]:
    """FedSC's NID2: five clients with a fifth of the classes each, one with all, of about equal size."""
    classes = len(dataset.classes)
    if clients != 6:
        raise UserError("--clients", clients, "the split nid2 has 6")
    if classes % 5:
        raise UserError(
            "--split", "nid2", f"it needs a number of classes divisible by 5, and {dataset.name} has {classes}"
        )
    totals = torch.bincount(dataset.train.labels, minlength=classes)
    counts = torch.zeros(6, classes, dtype=torch.int64)
    counts[5] = totals // 6
    labels = torch.arange(classes)
    counts[labels // (classes // 5), labels] = totals - counts[5]
    if (counts.sum(1) == 0).any():
        raise UserError("--split", "nid2", f"{len(dataset.train)} training images leave a client without any")
    return _deal(dataset.train.labels, counts, generator(seed, "split", "nid2"))


def long_tail(labels: Tensor, classes: int, rho: float, seed: int) -> Tensor:
    """Rows that keep n_c = floor(n_max rho^(-c / (C - 1))) images of class c."""
    if not (rho >= 1 and math.isfinite(rho)):
        raise UserError(
            "--long-tail", rho, "it must be 1 or more: the first class has that many times the images of the last"
        )
    exponent = -torch.arange(classes, dtype=torch.float64) / max(classes - 1, 1)
    n_max = torch.bincount(labels, minlength=classes).max()
    quota = (n_max * rho**exponent + 1e-9).floor().long()  # so that 500 does not become 499 by rounding
    return draw(group(labels, classes), quota, generator(seed, "long-tail")).sort().values


SplitFunction = Callable[[Dataset, Split, int, int], Sequence[Tensor]]
"""What divides a dataset: (dataset, split, clients, seed) -> the training rows of each client."""

SPLITS: dict[str, SplitFunction] = {
    "iid": iid,
    "dirichlet": dirichlet,
    "nid1": nid1,
    "ways": ways,
    "ways-packed": ways_packed,
    "domains": domains,
    "quantity": quantity,
    "nid2": nid2,
    "pathological": pathological,
    "shards": shards,
}
"""Name the ways to divide a dataset; a new one is a function and a line here.

A function takes (dataset, split, clients, seed) and returns the training rows of each client [n], disjoint. One of your
own needs no line here: pass it as `split=`, or name it, `--split path/to/file.py:name`.

Example:
    >>> from protofed.data import SPLITS
    >>> list(SPLITS)
    ['iid', 'dirichlet', 'nid1', 'ways', 'ways-packed', 'domains', 'quantity', 'nid2', 'pathological', 'shards']
"""
ALIASES = {
    "IidPartitioner": "iid",
    "DirichletPartitioner": "dirichlet",
    "PathologicalPartitioner": "pathological",
    "ShardPartitioner": "shards",
}
"""Names that flwr-datasets gives to the same rules; docs/splits.md says with which of its arguments."""
TESTED_BY_SHOTS = ("ways", "ways-packed")
"""Splits whose clients test on --test-shots images of each of their classes; others on a share like their own."""


def group(numbers: Tensor, size: int) -> list[Tensor]:
    """The rows that hold each number from 0 to size - 1."""
    edges = torch.bincount(numbers, minlength=size).cumsum(0)[:-1]
    return list(numbers.argsort(stable=True).tensor_split(edges.tolist()))


def draw(groups: list[Tensor], quota: Tensor, rng: torch.Generator) -> Tensor:
    """Up to quota[g] random rows of each group g, without replacement."""
    wanted = [(rows, number) for rows, number in zip(groups, quota.tolist(), strict=True) if number]
    return torch.cat([rows[torch.randperm(len(rows), generator=rng)[:number]] for rows, number in wanted])


def _deal(labels: Tensor, counts: Tensor, rng: torch.Generator) -> list[Tensor]:
    """All rows, dealt at random so that client k gets counts[k, c] of class c."""
    clients, classes = counts.shape
    order = torch.randperm(len(labels), generator=rng)
    order = order[labels[order].argsort(stable=True)]  # by class, shuffled within each
    owner = torch.arange(clients).repeat(classes).repeat_interleave(counts.T.flatten())
    return list(order[owner.argsort(stable=True)].tensor_split(counts.sum(1).cumsum(0)[:-1].tolist()))


def _sizes(parts: NDArray[np.float64], total: int) -> NDArray[np.int64]:
    """Whole numbers in these proportions that add up to the total."""
    edges = np.rint(parts.cumsum() / parts.sum() * total).astype(np.int64)  # cutting off would favour the last
    sizes: NDArray[np.int64] = np.diff(edges, prepend=0)
    return sizes


def _uniform(least: int, most: int, rng: torch.Generator) -> int:
    """A whole number between two, both included."""
    return int(torch.randint(least, most + 1, (), generator=rng))


def _numpy_generator(*address: int | str) -> np.random.Generator:
    """NumPy's generator for an address: torch draws from a Dirichlet only without one."""
    return np.random.default_rng(generator(*address).initial_seed())


def _check_alpha(alpha: float) -> None:
    if not 0 < alpha <= 1e6:  # far above that the draws overflow
        raise UserError("--alpha", alpha, "it must be above 0 and at most 1e6")


def _check_min_size(min_size: int, clients: int, total: int) -> None:
    if not 1 <= min_size <= total // clients:
        raise UserError(
            "--min-size", min_size, f"it must be from 1 to {total // clients} ({total} images, {clients} clients)"
        )
