"""`averaging=prototypes`: a client whose class means lie far from everybody's counts for less, in every descendant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS, build_method, method_class, parameters
from protofed.methods.base import Clock, Server
from protofed.methods.fedavg import MEANS, FedAvg
from protofed.prototypes import Prototypes
from protofed.runs.run import new_run
from tests.reference import methods as slow
from tests.reference.prototype_distances import Mean, shares
from tests.support.nets import PARAMS, Noisy, Norm, Shape, assert_same_run, federation, gap, play
from tests.support.trained_clients import client, states, trained
from tests.support.turns import turn_of


def weighing(name: str, **more: Any) -> dict[str, Any]:
    """The method's parameters that turn it on, in tiny runs."""
    shared = {"share_weights": True} if "share_weights" in parameters(method_class(name)) else {}
    return {**PARAMS.get(name, {}), **shared, "averaging": "prototypes", **more}


def offers(name: str) -> bool:
    """Whether a method averages so."""
    if not issubclass(method_class(name), FedAvg):
        return False
    try:
        build_method(name, weighing(name))
    except UserError:
        return False
    return True


class Quiet(Noisy):
    """With block features, and without dropout, which would tell clients apart."""

    def __init__(self, shape: Shape, classes: int) -> None:
        Norm.__init__(self, shape, classes)


OFFERING = [name for name in METHODS if offers(name)]
every_descendant = pytest.mark.parametrize("name", OFFERING)
quick = settings(max_examples=30, deadline=None)


def uploads(means: Prototypes, samples: Tensor, seed: int = 0) -> Upload:
    return Upload(states(len(samples), seed), {MEANS: means}, {"samples": samples})


def drawn(clients: int, classes: int, seed: int, held: float = 0.6) -> Prototypes:
    """Class means at some clients, which hold some of the classes, or none."""
    rng = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 9, (clients, classes, 1), generator=rng).double()
    counts *= torch.rand(clients, classes, 1, generator=rng) < held
    vectors = torch.randn(clients, classes, 1, 3, generator=rng, dtype=torch.float64) * 2
    return Prototypes(vectors * (counts > 0).unsqueeze(-1), counts)


def listed(means: Prototypes) -> list[dict[int, Mean]]:
    return [
        {c: (vectors[c][0], counts[c][0]) for c in range(len(counts)) if counts[c][0]}
        for vectors, counts in zip(means.vectors.tolist(), means.counts.tolist(), strict=True)
    ]


@quick
@given(clients=st.integers(1, 5), classes=st.integers(1, 4), seed=st.integers(0, 2**16), held=st.floats(0, 1))
def test_the_average_is_the_loop(clients: int, classes: int, seed: int, held: float) -> None:
    means = drawn(clients, classes, seed, held)
    samples = torch.randint(1, 50, (clients,), generator=torch.Generator().manual_seed(seed))
    expected = shares(samples.tolist(), listed(means))
    method, sent = FedAvg(averaging="prototypes"), uploads(means, samples, seed)
    importance = method.importance(sent)
    assert_close(importance / importance.sum(), torch.tensor(expected).double() / sum(expected))
    result = method.aggregate(sent, Server(Broadcast(), Clock(1, 3))).weights
    assert_close(dict(result), slow.weighted_mean([client(dict(sent.weights), k) for k in range(clients)], expected))


def test_who_lies_apart_counts_for_less() -> None:
    vectors = torch.tensor([0.0, 0.0, 9.0]).view(3, 1, 1, 1)
    found = FedAvg(averaging="prototypes").importance(
        uploads(Prototypes(vectors, torch.ones(3, 1, 1)), torch.tensor([4, 8, 4]))
    )
    assert_close(found[1], 2 * found[0])  # as near, and twice the samples
    assert found[2] < found[0]
    assert_close((found[0] / found[2]).log(), torch.tensor((6 - 3) / 4).double())  # of distances 3, 3 and 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("how", ["alike", "rounded", "opposite", "alone", "nothing sent"])
