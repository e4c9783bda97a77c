"""How much privacy is spent: ε of Gaussian noise over rounds and sampling, accounted by dp-accounting (extra `dp`).

By the distribution of the privacy loss (PLD), which is tight up to the steps in which it is written down, and these are
rounded up. Gaussian noise without sampling is exact (Balle & Wang, ICML 2018).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from protofed.errors import misused

STEPS = 10_000
"""Steps up to ε in which privacy loss is written down: rounding costs less than a thousandth of ε."""


class Release(NamedTuple):
    """Gaussian noise on a sum that one client or sample takes part in, each time, with some probability."""

    noise: float  # multiplier: the standard deviation over the most that one can add to the sum
    rate: float = 1.0  # independently of all others, and known to nobody (Poisson sampling)
    times: int = 1


def epsilon(releases: Sequence[Release], delta: float) -> float:
    """ε of all of them together, if one client or sample is added or removed; ∞ without noise."""
    done = [release for release in releases if release.times]
    if not done:
        return 0.0
    if any(release.noise == 0 for release in done):
        return math.inf
    return _spent(tuple(done), delta)


@cache
def _spent(releases: tuple[Release, ...], delta: float) -> float:
    library = _library()
    whole = sum(release.times / release.noise**2 for release in releases if release.rate >= 1)
    sampled = [release for release in releases if release.rate < 1]
    if not sampled:  # Gaussians one after the other are one Gaussian
        return float(library.get_epsilon_gaussian(whole**-0.5, delta))
    bound = _renyi(releases, delta)
    interval = min(1.0, max(1e-7, bound / STEPS))
    losses = library.pld.PLDAccountant(value_discretization_interval=interval)
    for release in sampled:
        event = library.PoissonSampledDpEvent(release.rate, library.GaussianDpEvent(release.noise))
        losses.compose(event, release.times)
    if whole:
        losses.compose(library.GaussianDpEvent(whole**-0.5))
    return min(bound, float(losses.get_epsilon(delta)))


def _renyi(releases: Sequence[Release], delta: float) -> float:
    """An upper bound, by Rényi differential privacy; it says in what steps to look for the exact one."""
    curves = [(release.times, *_curve(release.noise, release.rate)) for release in releases]
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
        import dp_accounting.pld
    except ImportError:
        raise misused("--noise", "ε needs dp-accounting", hint="pip install 'protofed[dp]'") from None
    return dp_accounting
