"""The batches of a client's turn."""

from __future__ import annotations

from hypothesis import example, given, settings
from hypothesis import strategies as st

from protofed.engines.base import Schedule, schedule
from protofed.methods.base import Clock
from protofed.randomness import generator

from .nets import play

quick = settings(max_examples=60, deadline=None)


def batches(result: Schedule) -> list[list[int]]:
    return [[int(row) for row in step if row >= 0] for step in result.rows]


@quick
@given(samples=st.integers(1, 40), batch_size=st.integers(1, 12), epochs=st.integers(1, 3), seed=st.integers(0, 99))
@example(samples=1, batch_size=8, epochs=2, seed=0)
@example(samples=5, batch_size=8, epochs=2, seed=0)
@example(samples=8, batch_size=8, epochs=2, seed=0)
@example(samples=9, batch_size=8, epochs=2, seed=0)
@example(samples=2, batch_size=1, epochs=1, seed=0)
def test_every_sample_comes_once_an_epoch(samples: int, batch_size: int, epochs: int, seed: int) -> None:
    result = schedule(samples, batch_size, epochs, generator(seed))
    taken = batches(result)
    assert [len(batch) for batch in taken] == result.sizes
    assert len(taken) % epochs == 0
    steps = len(taken) // epochs
    for epoch in range(epochs):
        mine = taken[epoch * steps : (epoch + 1) * steps]
        assert sorted(row for batch in mine for row in batch) == list(range(samples))
    for step, size in zip(result.rows, result.sizes, strict=True):
        assert bool((step[:size] >= 0).all())  # samples first, then padding
        assert bool((step[size:] == -1).all())


@quick
@given(samples=st.integers(1, 40), batch_size=st.integers(2, 12), epochs=st.integers(1, 3))
def test_batches_are_full_but_the_last_and_a_last_one_of_one_joins(samples: int, batch_size: int, epochs: int) -> None:
    whole, rest = divmod(samples, batch_size)
    expected = [batch_size] * whole + [rest] * (rest > 0)
    if rest == 1 and whole:
        expected = [batch_size] * (whole - 1) + [batch_size + 1]
    assert schedule(samples, batch_size, epochs, generator(0)).sizes == expected * epochs


def test_batches_of_one_are_possible_when_asked_for() -> None:
    """--batch-size 1: no batch is a remainder, so none joins another."""
    for samples in (1, 2, 5):
        assert schedule(samples, 1, 1, generator(0)).sizes == [1] * samples


def test_epochs_are_shuffled_differently() -> None:
    first, second = schedule(30, 30, 2, generator(0)).rows.tolist()
    assert first != second
    assert first != list(range(30))


def test_batches_are_addressed_by_seed_client_and_round() -> None:
    run, other = play(rounds=0), play(rounds=0, seed=1)
    engine, group = run.engine, run.engine.groups[0]

    def rows(row: int, clock: int) -> list[list[int]]:
        return batches(engine.schedule(group, row, Clock(clock, 3)))

    first = rows(0, 0)
    assert rows(0, 1) != first
    rows(1, 0)
    assert rows(0, 0) == first  # nothing depends on what was asked before
    assert batches(other.engine.schedule(other.engine.groups[0], 0, Clock(0, 3))) != first
    alike = play(rounds=0, clients=None, batch_size=64)
    orders = {
        tuple(batches(alike.engine.schedule(alike.engine.groups[0], row, Clock(0, 3)))[0][:4]) for row in range(4)
    }
    assert len(orders) == 4
