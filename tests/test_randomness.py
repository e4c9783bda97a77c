"""Randomness with an address."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.func import vmap

from protofed.randomness import generator, key, noise, step_keys, uniform

quick = settings(max_examples=30, deadline=None)
words = st.integers(0, 2**32 - 1)
N = 20_000


def correlation(a: Tensor, b: Tensor) -> float:
    return float(torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1])


def test_an_address_is_a_fixed_number() -> None:
    """Pinned, so that a release which changes every result does so on purpose."""
    assert [key(0, "weights"), key(1, "batches", 2, 3)] == [676567779, 2901981777]
    assert torch.randint(0, 1000, (4,), generator=generator(0, "batches", 1, 2)).tolist() == [971, 3, 229, 83]
    assert (uniform(torch.tensor(123), 4, (3,)) * 2**32).long().tolist() == [4050255663, 20462875, 2268751299]
    assert step_keys(torch.tensor(123), 3).tolist() == [1977961591, 1943550995, 1249451473]


def test_different_addresses_have_different_keys_and_streams() -> None:
    addresses = list(itertools.product((0, 1, 12), ("batches", "dropout"), range(25), range(25)))
    addresses += [(1, 23), (12, 3), (1, 2, 3), (123,), ("1", "a", 1), ("1a", 1), (-1,)]  # type: ignore[list-item]
    keys = {key(*address) for address in addresses}
    assert len(keys) == len(addresses)
    assert all(0 <= word < 2**32 for word in keys)
    streams = {
        tuple(torch.randint(0, 2**40, (2,), generator=generator(*address)).tolist()) for address in addresses[:600]
    }
    assert len(streams) == 600


def test_keys_use_all_their_bits() -> None:
    keys = torch.tensor([key(0, "dropout", client, 0) for client in range(2000)])
    for bit in range(32):
        share = float((keys >> bit & 1).double().mean())
        assert abs(share - 0.5) < 5 * 0.5 / math.sqrt(2000), bit


def test_a_stream_does_not_depend_on_others() -> None:
    alone = torch.rand(5, generator=generator(3, "batches", 1, 0))
    first, second = generator(3, "batches", 1, 0), generator(3, "batches", 2, 0)
    torch.rand(7, generator=second)
    before = torch.get_rng_state()
    assert torch.equal(torch.rand(5, generator=first), alone)
    assert torch.equal(torch.get_rng_state(), before)  # the global stream is not touched


@quick
@given(word=words, site=st.integers(-2, 40), shape=st.lists(st.integers(1, 5), min_size=0, max_size=3).map(tuple))
def test_draws_lie_between_0_and_1_and_repeat(word: int, site: int, shape: tuple[int, ...]) -> None:
    draws = uniform(torch.tensor(word), site, shape)
    assert draws.shape == shape
    assert draws.dtype == torch.float64
    assert bool(((draws >= 0) & (draws < 1)).all())
    assert torch.equal(uniform(torch.tensor(word), site, shape), draws)
    flat = uniform(torch.tensor(word), site, (draws.numel() + 3,))
    assert torch.equal(flat[: draws.numel()], draws.flatten())  # addressed by element: a larger draw begins the same


@pytest.mark.parametrize("word", [0, 1, 2**31, 2**32 - 1, key(0, "dropout", 3, 5)])
@pytest.mark.parametrize("site", [-1, 0, 1, 7])
def test_draws_are_uniform(word: int, site: int) -> None:
    draws = uniform(torch.tensor(word), site, (N,))
    assert abs(float(draws.mean()) - 1 / 2) < 5 / math.sqrt(12 * N)
    assert abs(float(draws.var()) - 1 / 12) < 5 * math.sqrt(1 / 180 / N)
    expected = N / 32
    chi_square = float(((torch.histc(draws, 32, 0, 1) - expected) ** 2 / expected).sum())
    assert chi_square < 31 + 5 * math.sqrt(2 * 31)
    assert abs(correlation(draws[1:], draws[:-1])) < 5 / math.sqrt(N)


@quick
@given(word=words, bit=st.integers(0, 31), site=st.integers(0, 20))
def test_keys_and_sites_draw_independently(word: int, bit: int, site: int) -> None:
    draws = uniform(torch.tensor(word), site, (N,))
    for other in (uniform(torch.tensor(word ^ 1 << bit), site, (N,)), uniform(torch.tensor(word), site + 1, (N,))):
        assert abs(correlation(draws, other)) < 5.5 / math.sqrt(N)
        both = float(((draws < 0.5) & (other < 0.5)).double().mean())
        assert abs(both - 0.25) < 5.5 * math.sqrt(0.25 * 0.75 / N)


@quick
@given(keys=st.lists(words, min_size=1, max_size=5), site=st.integers(0, 9))
def test_many_keys_at_once_under_vmap_and_one_by_one_are_the_same(keys: list[int], site: int) -> None:
    stacked = torch.tensor(keys)
    at_once = uniform(stacked, site, (3, 4))
    assert at_once.shape == (len(keys), 3, 4)
    assert torch.equal(torch.stack([uniform(torch.tensor(word), site, (3, 4)) for word in keys]), at_once)
    assert torch.equal(vmap(lambda word: uniform(word, site, (3, 4)))(stacked), at_once)


@quick
@given(words=st.lists(words, min_size=1, max_size=4), steps=st.integers(1, 9))
def test_each_step_has_its_own_key_whatever_their_number(words: list[int], steps: int) -> None:
    keys = step_keys(torch.tensor(words), steps)
    assert keys.shape == (len(words), steps)
    assert bool(((keys >= 0) & (keys < 2**32)).all())
    for row, word in zip(keys, words, strict=True):
        assert len(set(row.tolist())) == steps
        assert torch.equal(step_keys(torch.tensor(word), steps), row)
        assert torch.equal(step_keys(torch.tensor(word), steps + 4)[:steps], row)


def test_steps_and_clients_draw_independently() -> None:
    clients = torch.tensor([key(0, "dropout", client, 0) for client in range(3)])
    draws = uniform(step_keys(clients, 3), 1, (N,)).flatten(0, 1)
    off = torch.corrcoef(draws) - torch.eye(9)
    assert float(off.abs().max()) < 5 / math.sqrt(N)


def test_noise_has_more_streams_than_torch() -> None:
    """Torch takes 32 bits of a seed: of 100,000 streams some would be the same."""
    assert torch.equal(*(torch.randn(3, generator=torch.Generator().manual_seed(7 + high)) for high in (0, 5 << 32)))
    first = noise(0, "privacy", 1).standard_normal(4)
    assert (noise(0, "privacy", 1).standard_normal(4) == first).all()
    words = {noise(0, "privacy", number).bit_generator.random_raw() for number in range(100_000)}
    assert len(words) == 100_000
