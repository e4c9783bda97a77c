"""Differential privacy: how much noise there is, who is clipped, what ε is, and what is refused."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from protofed.data import Client, Federation
from protofed.data.sources.digits import digits
from protofed.engines.sequential import Sequential
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Turn
from protofed.models import build
from protofed.models.encoder import Encoder, EncoderCard
from protofed.models.layers import step
from protofed.models.net import Net
from protofed.prototypes import Prototypes
from protofed.randomness import noise, step_keys
from protofed.report.terminal import console, result_table
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.runs.run import Run, new_run
from protofed.server.participation import participants
from protofed.trust.accounting import Release, epsilon
from protofed.trust.dp_mechanisms import enough, factors, lengths, private_gradient, private_means, private_sum
from tests.support.command_line import rounds_of
from tests.support.killed import KillAfter, Killed

CPU = torch.device("cpu")
accounted = pytest.mark.skipif(find_spec("dp_accounting") is None, reason="dp-accounting (extra dp) is not installed")
SMALL: dict[str, Any] = {"device": "cpu", "engine": "sequential", "train_size": 150, "clients": 3, "alpha": 1.0}


def asked(**options: Any) -> Experiment:
    return Experiment(**{"method": "fedavg", "model": "cnn", "rounds": 2, **SMALL, **options})


def played(**options: Any) -> Run:
    run = new_run(asked(**options))
    run.play(None, Progress())
    return run


def private(**options: Any) -> Experiment:
    return Experiment(**{"privacy": "client", "clip": 2.0, "noise": 3.0, **options})


# What ε is.


def delta_of(sigma: float, spent: float) -> float:
    """The exact δ of one Gaussian release (Balle and Wang, ICML 2018, Theorem 8)."""
    tail = [0.5 * math.erfc(-x / math.sqrt(2)) for x in (0.5 / sigma - spent * sigma, -0.5 / sigma - spent * sigma)]
    return tail[0] - math.exp(spent) * tail[1]


def sampled_delta(sigma: float, rate: float, spent: float) -> float:
    """δ of one release with Poisson sampling at this ε, by summing over the line: the worse of added and removed."""
    x = torch.arange(-12 * sigma, 12 * sigma + 1, sigma / 2000, dtype=torch.float64)
    without = torch.exp(-((x / sigma) ** 2) / 2)
    mixed = (1 - rate) * without + rate * torch.exp(-(((x - 1) / sigma) ** 2) / 2)
    both = [(one - math.exp(spent) * other).clamp(min=0).sum() for one, other in ((mixed, without), (without, mixed))]
    return float(max(both) / without.sum())


@accounted
@pytest.mark.parametrize(("sigma", "rate"), [(0.7, 0.5), (1.1, 0.1), (2.0, 0.3), (4.0, 0.9)])
def test_epsilon_of_one_sampled_release_is_sound_and_tight(sigma: float, rate: float) -> None:
    found = epsilon([Release(sigma, rate)], 1e-5)
    assert sampled_delta(sigma, rate, found) <= 1.000001e-5  # the sum over the line is as exact
    assert sampled_delta(sigma, rate, 0.9999 * found) > 1e-5


@accounted
@pytest.mark.parametrize(
    ("sigma", "rate", "rounds"), [(1.0, 1.0, 60), (1.1, 0.01, 5000), (2.0, 0.3, 40), (8.0, 0.5, 7)]
)
def test_many_releases_cost_less_than_by_renyi_divergence(sigma: float, rate: float, rounds: int) -> None:
    import dp_accounting as dp

    accountant = dp.rdp.RdpAccountant()
    event = dp.GaussianDpEvent(sigma)
    accountant.compose(event if rate == 1 else dp.PoissonSampledDpEvent(rate, event), rounds)
    assert 0.5 < epsilon([Release(sigma, rate, rounds)], 1e-5) / accountant.get_epsilon(1e-5) < 0.97


@accounted
def test_different_releases_compose_as_in_the_library() -> None:
    import dp_accounting as dp

    accountant = dp.pld.PLDAccountant(value_discretization_interval=1e-4)
    steps = dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.3))
    accountant.compose(dp.ComposedDpEvent([dp.SelfComposedDpEvent(steps, 30), dp.GaussianDpEvent(4.0)]))
    found = epsilon([Release(1.3, 0.1, 30), Release(4.0)], 1e-6)
    assert found == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)


@accounted
@pytest.mark.parametrize("sigma", [0.5, 1.0, 3.0, 10.0])
def test_epsilon_of_gaussian_releases_is_the_closed_form(sigma: float) -> None:
    found = epsilon([Release(sigma)], 1e-5)
    assert delta_of(sigma, found) <= 1.0001e-5
    assert delta_of(sigma, 0.999 * found) > 1e-5
    assert epsilon([Release(2 * sigma, times=3), Release(2 * sigma)], 1e-5) == pytest.approx(found)


@accounted
def test_a_sampled_round_costs_less_and_more_rounds_cost_more() -> None:
    costs = [epsilon([Release(1.0, rate, rounds)], 1e-5) for rate, rounds in ((0.1, 10), (0.1, 20), (1.0, 20))]
    assert costs == sorted(costs)
    assert costs[0] < costs[2] / 4


def test_nothing_costs_nothing_and_no_noise_is_no_privacy() -> None:
    assert epsilon([Release(1.0, times=0)], 1e-5) == 0
    assert epsilon([Release(0.0, 0.1)], 1e-5) == math.inf


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(UserError, match=r"pip install 'protofed\[dp\]'"):
        epsilon([Release(1.2345)], 1e-5)


# Client-level: noise and clipping.


def uploads_of(clients: int, weights: Tensor, classes: int = 0) -> Upload:
    """Clients that all send these weights, and for each class a prototype of ones."""
    vectors = torch.ones(clients, classes, 1, 4, dtype=torch.float64)
    sets = {"means": Prototypes(vectors, 7 * torch.ones(clients, classes, 1))} if classes else {}
    samples = torch.full((clients,), 9)
    return Upload({"w": weights.expand(clients, *weights.shape).clone()}, sets, {"samples": samples})


@pytest.mark.parametrize("clients", [1, 4, 40])
def test_the_noise_of_the_sum_has_its_scale_whatever_the_number_of_clients(clients: int) -> None:
    number, sent = 40_000, torch.zeros(40_000, dtype=torch.float64)
    found = private_sum(uploads_of(clients, sent), Broadcast({"w": sent}), 5.0, private(), 0).weights["w"][0] * 5.0
    tolerance = 4 / math.sqrt(2 * number)  # four standard deviations of an estimated one
    assert found.std() / 6.0 == pytest.approx(1, abs=tolerance)
    assert abs(float(found.mean())) < 4 * 6.0 / math.sqrt(number)


def test_every_coordinate_of_the_noise_has_the_same_scale_and_is_new_in_every_round() -> None:
    rounds, sent = 800, torch.zeros(30, dtype=torch.float64)
    uploads, broadcast = uploads_of(2, sent), Broadcast({"w": sent})
    found = torch.stack([private_sum(uploads, broadcast, 1.0, private(), n).weights["w"][0] for n in range(rounds)])
    assert ((found.std(0) / 6.0 - 1).abs() < 5 / math.sqrt(2 * rounds)).all()
    assert (torch.corrcoef(found.T) - torch.eye(30)).abs().max() < 6 / math.sqrt(rounds)
    again = private_sum(uploads, broadcast, 1.0, private(), 0).weights["w"][0]
    assert torch.equal(again, found[0])


def test_prototypes_are_noisy_sums_over_noisy_numbers_of_holders() -> None:
    """With 1,000 classes, each held by all, a flag is 0.5 · 40 / √1000, and the noise on a sum 0.5 · 40."""
    clients, classes, sent = 500, 1000, Broadcast({"w": torch.zeros(1)})
    uploads = uploads_of(clients, torch.zeros(1, dtype=torch.float64), classes)
    norm = math.hypot(math.sqrt(4 * classes), 20)  # of the vectors, and of the flags
    assert lengths(uploads, sent, 40.0).tolist() == pytest.approx([norm] * clients)
    sets = private_sum(uploads, sent, 500.0, private(clip=40.0, noise=0.5), 0).prototypes["means"]
    spread, holders = math.sqrt(classes), clients * 40 / norm
    assert sets.counts.std() / spread == pytest.approx(1, abs=5 / math.sqrt(2 * classes))
    assert sets.counts.mean() == pytest.approx(holders, abs=5 * spread / math.sqrt(classes))
    within = sets.vectors - sets.vectors.mean(-1, keepdim=True)  # without what the count of a class does to all of it
    noise = within * sets.counts.unsqueeze(-1) * math.sqrt(4 / 3)
    assert noise.std() / 20 == pytest.approx(1, abs=5 / math.sqrt(2 * 3 * classes))


def test_a_class_that_too_few_hold_is_absent() -> None:
    uploads = uploads_of(10, torch.zeros(1), classes=3)
    sent = Broadcast({"w": torch.zeros(1)})
    assert not private_sum(uploads, sent, 10.0, private(), 0).prototypes["means"].filled.any()
    assert private_sum(uploads, sent, 10.0, private(noise=0.0), 0).prototypes["means"].filled.all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 5), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_no_client_moves_the_sum_by_more_than_the_clip(seed: int, clients: int, size: float, clip: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    experiment = private(clip=clip, noise=0.0)

    def some(*shape: int) -> Tensor:
        return size * torch.randn(*shape, dtype=torch.float64, generator=draws)

    held = (torch.rand(clients, 3, 1, generator=draws) < 0.7).double()
    sent = Broadcast({"w": some(4), "b": some(2, 2)})
    weights = {"w": some(clients, 4), "b": some(clients, 2, 2)}
    sets = {"means": Prototypes(some(clients, 3, 1, 5) * held.unsqueeze(-1), held * 6)}
    uploads = Upload(weights, sets, {"samples": torch.ones(clients)})
    norms = lengths(uploads, sent, clip)
    assert (norms * factors(norms, clip) <= clip * (1 + 1e-12)).all()
    everyone = private_sum(uploads, sent, 1.0, experiment, 0)
    others = private_sum(uploads.reorder(torch.arange(clients - 1)), sent, 1.0, experiment, 0)
    moved = [(everyone.weights[name] - others.weights[name]).flatten() for name in weights]
    assert torch.cat(moved).norm() <= clip * (1 + 1e-9) + 1e-9 * size


def test_an_upload_that_is_not_finite_adds_nothing() -> None:
    uploads, sent = uploads_of(2, torch.ones(3)), Broadcast({"w": torch.zeros(3)})
    uploads.weights["w"][1, 0] = torch.nan
    found = private_sum(uploads, sent, 2.0, private(noise=0.0), 0).weights["w"][0]
    torch.testing.assert_close(found, torch.full((3,), 0.5))


def test_whole_numbers_are_not_released() -> None:
    uploads = Upload({"n": torch.tensor([[5], [6]]), "w": torch.ones(2, 1)}, {}, {"samples": torch.ones(2)})
    found = private_sum(uploads, Broadcast({"n": torch.tensor([1]), "w": torch.zeros(1)}), 2.0, private(), 0)
    assert found.weights["n"].tolist() == [[1]]
    assert found.numbers["samples"].tolist() == [1]


def test_each_client_takes_part_by_itself_and_sometimes_nobody() -> None:
    experiment = private(participation=0.3)
    rounds = [participants(experiment, 5, number) for number in range(2000)]
    rates = torch.tensor([[member in who for member in range(5)] for who in rounds]).double()
    assert ((rates.mean(0) - 0.3).abs() < 5 * math.sqrt(0.3 * 0.7 / 2000)).all()
    assert rates.sum(1).var() == pytest.approx(5 * 0.3 * 0.7, rel=0.2)  # of a fixed number it would be 0
    assert [] in rounds
    assert participants(private(), 5, 0) == [0, 1, 2, 3, 4]


@accounted
@pytest.mark.parametrize("method", ["fedavg", "fedproto", "fednh"])
def test_a_round_without_anybody_releases_noise_all_the_same(method: str) -> None:
    run = new_run(asked(method=method, privacy="client", clip=1.0, noise=0.1, participation=0.01))
    before = run.state()
    line = run.play_round()
    assert (line.participants, line.losses, line.bytes_up, line.loss) == ([], [], 0, 0.0)
    after = run.state()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("own/"))
    changed = {
        name for name in after if name.startswith("server/weights") and not torch.equal(after[name], before[name])
    }
    assert bool(changed) == (method != "fedproto")


# Example-level: noise and clipping.


def test_noisy_class_means_have_the_noise_of_their_sensitivity() -> None:
    """√2 · clip · noise on each number of a sum, √2 · noise on each count."""
    labels, draws = torch.arange(200).repeat(60).unsqueeze(0), noise("a test")
    features = torch.zeros(1, labels.shape[1], 8, dtype=torch.float64)
    each = [private_means(features, labels, 200, private(clip=3.0, noise=2.0), draws) for _ in range(10)]
    count = torch.stack([found.counts for found in each])
    total = torch.stack([found.vectors * found.counts.unsqueeze(-1) for found in each])
    assert count.mean() == pytest.approx(60, abs=5 * 2.83 / math.sqrt(2000))
    assert count.std() / (2 * math.sqrt(2)) == pytest.approx(1, abs=5 / math.sqrt(4000) + 0.01)  # it is rounded
    assert total.std() / (3 * 2 * math.sqrt(2)) == pytest.approx(1, abs=5 / math.sqrt(32_000))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-2, 1e2))
def test_no_sample_moves_a_class_by_more_than_the_clip_and_one(seed: int, clip: float) -> None:
    draws = torch.Generator().manual_seed(seed)
    features = 10 * torch.randn(1, 9, 4, dtype=torch.float64, generator=draws)
    labels = torch.randint(0, 3, (1, 9), generator=draws)
    experiment = private(clip=clip, noise=0.0)
    sums = []
    for number in (9, 8):
        found = private_means(features[:, :number], labels[:, :number], 3, experiment, noise("a test"))
        sums.append((found.vectors * found.counts.unsqueeze(-1), found.counts))
    moved, counted = (a - b for a, b in zip(*sums, strict=True))
    assert moved.norm() <= clip * (1 + 1e-9)
    assert counted.abs().sum() == 1


def test_a_class_with_a_small_noisy_count_is_not_sent() -> None:
    labels = torch.tensor([[0] * 100 + [1] * 2])
    features = torch.ones(1, 102, 4)
    noisy = private_means(features, labels, 3, private(clip=1.0, noise=5.0), noise("a test"))
    assert noisy.present.tolist() == [[True, False, False]]
    exact = private_means(features, labels, 3, private(noise=0.0, min_count=3), noise("a test"))
    assert exact.counts.flatten().tolist() == [100, 0, 0]


def test_gradients_are_clipped_and_noised() -> None:
    draws = torch.Generator().manual_seed(0)
    each = {"a": 5 * torch.randn(6, 3, dtype=torch.float64, generator=draws), "b": torch.zeros(6, 2, 2).double()}
    each["c"] = torch.zeros(6).double()  # of a single number
    found = private_gradient(each, 6, private(clip=2.0, noise=0.0), noise("a test"))
    rows = [row * min(1.0, 2.0 / float(row.norm())) for row in each["a"]]
    torch.testing.assert_close(found["a"], torch.stack(rows).sum(0) / 6)
    assert found["c"].shape == ()
    wide = {"a": torch.zeros(3, 40_000, dtype=torch.float64)}
    drawn = private_gradient(wide, 4, private(clip=2.0, noise=3.0), noise("a test"))["a"] * 4
    assert drawn.std() / 6 == pytest.approx(1, abs=4 / math.sqrt(80_000))


@pytest.mark.parametrize("model", ["linear", "cnn"])
@pytest.mark.parametrize("method", ["fedproto", "fedprox"])
def test_the_gradient_of_each_sample_is_that_of_a_loop(method: str, model: str) -> None:
    run = new_run(asked(method=method, model=model, privacy="example", clip=1.0, precision="float64"))
    run.play_round()
    engine, (group,) = run.engine, run.engine.groups
    assert isinstance(engine, Sequential)
    turn = Turn(run.broadcast, Clock(1, 2, (0,), 3))
    trained = {name: value.detach().clone() for name, value in group.module.named_parameters()}
    batch = Batch(group.inputs(group.x[:5]), group.labels[:5], torch.ones(5).bool())
    found, losses = engine.gradients(group, trained, batch, torch.tensor(8), turn)
    for row, key in enumerate(step_keys(torch.tensor(8), 5)):
        weights = {name: value.clone().requires_grad_() for name, value in trained.items()}
        one = Batch(*(part[row : row + 1] for part in batch))
        with step(key):
            (loss,) = run.method.loss(Net(group.module, weights), one, turn)
        gradients = torch.autograd.grad(loss, list(weights.values()))
        torch.testing.assert_close(losses[row], loss.detach())
        for name, expected in zip(weights, gradients, strict=True):
            torch.testing.assert_close(found[name][row], expected)


@accounted
def test_samples_are_in_a_batch_by_chance_and_a_batch_may_be_empty() -> None:
    run = new_run(asked(privacy="example", clip=1.0, noise=1.0, batch_size=2, epochs=40))
    (group,) = run.engine.groups
    drawn = run.engine.schedule(group, [0, 1], Clock(0, 1)).of([0])
    sizes = (drawn.rows[0] >= 0).sum(1).double()
    assert len(sizes) == run.engine.steps(group.sizes[:1])[0]
    assert sizes.mean() == pytest.approx(2, abs=5 * math.sqrt(2 / len(sizes)))
    assert sizes.min() == 0
    assert sizes.max() > 2
    assert drawn.rows.max() < group.sizes[0]
    new_run(asked(privacy="example", clip=1.0, noise=1.0, batch_size=2, train_size=30, min_size=2)).play_round()


# Without noise and clip.


@pytest.mark.parametrize("privacy", ["client", "example"])
@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("fedavg", {"averaging": "uniform"}),
        ("fedproto", {"collect": "eval-pass"}),
        ("fedproc", {"averaging": "uniform", "collect": "eval-pass"}),
    ],
)
def test_without_noise_and_clip_the_run_is_the_plain_one_to_the_bit(
    method: str, params: dict[str, Any], privacy: str
) -> None:
    plain, guarded = (played(method=method, params=params, privacy=level) for level in ("none", privacy))
    left, right = plain.state(), guarded.state()
    assert left.keys() == right.keys()
    for name, tensor in left.items():
        if name.endswith("/index") and privacy == "client":  # sample counts are not used: holders are counted
            assert torch.equal(tensor[:, 0], right[name][:, 0])
        else:
            assert torch.equal(tensor, right[name]), name
    for line, other in zip(plain.history, guarded.history, strict=True):
        assert line.per_client == other.per_client
        assert line.losses == other.losses


@pytest.mark.parametrize("privacy", ["client", "example"])
@pytest.mark.parametrize("method", ["fedavg", "fedproto"])
def test_with_a_clip_that_nothing_reaches_only_rounding_differs(method: str, privacy: str) -> None:
    params = {"averaging": "uniform"} if method == "fedavg" else {"collect": "eval-pass"}
    common: dict[str, Any] = {"method": method, "params": params, "precision": "float64", "model": "linear"}
    plain, guarded = played(**common), played(**common, privacy=privacy, clip=1e6)
    for name, tensor in plain.state().items():
        if tensor.is_floating_point():
            torch.testing.assert_close(tensor, guarded.state()[name], rtol=1e-9, atol=1e-9)


def test_a_clip_that_everything_reaches_keeps_weights_near_their_start() -> None:
    run = new_run(asked(privacy="client", clip=1e-3))
    before = {name: tensor.clone() for name, tensor in run.broadcast.weights.items()}
    run.play_round()
    moved = torch.cat([(run.broadcast.weights[name] - old).flatten() for name, old in before.items()]).norm()
    assert 0 < moved <= 1.01e-3


# A frozen encoder.


@pytest.fixture
def encoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that has seen none of the data."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    state = build("mlp", (1, 8, 8), 1, 3).state_dict()
    body = {name: tensor for name, tensor in state.items() if not name.startswith("head.")}
    path = tmp_path / "encoder.safetensors"
    Encoder(EncoderCard("mlp", 1, 8, [0.3], [0.4], 256, "elsewhere"), body, CPU).write(path)
    return path


def frozen(path: Path, **options: Any) -> dict[str, Any]:
    given = {"method": "fedproto", "model": "linear", "encoder": str(path), "params": {"collect": "eval-pass"}}
    return given | {"privacy": "example"} | options


def test_frozen_features_without_noise_and_clip_give_the_plain_run_to_the_bit(encoder: Path) -> None:
    plain, guarded = played(**frozen(encoder, privacy="none")), played(**frozen(encoder))
    for name, tensor in plain.state().items():
        assert torch.equal(tensor, guarded.state()[name]), name


@accounted
def test_means_of_frozen_features_are_noised_once_and_paid_once(encoder: Path) -> None:
    run = new_run(asked(**frozen(encoder, clip=1.0, noise=1.0, rounds=3)))
    first, *rest = [run.engine.round([0, 1, 2], run.broadcast, Clock(n, 3, (0, 1, 2), 3)).uploads for n in range(3)]
    alone = run.engine.round([1], run.broadcast, Clock(2, 3, (1,), 3)).uploads
    for uploads in rest:
        assert torch.equal(uploads.prototypes["means"].vectors, first.prototypes["means"].vectors)
    assert torch.equal(alone.prototypes["means"].vectors[0], first.prototypes["means"].vectors[1])
    run.play(None, Progress())
    assert [line.epsilon for line in run.history] == [epsilon([Release(1.0)], 1e-5)] * 3


@accounted
def test_what_else_is_trained_on_frozen_features_is_trained_with_noise(encoder: Path) -> None:
    for options in ({"model": "head"}, {"params": {"share_weights": True}}):
        run = new_run(asked(**frozen(encoder, clip=1.0, noise=1.0) | options))
        assert isinstance(run.engine, Sequential)
        assert run.engine.private
        assert run.privacy is not None
        assert run.privacy.epsilon(1) > epsilon([Release(1.0)], 1e-5)


@pytest.mark.parametrize("privacy", ["client", "example"])
def test_an_encoder_that_was_trained_on_the_data_is_refused(encoder: Path, privacy: str) -> None:
    read = Encoder.read(encoder, CPU)
    Encoder(replace(read.card, source="digits"), read.state, CPU).write(encoder)
    with pytest.raises(UserError, match=r"--encoder.*trained on the data that is to be protected"):
        new_run(asked(**frozen(encoder, privacy=privacy)))


# Accounting in a run.


@accounted
def test_the_cost_is_that_of_the_client_who_pays_most() -> None:
    options = {"privacy": "example", "clip": 1.0, "noise": 1.5, "participation": 0.5, "rounds": 4, "min_size": 2}
    run = played(method="fedproto", alpha=0.3, **options)
    turns = [member for line in run.history for member in line.participants]
    assert len(set(turns)) > 1
    costs = []
    for member in set(turns):
        size, number = len(run.federation.members[member].train), turns.count(member)
        steps = Release(1.5, min(1.0, 32 / size), -(-size // 32 - (size > 32 and size % 32 == 1)) * number)
        costs.append(epsilon([steps, Release(1.5, times=number)], 1e-5))
    assert run.history[-1].epsilon == pytest.approx(max(costs), rel=1e-12)
    spent = [line.epsilon or 0.0 for line in run.history]
    assert spent == sorted(spent)


@accounted
def test_a_run_stops_before_the_round_that_exceeds_its_budget(tmp_path: Path) -> None:
    costs = [epsilon([Release(1.0, 1.0, number)], 1e-6) for number in range(1, 6)]
    given = asked(privacy="client", clip=1.0, noise=1.0, delta=1e-6, epsilon=(costs[2] + costs[3]) / 2, rounds=5)
    run = new_run(given)
    result = run.play(RunFolder.create(tmp_path / "run", run.experiment), Progress())
    assert (result.rounds, result.stopped) == (3, "privacy budget")
    assert [line["epsilon"] for line in rounds_of(tmp_path / "run")] == pytest.approx(costs[:3], rel=1e-12)
    said = json.loads((tmp_path / "run" / "result.json").read_text())
    assert (said["privacy"], said["epsilon"], said["delta"]) == ("client", pytest.approx(costs[2]), 1e-6)
    assert replace(Result.read(tmp_path / "run"), folder=None) == replace(result, folder=None)
    with pytest.raises(
        UserError, match=rf"invalid value '0\.5' for --epsilon: the first round takes ε = {costs[0]:.3g}"
    ):
        new_run(replace(given, epsilon=0.5))


@accounted
def test_epsilon_is_printed_with_the_result() -> None:
    run = played(privacy="client", clip=1.0, noise=1.0)
    result = run.result(None)
    assert result.guarantee == f"ε = {epsilon([Release(1.0, times=2)], 1e-5):.2f}, δ = 1e-05, client-level"
    shown = console()
    with shown.capture() as text:
        shown.print(result_table(result))
    assert result.guarantee in text.get()
    assert "ε = ∞" in str(played(privacy="example").result(None).guarantee)
    assert played().result(None).guarantee is None


@accounted
@pytest.mark.parametrize(
    "options",
    [
        {"method": "fedproc", "privacy": "client", "participation": 0.3, "noise": 0.1, "seed": 2},
        {"method": "fedproto", "privacy": "example", "participation": 0.7, "noise": 1.0},
    ],
)
def test_a_resumed_run_spends_and_ends_as_an_uninterrupted_one(options: dict[str, Any], tmp_path: Path) -> None:
    given = asked(clip=1.0, rounds=5, epsilon=1e5, **options)
    whole = new_run(given)
    whole.play(RunFolder.create(tmp_path / "whole", whole.experiment), Progress())
    if options["privacy"] == "client":
        assert [] in [line.participants for line in whole.history]
    cut = new_run(given)
    with pytest.raises(Killed):
        cut.play(RunFolder.create(tmp_path / "cut", cut.experiment), KillAfter(3))
    resumed = new_run(given)
    folder = RunFolder.open(tmp_path / "cut")
    resumed.restore(folder)
    resumed.play(folder, Progress())
    for name, tensor in whole.state().items():
        assert torch.equal(tensor, resumed.state()[name]), name
    for line, other in zip(whole.history, resumed.history, strict=True):
        assert replace(line, seconds=0) == replace(other, seconds=0)


# What is refused.


class Norm(nn.Module):
    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 6), nn.BatchNorm1d(6))
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


def test_batchnorm_has_no_gradient_of_a_single_sample() -> None:
    pool = digits().test
    data = Federation((Client.of(pool, pool),), digits().classes, ("digits",))
    with pytest.raises(UserError, match=r"--model.*BatchNorm mixes the samples of a batch"):
        new_run(asked(privacy="example", clip=1.0, clients=1), federation=data, models=[Norm])
    new_run(asked(privacy="client", clip=1.0, clients=1), federation=data, models=[Norm]).play_round()


@pytest.mark.parametrize(
    ("method", "params", "why"),
    [
        ("local", {}, "nothing leaves its clients"),
        ("mp-fedcl", {}, "its prototypes are not class means"),
        ("dp-fedcl", {}, "its prototypes are not class means"),
        ("fedplcc", {}, "its prototypes are not class means"),
        ("fednh", {}, "its prototypes are not class means"),
        ("fedsc", {}, "look at all of their data before they train"),
        ("fedrcl", {}, "depends on the other samples of the batch"),
        ("fedproto", {"per": "prototype"}, "depends on the other samples of the batch"),
        ("fedlc", {}, "depends on how many samples of each class the client has"),
        ("fedrod", {}, "depends on how many samples of each class the client has"),
        ("fedetf", {}, "depends on how many samples of each class the client has"),
        ("fedcda", {}, "its clients also send: loss"),
        ("fccl-plus", {}, "also exchange what they make of public images"),
    ],
)
def test_a_method_of_which_it_is_not_known_what_a_sample_does_is_refused(
    method: str, params: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=f"invalid value '{method}' for --method with --privacy example: .*{why}"):
        new_run(asked(method=method, params=params, privacy="example", clip=1.0, public="digits"))


@pytest.mark.parametrize(("method", "params"), [("fedlc", {"tau": 0}), ("fedetf", {"gamma": 0}), ("fedbabu", {})])
def test_a_method_whose_loss_does_not_see_class_counts_is_not_refused(method: str, params: dict[str, Any]) -> None:
    new_run(asked(method=method, params=params, privacy="example", clip=1.0)).play_round()


@pytest.mark.parametrize("method", ["mp-fedcl", "fpl", "fedcda", "fesem"])
def test_a_server_that_needs_each_clients_upload_has_no_client_level_privacy(method: str) -> None:
    with pytest.raises(
        UserError, match=f"invalid value '{method}' for --method with --privacy client: .*each client's own"
    ):
        new_run(asked(method=method, privacy="client", clip=1.0))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"clip": 1.0}, "invalid value '1.0' for --clip: it is for --privacy client or --privacy example"),
        ({"noise": 1.0}, "invalid value '1.0' for --noise: it is for --privacy"),
        ({"epsilon": 1.0}, "invalid value '1.0' for --epsilon: it is for --privacy"),
        ({"delta": 1e-6}, "invalid value '1e-06' for --delta: it is for --privacy"),
        ({"privacy": "client", "noise": 1.0}, "invalid value '1.0' for --noise: without --clip"),
        ({"privacy": "client", "clip": 1.0, "epsilon": 1.0}, "invalid value '1.0' for --epsilon: without --noise"),
        ({"privacy": "client", "clip": 0.0}, "invalid value '0.0' for --clip: it must be above 0"),
        ({"privacy": "client", "clip": 1.0, "noise": -1.0}, "invalid value '-1.0' for --noise: it must be 0 or more"),
        ({"privacy": "client", "delta": 1.0}, "invalid value '1.0' for --delta: "),
        ({"min_count": -1}, "invalid value '-1' for --min-count: "),
        ({"privacy": "client", "defence": "median"}, "invalid value 'median' for --defence: .*it compares clients"),
        ({"privacy": "example", "engine": "stacked"}, "invalid value 'stacked' for --engine: .*sequential"),
        ({"privacy": "example", "drift": "sudden"}, "invalid value 'sudden' for --drift: .*one set of data"),
        ({"privacy": "example", "dataset": "digits+digits"}, r"'digits\+digits' for --dataset: .*hold the same"),
    ],
)
def test_nonsense_is_refused_with_the_reason(options: dict[str, Any], why: str) -> None:
    with pytest.raises(UserError, match=why):
        new_run(asked(**options))


def test_auto_takes_the_engine_that_can() -> None:
    run = new_run(asked(privacy="example", clip=1.0, engine="auto"))
    assert (run.engine.name, run.setup.engine_reason) == ("sequential", "--privacy example needs it")


# A minimum count, with and without privacy.


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(
    ("method", "params"), [("fedproto", {}), ("fedproto", {"collect": "all-epochs"}), ("mp-fedcl", {}), ("fedplcc", {})]
)
def test_prototypes_of_too_few_samples_never_leave_a_client(method: str, params: dict[str, Any], engine: str) -> None:
    common: dict[str, Any] = {"method": method, "params": params, "engine": engine, "epochs": 2, "alpha": 0.5}
    every, large = (new_run(asked(**common, min_count=least)) for least in (0, 6))
    (all_of,), (some,) = (
        run.engine.round([0, 1, 2], run.broadcast, Clock(0, 2, (0, 1, 2), 3)).uploads.prototypes.values()
        for run in (every, large)
    )
    least = 12 if params else 6  # with all epochs every sample counts twice
    assert ((all_of.counts > 0) & (all_of.counts < least)).any()
    assert some.counts.tolist() == torch.where(all_of.counts >= least, all_of.counts, 0).tolist()
    assert not some.vectors[some.counts == 0].any()
    assert torch.equal(some.vectors[some.counts > 0], all_of.vectors[all_of.counts >= least])
    large.play(None, Progress())


def test_a_minimum_that_no_class_reaches_leaves_nothing(tmp_path: Path) -> None:
    run = new_run(asked(method="fedproto", min_count=10_000))
    result = run.play(RunFolder.create(tmp_path / "run", run.experiment), Progress())
    assert result.accuracy["own/own/nearest"].last == 0
    assert not run.broadcast.prototypes["global"].filled.any()
    upload = enough(Upload({"w": torch.ones(1, 2)}, {}, {"samples": torch.ones(1)}), [3])
    assert upload.weights["w"].tolist() == [[1, 1]]
