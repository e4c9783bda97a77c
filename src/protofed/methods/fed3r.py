"""Fed3R: Accelerating Heterogeneous Federated Learning with Closed-form Classifiers.

Fanì, Camoriano, Caputo and Ciccone, ICML 2024, arXiv 2406.01116.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from protofed.errors import UserError
from protofed.methods.base import param
from protofed.methods.one_shot import OneShot
from protofed.methods.server.closed_form import lengths, ridge
from protofed.models.linear_head import BIAS, is_linear


@dataclass(frozen=True)
class Fed3R(OneShot):
    """The head is ridge regression on the samples of all clients, from sums; nobody trains."""

    name: ClassVar[str] = "fed3r"
    paper: ClassVar[str] = "Fanì et al., ICML 2024"
    link: ClassVar[str] = "https://arxiv.org/abs/2406.01116"
    up: ClassVar[str] = "sums of products of features, class sums"

    lam: float = param(0.01, "λ of ridge regression; 0.01 in the paper", above=0)
    intercept: bool = param(True, "a 1 beside the features, as in the public code; false: without a bias")
    normalise: bool = param(True, "each class's weights have length 1; false: ridge regression itself")

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """As it is; the intercept becomes its head's bias."""
        if self.intercept and is_linear(module) and BIAS not in module.state_dict():
            why = "the model's head has no bias for it"
            raise UserError("--set intercept", self.intercept, why, hint="--set intercept=false")
        return module

    def statistics(self, features: Tensor, member: Tensor) -> Mapping[str, Tensor]:
        """ZᵀZ and ZᵀY."""
        real = member.sum(-1, keepdim=True)
        z = torch.cat([features, torch.ones_like(real)], -1) if self.intercept else features
        return {"gram": (z * real).mT @ z, "classes": z.mT @ member}

    def head(self, total: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """W = (ZᵀZ + λI)⁻¹ ZᵀY; the bias is divided as its class's weights are."""
        found = ridge(total["gram"], total["classes"], self.lam).mT  # [C, D] or [C, D + 1]
        weight, bias = (found[:, :-1], found[:, -1:]) if self.intercept else (found, torch.zeros_like(found[:, :1]))
        scale = lengths(weight) if self.normalise else torch.ones_like(bias)
        return weight / scale, (bias / scale).squeeze(-1)
