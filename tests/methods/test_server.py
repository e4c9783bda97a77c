"""What clients send and what the server makes of it, against plain loops."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS, build_method
from protofed.methods.base import Clock, Trained, weighted_mean
from protofed.prototypes import Prototypes
from tests.reference import methods as slow
from tests.reference import prototypes as reference
from tests.support.prototype_cases import random_features, random_labels, random_prototypes

quick = settings(max_examples=20, deadline=None)
seeds = st.integers(0, 2**16)
CLOCK = Clock(1, 3)


def states(clients: int, seed: int) -> dict[str, Tensor]:
    """Weights of some clients, an integer buffer among them."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(clients, 3, 2, generator=rng, dtype=torch.float64),
        "b": torch.randn(clients, 4, generator=rng),
        "scale": torch.randn(clients, generator=rng, dtype=torch.float64),
        "batches": torch.randint(0, 99, (clients,), generator=rng),
    }


def client(stacked: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    return {name: value[k] for name, value in stacked.items()}


@quick
@given(clients=st.integers(1, 5), seed=seeds, averaging=st.sampled_from(["samples", "uniform"]))
def test_averaging_is_the_loop(clients: int, seed: int, averaging: str) -> None:
    stacked = states(clients, seed)
    samples = torch.randint(1, 50, (clients,), generator=torch.Generator().manual_seed(seed))
    importance = samples.tolist() if averaging == "samples" else [1.0] * clients
    expected = slow.weighted_mean([client(stacked, k) for k in range(clients)], importance)
    method = build_method("fedavg", {"averaging": averaging})
    result = method.aggregate(Upload(stacked, {}, {"samples": samples}), Broadcast(), CLOCK).weights
    assert result.keys() == expected.keys()
    assert_close(dict(result), expected)
    assert torch.equal(result["batches"], stacked["batches"][0])
    assert_close(weighted_mean(stacked, torch.tensor(importance)), expected)


def test_a_client_with_more_samples_counts_for_more() -> None:
    result = weighted_mean({"w": torch.tensor([[0.0, 4.0], [8.0, 0.0]])}, torch.tensor([3, 1]))
    assert result["w"].tolist() == [2.0, 3.0]


@quick
@given(clients=st.integers(1, 4), weighting=st.sampled_from(["uniform", "samples", "literal"]), seed=seeds)
def test_fedproto_aggregates_by_equation_6(clients: int, weighting: str, seed: int) -> None:
    means, old = random_prototypes(clients, 5, 1, 3, seed=seed), random_prototypes(5, 1, 3, seed=seed + 1)
    plain = [
        {c: (means.vectors[k, c, 0].numpy(), int(means.counts[k, c, 0])) for c in range(5) if means.counts[k, c, 0] > 0}
        for k in range(clients)
    ]
    fresh = reference.mean_over_holders(plain, weighting)
    kept = {c: vectors[0] for c, vectors in reference.as_sets(old).items()}
    for absent, expected in (("drop", fresh), ("keep", kept | fresh)):
        method = build_method("fedproto", {"weighting": weighting, "absent": absent})
        sent = method.aggregate(Upload({}, {"means": means}), Broadcast({}, {"global": old}), CLOCK)
        assert not sent.weights
        result = sent.prototypes["global"]
        assert result.present.nonzero().flatten().tolist() == sorted(expected)
        for c in range(5):
            vector = torch.tensor(expected[c]) if c in expected else torch.zeros(3, dtype=torch.float64)
            assert_close(result.vectors[c, 0], vector)
        assert method.references(sent) is result


def test_fedproto_keeps_nothing_in_its_first_round() -> None:
    means = random_prototypes(2, 4, 1, 3, seed=5)
    kept, dropped = (
        build_method("fedproto", {"absent": absent}).aggregate(Upload({}, {"means": means}), Broadcast(), CLOCK)
        for absent in ("keep", "drop")
    )
    assert_close(kept.prototypes["global"], dropped.prototypes["global"])
    assert build_method("fedproto", {}).references(Broadcast()) is None


def test_uniform_and_samples_coincide_when_all_counts_are_equal() -> None:
    means = random_prototypes(3, 4, 1, 3, seed=2)
    equal = Upload({}, {"means": Prototypes(means.vectors, 6 * means.filled.double())})
    uniform, samples = (
        build_method("fedproto", {"weighting": w}).aggregate(equal, Broadcast(), CLOCK) for w in ("uniform", "samples")
    )
    assert_close(uniform.prototypes["global"], samples.prototypes["global"])
    unequal = Upload({}, {"means": means})
    uniform, samples = (
        build_method("fedproto", {"weighting": w}).aggregate(unequal, Broadcast(), CLOCK)
        for w in ("uniform", "samples")
    )
    assert float((uniform.prototypes["global"].vectors - samples.prototypes["global"].vectors).abs().max()) > 1e-3


def test_shared_weights_are_averaged_beside_the_prototypes() -> None:
    stacked, samples = states(3, 0), torch.tensor([5, 1, 2])
    upload = Upload(stacked, {"means": random_prototypes(3, 4, 1, 3, seed=2)}, {"samples": samples})
    sent = build_method("fedproto", {"share_weights": True}).aggregate(upload, Broadcast(), CLOCK)
    assert_close(dict(sent.weights), slow.weighted_mean([client(stacked, k) for k in range(3)], [5, 1, 2]))
    assert "global" in sent.prototypes


@pytest.mark.parametrize("name", ["mp-fedcl", "sp-fedcl", "dp-fedcl"])
def test_a_pool_is_every_upload_side_by_side_and_is_asked_unpadded(name: str) -> None:
    stacked, samples = states(3, 0), torch.tensor([5, 1, 2])
    local = random_prototypes(3, 4, 1 if name == "sp-fedcl" else 2, 3, seed=2)
    method = build_method(name, {})
    sent = method.aggregate(Upload(stacked, {"local": local}, {"samples": samples}), Broadcast(), CLOCK)
    assert_close(dict(sent.weights), slow.weighted_mean([client(stacked, k) for k in range(3)], [5, 1, 2]))
    assert_close(sent.prototypes["pool"], local)
    asked = method.references(sent)
    assert asked is not None
    each = [reference.as_sets(local.take(k)) for k in range(3)]
    for c, vectors in reference.as_sets(asked).items():
        expected = [u for client_sets in each for u in client_sets.get(c, [])]
        assert [u.tolist() for u in vectors] == [u.tolist() for u in expected]
    assert set(reference.as_sets(asked)) == {c for client_sets in each for c in client_sets}
    assert method.references(Broadcast(dict(sent.weights))) is None


def test_padding_does_not_move_the_mean_of_a_class() -> None:
    """Where no client is complete, every slot is the mean of what was uploaded."""
    local = random_prototypes(3, 4, 2, 3, seed=2, empty=0)
    counts = local.counts.clone()
    counts[..., 1] = 0
    short = Prototypes(local.vectors * (counts > 0).unsqueeze(-1), counts)
    padded = build_method("mp-fedcl", {}).receive(Broadcast({}, {"pool": short})).prototypes["pool"]
    assert bool(padded.filled.all())
    assert_close(padded.pooled().class_mean(), short.pooled().class_mean())
    assert_close(padded.vectors, short.pooled().class_mean().view(1, 4, 1, 3).expand(3, 4, 2, 3))


def trained(seed: int) -> Trained:
    features, labels = random_features(3, 30, 4, seed=seed), random_labels(3, 30, classes=3, seed=seed)
    keys, losses = torch.tensor([11, 22, 33]), torch.tensor([0.5, 1.5, 2.5])
    return Trained(states(3, seed), torch.tensor([5, 1, 2]), features, labels, 4, keys, losses)


@pytest.mark.parametrize("name", METHODS)
def test_an_upload_holds_what_the_method_says_it_sends(name: str) -> None:
    method, clients = build_method(name, {}), trained(4)
    upload = method.upload(clients)
    words = {"weights": bool(upload.weights), "prototypes": bool(upload.prototypes)}
    assert words == {"weights": "weights" in method.up, "prototypes": "prototypes" in method.up or "means" in method.up}
    if upload.weights:
        assert_close(dict(upload.weights), dict(clients.weights))
        assert upload.numbers["samples"].tolist() == [5, 1, 2]
    else:
        assert not upload.numbers


@pytest.mark.parametrize(("name", "key"), [("fedproto", "means"), ("sp-fedcl", "local")])
def test_class_means_are_the_loop(name: str, key: str) -> None:
    clients = trained(4)
    sent = build_method(name, {}).upload(clients).prototypes[key]
    for k in range(3):
        expected = reference.class_means(clients.features[k].numpy(), clients.labels[k].numpy())
        assert sent.present[k].nonzero().flatten().tolist() == sorted(expected)
        assert not sent.present[k, 3]
        for c, (mean, number) in expected.items():
            assert_close(sent.vectors[k, c, 0], torch.tensor(mean))
            assert sent.counts[k, c, 0] == number


def test_mp_fedcl_sends_the_means_of_k_clusters_of_each_class() -> None:
    clients = trained(4)
    for k, space in ((2, "raw"), (3, "normalised")):
        sent = build_method("mp-fedcl", {"k": k, "space": space}).upload(clients).prototypes["local"]
        assert sent.counts.shape == (3, 4, k)
        for i in range(3):
            for c in range(3):
                points = clients.features[i][clients.labels[i] == c].numpy()
                unit = points / (points**2).sum(1, keepdims=True) ** 0.5
                groups = reference.kmeans(points if space == "raw" else unit, k, int(clients.keys[i]), c)
                expected = torch.stack([torch.tensor(points[group].mean(0)) for group in groups])
                assert_close(sent.vectors[i, c, : len(groups)], expected)
                assert sent.counts[i, c].tolist() == [len(group) for group in groups] + [0] * (k - len(groups))


def test_dp_fedcl_sends_the_means_of_dense_regions_on_the_unit_sphere() -> None:
    """One direction at two lengths is one region; its prototype is the mean of the raw features."""
    x = torch.tensor([[1.0, 0], [3, 0], [1, 0.1], [0, 1], [0, 2], [0.1, 1]], dtype=torch.float64)
    one = Trained({}, torch.tensor([6]), x.unsqueeze(0), torch.zeros(1, 6, dtype=torch.int64), 1, torch.tensor([0]))
    sent = build_method("dp-fedcl", {"eps": 0.3, "min_samples": 2}).upload(one).prototypes["local"]
    assert_close(sent.vectors[0, 0], torch.stack([x[:3].mean(0), x[3:].mean(0)]))
    assert sent.counts[0, 0].tolist() == [3, 3]
    noise = build_method("dp-fedcl", {"eps": 0.3, "min_samples": 5}).upload(one).prototypes["local"]
    assert_close(noise.vectors[0, 0, 0], x.mean(0))
    # The 4th neighbour of every point lies on the other side, so eps from the data joins the two.
    joined = build_method("dp-fedcl", {"neighbourhood": "quantile", "min_samples": 2}).upload(one).prototypes["local"]
    assert joined.filled.sum() == 1
