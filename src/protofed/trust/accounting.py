"""How much privacy is spent: ε of Gaussian noise over rounds and sampling, accounted by dp-accounting (extra `dp`)."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from protofed.errors import misused


class Release(NamedTuple):
    """Gaussian noise on a sum that one client or sample takes part in, each time, with some probability."""

    noise: float  # multiplier: the standard deviation over the most that one can add to the sum
    rate: float = 1.0  # independently of all others, and known to nobody (Poisson sampling)
    times: int = 1


def epsilon(releases: Sequence[Release], delta: float) -> float:
    """ε of all of them together, by Rényi differential privacy, if one is added or removed; ∞ without noise."""
    done = [release for release in releases if release.times]
    if not done:
        return 0.0
    if any(release.noise == 0 for release in done):
        return math.inf
    curves = [(release.times, *_curve(release.noise, release.rate)) for release in done]
    _, orders, _ = curves[0]
    return float(_library().rdp.compute_epsilon(orders, sum(times * rdp for times, _, rdp in curves), delta)[0])


@cache
def _curve(noise: float, rate: float) -> tuple[Any, Any]:
    """Orders, and the Rényi divergence of one release at each: n releases have n times that."""
    library = _library()
    accountant = library.rdp.RdpAccountant()
    log = logging.getLogger("absl")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of each order that it cannot compute and leaves out, which is harmless
    try:
        accountant.compose(library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise)))
    finally:
        log.setLevel(level)
    return accountant.orders, accountant.rdp


def _library() -> Any:
    try:
        import dp_accounting
    except ImportError:
        raise misused("--noise", "ε needs dp-accounting", hint="pip install 'protofed[dp]'") from None
    return dp_accounting
