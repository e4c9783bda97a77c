"""Noise in whole numbers: its distribution, its share of each client, and that sums with it fit and stay private."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.prototypes import Prototypes
from protofed.trust.dp_mechanisms import private_sum
from protofed.trust.integer_noise import (
    LEAST,
    TAIL,
    Source,
    check_noise,
    contributions,
    discrete_gaussian,
    noised_row,
    noisy_sum,
    released,
    share_deviation,
    system_gaussian,
)
from protofed.trust.secagg import FRACTION, Words, integers, layout_of, numbers, threshold


def from_seed(seed: int = 0) -> Source:
    """Words that a test can have again."""
    draws = np.random.default_rng(seed)
    return lambda size: draws.integers(0, 2**64, size, dtype=np.uint64)


def private(clients: int = 5, clip: float | None = 2.0, noise: float = 1.5) -> Experiment:
    return Experiment(method="fedavg", privacy="client", clients=clients, clip=clip, noise=noise)


def uploads_of(clients: int, size: int = 30, length: float = 3.0, seed: int = 1) -> tuple[Upload, Broadcast]:
    """Weights, prototypes with gaps, and sums."""
    draws = torch.Generator().manual_seed(seed)

    def drawn(*shape: int) -> torch.Tensor:
        return length * torch.randn(clients, *shape, generator=draws, dtype=torch.float64)

    counts = torch.randint(0, 3, (clients, 4, 1), generator=draws)
    weights = {"w": drawn(size), "b": drawn(), "n": torch.full((clients,), 7)}
    sets = {"means": Prototypes(drawn(4, 1, 5), counts)}
    sent = {"w": torch.ones(size, dtype=torch.float64), "b": torch.tensor(2.0).double(), "n": torch.tensor(3)}
    upload = Upload(weights, sets, {"samples": torch.full((clients,), 9)}, {"s": drawn(3, 3)})
    return upload, Broadcast(sent)


def rows_of(uploads: Upload, sent: Broadcast, experiment: Experiment, words: Source) -> list[Words]:
    number = experiment.number_of_clients
    return [noised_row(uploads.reorder(torch.tensor([k])), sent, experiment, number, words) for k in range(number)]


@pytest.mark.parametrize("deviation", [0.7, 2.5, 16.0])
def test_each_integer_comes_as_often_as_a_discrete_gaussian_says(deviation: float) -> None:
    """χ² against the probabilities, summed as they are."""
    size, far = 200_000, int(8 * deviation) + 8
    values, seen = np.unique(discrete_gaussian(size, deviation, from_seed()), return_counts=True)
    support = np.arange(-far, far + 1)
    chances = np.exp(-(support**2) / (2 * deviation**2))
    expected = dict(zip(support.tolist(), (size * chances / chances.sum()).tolist(), strict=True))
    counted = dict(zip(values.tolist(), seen.tolist(), strict=True))
    cells = [value for value, number in expected.items() if number > 10]
    chi = sum((counted.get(value, 0) - expected[value]) ** 2 / expected[value] for value in cells)
    assert abs(chi - len(cells)) < 5 * math.sqrt(2 * len(cells))


@pytest.mark.parametrize("deviation", [1e3, 2.0**32, 1e11])
def test_wide_noise_has_its_moments(deviation: float) -> None:
    drawn = discrete_gaussian(100_000, deviation, from_seed(3)) / deviation
    assert abs(drawn.mean()) < 5 / math.sqrt(len(drawn))
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / len(drawn))
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96 / len(drawn))
    assert abs(drawn).max() < TAIL
    low = discrete_gaussian(100_000, deviation, from_seed(4)) % 8  # the last bits say nothing
    assert abs(np.bincount(low, minlength=8) - 12_500).max() < 5 * math.sqrt(12_500)


def test_noise_is_new_each_time_and_not_from_a_seed() -> None:
    torch.manual_seed(0)
    np.random.seed(0)  # which it must not listen to
    first = discrete_gaussian(50, 1e6)
    torch.manual_seed(0)
    np.random.seed(0)
    assert (first != discrete_gaussian(50, 1e6)).any()
    assert len(discrete_gaussian(0, 5.0)) == 0


def test_noise_on_what_is_no_integer_is_as_wide_as_asked_and_not_from_a_seed() -> None:
    like = torch.zeros(200, 500)
    torch.manual_seed(0)
    first = system_gaussian(like, 0.3)
    torch.manual_seed(0)
    again = system_gaussian(like, 0.3)
    assert (first.shape, first.dtype) == (like.shape, like.dtype)
    assert float(first.std()) == pytest.approx(0.3, rel=0.02)
    assert float((first * again).mean()) == pytest.approx(0.0, abs=5 * 0.09 / math.sqrt(like.numel()))
    assert not system_gaussian(like, 0.0).any()


@pytest.mark.parametrize("clients", [2, 3, 4, 7])
def test_the_fewest_that_a_sum_may_have_add_the_noise_that_is_counted(clients: int) -> None:
    experiment, least = private(clients), threshold(clients)
    size = 40_000
    uploads = Upload({"w": torch.zeros(clients, size)}, {}, {"samples": torch.ones(clients)})
    sent = Broadcast({"w": torch.zeros(size)})
    rows = rows_of(uploads, sent, experiment, from_seed(5))
    deviation = experiment.noise * 2.0  # noise · clip
    for there in (least, clients):
        total = np.sum(rows[:there], axis=0, dtype=np.uint64).view(np.int64) / 2.0**FRACTION
        expected = deviation**2 * there / least
        assert abs(total.var() / expected - 1) < 5 * math.sqrt(2 / size)
        assert expected >= deviation**2


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 6), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3), st.integers(0, 2**31))
def test_no_client_adds_more_than_the_clip_after_rounding_too(
    clients: int, clip: float, length: float, seed: int
) -> None:
    uploads, sent = uploads_of(clients, length=length, seed=seed)
    parts = contributions(uploads, sent, clip)
    for client in range(clients):
        row = integers({name: part[client] for name, part in parts.items()}, clients)
        squares = sum(int(number) ** 2 for number in row.view(np.int64).tolist())  # whole numbers: no rounding
        assert squares <= int(clip * 2**FRACTION) ** 2 * (1 + 1e-12)


def test_what_is_small_is_not_scaled() -> None:
    uploads, sent = uploads_of(3, length=1e-3)
    parts = contributions(uploads, sent, 1e3)
    assert set(parts) == {"weights/w", "weights/b", "prototypes/means/vectors", "prototypes/means/holders", "sums/s"}
    torch.testing.assert_close(parts["weights/w"], uploads.weights["w"] - 1, rtol=0, atol=0)
    torch.testing.assert_close(parts["sums/s"], uploads.sums["s"], rtol=0, atol=0)
    held = uploads.prototypes["means"].counts > 0
    assert torch.equal(parts["prototypes/means/holders"] > 0, held)


def without_noise(size: int) -> Words:
    """Words of which all draws are 0: accepted, positive, and nothing."""
    return np.zeros(size, np.uint64)


@pytest.mark.parametrize("masked", [True, False])
def test_without_noise_it_is_the_mechanism_of_the_experiments(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added up by a trusted server, or in rows that are added: clipped alike, and divided alike."""
    monkeypatch.setattr("protofed.trust.integer_noise.discrete_gaussian", lambda size, *_: np.zeros(size, np.int64))
    experiment = private(clients=6)
    uploads, sent = uploads_of(6)
    if masked:
        layout = layout_of({name: part[0] for name, part in contributions(uploads, sent, 2.0).items()})
        total: Words = np.sum(rows_of(uploads, sent, experiment, without_noise), axis=0, dtype=np.uint64)
        parts = numbers(total, layout)
    else:
        parts = noisy_sum(uploads, sent, experiment)
    found = released(parts, uploads, sent, 2.0, 6, 0.0)
    quiet = Experiment(method="fedavg", privacy="client", clients=6, clip=2.0)
    expected = private_sum(uploads, sent, 6.0, quiet, 0)
    for name, tensor in expected.weights.items():
        torch.testing.assert_close(found.weights[name], tensor, rtol=0, atol=1e-7)
    torch.testing.assert_close(found.sums["s"], expected.sums["s"], rtol=0, atol=1e-7)
    for mine, theirs in zip(found.prototypes["means"], expected.prototypes["means"], strict=True):
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=0, atol=1e-6)
    assert found.numbers.keys() == expected.numbers.keys()


