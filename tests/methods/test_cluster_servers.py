"""What clients of FPL, FedPLVM, FedPLCC and FedProc send and what the server makes of it are plain loops."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods.base import Method, Server
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedplcc import FedPLCC
from protofed.methods.fedplvm import FedPLVM
from protofed.methods.fedproc import FedProc
from protofed.methods.fpl import FPL
from tests.reference import clusters as slow
from tests.reference import methods as plain
from tests.reference.fedproc import mean_over_clients
from tests.support import cluster_runs
from tests.support.cluster_runs import CLOCK
from tests.support.turns import turn_of

quick = settings(max_examples=8, deadline=None)
seeds = st.integers(0, 2**16)


@quick
@given(seed=seeds, clients=st.integers(1, 8), rows=st.integers(1, 24), weighted=st.booleans())
def test_what_is_sent_and_what_the_server_makes_of_it(seed: int, clients: int, rows: int, weighted: bool) -> None:
    data = cluster_runs.trained(seed, rows, clients)
    means = [slow.class_means(data.features[k], data.labels[k]) for k in range(clients)]
    local = [slow.local_clusters(data.features[k], data.labels[k]) for k in range(clients)]
    cases: list[tuple[Method, list[slow.Clusters], slow.Clusters]] = [
        (FPL(), means, slow.pool_clusters(means, weighted=False)),
        (FedPLVM(), local, slow.pool_clusters(local, weighted=False)),
        (
            FedPLCC(centroids="weighted" if weighted else "unweighted"),
            local,
            slow.pool_clusters(local, weighted=weighted),
        ),
        (
            FedProc(weighting="samples" if weighted else "uniform"),
            means,
            mean_over_clients(means, weighted=weighted),
        ),
    ]
    for method, each, together in cases:
        upload = method.upload(data, turn_of(data))
        (prototypes,) = upload.prototypes.values()
        for k in range(clients):
            cluster_runs.assert_clusters(prototypes.take(k), each[k])
        broadcast = method.aggregate(upload, Server(Broadcast(), CLOCK))
        (result,) = broadcast.prototypes.values()
        cluster_runs.assert_clusters(result, together)
        assert method.references(broadcast) is result
        assert method.references(Broadcast(broadcast.weights)) is None
        assert result.counts.sum() == (data.labels >= 0).sum()  # every sample is in one cluster


def test_there_were_several_clusters_and_weighted_centroids_differ() -> None:
    data = cluster_runs.trained(3)
    local, fpl = FedPLVM().upload(data, turn_of(data)), FPL().upload(data, turn_of(data))
    assert int(local.prototypes["local"].filled.sum(-1).max()) > 1
    assert int(FPL().aggregate(fpl, Server(Broadcast(), CLOCK)).prototypes["clusters"].filled.sum(-1).max()) > 1
    found = [
        FedPLCC(centroids=c).aggregate(local, Server(Broadcast(), CLOCK)).prototypes["clusters"]
        for c in ("unweighted", "weighted")
    ]
    assert int(found[0].filled.sum(-1).max()) > 1
    assert_close(found[0].counts, found[1].counts)
    assert float((found[0].vectors - found[1].vectors).abs().max()) > 1e-3


@cluster_runs.every_method
@pytest.mark.parametrize("averaging", ["samples", "uniform"])
def test_weights_are_averaged_as_in_fedavg(kind: type[FedAvg], averaging: Any) -> None:
    data = cluster_runs.trained(2)
    upload = kind(averaging=averaging).upload(data, turn_of(data))
    result = kind(averaging=averaging).aggregate(upload, Server(Broadcast(), CLOCK)).weights
    states = [{name: value[k] for name, value in data.weights.items()} for k in range(5)]
    importance = data.samples.tolist() if averaging == "samples" else [1.0] * 5
    assert_close(dict(result), plain.weighted_mean(states, importance))
