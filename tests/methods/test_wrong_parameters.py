"""A wrong value of a parameter is refused by the parameter's name."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from protofed.errors import UserError
from protofed.internal.schema import Bounds
from protofed.methods import METHODS, build_method, method_class
from protofed.methods.base import Method, param
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedntd import FedNTD
from protofed.methods.fedpcl import FedPCL
from protofed.methods.fedper import FedPer
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.methods.fedproc import FedProc
from protofed.methods.fedproto import FedProto
from protofed.methods.fedrcl import FedRCL
from protofed.methods.fedrep import FedRep
from protofed.methods.fedsc import FedSC
from protofed.methods.fpl import FPL
from protofed.methods.moon import Moon

WRONG: list[tuple[type[Method], dict[str, Any], str]] = [
    (Moon, {"mu": -1.0}, "'-1.0' for --set mu: .*0 or more"),
    (Moon, {"temperature": 0.0}, "'0.0' for --set temperature: .*above 0"),
    (FedPer, {"personal": " , "}, "' , ' for --set personal: .*hidden,head"),
    (FedRep, {"personal": ""}, "'' for --set personal: "),
    (FedRep, {"head_epochs": 0}, "'0' for --set head_epochs: .*1 or more"),
    (FedNTD, {"beta": -1.0}, "'-1.0' for --set beta: .*0 or more"),
    (FedNTD, {"temperature": -1.0}, "'-1.0' for --set temperature: .*above 0"),
    (FedRCL, {"temperature": 0}, "'0' for --set temperature: .*above 0"),
    (FedRCL, {"threshold": 1.5}, "'1.5' for --set threshold: .*-1 to 1"),
    (FedRCL, {"negatives": 0}, "'0' for --set negatives: .*1 or more"),
    (FedRCL, {"penalty_weight": -1.0}, "'-1.0' for --set penalty_weight: .*0 or more"),
    (FedSC, {"temperature": 0}, "'0' for --set temperature: .*above 0"),
    (FedSC, {"neighbours": -1}, "'-1' for --set neighbours: .*0 or more"),
    (FedSC, {"rpcl_weight": -1.0}, "'-1.0' for --set rpcl_weight: .*0 or more"),
    (FedSC, {"cpdr_weight": -0.1}, "'-0.1' for --set cpdr_weight: .*0 or more"),
    (FedPCL, {"temperature": -1.0}, "'-1.0' for --set temperature: .*above 0"),
    *(
        (kind, {"temperature": value}, "temperature")
        for kind in (FPL, FedPLVM, FedPLCC, FedProc)
        for value in (0.0, -1.0)
    ),
    (FPL, {"contrast_weight": -1.0}, "contrast_weight"),
    (FPL, {"pull_weight": -1.0}, "pull_weight"),
    (FedPLVM, {"lam": -1.0}, "lam"),
    (FedPLVM, {"alpha": 0.0}, "alpha"),
    (FedPLCC, {"alpha": 0.0}, "alpha"),
    (FedPLCC, {"lambda1": -1.0}, "lambda1"),
    (FedPLCC, {"lambda2": -1.0}, "lambda2"),
    (FedPLCC, {"ratio": -1.0}, "ratio"),
    (FedPLCC, {"phi": 0.0}, "phi"),
    (FedPLCC, {"phi": 1.1}, "phi"),
]


@pytest.mark.parametrize(("kind", "values", "message"), WRONG)
def test_a_wrong_parameter_is_named(kind: type[Method], values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(**values)


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("fccl-plus", "temperature", 0.0),
        ("fccl-plus", "distillation_temperature", 0.0),
        ("fedproto", "lam", -0.1),
        ("fedprox", "mu", -0.1),
        ("mp-fedcl", "k", 0),
        ("mp-fedcl", "temperature", 0.0),
        ("mp-fedcl", "ce_weight", -0.1),
        ("sp-fedcl", "contrast_weight", -0.1),
        ("sp-fedcl", "pool_size", 0),
        ("dp-fedcl", "eps", 0.0),
        ("dp-fedcl", "min_samples", 0),
        ("fesem", "clusters", 0),
        ("fednh", "rho", -0.1),
        ("fednh", "rho", 1.1),
        ("fednh", "scale", 0.0),
        ("fedcda", "k", 0),
        ("fedcda", "groups", 0),
        ("fedcda", "smoothness", -1.0),
        ("fedcda", "warmup", -2),
    ],
)
def test_bad_values_are_refused_by_name(method: str, name: str, value: float) -> None:
    with pytest.raises(UserError, match=rf"^invalid value '{value}' for --set {name}: it must be "):
        build_method(method, {name: value})


@pytest.mark.parametrize("name", METHODS)
def test_every_bound_of_a_parameter_is_checked(name: str) -> None:
    """However a class came by the parameter, and whatever else it checks."""
    cls = method_class(name)
    for item in dataclasses.fields(cls):
        bounds: Bounds = item.metadata.get("bounds", Bounds())
        outside = {"at_least": -1e-9, "above": 0.0, "at_most": 1e-9, "below": 0.0}
        for side, limit in vars(bounds).items():
            if limit is not None:
                with pytest.raises(
                    UserError, match=rf"^invalid value '.*' for --set {item.name}: it must be {bounds}$"
                ):
                    cls(**{item.name: limit + outside[side]})


def test_parameters_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(UserError, match=r"'own' for --set initial: .*share_weights"):
        FedProto(share_weights=True, initial="own")


@dataclass(frozen=True)
class Bounded(FedAvg):
    """A method of a user's."""

    name: ClassVar[str] = "bounded"
    share: float = param(0.5, "a part", above=0, at_most=1)
    most: int | None = param(None, "a number, or none", below=10)


def test_a_users_parameter_has_bounds() -> None:
    assert (Bounded().share, Bounded(share=1, most=9).most) == (0.5, 9)
    with pytest.raises(UserError, match=r"^invalid value '0' for --set share: it must be above 0 and at most 1$"):
        Bounded(share=0)
    with pytest.raises(UserError, match=r"^invalid value '10' for --set most: it must be below 10$"):
        Bounded(most=10)
