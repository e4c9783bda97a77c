"""FedRep: the head trains and then the base, whole runs are those of a slow reference, engines agree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pytest

from protofed.methods.base import Phase
from protofed.methods.fedrep import FedRep
from tests.support import whole_runs
from tests.support.nets import gap, own
from tests.support.whole_runs import Restless, base, personal

VARIANTS = {"fedrep": FedRep(), "fedrep long": FedRep(head_epochs=3, personal="head", averaging="samples")}


def test_fedrep_trains_the_head_and_then_the_base() -> None:
    head, base = FedRep(head_epochs=4).phases(3)
    assert (head.epochs, base.epochs) == (4, 3)
    names = ["conv1.weight", "hidden.bias", "head.weight"]
    assert [head.trains(name) for name in names] == [False, True, True]
    assert [base.trains(name) for name in names] == [True, False, False]


@dataclass(frozen=True)
class HeadOnly(FedRep):
    """The first phase by itself."""

    name: ClassVar[str] = "head-only"

    def phases(self, epochs: int) -> Sequence[Phase]:
        return super().phases(epochs)[:1]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_frozen_base_keeps_its_parameters_but_not_its_statistics(engine: str) -> None:
    run, before = (whole_runs.run_of(HeadOnly(), engine, rounds, Restless, participation=1.0) for rounds in (1, 0))
    moved = {name.split("/")[2]: gap({name: own(run)[name]}, {name: own(before)[name]}) for name in own(run)}
    assert {name for name, much in moved.items() if much > 1e-4} == {
        "hidden.weight",
        "hidden.bias",
        "head.weight",
        "head.bias",
        "norm.running_mean",
        "norm.running_var",
    }
    assert max(much for name, much in moved.items() if name in ("conv.weight", "conv.bias", "norm.weight")) == 0


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    phases = [personal, base]
    method = FedRep(head_epochs=1)
    whole_runs.assert_rounds_are_those_of_plain_loops(method, engine, trains=phases, shares=base, by_samples=False)


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding_and_phases_matter(variant: str) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(VARIANTS[variant])


def test_fedrep_learns() -> None:
    whole_runs.assert_learns(FedRep())
