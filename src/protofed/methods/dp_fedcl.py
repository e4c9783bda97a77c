"""DP-FedCL: MP-FedCL whose prototypes are DBSCAN clusters.  Qiao et al., arXiv 2304.01950.

The paper gives neither eps nor min_samples. `eps=0.5` and `min_samples=5` are the usual library defaults, on the unit
sphere; `neighbourhood="quantile"` takes eps from the data instead: the 90th percentile of the 4-NN distance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch.nn.functional import normalize

from protofed.methods.base import Trained, param
from protofed.methods.prototype_pool import PrototypePool
from protofed.prototypes import Prototypes, dbscan, quantile_eps


@dataclass(frozen=True)
class DPFedCL(PrototypePool):
    """As many prototypes per class as DBSCAN finds, pooled; the pooled contrast."""

    name: ClassVar[str] = "dp-fedcl"

    # Cluster counts differ between clients, so the slot-wise grid of Eq. 11 does not exist.
    contrast: Literal["pooled", "none"] = param("pooled", "none: prototypes for inference only")
    neighbourhood: Literal["fixed", "quantile"] = param(
        "fixed", "eps as given; quantile: the 90th percentile of the class's 4-NN distance"
    )
    eps: float = param(0.5, "radius of DBSCAN, on the unit sphere", above=0)
    min_samples: int = param(5, "samples within eps that make a core point", at_least=1)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        """DBSCAN on normalised features; prototypes are means of the raw ones."""
        space = normalize(trained.features, dim=-1)
        eps = quantile_eps(space, trained.labels, trained.classes) if self.neighbourhood == "quantile" else self.eps
        return {"local": dbscan(trained.features, trained.labels, trained.classes, eps, self.min_samples, space=space)}

    def clusters_features(self) -> bool:
        """As many as DBSCAN finds."""
        return True
