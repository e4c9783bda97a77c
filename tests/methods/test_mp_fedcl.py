"""MP-FedCL: it sends the means of k clusters of each class, and its slot-wise loss pads the pool."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.testing import assert_close

from protofed.messages import Broadcast
from protofed.methods import build_method
from protofed.prototypes import Prototypes, class_means, pad_with_class_mean, slot_contrast
from tests.reference import prototypes as reference
from tests.support.loss_cases import CLASSES, DIM
from tests.support.prototype_cases import random_prototypes
from tests.support.trained_clients import trained
from tests.support.turns import turn_of


def test_mp_fedcl_sends_the_means_of_k_clusters_of_each_class() -> None:
    clients = trained(4)
    for k, space in ((2, "raw"), (3, "normalised")):
        sent = build_method("mp-fedcl", {"k": k, "space": space}).upload(clients, turn_of(clients)).prototypes["local"]
        assert sent.counts.shape == (3, 4, k)
        for i in range(3):
            for c in range(3):
                points = clients.features[i][clients.labels[i] == c].numpy()
                unit = points / (points**2).sum(1, keepdims=True) ** 0.5
                groups = reference.kmeans(points if space == "raw" else unit, k, int(clients.keys[i]), c)
                expected = torch.stack([torch.tensor(points[group].mean(0)) for group in groups])
                assert_close(sent.vectors[i, c, : len(groups)], expected)
                assert sent.counts[i, c].tolist() == [len(group) for group in groups] + [0] * (k - len(groups))


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


def test_only_the_slot_wise_loss_pads_and_padding_leaves_the_broadcast_alone() -> None:
    pool = random_prototypes(3, CLASSES, 2, DIM, seed=7)
    sent = Broadcast({"w": torch.ones(1)}, {"pool": pool})
    before = pool.vectors.clone(), pool.counts.clone()
    received = build_method("mp-fedcl", {}).receive(sent)
    assert_close(received.prototypes["pool"], pad_with_class_mean(pool))
    assert float((received.prototypes["pool"].counts - pool.counts).abs().max()) > 0
    assert torch.equal(received.weights["w"], sent.weights["w"])
    assert_close(tuple(sent.prototypes["pool"]), before)
    for params in ({"contrast": "pooled"}, {"contrast": "none"}):
        assert build_method("mp-fedcl", params).receive(sent) is sent
    first = Broadcast({"w": torch.ones(1)})
    assert build_method("mp-fedcl", {}).receive(first) is first


def separable(seed: int) -> tuple[Tensor, Tensor]:
    """Three classes around three corners of a cube, 20 samples each."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(60) % 3
    return 3 * torch.eye(3, 5, dtype=torch.float64)[labels] + torch.randn(
        60, 5, generator=rng, dtype=torch.float64
    ), labels


def literal(features: Tensor, labels: Tensor, pool: Prototypes, temperature: float) -> Tensor:
    """Eq. 11 as printed: P(y) are the labels other than y."""
    logits = (
        torch.nn.functional.normalize(features, dim=-1) @ torch.nn.functional.normalize(pool.vectors[0, :, 0], dim=-1).T
    )
    scores = torch.log_softmax(logits / temperature, -1)
    wrong = torch.ones_like(scores).scatter(1, labels.view(-1, 1), 0)
    return -(scores * wrong).sum(-1) / wrong.sum(-1)


def test_the_printed_positives_lower_nearest_prototype_accuracy() -> None:
    """With P(y) = the other labels, features move to wrong classes."""
    accuracy = {}
    for reading in ("ours", "printed"):
        x, y = separable(0)
        torch.manual_seed(0)
        encoder = torch.nn.Linear(5, 4, dtype=torch.float64)
        pool = class_means(encoder(x).detach().unsqueeze(0), y.unsqueeze(0), 3)  # one client, one slot
        optimiser = torch.optim.SGD(encoder.parameters(), lr=0.05)
        for _ in range(60):
            loss = (slot_contrast if reading == "ours" else literal)(encoder(x), y, pool, 0.5).mean()
            optimiser.zero_grad()
            torch.autograd.backward(loss)
            optimiser.step()
        z = encoder(x).detach().numpy()
        found = reference.nearest_class(z, reference.as_sets(pool.take(0)))
        accuracy[reading] = float(np.mean(np.array(found) == y.numpy()))
    assert accuracy["ours"] > 0.8
    assert accuracy["printed"] < accuracy["ours"] - 0.3
