"""What a convergence theory is made of: constants found along a run, what it was played with, and the bounds.

A method whose paper has a theory says `bounds`. The formulas of FedProto and FedSC are here: their files are full.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Constants:
    """What the papers' assumptions bound, for one client."""

    client: int
    L1: float  # of the gradient: smoothness
    L2: float  # of the encoder's features, with respect to its weights
    variance: float  # σ², of a batch's gradient
    G: float  # mean norm of a batch's gradient; FedSC's B
    gradient: float  # ‖∇L‖², squared norm of the mean gradient
    steps: int  # E, local steps in a round


@dataclass(frozen=True)
class Estimates:
    """The same for all clients: the largest of each constant, since an assumption holds for every client."""

    L1: float
    L2: float
    variance: float
    G: float
    steps: int
    least_gradient: float  # the smallest ‖∇L‖² of a client
    mean_gradient: float  # the mean of ‖∇L‖² over clients
    global_gradient: float | None  # ‖∇L‖² of the mean over clients; none if their architectures differ

    @classmethod
    def of(cls, clients: Sequence[Constants], global_gradient: float | None) -> Estimates:
        """From those of each client."""
        gradients = [found.gradient for found in clients]
        return cls(
            L1=max(found.L1 for found in clients),
            L2=max(found.L2 for found in clients),
            variance=max(found.variance for found in clients),
            G=max(found.G for found in clients),
            steps=max(found.steps for found in clients),
            least_gradient=min(gradients),
            mean_gradient=statistics.fmean(gradients),
            global_gradient=global_gradient,
        )


@dataclass(frozen=True)
class Used:
    """What a run was played with."""

    rate: float  # learning rate of the round that the constants are of
    rounds: int  # played
    first_loss: float  # L_0 − L*, with L* = 0: no loss here is below that
    classes: int


@dataclass(frozen=True)
class Bound:
    """One condition: `used` stands in `relation` to `bound`, if it holds."""

    quantity: str
    equation: str
    relation: str  # "<", "≤", ">" or "≥"
    bound: float  # infinite: any λ will do, or no number of rounds
    used: float
    note: str = ""  # what is known against the theory that it comes from

    @property
    def holds(self) -> bool:
        """Whether the value used satisfies it."""
        if self.relation in ("<", "≤"):
            return self.used < self.bound or (self.relation == "≤" and self.used == self.bound)
        return self.used > self.bound or (self.relation == "≥" and self.used == self.bound)


def fedproto_bounds(found: Estimates, used: Used, lam: float) -> list[Bound]:
    """Corollary 1 and Theorem 2, where ε is the squared gradient norm that the run has reached."""
    L1, L2, G, E, eta, epsilon = found.L1, found.L2, found.G, found.steps, used.rate, found.mean_gradient
    # Eq. 16 for e' = 1/2: the sum grows with e', and the bound with the sum, so the first step has the least.
    first = 2 * (found.least_gradient - lam * L2 * E * G) / (L1 * (found.least_gradient + E * found.variance))
    denominator = E * epsilon * (2 * eta - L1 * eta**2) - E * eta * (L1 * eta * found.variance + 2 * lam * L2 * G)
    any_time = 2 * (epsilon - lam * L2 * G) / (L1 * (epsilon + found.variance))
    return [
        Bound("learning rate", "Eq. 16", "<", first, eta),
        Bound("lambda", "Eq. 17", "<", over(found.least_gradient, L2 * E * G), lam),
        Bound("rounds", "Eq. 18", "≥", over(2 * used.first_loss, denominator), used.rounds),
        Bound("learning rate", "Theorem 2", "<", any_time, eta),
        Bound("lambda", "Theorem 2", "<", over(epsilon, L2 * G), lam),
    ]


def fedsc_bounds(found: Estimates, used: Used, neighbours: int) -> list[Bound]:
    """Theorems 2 and 3; ξ as FedProto's ε."""
    L1, B, E, M, eta, xi = found.L1, found.G, found.steps, neighbours, used.rate, found.mean_gradient
    drift = 2 * (M + 2) * found.L2 * used.classes * B
    omega = (M + 1) * L1 * E * eta**2 * found.variance + drift * E * eta  # Ω1 + Ω2
    denominator = xi * E * eta * (M + 1) * (2 - L1 * eta) - omega
    first = (2 * (M + 1) * B**2 - drift) / (L1 * (M + 1) * (found.variance + B**2))
    any_time = (2 * xi * (M + 1) - drift) / (L1 * (M + 1) * (xi + found.variance))
    return [
        Bound("learning rate", "Eq. 18", "<", first, eta),
        Bound("rounds", "Eq. 19", ">", over(2 * (M + 1) * used.first_loss, denominator), used.rounds),
        Bound("learning rate", "Eq. 20", "<", any_time, eta),
    ]


def over(part: float, whole: float) -> float:
    """A quotient that is infinite where the condition asks for the impossible, or for nothing."""
    return part / whole if whole > 0 else math.inf
