"""What happens to samples before a model sees them, against numpy."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from protofed.data import Client, Dataset, Preparation, Samples, Shape
from protofed.data.build import federation_of
from protofed.data.federation import Federation
from protofed.data.preparation import statistics
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.plugins import name_of


@settings(max_examples=40, deadline=None)
@given(shape=st.lists(st.integers(1, 5), min_size=1, max_size=3), number=st.integers(1, 9), seed=st.integers(0, 99))
def test_statistics_are_numpys_of_every_channel(shape: list[int], number: int, seed: int) -> None:
    x = 3 * torch.randn(number, *shape, generator=torch.Generator().manual_seed(seed)) + 1
    channels = np.moveaxis(x.double().numpy(), 1, 0).reshape(shape[0], -1)
    mean, std = statistics(x, "standardise")
    assert mean == pytest.approx(channels.mean(1).tolist())
    assert std == pytest.approx([value if value > 0 else 1.0 for value in channels.std(1)])


def test_a_mask_says_which_steps_count_and_stays_as_it_is() -> None:
    series = torch.tensor([[[1.0, 3.0, 9.0], [1, 1, 0]], [[5.0, 9.0, 9.0], [1, 0, 0]]])
    mean, std = statistics(series, "standardise", masked=True)
    real = [1.0, 3.0, 5.0]
    assert mean == pytest.approx((np.mean(real), 0.0))
    assert std == pytest.approx((np.std(real), 1.0))


@pytest.mark.parametrize(
    ("x", "kind", "tokens"),
    [
        (torch.zeros(2, 3, 4, 4, dtype=torch.uint8), "pixels", 0),
        (torch.zeros(2, 3, dtype=torch.uint8), "standardise", 0),
        (torch.zeros(2, 3), "standardise", 0),
        (torch.tensor([[4, 2, 0]]), "none", 5),
    ],
)
def test_the_kind_follows_from_the_samples(x: Tensor, kind: str, tokens: int) -> None:
    prepared = Preparation.of(x)
    assert (prepared.kind, prepared.tokens) == (kind, tokens)
    assert Preparation.from_json(json.loads(json.dumps(asdict(prepared)))) == prepared


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"kind": "odd"}, "kind"),
        ({"kind": "standardise", "mean": [0.0], "std": [0.0]}, "above 0"),
        ({"kind": "standardise", "mean": [0.0], "std": [1.0, 1.0]}, "for each channel"),
        ({"kind": "standardise", "mean": [float("nan")], "std": [1.0]}, "finite"),
        ({"kind": "none", "mean": [0.0], "std": [1.0]}, "need none"),
        ({"kind": "standardise", "mean": [0.0], "std": [1.0], "tokens": 5}, "stay as they are"),
        ({"more": 1}, "nothing else"),
        ([], "nothing else"),
        ({"mean": 3}, "mean"),
    ],
)
def test_what_a_file_says_is_checked(values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Preparation.from_json(values)


def numbers(rows: int = 40, seed: int = 0) -> Samples:
    draws = torch.Generator().manual_seed(seed)
    return Samples.of(5 * torch.randn(rows, 3, generator=draws) + seed, torch.arange(rows) % 2)


def own(*clients: Client) -> str:
    """The name of a federation of this session."""
    return kept(Federation(clients, ("a", "b")))


KEEP: list[Federation] = []  # a session's table holds them weakly


def kept(federation: Federation) -> str:
    KEEP.append(federation)
    return name_of(federation, "federation")


@pytest.mark.parametrize("how", ["dataset", "none", "all", "client"])
def test_normalise_says_whose_statistics(how: str) -> None:
    clients = [Client.of(numbers(seed=seed), numbers(seed=9)) for seed in (0, 3)]
    found = federation_of(Experiment(dataset=own(*clients), normalise=how))  # type: ignore[arg-type]
    whole = Preparation.of(torch.cat([client.train.x for client in clients]))
    expected = {
        "dataset": [client.preparation for client in clients],
        "client": [Preparation.of(client.train.x) for client in clients],
        "all": [whole, whole],
        "none": [Preparation(), Preparation()],
    }
    assert [client.preparation for client in found.clients] == expected[how]


@pytest.mark.parametrize("how", ["pixels", "imagenet"])
def test_pictures_statistics_are_for_pictures(how: str) -> None:
    name = own(Client.of(numbers(), numbers()))
    with pytest.raises(UserError, match="--normalise: it is for pictures"):
        federation_of(Experiment(dataset=name, normalise=how))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="--augment: it crops and mirrors pictures"):
        federation_of(Experiment(dataset=name, augment="crop"))


def test_token_ids_are_never_standardised() -> None:
    ids = Samples.of(torch.tensor([[1, 2], [3, 0]]), torch.tensor([0, 1]))
    name = own(Client.of(ids, ids))
    assert federation_of(Experiment(dataset=name, normalise="none")).clients[0].preparation.tokens == 4
    for how in ("all", "client"):
        with pytest.raises(UserError, match="token ids are names"):
            federation_of(Experiment(dataset=name, normalise=how))


def test_digits_scaled_to_one_have_no_mean() -> None:
    found = federation_of(Experiment(normalise="pixels")).clients[0].preparation
    assert (found.kind, found.mean, found.std) == ("pixels", (0.0,), (1.0,))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.tensor([[1.0, float("nan")], [0, 0]]), "sample 0' for x: it holds a number that is not finite"),
        (torch.tensor([[1, -1], [0, 0]]), "token ids must start at 0"),
    ],
)
def test_samples_that_no_model_can_see_are_refused(x: Tensor, message: str) -> None:
    samples = Samples.of(x, torch.tensor([0, 1]))
    good = Samples.of(torch.ones_like(x), torch.tensor([0, 1]))
    with pytest.raises(UserError, match=message):
        Dataset.of("bad", good, samples, ["a", "b"], preparation=Preparation(tokens=0 if x.is_floating_point() else 9))


def test_ids_that_only_test_samples_have_are_tokens_too() -> None:
    train, test = (Samples.of(torch.tensor([[number]]), torch.tensor([0])) for number in (1, 6))
    assert Dataset.of("words", train, test, ["a"]).preparation.tokens == 7
    with pytest.raises(UserError, match="names 2 tokens"):
        Dataset.of("words", train, test, ["a"], preparation=Preparation(tokens=2))


def test_test_samples_are_like_those_for_training() -> None:
    with pytest.raises(UserError, match="must be like those for training"):
        Dataset.of("odd", numbers(), Samples.of(torch.zeros(2, 4), torch.tensor([0, 1])), ["a", "b"])


@pytest.mark.parametrize("shape", [Shape((5,), tokens=3), Shape((2, 4), masked=True), Shape((1, 4, 4))])
def test_an_example_is_what_a_model_may_see(shape: Shape) -> None:
    x = shape.example(3)
    assert x.shape == (3, *shape)
    if shape.tokens:
        assert int(x.max()) < shape.tokens
    if shape.masked:
        assert bool((x[:, -1] == 1).all())
