"""The default defence: how far each client is believed, against a slow definition, and what cannot pass it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import normalize

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.prototypes import Prototypes
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import new_run
from protofed.trust import default_defence as defence
from protofed.trust.default_defence import GROWTH, LEARNT, LENGTH, LONG, SHARE, default
from protofed.trust.defended import Context
from tests.reference import default_defence as reference
from tests.support.killed import KillAfter, Killed

SENT = Broadcast({"a.weight": torch.full((6,), 2.0), "a.bias": torch.zeros(2), "b.weight": torch.zeros(4)})


def updates(clients: int, noise: float, seed: int = 0) -> Upload:
    """Updates that share a direction, and noise of a length relative to it."""
    made = torch.Generator().manual_seed(seed)
    weights = {}
    for name, before in SENT.weights.items():
        shared = torch.ones_like(before) / math.sqrt(len(before))
        weights[name] = (
            before + shared + noise * torch.randn(clients, len(before), generator=made) / math.sqrt(len(before))
        )
    return Upload(weights, {}, {"samples": torch.full((clients,), 10)})


def changed(uploads: Upload) -> Tensor:
    return torch.cat(list(uploads.changes(SENT).values()), 1)


@given(st.integers(3, 9), st.integers(0, 10_000), st.sampled_from([0.3, 1.0, 3.0]), st.booleans())
def test_clients_are_believed_by_their_angle_with_the_others(
    clients: int, seed: int, noise: float, trusts: bool
) -> None:
    some = updates(clients, noise, seed)
    known = Context(range(clients), (0,) if trusts else ())
    layers = [torch.cat([change for name, change in some.changes(SENT).items() if name[0] == one], 1) for one in "ab"]
    found = [
        defence.margin(defence._pairs(rows.double()), known.trusted_rows(clients, rows.device)).tolist()
        for rows in layers
    ]
    expected = [
        reference.margins(rows.double().tolist(), defence.COPIES, defence.TURNED, known.trusted) for rows in layers
    ]
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-6)


def test_who_turns_round_or_is_far_too_long_counts_for_nothing_and_is_told() -> None:
    some = updates(8, 0.1)
    bad = {name: tensor.clone() for name, tensor in some.weights.items()}
    bad["b.weight"][1] *= -1  # in a single layer
    bad["a.weight"][5] = 2 + 1.2 * LONG * (bad["a.weight"][5] - 2) * 2
    found, suspected, _ = default(Upload(bad, {}, some.numbers), SENT)
    assert list(suspected) == [1, 5]
    rest = [row for row in range(8) if row not in (1, 5)]
    honest = default(some.reorder(torch.tensor(rest)), SENT).uploads
    torch.testing.assert_close(changed(found).mean(0), changed(honest).mean(0), atol=1e-5, rtol=1e-4)


def test_nobody_is_longer_in_a_layer_than_the_median_allows() -> None:
    some = updates(9, 0.2)
    some.weights["b.weight"][3] *= 2.5
    found, suspected, _ = default(some, SENT)
    assert list(suspected) == []
    lengths = found.changes(SENT)["b.weight"].norm(dim=1)
    median = some.changes(SENT)["b.weight"].norm(dim=1).median()
    assert float(lengths.max()) <= LENGTH * float(median) * (1 + 1e-5)


def test_declared_samples_are_bounded_by_the_median() -> None:
    some = updates(5, 0.2)
    claimed = Upload(some.weights, {}, {"samples": torch.tensor([10, 10, 10, 10, 10**6])})
    assert default(claimed, SENT).uploads.numbers["samples"].tolist() == [10, 10, 10, 10, 10 * SHARE]


def test_copies_of_one_client_have_little_more_than_its_vote() -> None:
    some = updates(14, 1.0)
    for tensor in some.weights.values():
        tensor[10:] = tensor[10]
    pairs = defence._pairs(changed(some))
    assert float(defence.votes(pairs.cosines)[10:].sum()) <= 1.001


def test_a_statistic_of_batchnorm_stays_within_what_others_have_in_each_number() -> None:
    var = torch.ones(7, 3) + 0.1 * torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    var[6, 1] = -50.0
    some = updates(7, 0.2)
    sent = Broadcast({**SENT.weights, "n.running_var": torch.ones(3)})
    found = default(Upload({**some.weights, "n.running_var": var}, {}, some.numbers), sent).uploads
    assert float(found.weights["n.running_var"].min()) > 0.5


def means(vectors: Tensor) -> Prototypes:
    """Class means [N, C, D] of clients that hold every class."""
    return Prototypes(vectors.unsqueeze(2), torch.full((*vectors.shape[:2], 1), 5.0))


@given(st.integers(0, 10_000), st.sampled_from([1.0, -1.0, 30.0]))
def test_no_prototype_is_further_from_its_class_than_most(seed: int, factor: float) -> None:
    made = torch.Generator().manual_seed(seed)
    vectors = torch.eye(4).unsqueeze(0) + 0.1 * torch.randn(9, 4, 4, generator=made)
    vectors[8] = factor * vectors[8].roll(1, 0)  # each class where the next one is
    found = default(Upload({}, {"means": means(vectors)}), Broadcast()).uploads.prototypes["means"]
    middle = vectors.sort(0).values[4]
    away = (vectors - middle).norm(dim=-1).median(0).values
    assert bool(((found.class_mean() - middle).norm(dim=-1) <= LENGTH * away * (1 + 1e-4)).all())
    assert float((found.class_mean().mean(0) - vectors[:8].mean(0)).norm(dim=-1).max()) < 0.2


def test_each_of_several_prototypes_of_a_class_is_judged() -> None:
    """Split ones have an honest mean."""
    made = torch.Generator().manual_seed(1)
    vectors = torch.eye(3).view(1, 3, 1, 3) + 0.1 * torch.randn(7, 3, 2, 3, generator=made)
    vectors[6, :, 0], vectors[6, :, 1] = torch.eye(3) + 5, torch.eye(3) - 5
    sets = Prototypes(vectors, torch.full((7, 3, 2), 4.0))
    found = default(Upload({}, {"local": sets}), Broadcast()).uploads.prototypes["local"].vectors
    assert float((found[6] - torch.eye(3).unsqueeze(1)).norm(dim=-1).max()) < 1.0


def test_the_middle_of_a_class_grows_no_faster_than_is_allowed() -> None:
    before = Broadcast({}, {"global": Prototypes(torch.eye(2).unsqueeze(1), torch.ones(2, 1))})
    vectors = 10 * torch.eye(2).repeat(5, 1, 1)
    found = default(Upload({}, {"means": means(vectors)}), before).uploads.prototypes["means"].class_mean()
    assert float(found.norm(dim=-1).max()) <= GROWTH * (1 + 1e-4)


def test_what_was_seen_of_a_client_is_remembered() -> None:
    some, bad = updates(6, 0.2), updates(6, 0.2)
    bad.weights["b.weight"][2] *= -1
    first = default(bad, SENT, Context(range(6)))
    assert list(first.suspected) == [2]
    after = default(some, SENT, Context(range(6), memory=first.memory))
    assert list(after.suspected) == [2]  # one honest round does not make it forgotten
    assert list(default(some, SENT, Context((6, 7, 8, 9, 10, 11), memory=first.memory)).suspected) == []  # others
    later = after
    for _ in range(6):
        later = default(some, SENT, Context(range(6), memory=later.memory))
    assert list(later.suspected) == []


def turning(held: Tensor, clients: int = 12, rounds: int = 12, attackers: int = 3) -> list[Sequence[int]]:
    """Whom rounds suspect in which all clients follow what holds for long [n], and what holds for the round alone.

    The last of the clients, who know all uploads, follow nothing but the latter.
    """
    found: list[Sequence[int]] = []
    memory: Mapping[str, Tensor] = {}
    made = torch.Generator().manual_seed(5)
    for _ in range(rounds):
        own, passing = (torch.randn(count, len(held), generator=made) / math.sqrt(len(held)) for count in (clients, 1))
        rows = own + 0.6 * held + 0.8 * passing
        rows[-attackers:] = own[-attackers:] + passing
        uploads = Upload({"w": rows}, {}, {"samples": torch.full((clients,), 10)})
        done = default(uploads, Broadcast({"w": torch.zeros(len(held))}), Context(range(clients), memory=memory))
        memory, found = done.memory, [*found, done.suspected]
    return found


def test_who_agrees_only_with_what_it_saw_is_found_out_by_the_next_rounds() -> None:
    found = turning(normalize(torch.randn(400, generator=torch.Generator().manual_seed(1)), dim=0))
    assert list(found[0]) == []  # by its angle and its length it is as the others
    assert [set(some) for some in found[-3:]] == [{9, 10, 11}] * 3


@given(st.integers(0, 10_000), st.integers(1, 3))
def test_the_agreement_that_is_lost_is_that_of_the_definition(seed: int, gone: int) -> None:
    """Over two rounds, with clients that left and others that came."""
    before, after = (by_layer(updates(6, 1.0, seed + more)) for more in (0, 1))
    first, second = list(range(6)), [*range(gone, 6), *range(6, 6 + gone)]
    made = torch.Generator().manual_seed(seed)
    voices = [torch.rand(6, generator=made) + 0.1 for _ in range(2)]
    nobody = torch.zeros(6, dtype=torch.bool)
    _, seen = defence.hindsight(before, voices[0], nobody, Context(first))
    _, found = defence.hindsight(after, voices[1], nobody, Context(second, memory=seen))
    units = [[rows.tolist() for rows in some] for some in (before, after)]
    expected = reference.lost_agreement(units[0], units[1], first, second, voices[0].tolist(), voices[1].tolist())
    for client, value in expected.items():
        assert float(found["scores"][client]) == pytest.approx(LEARNT * value, abs=1e-5)


def by_layer(some: Upload) -> list[Tensor]:
    return [torch.cat([change for name, change in some.changes(SENT).items() if name[0] == one], 1) for one in "ab"]


def test_a_sketch_keeps_the_products_of_long_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch.Generator().manual_seed(2)
    rows = [torch.randn(5, 9_000, generator=made) + 1, torch.randn(5, 900, generator=made)]
    whole = defence._sketch(rows)
    monkeypatch.setattr(defence, "SKETCH", 4096)
    short = defence._sketch(rows)
    assert short.shape == (5, 4096)
    torch.testing.assert_close(short @ short.T, whole @ whole.T, atol=5 / math.sqrt(4096), rtol=0)


def test_no_more_are_blamed_than_are_feared() -> None:
    scores = torch.tensor([0.0] * 12 + [0.5] * 8)
    assert defence._by_score(scores).tolist() == [1.0] * 20  # who of so many is right cannot be told
    scores[14:] = 0.0
    assert defence._by_score(scores).tolist() == [1.0] * 12 + [0.0] * 2 + [1.0] * 6


def test_state_in_whole_numbers_is_the_medians() -> None:
    some = updates(5, 0.2)
    sent = Broadcast({**SENT.weights, "n.num_batches_tracked": torch.tensor(7)})
    weights = {**some.weights, "n.num_batches_tracked": torch.tensor([9, 9, 9, 10, 2**30])}
    found = default(Upload(weights, {}, some.numbers), sent).uploads.weights["n.num_batches_tracked"]
    assert found.tolist() == [9] * 5


def test_nobodys_prototypes_stand_for_many_more_samples_than_others() -> None:
    counts = torch.full((5, 4, 1), 5.0)
    counts[4] = 1e5
    found = default(Upload({}, {"means": Prototypes(torch.ones(5, 4, 1, 3), counts)}), Broadcast()).uploads
    assert float(found.prototypes["means"].counts[4].sum()) <= SHARE * 20


def test_who_is_trusted_decides_what_the_others_are_measured_by() -> None:
    """Five of eight turn round: most would be wrong."""
    some = updates(8, 0.2)
    for name, tensor in some.weights.items():
        tensor[3:] = 2 * SENT.weights[name] - tensor[3:]
    alone = default(some, SENT, Context(range(8), (0,)))
    torch.testing.assert_close(changed(alone.uploads).mean(0), changed(some)[:3].mean(0), atol=0.15, rtol=0)
    vectors = torch.eye(3).repeat(8, 1, 1)
    vectors[3:] *= -1
    found = default(Upload({}, {"means": means(vectors)}), Broadcast(), Context(range(8), (0,))).uploads
    assert bool((found.prototypes["means"].vectors[0] > -1e-6).all())


def test_a_resumed_run_remembers(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        **{"method": "fedavg", "model": "cnn", "image_size": 16, "device": "cpu", "train_size": 240, "clients": 6},
        **{"alpha": 1.0, "rounds": 3, "min_size": 5, "attack": "sign-flip", "attackers": 0.2, "engine": "sequential"},
    }
    experiment = Experiment.from_mapping({**options, "defence": "default"})
    whole, cut, resumed = new_run(experiment), new_run(experiment), new_run(experiment)
    whole.play(None, Progress())
    folder = RunFolder.create(tmp_path / "run", cut.experiment)
    with pytest.raises(Killed):
        cut.play(folder, KillAfter(2))
    resumed.restore(folder)
    resumed.play(folder, Progress())
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    assert whole.history[-1].suspected == resumed.history[-1].suspected


def test_trusted_clients_are_some_of_the_clients_and_do_not_attack() -> None:
    options: dict[str, Any] = {"train_size": 240, "clients": 5, "min_size": 5, "device": "cpu", "alpha": 1.0}
    run = new_run(Experiment.from_mapping({**options, "defence": "default", "trusted": "0,4", "attack": "sign-flip"}))
    assert run.attack is not None
    assert not {*run.attack.who} & {0, 4}
    with pytest.raises(UserError, match="there are 5 clients"):
        new_run(Experiment.from_mapping({**options, "defence": "default", "trusted": "5"}))
    with pytest.raises(UserError, match="--trusted"):
        Experiment.from_mapping({"trusted": "first", "defence": "default"})
    with pytest.raises(UserError, match="--defence default"):
        Experiment.from_mapping({"trusted": "0"})
