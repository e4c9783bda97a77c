"""A client's model as a loss sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn

from protofed.models.output import Output
from protofed.models.tied import call


class Net:
    """Call it on a batch: `model(x)` trains; `model(x, weights, train=False)` asks a teacher."""

    def __init__(
        self, module: nn.Module, state: Mapping[str, Tensor] | None = None, low: torch.dtype | None = None
    ) -> None:
        """Run `module` with `state` in place of its parameters and buffers, or with its own when None.

        In `low` precision are the model's products and maps, but not its weights, statistics, features and logits.
        """
        self.module = module
        self.state = state
        self.low = low
        self.features: Tensor | None = None  # of the last training forward, for prototypes taken while training

    @property
    def weights(self) -> dict[str, Tensor]:
        """The trainable parameters, by name."""
        own = dict(self.module.named_parameters())
        return {name: self.state[name] if self.state is not None else tensor for name, tensor in own.items()}

    def __call__(
        self, x: Tensor, weights: Mapping[str, Tensor] | None = None, train: bool = True, **options: Any
    ) -> Output:
        """Features, logits and block features of `x`; `options` are for the forward of a module that has some."""
        if self.module.training != train:
            self.module.train(train)
        state = self.state if weights is None else {**(self.state or {}), **weights}
        with torch.autocast(x.device.type, self.low, enabled=self.low is not None, cache_enabled=False):
            out = cast(Output, self.module(x, **options) if state is None else call(self.module, state, x, **options))
        if self.low is not None:
            out = out._replace(features=out.features.float(), logits=out.logits.float())
        if train:
            self.features = out.features
        return out
