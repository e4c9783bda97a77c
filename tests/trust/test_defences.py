"""Robust aggregation: each rule against its definition, and what a defence leaves alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.prototypes import Prototypes
from protofed.runs.run import new_run
from protofed.trust import defences
from protofed.trust.defences import DEFENCES, FEARED, LENGTH, describe, find_defences
from protofed.trust.defended import coordinate_median
from tests.reference import defences as reference


@st.composite
def updates(draw: st.DrawFn, least: int = 1) -> Tensor:
    """Clients × coordinates, some far away, some equal."""
    shape = draw(st.integers(least, 9)), draw(st.integers(1, 6))
    seed = draw(st.integers(0, 10_000))
    rows = torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for row in draw(st.lists(st.integers(0, shape[0] - 1), max_size=3)):
        rows[row] *= draw(st.sampled_from([0.0, -1.0, 1e6, 1e-6]))
    return rows


@given(updates())
def test_the_median_and_the_trimmed_mean_are_those_of_every_coordinate(rows: Tensor) -> None:
    assert coordinate_median(rows).tolist() == pytest.approx(reference.coordinate_median(rows.tolist()))
    assert defences.trimmed_mean(rows).tolist() == pytest.approx(reference.trimmed_mean(rows.tolist(), FEARED))


@given(updates(least=3))
@example(torch.tensor([[-0.8012, 0.4460, 0.0854], [1.0919, 0.4085, -0.3370], [-0.8484, 1.4473, 1.2299]]).double())
def test_no_step_away_from_the_geometric_median_is_nearer_to_all(rows: Tensor) -> None:
    found = defences.geometric_median(rows)
    best = reference.sum_of_distances(found.tolist(), rows.tolist())
    scale = float(rows.norm(dim=1).median()) or 1.0
    for axis in range(rows.shape[1]):
        for step in (-0.05 * scale, 0.05 * scale):
            moved = found.clone()
            moved[axis] += step
            assert reference.sum_of_distances(moved.tolist(), rows.tolist()) >= best * (1 - 1e-6) - 1e-3 * scale


@given(updates(least=4))
def test_krum_counts_the_nearest_others(rows: Tensor) -> None:
    scores = reference.krum_scores(rows.tolist(), FEARED)
    assert defences.krum_scores(rows).tolist() == pytest.approx(scores, rel=1e-6, abs=1e-9)
    assert scores[rows.eq(defences.krum(rows)).all(1).nonzero()[0]] == pytest.approx(min(scores), rel=1e-6, abs=1e-9)


def test_multi_krum_is_the_mean_of_those_that_agree() -> None:
    rows = torch.tensor([[1.0, 0], [1.1, 0], [0.9, 0], [-50, 7]])
    assert defences.multi_krum(rows).tolist() == pytest.approx([1.0, 0.0])


@given(updates())
def test_no_update_is_longer_than_the_median_after_clipping(rows: Tensor) -> None:
    assert defences.norm_clip(rows).tolist() == [pytest.approx(row) for row in reference.norm_clip(rows.tolist())]


@given(updates(least=3), st.sampled_from([0.1, 0.3]))
def test_outliers_are_those_beyond_three_deviations(rows: Tensor, angle: float) -> None:
    expected = reference.unlike(rows.tolist(), angle, LENGTH)
    assert defences._unlike(rows, angle).tolist() == expected


def uploads(vectors: Tensor, weights: Tensor | None = None) -> Upload:
    """Class means [N, C, D], a zero row for a class that a client does not hold, and weights [N, P]."""
    counts = vectors.abs().sum(-1).gt(0).to(vectors.dtype).unsqueeze(-1)
    sent = {} if weights is None else {"w": weights, "seen": torch.arange(len(weights))}
    numbers = {} if weights is None else {"samples": torch.ones(len(weights))}
    return Upload(sent, {"means": Prototypes(vectors.unsqueeze(2), counts)}, numbers)


BEFORE = Broadcast({"w": torch.full((3,), 5.0), "seen": torch.tensor(0)})
HONEST = torch.tensor([[1.0, 2, 3], [1.1, 2, 3], [1, 2.1, 3], [1, 2, 3.1], [0.9, 2, 3]])


@pytest.mark.parametrize("name", sorted(DEFENCES))
def test_a_defence_gives_as_many_uploads_back_and_touches_its_own_part_alone(name: str) -> None:
    sent = uploads(HONEST.view(5, 1, 3).repeat(1, 2, 1), BEFORE.weights["w"] + HONEST)
    found, suspected, _ = DEFENCES[name](sent, BEFORE)
    assert found.weights["w"].shape == (5, 3)
    assert found.weights["seen"].tolist() == ([2] * 5 if name == "default" else [0, 1, 2, 3, 4])
    assert torch.equal(found.numbers["samples"], sent.numbers["samples"])
    assert list(suspected) == []
    kinds = {row["name"]: row["of"] for row in describe()}
    if kinds[name] == "weights":
        assert torch.equal(found.prototypes["means"].vectors, sent.prototypes["means"].vectors)
    if kinds[name] == "prototypes":
        assert torch.equal(found.weights["w"], sent.weights["w"])
    alone = uploads(HONEST.view(5, 1, 3))
    assert DEFENCES[name](alone, Broadcast()).uploads.weights == {}


@pytest.mark.parametrize("name", ["outliers", "median", "trimmed-mean", "geometric-median", "krum", "multi-krum"])
def test_weights_of_a_hostile_client_do_not_move_the_mean(name: str) -> None:
    changes = torch.cat([HONEST, -40 * HONEST[:1]])
    found, _, _ = DEFENCES[name](uploads(torch.ones(6, 1, 3), BEFORE.weights["w"] + changes), BEFORE)
    assert (found.weights["w"].mean(0) - 5).tolist() == pytest.approx([1, 2, 3], abs=0.15)


@pytest.mark.parametrize("name", ["outliers", "prototype-median", "prototype-trimmed-mean", "prototype-angle"])
@pytest.mark.parametrize("bad", [-HONEST[0], 10 * HONEST[0], HONEST[0].flip(0) * torch.tensor([1.0, -1, 1])])
def test_prototypes_of_a_hostile_client_do_not_move_the_mean(name: str, bad: Tensor) -> None:
    vectors = torch.cat([HONEST, bad.unsqueeze(0)]).view(6, 1, 3)
    found = DEFENCES[name](uploads(vectors), Broadcast()).uploads.prototypes["means"]
    mean = found.vectors.sum((0, 2)) / found.filled.sum((0, 2)).unsqueeze(-1)
    assert mean[0].tolist() == pytest.approx([1, 2, 3], abs=0.15)


@pytest.mark.parametrize("name", ["prototype-median", "prototype-trimmed-mean"])
def test_who_sends_more_prototypes_has_no_more_votes(name: str) -> None:
    vectors, counts = torch.zeros(5, 1, 6, 3), torch.zeros(5, 1, 6)
    vectors[:4, 0, 0], counts[:4, 0, 0] = HONEST[:4], 5.0
    vectors[4], counts[4] = 100.0, 1.0
    found = DEFENCES[name](Upload({}, {"means": Prototypes(vectors, counts)}), Broadcast()).uploads
    assert found.prototypes["means"].vectors[0, 0, 0].tolist() == pytest.approx([1, 2, 3], abs=0.3)


def test_who_was_found_out_is_told_and_loses_everything() -> None:
    vectors = HONEST.view(5, 1, 3).repeat(1, 4, 1)
    vectors[2, :2] *= -1  # half of its classes
    vectors[4, 3] *= 20  # one of four: that one alone
    found, suspected, _ = DEFENCES["outliers"](uploads(vectors), Broadcast())
    assert list(suspected) == [2]
    present = found.prototypes["means"].present
    assert present[2].tolist() == [False] * 4
    assert present[4].tolist() == [True, True, True, False]
    assert bool(present[[0, 1, 3]].all())


def test_of_two_holders_nobody_can_say_which_is_right() -> None:
    vectors = torch.zeros(5, 1, 3)
    vectors[0, 0], vectors[1, 0] = HONEST[0], -HONEST[0]
    found = DEFENCES["prototype-angle"](uploads(vectors), Broadcast()).uploads.prototypes["means"]
    assert found.present.squeeze(1).tolist() == [True, True, False, False, False]


def test_where_honest_clients_differ_in_length_nobody_is_blamed_for_it_and_nobody_outweighs_the_rest() -> None:
    factors = torch.tensor([0.1, 0.2, 1.0, 5.0, 15.0])
    changes = torch.tensor([1.0, 2.0, 3.0]) * factors.unsqueeze(1)
    found, suspected, _ = DEFENCES["outliers"](uploads(HONEST.view(5, 1, 3), BEFORE.weights["w"] + changes), BEFORE)
    assert suspected == []
    lengths = (found.weights["w"] - BEFORE.weights["w"]).norm(dim=1) / changes[2].norm()
    torch.testing.assert_close(lengths, factors.clamp(max=LENGTH))


def test_where_half_are_unlike_the_rest_nobody_is_blamed() -> None:
    changes = torch.cat([HONEST[:2], -HONEST[:2]])
    sent = uploads(torch.ones(4, 1, 3), BEFORE.weights["w"] + changes)
    found, suspected, _ = DEFENCES["outliers"](sent, BEFORE)
    assert list(suspected) == []
    torch.testing.assert_close(found.weights["w"], sent.weights["w"])


def test_several_defences_are_applied_in_their_order() -> None:
    assert find_defences("norm-clip, median") == [DEFENCES["norm-clip"], DEFENCES["median"]]
    assert find_defences("none") == []
    with pytest.raises(UserError, match="'krum'"):
        find_defences("krun")


def test_a_defence_of_prototypes_serves_mixed_architectures() -> None:
    options: dict[str, Any] = {
        "method": "fedproto",
        "model": "cnn-18,cnn",
        "clients": 4,
        "train_size": 200,
        "rounds": 2,
    }
    run = new_run(
        Experiment.from_mapping({**options, "device": "cpu", "alpha": 1.0, "defence": "prototype-median,outliers"})
    )
    assert run.play_round().suspected == []
    run.play_round()
    assert bool(run.broadcast.prototypes["global"].present.all())
