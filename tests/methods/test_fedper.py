"""FedPer: personal layers stay, the base is averaged, whole runs are those of a slow reference, engines agree."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.methods.base import Method
from protofed.methods.fedper import FedPer
from protofed.methods.fedrep import FedRep
from protofed.models import ModelSpec, build
from tests.support import whole_runs
from tests.support.nets import Noisy, Plain
from tests.support.whole_runs import Restless, base

VARIANTS = {
    "fedper": FedPer(),
    "fedper head": FedPer(personal="head"),
    "fedper uniform": FedPer(averaging="uniform"),
}


def shared(method: Method, spec: ModelSpec, shape: tuple[int, int, int]) -> tuple[int, set[str]]:
    """How many parameters are shared, and the parts that stay."""
    module = build(spec, shape, 10, 0, method.extend)
    number = sum(value.numel() for name, value in module.named_parameters() if method.shares(name))
    return number, {name.partition(".")[0] for name in module.state_dict() if not method.shares(name)}


@pytest.mark.parametrize("kind", [FedPer, FedRep])
def test_the_personal_part_is_fedprotos(kind: type[FedPer]) -> None:
    assert shared(kind(), "cnn", (1, 28, 28)) == (5_280, {"hidden", "head"})
    assert shared(kind(), "resnet10", (3, 32, 32)) == (4_903_242 - 5_130, {"head"})
    assert shared(kind(personal="head"), "cnn", (1, 28, 28)) == (21_840 - 510, {"head"})
    assert shared(kind(personal=" conv2, head "), "cnn", (1, 28, 28)) == (260 + 16_050, {"conv2", "head"})
    assert shared(kind(), Noisy, (1, 8, 8))[1] == {"head"}


def test_a_model_without_base_or_without_personal_part_is_refused() -> None:
    with pytest.raises(
        UserError, match=r"'hidden,head' for --set personal.*not all of the model's parts: hidden, head"
    ):
        shared(FedPer(), Plain, (1, 8, 8))
    with pytest.raises(UserError, match=r"'fc' for --set personal.*conv1, conv2, hidden, head"):
        shared(FedRep(personal="fc"), "cnn", (1, 28, 28))


def test_personal_layers_stay_and_the_base_is_averaged() -> None:
    run = whole_runs.run_of(FedPer(), "sequential", 2, Restless, participation=1.0)
    group = run.engine.groups[0]
    assert set(run.broadcast.weights) == {name for name in group.own.initial if name.startswith(("conv", "norm"))}
    share = torch.tensor(group.sizes).double() / sum(group.sizes)
    own = group.own.take(range(len(share)))
    for name, value in run.broadcast.weights.items():
        assert_close(value, torch.einsum("n,n...->...", share, own[name]))
    assert all(float((own["head.weight"][0] - other).abs().max()) > 1e-3 for other in own["head.weight"][1:])
    assert set(run.history[-1].accuracy) >= {"own/own/head", "own/all/head"}
    assert not any(name.startswith("global") for name in run.history[-1].accuracy)  # there is no whole model


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_rounds_are_those_of_plain_loops(engine: str) -> None:
    whole_runs.assert_rounds_are_those_of_plain_loops(FedPer(), engine, shares=base)


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding_and_layers_are_personal(variant: str) -> None:
    whole_runs.assert_engines_agree_and_the_term_takes_part(VARIANTS[variant])


def test_fedper_learns() -> None:
    whole_runs.assert_learns(FedPer())
