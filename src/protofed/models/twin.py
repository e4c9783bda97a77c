"""A model beside a copy of it that is trained by itself."""

from __future__ import annotations

from copy import deepcopy
from typing import cast

from torch import Tensor, nn

from protofed.models.output import Output


class Twin(nn.Module):
    """Two copies of a network, alike at first: `average` and `personal`; the outputs are the first's unless asked."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.feature_size = cast(int, module.feature_size)
        self.average, self.personal = module, deepcopy(module)

    def forward(self, x: Tensor, personal: bool = False) -> Output:
        """What one copy makes of x; in eval mode the other's logits beside it, so that a rule may answer by either."""
        if self.training:
            return cast(Output, self.personal(x) if personal else self.average(x))
        out, other = cast(Output, self.average(x)), cast(Output, self.personal(x))
        return out._replace(more={**out.more, "personal": other.logits})
