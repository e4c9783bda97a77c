"""The batches of a client's turn."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from protofed.engines.batches import Losses, Schedule, schedule, sizes_that_do, smallest_batch
from protofed.methods.base import Clock
from protofed.randomness import generator
from tests.support.nets import play

quick = settings(max_examples=60, deadline=None)


def alone(samples: int, batch_size: int, epochs: int, draws: torch.Generator) -> Schedule:
    return schedule([samples], batch_size, epochs, [draws])


def batches(result: Schedule, client: int = 0) -> list[list[int]]:
    steps = result.rows[client, : int(result.steps[client])]
    return [[int(row) for row in step if row >= 0] for step in steps]


def sizes(result: Schedule) -> list[int]:
    return [len(batch) for batch in batches(result)]


@quick
@given(samples=st.integers(1, 40), batch_size=st.integers(1, 12), epochs=st.integers(1, 3), seed=st.integers(0, 99))
@example(samples=1, batch_size=8, epochs=2, seed=0)
@example(samples=5, batch_size=8, epochs=2, seed=0)
@example(samples=8, batch_size=8, epochs=2, seed=0)
@example(samples=9, batch_size=8, epochs=2, seed=0)
@example(samples=2, batch_size=1, epochs=1, seed=0)
def test_every_sample_comes_once_an_epoch(samples: int, batch_size: int, epochs: int, seed: int) -> None:
    result = alone(samples, batch_size, epochs, generator(seed))
    taken = batches(result)
    assert len(taken) == result.rows.shape[1]
    assert len(taken) % epochs == 0
    steps = len(taken) // epochs
    for epoch in range(epochs):
        mine = taken[epoch * steps : (epoch + 1) * steps]
        assert sorted(row for batch in mine for row in batch) == list(range(samples))
    for step, size in zip(result.rows[0], sizes(result), strict=True):
        assert bool((step[:size] >= 0).all())  # samples first, then padding
        assert bool((step[size:] == -1).all())


@quick
@given(samples=st.integers(1, 40), batch_size=st.integers(2, 12), epochs=st.integers(1, 3))
def test_batches_are_full_but_the_last_and_a_last_one_of_one_joins(samples: int, batch_size: int, epochs: int) -> None:
    whole, rest = divmod(samples, batch_size)
    expected = [batch_size] * whole + [rest] * (rest > 0)
    if rest == 1 and whole:
        expected = [batch_size] * (whole - 1) + [batch_size + 1]
    assert sizes(alone(samples, batch_size, epochs, generator(0))) == expected * epochs


def test_batches_of_one_are_possible_when_asked_for() -> None:
    """--batch-size 1: no batch is a remainder, so none joins another."""
    for samples in (1, 2, 5):
        assert sizes(alone(samples, 1, 1, generator(0))) == [1] * samples


def test_epochs_are_shuffled_differently() -> None:
    first, second = alone(30, 30, 2, generator(0)).rows[0].tolist()
    assert first != second
    assert first != list(range(30))


def test_batches_are_addressed_by_seed_client_and_round() -> None:
    run, other = play(rounds=0), play(rounds=0, seed=1)
    engine, group = run.engine, run.engine.groups[0]

    def rows(row: int, clock: int) -> list[list[int]]:
        return batches(engine.schedule(group, [row], Clock(clock, 3)))

    first = rows(0, 0)
    assert rows(0, 1) != first
    rows(1, 0)
    assert rows(0, 0) == first  # nothing depends on what was asked before
    assert batches(other.engine.schedule(other.engine.groups[0], [0], Clock(0, 3))) != first
    alike = play(rounds=0, clients=None, batch_size=64)
    orders = {
        tuple(batches(alike.engine.schedule(alike.engine.groups[0], [row], Clock(0, 3)))[0][:4]) for row in range(4)
    }
    assert len(orders) == 4


@quick
@given(
    many=st.lists(st.integers(1, 30), min_size=1, max_size=5),
    batch_size=st.integers(1, 9),
    epochs=st.integers(1, 4),
    first=st.integers(0, 3),
)
def test_clients_are_scheduled_together_as_alone(many: list[int], batch_size: int, epochs: int, first: int) -> None:
    together = schedule(many, batch_size, epochs, [generator(k) for k in range(len(many))])
    for client, samples in enumerate(many):
        mine = batches(alone(samples, batch_size, epochs, generator(client)))
        assert batches(together, client) == mine
        assert batches(together.of([client])) == mine
        begin = min(first, epochs - 1)
        each = len(mine) // epochs
        assert batches(together.between(begin, epochs), client) == mine[begin * each :]
        assert together.taken[client].tolist() == [step < len(mine) for step in range(together.rows.shape[1])]
        assert bool((together.rows[client, len(mine) :] == -1).all())


def test_losses_of_steps_not_taken_do_not_count() -> None:
    """A gap, as between two phases of a client with few steps, is no step."""
    values = torch.tensor([[1.0, 2.0, torch.nan, 6.0, 8.0, torch.nan], [1.0, 2.0, 3.0, 4.0, 5.0, 9.0]])
    losses = Losses(values, values.isfinite())
    assert losses.means().tolist() == [17 / 4, 4.0]
    assert losses.last(torch.tensor([1, 3])).means().tolist() == [8.0, 6.0]
    assert losses.last(torch.tensor([3, 6])).means().tolist() == [pytest.approx(16 / 3), 4.0]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 8, 32])
def test_the_smallest_batch_is_that_of_the_schedule(batch_size: int) -> None:
    for samples in range(1, 70):
        smallest = min(len(batch) for batch in batches(alone(samples, batch_size, 1, generator(0))))
        assert smallest_batch(samples, batch_size) == smallest, samples


def test_the_nearest_batch_sizes_that_do_are_found() -> None:
    for samples in range(1, 40):
        for batch_size in (size for size in range(2, 40) if smallest_batch(samples, size) < 4):
            right = [size for size in range(4, samples + 1) if smallest_batch(samples, size) >= 4]
            below, above = ([size for size in right if (size > batch_size) == more] for more in (False, True))
            assert sizes_that_do(samples, batch_size, 4) == [*below[-1:], *above[:1]], (samples, batch_size)
