"""MP-FedCL: several prototypes per class, pooled over clients.  Qiao et al., arXiv 2304.01950."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn.functional import normalize

from protofed.errors import UserError
from protofed.methods.base import Trained
from protofed.methods.prototype_pool import PrototypePool
from protofed.prototypes import Prototypes, Start, kmeans


@dataclass(frozen=True)
class MPFedCL(PrototypePool):
    """K k-means prototypes per class and client, pooled; contrast with the pool; nearest-prototype inference."""

    name: ClassVar[str] = "mp-fedcl"

    k: int = 2  # 2, 4, 4, 3 on MNIST, Digit-5, Office-10, DomainNet
    start: Start = "random"
    space: Literal["raw", "normalised"] = "raw"  # what k-means clusters; prototypes are means of raw features

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise UserError("k", self.k, "it must be 1 or more prototypes per class")

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """Eq. 7: K centroids of each class's features."""
        space = normalize(trained.features, dim=-1) if self.space == "normalised" else None
        return {
            "local": kmeans(
                trained.features, trained.labels, trained.classes, self.k, trained.keys, start=self.start, space=space
            )
        }
