"""DBSCAN for every (client, class) at once (DP-FedCL)."""

from __future__ import annotations

from itertools import count

import torch
from torch import Tensor

from protofed.errors import UserError
from protofed.prototypes.means import group_means
from protofed.prototypes.segments import Segments, exact_distances, patience, segments
from protofed.prototypes.type import Prototypes


def dbscan(
    features: Tensor,
    labels: Tensor,
    classes: int,
    eps: float | Tensor,
    min_samples: int,
    space: Tensor | None = None,
) -> Prototypes:
    """Cluster the samples of each client and class with DBSCAN, and average each dense region (DP-FedCL).

    Args:
        features: the clients' samples [N, n, D].
        labels: their classes [N, n]; a row labelled −1 is padding.
        classes: the number of classes, C.
        eps: the radius of a neighbourhood: one number, or one per client and class [N, C] (see `quantile_eps`).
        min_samples: how many samples, itself included, a core point has within the radius.
        space: where the samples are clustered instead [N, n, E], say normalised features. The prototypes are still
            means of `features`.

    Returns:
        Vectors [N, C, M, D] and counts [N, C, M], M as the fullest class needs. DBSCAN ignores noise; a class of
        nothing but noise is represented by its mean.

    Raises:
        UserError: `eps` is not positive, `min_samples` is below 1, or a label is not below `classes`.

    Example:
        >>> import torch
        >>> from protofed.prototypes import dbscan
        >>> features = torch.tensor([[[0.0], [1.0], [10.0], [11.0], [99.0]]])
        >>> dbscan(features, torch.zeros(1, 5, dtype=torch.long), 1, eps=2.0, min_samples=2).vectors.flatten().tolist()
        [0.5, 10.5]
    """
    if not isinstance(eps, Tensor) and not eps > 0:
        raise UserError("eps", eps, "a radius is positive")
    if min_samples < 1:
        raise UserError("min_samples", min_samples, "a dense region needs one sample or more")

    def clustered(part: Segments) -> tuple[Tensor, Tensor]:
        samples = part.gather(features)
        points = samples if space is None else part.gather(space)
        radius = eps[part.clients, part.classes].view(-1, 1, 1) if isinstance(eps, Tensor) else eps
        cluster = dense_regions(points, part.mask, radius, min_samples)
        only_noise = (cluster < 0).all(-1, keepdim=True)
        cluster = torch.where(only_noise & part.mask, 0, cluster)

        number = int(cluster.max()) + 1 if len(cluster) else 1
        member = cluster.unsqueeze(-1) == torch.arange(number, device=cluster.device)
        return group_means(samples, member)

    return segments(labels, classes).each(clustered)


def dense_regions(points: Tensor, mask: Tensor, radius: float | Tensor, min_samples: int) -> Tensor:
    """[S, m]: each point's region, numbered by first core point as scikit-learn does; −1 for noise and padding."""
    near = exact_distances(points, points) <= radius
    near &= mask.unsqueeze(-1) & mask.unsqueeze(-2)
    core = near.sum(-1) >= min_samples  # a point is its own neighbour

    # Connected core points come to share the lowest index among them; any other point keeps its own.
    nobody = mask.shape[1]  # above every index
    index = torch.arange(nobody, device=points.device, dtype=torch.int32)
    linked = near & core.unsqueeze(-1) & core.unsqueeze(-2)
    linked.diagonal(0, -2, -1).fill_(True)
    root = index.expand_as(mask)
    for step in count():
        before = root
        root = torch.where(linked, root.unsqueeze(-2), nobody).amin(-1)
        root = root.gather(-1, root.long())  # the root's root
        if (step + 1) % patience(points.device) == 0 and torch.equal(root, before):
            break

    # A border point joins the first region in reach.
    joined = torch.where(near, torch.where(core, root, nobody).unsqueeze(-2), nobody).amin(-1)
    number = (core & (root == index)).cumsum(-1) - 1
    return torch.where(joined < nobody, number.gather(-1, joined.clamp(max=nobody - 1).long()), -1)


def quantile_eps(points: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Choose a DBSCAN radius for each client and class: the 90th percentile of distances to the 4th nearest neighbour.

    Args:
        points: the clients' samples [N, n, D].
        labels: their classes [N, n]; a row labelled −1 is padding.
        classes: the number of classes, C.

    Returns:
        The radii [N, C]. In a class with fewer than five samples the farthest one stands in for the 4th neighbour; a
        class with fewer than two samples gets 0.

    Raises:
        UserError: a label is not below `classes`.

    Example:
        >>> import torch
        >>> from protofed.prototypes import quantile_eps
        >>> points = torch.tensor([[[0.0], [3.0], [7.0]]])
        >>> quantile_eps(points, torch.tensor([[0, 0, 1]]), 2).tolist()
        [[3.0, 0.0]]
    """
    part = segments(labels, classes)
    within = part.gather(points)
    distances = exact_distances(within, within).masked_fill(~part.mask.unsqueeze(-2), torch.inf)
    nearest = distances.topk(min(5, distances.shape[-1]), largest=False).values  # the first is the point itself
    fourth = (part.mask.sum(-1) - 1).clamp(max=4).view(-1, 1, 1).expand(*part.mask.shape, 1)
    reach = nearest.gather(-1, fourth).squeeze(-1).masked_fill(~part.mask, torch.nan)
    eps = points.new_zeros(part.grid)
    if len(reach):
        eps[part.clients, part.classes] = torch.nanquantile(reach, 0.9, dim=-1)
    return eps
