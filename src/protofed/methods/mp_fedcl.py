"""MP-FedCL: several prototypes per class, pooled over clients.  Qiao et al., arXiv 2304.01950."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn.functional import normalize

from protofed.methods.base import Trained, param
from protofed.methods.prototype_pool import PrototypePool
from protofed.prototypes import Prototypes, Start, kmeans


@dataclass(frozen=True)
class MPFedCL(PrototypePool):
    """K k-means prototypes per class and client, pooled; contrast with the pool; nearest-prototype inference."""

    name: ClassVar[str] = "mp-fedcl"

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
