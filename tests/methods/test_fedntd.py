"""FedNTD: its loss is a plain loop, whole runs are those of a slow reference, and engines agree in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from protofed.methods.fedntd import FedNTD, not_true
from tests.reference import fedntd as slow
from tests.support import whole_runs
from tests.support.given_outputs import Given, added, gradients, labels_of, modes_asked, normal, turn_of

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
VARIANTS = {"fedntd": FedNTD(), "fedntd warm": FedNTD(beta=0.5, temperature=3.0)}


@quick
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.3, 1.0]))
def test_fedntd_distils_the_wrong_classes(seed: int, batch: int, classes: int, tau: float, beta: float) -> None:
    y = labels_of(batch, classes, seed)
    now, received = (Given(torch.zeros(batch, 3), 3 * normal(batch, classes, seed=seed + i)) for i in range(2))
    expected = slow.not_true_distillation(now.logits, received.logits, y.tolist(), tau).detach()
    result = added(FedNTD(beta=beta, temperature=tau), now, y, turn_of(received)).detach()
    assert_close(result, beta * expected)


def test_fedntd_ignores_the_true_class() -> None:
    """So FedNTD adds nothing where local and global logits differ only in the true class."""
    y = torch.tensor([0, 2, 1, 3])
    received = normal(4, 4, seed=0)
    one_hot = nn.functional.one_hot(y, 4)
    true, wrong = received + 5 * one_hot, received + 5 * one_hot.roll(1, 1)
    nets = [Given(torch.zeros(4, 3), logits) for logits in (received, true, wrong)]
    assert added(FedNTD(), nets[1], y, turn_of(nets[0])).abs().max() < 1e-14
    assert bool((added(FedNTD(), nets[2], y, turn_of(nets[0])) > 0.1).all())
    gradient = gradients(FedNTD(), nets[2], y, turn_of(nets[0]))[0]
    assert gradient.gather(1, y.unsqueeze(1)).abs().max() < 1e-14


def test_fedntd_is_finite_for_two_classes_and_for_sure_models() -> None:
    y = torch.tensor([0, 1, 1])
    for logits, other in (
        (normal(3, 2, seed=0), normal(3, 2, seed=1)),
        (1e4 * normal(3, 4, seed=0), -1e4 * normal(3, 4, seed=1)),
    ):
        net, received = Given(torch.zeros(3, 3), logits), Given(torch.zeros(3, 3), other)
        term = added(FedNTD(), net, y, turn_of(received))
        assert bool(term.isfinite().all())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(FedNTD(), net, y, turn_of(received)))
        assert bool((term == 0).all()) == (logits.shape[1] == 2)


def test_not_true_leaves_out_one_column() -> None:
    logits = torch.arange(12.0).view(3, 4)
    assert not_true(logits, torch.tensor([0, 2, 3])).tolist() == [[1, 2, 3], [4, 5, 7], [8, 9, 10]]


def test_fedntd_without_its_term_is_exactly_fedavg() -> None:
    whole_runs.assert_exactly_fedavg(FedNTD(beta=0))


def test_the_teacher_is_asked_in_eval_mode() -> None:
    assert modes_asked(FedNTD()) == [True, False]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    method = FedNTD(beta=0.7, temperature=2.0)
    whole_runs.assert_rounds_are_those_of_plain_loops(method, engine, slow.fedntd_term(0.7, 2.0))


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding_and_the_term_takes_part(variant: str) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(VARIANTS[variant])


def test_fedntd_learns() -> None:
    whole_runs.assert_learns(FedNTD())