def test_a_trusted_servers_noise_is_all_of_it() -> None:
    uploads = Upload({"w": torch.zeros(3, 40_000)}, {}, {"samples": torch.ones(3)})
    total = noisy_sum(uploads, Broadcast({"w": torch.zeros(40_000)}), private(3), from_seed())["weights/w"]
    assert abs(total.var() / 3.0**2 - 1) < 5 * math.sqrt(2 / 40_000)


@pytest.mark.parametrize("clients", [0, 1, 4])
def test_who_is_not_finite_adds_nothing_and_nobody_adds_noise_alone(clients: int) -> None:
    uploads, sent = uploads_of(clients + 1)
    uploads.weights["w"][clients, 0] = torch.nan
    quiet = private(5, noise=1e-6)
    total = noisy_sum(uploads, sent, quiet)
    others, _ = uploads_of(clients + 1)
    expected = contributions(others.reorder(torch.arange(clients)), sent, 2.0)
    for name, part in total.items():
        torch.testing.assert_close(part, expected[name].sum(0), rtol=0, atol=1e-4)


def test_sums_with_noise_do_not_wrap() -> None:
    """At the largest clip that is let through: each row at its bound, and the sum as whole numbers."""
    clients, noise = 5, 0.01
    per = 2.0 ** (63 - FRACTION) / clients
    clip = per / (1 + TAIL * noise / math.sqrt(threshold(clients))) * 0.999999
    experiment = private(clients, clip=clip, noise=noise)
    check_noise(experiment, share_deviation(experiment, clients))
    size = 4
    uploads = Upload({"w": torch.tensor([[1e12, 0, 0, 0]] * clients)}, {}, {"samples": torch.ones(clients)})
    rows = rows_of(uploads, Broadcast({"w": torch.zeros(size)}), experiment, from_seed())
    exact = [sum(column) for column in zip(*(row.view(np.int64).tolist() for row in rows), strict=True)]
    assert np.sum(rows, axis=0, dtype=np.uint64).view(np.int64).tolist() == exact
    assert exact[0] > 0.9 * clients * clip * 2**FRACTION


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"clip": 1e9}, "--clip.*wrap"),
        ({"clip": 1.0, "noise": 1e8}, "--clip.*wrap"),
        ({"clip": LEAST * 2.0**-FRACTION / 2, "noise": 1.0}, "--clip.*too fine"),
        ({"noise": 0.0}, "over a network it needs noise"),
        ({"noise": 0.0, "clip": None}, "over a network it needs noise"),
    ],
)
def test_what_has_no_place_among_the_integers_is_refused(change: dict[str, float], why: str) -> None:
    experiment = private(**change)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=why):
        check_noise(experiment, experiment.noise * (experiment.clip or 0.0))


def test_a_clip_below_what_rounding_moves_is_refused() -> None:
    uploads, sent = uploads_of(2)
    with pytest.raises(UserError, match="too small for the rounding of"):
        contributions(uploads, sent, 2.0**-FRACTION)