def test_where_none_lies_farther_than_another_samples_decide(dtype: torch.dtype, how: str) -> None:
    clients = 1 if how == "alone" else 2
    samples, counts = torch.tensor([5, 2])[:clients], torch.full((clients, 2, 1), 3.0, dtype=dtype)
    vectors = (torch.arange(1, 5, dtype=dtype) / 3).view(1, 2, 1, 2).repeat(clients, 1, 1, 1)
    if how == "rounded":
        vectors[1] *= 1 + 2 * torch.finfo(dtype).eps
    elif how == "opposite":
        vectors[1] *= -1
    elif how == "nothing sent":
        vectors, counts = torch.zeros_like(vectors), torch.zeros_like(counts)
    found = FedAvg(averaging="prototypes").importance(uploads(Prototypes(vectors, counts), samples))
    assert_close(found / found.sum(), samples.double() / samples.sum())


def test_nearly_every_descendant_offers_it() -> None:
    """What does not, says why."""
    others = [name for name in METHODS if issubclass(method_class(name), FedAvg) and name not in OFFERING]
    assert others == ["fccl-plus"]
    with pytest.raises(UserError, match=r"'prototypes' for --set averaging: models are also averaged"):
        build_method("fccl-plus", weighing("fccl-plus"))


@pytest.mark.parametrize("name", ["fedproto", "fedtgp"])
def test_without_weights_there_is_nothing_to_average(name: str) -> None:
    with pytest.raises(UserError, match="without share_weights no weights are averaged"):
        build_method(name, weighing(name, share_weights=False))


@every_descendant
def test_a_round_differs_from_one_by_samples_and_engines_agree(name: str) -> None:
    rounds = 2 if name == "ccvr" else 1  # its last round averages nothing
    one: dict[str, Any] = {"rounds": rounds, "participation": 1.0, "epochs": 1}
    whole = {"clusters": 1} if name == "fesem" else {}  # a cluster of one client has no average
    sequential, stacked = (play(name, weighing(name, **whole), engine, **one) for engine in ("sequential", "stacked"))
    assert_same_run(sequential, stacked)
    plain = play(name, weighing(name, averaging="samples", **whole), **one)
    ours, theirs = (dict(run.method.send(run.broadcast, 0).weights) for run in (sequential, plain))
    assert gap(ours, theirs) > 1e-3
    assert sequential.history[0].bytes_up > plain.history[0].bytes_up


@every_descendant
def test_clients_of_the_same_data_count_by_samples(name: str) -> None:
    """A step is one on all of it: their class means differ by rounding, in which nothing lies apart."""
    one = federation([{0: 9, 1: 5, 2: 4}])
    three = replace(one, clients=one.clients * 3)
    run = play(name, weighing(name), rounds=0, clients=three, model=Quiet, epochs=1, batch_size=64)
    sent = run.engine.round([0, 1, 2], run.broadcast, Clock(0, 3, (0, 1, 2), 3)).uploads
    assert isinstance(run.method, FedAvg)
    assert run.method.importance(sent).tolist() == sent.numbers["samples"].tolist() == [18, 18, 18]


@every_descendant
def test_its_means_are_beside_what_the_method_sends(name: str) -> None:
    clients = trained(4)
    clients = clients._replace(weights={**clients.weights, "head.weight": torch.ones(3, 2)})
    by_means, plain = (build_method(name, weighing(name, averaging=how)) for how in ("prototypes", "samples"))
    ours, theirs = (method.upload(clients, turn_of(clients, method)) for method in (by_means, plain))
    assert ours.prototypes.keys() - theirs.prototypes.keys() == {MEANS}
    assert ours.prototypes.keys() >= theirs.prototypes.keys()
    assert MEANS not in theirs.prototypes
    assert by_means.collect == (plain.collect or "eval-pass")
    assert by_means.needs_each()


def test_a_class_of_too_few_samples_is_not_sent() -> None:
    """With --min-count nobody may have any left: then samples decide."""
    options = {"method": "fedavg", "clients": 2, "train_size": 40, "rounds": 1, "device": "cpu", "min_count": 1000}
    runs = [
        new_run(Experiment.from_mapping({**options, "params": {"averaging": how}})) for how in ("prototypes", "samples")
    ]
    for run in runs:
        run.play_round()
    assert_close(dict(runs[0].broadcast.weights), dict(runs[1].broadcast.weights))
