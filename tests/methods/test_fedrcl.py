"""FedRCL: its loss is a plain loop, whole runs are those of a slow reference, and engines agree in float64."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.methods.fedrcl import FedRCL
from tests.reference import fedrcl as slow
from tests.support import whole_runs
from tests.support.given_outputs import Given, added, gradients, labels_of, normal, turn_of
from tests.support.nets import Norm, own
from tests.support.whole_runs import Levels

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)
VARIANTS = {
    "fedrcl": FedRCL(),
    "fedrcl all": FedRCL(pairs="all"),
    "fedrcl contrast": FedRCL(penalty_weight=0),
    "fedrcl penalty": FedRCL(contrast_weight=0, threshold=0.0),
    "fedrcl one negative": FedRCL(negatives=1, temperature=0.3, averaging="samples"),
}


def rcl_case(seed: int, batch: int, classes: int) -> tuple[Given, Tensor]:
    """Maps whose classes are tight, so that some pairs exceed the threshold, and dense features that are loose."""
    y = labels_of(batch, classes, seed)
    centres = 2 * normal(classes, 4, seed=seed + 1)
    maps = centres[y].view(batch, 4, 1, 1) + normal(batch, 4, 2, 3, seed=seed + 2)
    blocks = maps, normal(batch, 5, seed=seed + 3)
    return Given(torch.zeros(batch, 3), normal(batch, classes, seed=seed + 4), *blocks), y


@quick
@given(seeds, st.integers(1, 7), st.integers(1, 4), st.sampled_from([0.05, 0.5]), st.sampled_from([-1.0, 0.3, 0.7]))
def test_fedrcl_is_the_mean_over_levels(seed: int, batch: int, classes: int, tau: float, threshold: float) -> None:
    net, y = rcl_case(seed, batch, classes)
    readings: tuple[Literal["hardest", "all"], ...] = ("hardest", "all")
    for pairs in readings:
        for negatives in (1, 2):
            levels = [slow.relaxed_contrast(b, y.tolist(), tau, threshold, pairs, negatives) for b in net.blocks]
            expected = sum(0.5 * contrast + 2 * penalty for contrast, penalty in levels)
            method = FedRCL("uniform", pairs, negatives, tau, threshold, 0.5, 2.0)
            assert_close(added(method, net, y, turn_of(net)), torch.as_tensor(expected) / 2)


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_both_terms_of_fedrcl_are_active_and_fade_when_they_should(pairs: Any) -> None:
    net, y = rcl_case(3, 7, 2)

    def terms(threshold: float) -> tuple[Tensor, Tensor]:
        contrast = FedRCL(pairs=pairs, threshold=threshold, penalty_weight=0)
        penalty = FedRCL(pairs=pairs, threshold=threshold, contrast_weight=0)
        return added(contrast, net, y, turn_of(net)), added(penalty, net, y, turn_of(net))

    assert bool((terms(0.7)[0] > 1e-3).any())
    assert bool((terms(0.0)[1] > 1e-9).any())
    assert not terms(1.0)[1].any()  # nobody is the same as somebody else


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_padding_of_a_batch_is_neither_kin_nor_negative(pairs: Any) -> None:
    net, y = rcl_case(5, 6, 2)
    mask = torch.tensor([True, False, True, True, False, True])
    real = Given(net.features[mask], net.logits[mask], *(block[mask] for block in net.blocks))
    method = FedRCL(pairs=pairs, threshold=0.0, temperature=0.5)
    everyone = added(method, net, y, turn_of(net), mask)
    assert_close(everyone[mask], added(method, real, y[mask], turn_of(real)))
    assert bool(everyone.isfinite().all())
    assert float((everyone - added(method, net, y, turn_of(net))).detach()[mask].abs().max()) > 1e-3


@pytest.mark.parametrize("pairs", ["hardest", "all"])
@pytest.mark.parametrize("y", [[0], [0, 0], [0, 1], [0, 0, 1], [0, 1, 2], [1, 1, 1]])
def test_fedrcl_is_finite_at_the_edges(pairs: Any, y: list[int]) -> None:
    """One sample, one class, a class alone; samples that are equal, and samples that are nothing."""
    labels, method = torch.tensor(y), FedRCL(pairs=pairs)
    logits = torch.zeros(len(y), 3).double()
    for block in (torch.ones(len(y), 3, 2, 2), torch.zeros(len(y), 3), -torch.eye(len(y), 3)):
        net = Given(torch.zeros(len(y), 3), logits, block.double())
        term = added(method, net, labels, turn_of(net))
        assert bool(term.isfinite().all())
        assert bool((term >= -1e-12).all())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(method, net, labels, turn_of(net)))
    assert len(set(y)) > 1 or not added(FedRCL(pairs=pairs, penalty_weight=0), net, labels, turn_of(net)).any()


def test_a_model_without_blocks_is_refused_by_fedrcl() -> None:
    with pytest.raises(UserError, match=r"'Norm' for --model.*block features"):
        whole_runs.run_of(FedRCL(), "sequential", 1, Norm)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_fedrcl_clips_a_clients_gradient(engine: str) -> None:
    """One step of one batch: nobody moves further than lr · 10."""
    options: dict[str, Any] = {"participation": 1.0, "batch_size": 64, "epochs": 1, "weight_decay": 0.0, "lr": 0.02}
    run, before = (whole_runs.run_of(FedRCL(contrast_weight=1e4), engine, n, Levels, **options) for n in (1, 0))
    squares = [(own(run)[name] - own(before)[name]).flatten(1).square().sum(1) for name in own(run)]
    assert_close(torch.stack(squares).sum(0).sqrt(), torch.full((5,), 0.2, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_rounds_are_those_of_plain_loops(pairs: Literal["hardest", "all"], engine: str) -> None:
    term = slow.fedrcl_term(0.05, 0.7, pairs)
    whole_runs.assert_rounds_are_those_of_plain_loops(FedRCL(pairs=pairs), engine, term, by_samples=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding_and_the_term_takes_part(variant: str) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(VARIANTS[variant])


def test_fedrcl_without_its_terms_is_exactly_fedavg() -> None:
    whole_runs.assert_exactly_fedavg(FedRCL(contrast_weight=0, penalty_weight=0), averaging="uniform")


def test_fedrcl_learns() -> None:
    whole_runs.assert_learns(FedRCL())
