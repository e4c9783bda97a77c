"""SP-FedCL: MP-FedCL with a single prototype, the class mean.  Qiao et al., arXiv 2304.01950.

The same as FedAvg with cross-entropy and the local-prototype term of FedPCL, and inference by the nearest of all
clients' class means. With `contrast="none"`, prototypes serve inference only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from protofed.methods.base import Trained
from protofed.methods.convergence import Bound, Estimates, Used
from protofed.methods.mp_fedcl import pool_bounds
from protofed.methods.prototype_pool import PrototypePool
from protofed.prototypes import Prototypes, class_means


@dataclass(frozen=True)
class SPFedCL(PrototypePool):
    """One prototype (the mean) per class and client, pooled; otherwise MP-FedCL."""

    name: ClassVar[str] = "sp-fedcl"
    unit_features: ClassVar[bool] = True

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Eq. 7 with K = 1 needs no clustering."""
        return {"local": class_means(trained.features, trained.labels, trained.classes)}

    def bounds(self, found: Estimates, used: Used) -> Sequence[Bound]:
        """MP-FedCL's."""
        return pool_bounds(self, found, used)
