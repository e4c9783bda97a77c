"""Prototypes: the type, what makes them from features, losses on them, aggregation and the nearest-prototype rule."""

from protofed.prototypes.aggregate import Weighting, bound_pool, mean_over_holders, pad_with_class_mean
from protofed.prototypes.dbscan import dbscan, quantile_eps
from protofed.prototypes.finch import Centroids, finch, finch_pool
from protofed.prototypes.kmeans import Start, kmeans
from protofed.prototypes.losses import (
    ClusterWeights,
    Metric,
    cluster_attraction,
    cluster_contrast,
    distance,
    pooled_contrast,
    prototype_distance,
    slot_contrast,
)
from protofed.prototypes.means import class_means
from protofed.prototypes.nearest import class_distances, nearest_class
from protofed.prototypes.segments import Segments, segments
from protofed.prototypes.type import Prototypes

__all__ = [
    "Centroids",
    "ClusterWeights",
    "Metric",
    "Prototypes",
    "Segments",
    "Start",
    "Weighting",
    "bound_pool",
    "class_distances",
    "class_means",
    "cluster_attraction",
    "cluster_contrast",
    "dbscan",
    "distance",
    "finch",
    "finch_pool",
    "kmeans",
    "mean_over_holders",
    "nearest_class",
    "pad_with_class_mean",
    "pooled_contrast",
    "prototype_distance",
    "quantile_eps",
    "segments",
    "slot_contrast",
]
