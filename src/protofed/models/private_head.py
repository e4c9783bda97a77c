"""A second head beside a model's own (FedRoD)."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, cast

from torch import nn

from protofed.models.output import Output

PRIVATE = "private_head"
"""What it is called: in a module, in the names of its parameters and in `Output.more`."""


def with_private_head(module: nn.Module) -> nn.Module:
    """The same model with a copy of its head, whose logits are beside the others and give its body no gradient."""
    setattr(module, PRIVATE, deepcopy(module.head))
    module.register_forward_hook(_ask_both)
    return module


def _ask_both(module: nn.Module, _args: Any, out: Output) -> Output:
    head = cast(nn.Module, getattr(module, PRIVATE))
    return out._replace(more={**out.more, PRIVATE: head(out.features.detach())})
