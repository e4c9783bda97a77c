"""MP-FedCL: several prototypes per class, pooled over clients.  Qiao et al., arXiv 2304.01950."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn.functional import normalize

from protofed.methods.base import Trained, param
from protofed.methods.convergence import Bound, Estimates, Used, over
from protofed.methods.prototype_pool import PrototypePool
from protofed.prototypes import Prototypes, Start, kmeans

DOUBT = (
    "the proof of MP-FedCL's Lemma 2, on which its bounds rest, is wrong: Eq. A9 turns a ratio of sums into a sum of "
    "ratios, and what A10 makes of it is false (C = 2, v = τ = 1, u_p from 1 to 0, u_a = 0: left 0.38, right 0); "
    "docs/theory.md says what is left"
)


@dataclass(frozen=True)
class MPFedCL(PrototypePool):
    """K k-means prototypes per class and client, pooled; contrast with the pool; nearest-prototype inference."""

    name: ClassVar[str] = "mp-fedcl"
    unit_features: ClassVar[bool] = True  # the contrast is of cosines

    k: int = param(2, "prototypes per class; 2, 4, 4, 3 on MNIST, Digit-5, Office-10, DomainNet", at_least=1)
    start: Start = param("random", "of k-means")
    space: Literal["raw", "normalised"] = param("raw", "what k-means clusters; prototypes are means of raw features")

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Eq. 7: K centroids of each class's features."""
        space = normalize(trained.features, dim=-1) if self.space == "normalised" else None
        return {
            "local": kmeans(
                trained.features, trained.labels, trained.classes, self.k, trained.keys, start=self.start, space=space
            )
        }

    def clusters_features(self) -> bool:
        """K of them."""
        return self.k > 1

    def bounds(self, found: Estimates, used: Used) -> Sequence[Bound]:
        """Corollary 1 and Theorem 2."""
        return pool_bounds(self, found, used)


def pool_bounds(method: PrototypePool, found: Estimates, used: Used) -> Sequence[Bound]:
    """Corollary 1 and Theorem 2, in which K does not enter, of the paper's objective.

    ε is the squared norm of the mean gradient over clients that the run has reached.
    """
    if method.contrast != "slots" or not method.ce_weight == method.contrast_weight == 1:
        return []
    assert found.global_gradient is not None  # the method averages weights, so architectures are the same
    L1, eta, epsilon = found.L1, used.rate, found.global_gradient
    pull = (used.classes - 1) * found.L2 * found.G / method.temperature  # A_p L2 G v_i / τ, ‖v_i‖ = 1
    dissimilarity = found.mean_gradient / epsilon  # δ², the smallest that Assumption 2 allows
    denominator = (eta - L1 * eta**2 / 2) * dissimilarity * epsilon - eta * pull
    return [
        Bound("learning rate", "Eq. 21", "≤", 2 / L1 - 2 * pull / (L1 * found.mean_gradient), eta, DOUBT),
        Bound("learning rate", "Eq. 22", "≤", 2 / L1 - 2 * pull / (L1 * dissimilarity * epsilon), eta, DOUBT),
        Bound("rounds", "Eq. A17", "≥", over(used.first_loss, denominator), used.rounds, DOUBT),
    ]
