"""A slow, obvious version of MOON: one sample at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.reference.plain_rounds import Moment, Term, cosine, frozen, nothing


def moon(z: Tensor, received: Tensor, last: Tensor, tau: float) -> Tensor:
    """−log of the received model's part, for each sample."""
    values = []
    for mine, theirs, before in zip(z, received, last, strict=True):
        near, far = torch.exp(cosine(mine, theirs) / tau), torch.exp(cosine(mine, before) / tau)
        values.append(-torch.log(near / (near + far)))
    return torch.stack(values)


def moon_term(mu: float, tau: float) -> Term:
    """μ · the mean contrast; nothing in a client's first turn."""

    def term(moment: Moment) -> Tensor:
        if moment.last is None:
            return nothing(moment)
        z = moment.module(moment.x).features
        received = frozen(moment.module, moment.received)(moment.x).features
        last = frozen(moment.module, moment.last)(moment.x).features
        return mu * moon(z, received, last, tau).mean()

    return term
