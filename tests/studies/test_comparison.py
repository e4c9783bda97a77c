"""Numbers over seeds, and what a comparison plans."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.studies import workers
from protofed.studies.comparison import Comparison, ComparisonStudy, MethodRow
from protofed.studies.spread import Spread
from protofed.studies.workers import share_cores


def test_a_spread_is_the_mean_and_the_sample_deviation() -> None:
    spread = Spread.of([2.0, 4.0, 9.0])
    assert spread.mean == 5.0
    assert spread.std == pytest.approx(13**0.5)
    assert spread.values == [2.0, 4.0, 9.0]
    assert Spread.of([7.0]) == Spread(7.0, None, [7.0])


def plan(methods: list[str], seeds: int, experiment: Experiment) -> list[Experiment]:
    """The runs of a comparison."""
    return [run for _, run in ComparisonStudy(methods, experiment, seeds).runs]


def test_the_plan_is_methods_times_seeds_from_the_first_seed_on() -> None:
    runs = plan(["local", "mp-fedcl"], 2, Experiment(seed=5, rounds=3))
    assert [(run.method, run.seed, run.rounds) for run in runs] == [
        *(("local", 5, 3), ("local", 6, 3)),
        *(("mp-fedcl", 5, 3), ("mp-fedcl", 6, 3)),
    ]


def test_a_parameter_goes_to_every_method_that_has_it() -> None:
    runs = plan(["local", "mp-fedcl", "fedproto"], 1, Experiment(params={"k": 3, "averaging": "uniform"}))
    assert [run.params for run in runs] == [{}, {"k": 3, "averaging": "uniform"}, {"averaging": "uniform"}]


def test_a_parameter_that_no_method_has_is_an_error() -> None:
    with pytest.raises(UserError, match=r"invalid value 'kk' for --set: (?s:.*)did you mean 'k'"):
        plan(["local", "mp-fedcl"], 1, Experiment(params={"kk": 3}))


def row(method: str, rounds: list[int], traffic: float) -> MethodRow:
    """A method that does nothing but count."""
    zero = Spread.of([0.0])
    return MethodRow(method, "own/own/head", rounds, {}, [], Spread.of([traffic]), zero, zero)


def test_equal_methods_need_no_note() -> None:
    assert Comparison([], [row("a", [3, 3], 8.0), row("b", [3, 3], 8.0)]).notes() == []


def test_different_rounds_are_noted() -> None:
    (note,) = Comparison([], [row("a", [3, 3], 8.0), row("b", [3, 2], 8.0)]).notes()
    assert note == "methods differ in rounds: a [3], b [2, 3]"


def test_different_bytes_are_noted() -> None:
    rows = [row("a", [3], 8000.0), row("b", [3], 7.0), row("c", [3], 9.0)]
    (note,) = Comparison([], rows).notes()
    assert note == "methods differ in bytes per round: from b (7) to a (8,000)"


def test_planning_leaves_the_experiment_as_it_was() -> None:
    experiment = Experiment(params={"k": 3})
    plan(["local", "mp-fedcl"], 2, experiment)
    assert experiment == replace(Experiment(), params={"k": 3})


@pytest.mark.parametrize(
    ("given", "runs", "jobs", "threads"),
    [(None, 12, None, 1), (None, 3, None, 2), (None, 1, None, 8), (None, 12, 1, 8), (None, 12, 20, 1), (5, 12, 2, 5)],
)
def test_runs_at_the_same_time_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, given: int | None, runs: int, jobs: int | None, threads: int
) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 8)
    experiment = Experiment(device="cpu", threads=given)
    shared = share_cores(experiment, runs, jobs)
    assert shared == replace(experiment, threads=threads)
    assert share_cores(shared, runs, jobs) == shared
