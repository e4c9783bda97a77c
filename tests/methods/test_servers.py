"""FeSEM, FedNH and FedCDA: methods whose server does more than average."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.messages import Broadcast, Upload
from protofed.methods import METHODS, build_method
from protofed.methods.base import Clock, Trained
from protofed.methods.fednh import FedNH, W
from protofed.methods.fesem import FIRST_STEPS
from protofed.methods.server.cross_round import Cache, select
from protofed.methods.server.model_clusters import cluster, refill, seeds
from protofed.methods.server.model_distances import parameters, squared_distances
from protofed.models import MODELS, build, parameter_count
from protofed.models.layers import step
from protofed.models.normalised_head import NormalisedHead
from protofed.prototypes import Prototypes
from protofed.randomness import generator, key
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run
from tests.reference import servers as slow
from tests.reference.methods import State, weighted_mean
from tests.support.nets import UNEQUAL, Noisy, Norm, Plain, assert_same_run, federation, gap, own, play

OURS = {"fesem": "fesem:FeSEM", "fednh": "fednh:FedNH", "fedcda": "fedcda:FedCDA"}
quick = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
numbers = st.integers(0, 2**16)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, spec in OURS.items():
        monkeypatch.setitem(METHODS, name, spec)


def models(clients: int, seed: int) -> State:
    """Models of some clients: parameters of several shapes and types, BatchNorm's statistics, an integer."""
    rng = torch.Generator().manual_seed(seed)
    return {
        "w": torch.randn(clients, 3, 2, generator=rng, dtype=torch.float64),
        "b": torch.randn(clients, 4, generator=rng),
        "s": torch.randn(clients, generator=rng, dtype=torch.float64),
        "norm.running_mean": 100 * torch.randn(clients, 4, generator=rng, dtype=torch.float64),
        "norm.running_var": 100 * torch.rand(clients, 4, generator=rng, dtype=torch.float64),
        "batches": torch.randint(0, 99, (clients,), generator=rng),
    }


def rows(stacked: State) -> list[State]:
    return [{name: value[k] for name, value in stacked.items()} for k in range(len(stacked["w"]))]


def draw(rng: torch.Generator, clients: int, low: int = 1) -> list[int]:
    """Some clients, in client order."""
    number = int(torch.randint(low, clients + 1, (), generator=rng))
    return sorted(torch.randperm(clients, generator=rng)[:number].tolist())


def upload(stacked: State, samples: Sequence[int], **more: Tensor) -> Upload:
    return Upload(stacked, {}, {"samples": torch.tensor(samples), **more})


# --- all three, in whole runs -----------------------------------------------------------------------------------------

# name -> (method, what differs from its defaults, the variant that it must differ from)
VARIANTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "fesem": ("fesem", {}, ""),
    "fesem two": ("fesem", {"clusters": 2}, "fesem"),
    "fesem uniform": ("fesem", {"averaging": "uniform"}, "fesem"),
    "fednh": ("fednh", {}, ""),
    "fednh clipped": ("fednh", {"scale": 300.0}, "fednh"),
    "fednh rho": ("fednh", {"rho": 0.5}, "fednh"),
    "fednh samples": ("fednh", {"averaging": "samples"}, "fednh"),
    "fedcda": ("fedcda", {}, ""),
    "fedcda both": ("fedcda", {"smoothness": 20.0}, "fedcda"),  # here, with weights that small, the loss alone decides
    "fedcda variance": ("fedcda", {"smoothness": 100.0}, "fedcda both"),
    "fedcda one group": ("fedcda", {"smoothness": 20.0, "groups": 1}, "fedcda both"),
    "fedcda two kept": ("fedcda", {"smoothness": 100.0, "k": 2}, "fedcda variance"),
    "fedcda warm-up": ("fedcda", {"warmup": 2}, "fedcda"),
}
ROUNDS = {"fesem": 3, "fednh": 3, "fedcda": 4}


@cache
def played(variant: str, engine: str) -> Run:
    method, params, _ = VARIANTS[variant]
    return play(method, params, engine, rounds=ROUNDS[method])


@pytest.mark.parametrize("variant", VARIANTS)
def test_engines_agree_to_rounding(variant: str) -> None:
    one, other = played(variant, "sequential"), played(variant, "stacked")
    assert {tuple(line["participants"]) for line in one.history} != {tuple(range(5))}
    assert_same_run(one, other)


@pytest.mark.parametrize("variant", [name for name, (_, _, other) in VARIANTS.items() if other])
def test_every_option_changes_the_run(variant: str) -> None:
    run, other = played(variant, "stacked"), played(VARIANTS[variant][2], "stacked")
    assert gap(dict(run.broadcast.weights), dict(other.broadcast.weights)) > 1e-6


def test_what_the_methods_add_takes_part_in_those_runs() -> None:
    plain = {rounds: own(play("fedavg", engine="stacked", rounds=rounds)) for rounds in (3, 4)}
    assert gap(own(played("fesem", "stacked")), plain[3]) > 1e-4
    assert gap(own(played("fedcda", "stacked")), plain[4]) > 1e-4
    assert len(set(played("fesem", "stacked").broadcast.kept["assignment"].tolist()) - {-1}) > 1
    head, start = played("fednh", "stacked").broadcast.weights, play("fednh", rounds=0).broadcast.weights
    assert float((head[W] - start[W]).abs().max()) > 1e-3
    assert float((head["head.scale"] - start["head.scale"]).abs().max()) > 1e-5
    kept = Cache.unpack(played("fedcda variance", "stacked").broadcast.kept)
    newest = (kept.turns - 1) % kept.slots
    assert bool((kept.chosen != newest)[kept.turns > 0].any())  # somebody's older model was selected


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("variant", ["fesem", "fednh", "fedcda variance"])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path, variant: str, engine: str) -> None:
    method, params, _ = VARIANTS[variant]
    whole = played(variant, engine)
    first = play(method, params, engine, rounds=2)
    folder = RunFolder.create(tmp_path / "run", first.experiment)
    for line in first.history:
        folder.append_round(line)
    folder.checkpoint.save(first.broadcast, first.engine.groups, 2)
    second = Run(whole.experiment, federation=federation(), models=[Noisy])
    second.restore(folder)
    assert len(second.history) == 2
    while not second.over():
        second.play_round()
    assert gap(second.state(), whole.state()) == 0
    assert [line["per_client"] for line in second.history] == [line["per_client"] for line in whole.history]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", OURS)
def test_single_samples_and_absent_clients_do_no_harm(method: str, engine: str) -> None:
    """One of four clients a round; nobody holds classes 3 to 5."""
    clients = federation([{0: 1}, {0: 9, 1: 8}, {1: 4, 2: 9}, {2: 3}], test=30)
    run = play(method, engine=engine, clients=clients, rounds=3, participation=0.25, seed=4)
    assert len({client for line in run.history for client in line["participants"]}) < 4
    for name, tensor in run.state().items():
        assert bool(tensor.isfinite().all()), name


@pytest.mark.parametrize("method", OURS)
def test_methods_learn(method: str) -> None:
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = play(
        method, clients=clients, engine="stacked", rounds=10, participation=1.0, model=Norm, lr=0.1, eval_every=10
    )
    assert run.history[-1]["accuracy"][type(run.method).score] > 75


PARTS = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {4: 10})
HELD, FEATURES, CLASSES = [2, 3, 1], 6, 6


@pytest.mark.parametrize("method", OURS)
def test_bytes_are_those_of_the_papers(method: str) -> None:
    """Classes that a client does not hold are not sent."""
    run = play(method, clients=federation(PARTS, test=30), rounds=2, model=Plain, participation=1.0)
    w = parameter_count(run.engine.groups[0].module)  # FedNH's W is no parameter
    up, down = {
        "fesem": ([w, w, w], w),
        "fednh": ([w + c * FEATURES for c in HELD], w + CLASSES * FEATURES),
        "fedcda": ([w + 1] * 3, w),
    }[method]
    uploads, _ = run.engine.round([0, 1, 2], run.broadcast, Clock(1, 2, (0, 1, 2), 3))
    sent = [run.method.send(run.broadcast, client) for client in range(3)]
    assert [_floats(uploads.client(row).flat()) for row in range(3)] == up
    assert [_floats(message.flat()) for message in sent] == [down] * 3
    counts = [uploads.client(row).flat().get("prototypes/means/index", torch.empty(0, 2)) for row in range(3)]
    assert [len(found) for found in counts] == (HELD if method == "fednh" else [0, 0, 0])
    assert run.broadcast.kept or method == "fednh"
    assert run.history[-1]["bytes_down"] == sum(message.size() for message in sent)  # what is kept is not counted


def _floats(flat: dict[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in flat.values() if tensor.is_floating_point())


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("fesem", "clusters", 0),
        ("fednh", "rho", -0.1),
        ("fednh", "rho", 1.1),
        ("fednh", "scale", 0.0),
        ("fedcda", "k", 0),
        ("fedcda", "groups", 0),
        ("fedcda", "smoothness", -1.0),
        ("fedcda", "warmup", -2),
    ],
)
def test_bad_values_are_refused_by_name(method: str, name: str, value: float) -> None:
    with pytest.raises(UserError, match=name):
        build_method(method, {name: value})


# --- FeSEM ------------------------------------------------------------------------------------------------------------


@quick
@given(clients=st.integers(1, 5), others=st.integers(1, 4), seed=numbers)
def test_distances_are_the_loop_and_leave_out_statistics(clients: int, others: int, seed: int) -> None:
    a, b = models(clients, seed), models(others, seed + 1)
    expected = [[slow.squared_distance(x, y) for y in rows(b)] for x in rows(a)]
    assert_close(squared_distances(a, b), torch.tensor(expected, dtype=torch.float64))
    assert list(parameters(a)) == ["w", "b", "s"]


@quick
@given(clients=st.integers(1, 7), clusters=st.integers(1, 4), seed=numbers, averaging=st.booleans())
def test_fesem_is_the_loop(clients: int, clusters: int, seed: int, averaging: bool) -> None:
    """Four rounds with changing participants, fewer than clusters at times."""
    rng = torch.Generator().manual_seed(seed)
    method = build_method("fesem", {"clusters": clusters, "averaging": "samples" if averaging else "uniform"})
    expected, sent = slow.FeSEM(clusters), Broadcast(rows(models(1, seed))[0])
    for number in range(4):
        who, stacked = draw(rng, clients), models(clients, seed + number)
        stacked = {name: value[: len(who)] for name, value in stacked.items()}
        samples = torch.randint(1, 50, (len(who),), generator=rng).tolist()
        importance = [float(n) for n in samples] if averaging else [1.0] * len(who)
        if not number:
            expected.seed(rows(stacked), key(0, "fesem", 0))
        for _ in range(1 if number else FIRST_STEPS):
            expected.step(who, rows(stacked), importance)
        before = {name: value.clone() for name, value in sent.kept.items()}
        old, sent = sent, method.aggregate(upload(stacked, samples), sent, Clock(number, 4, tuple(who), clients))
        assert gap(before, dict(old.kept)) == 0 if before else not old.kept

        mean = weighted_mean(rows(stacked), importance)
        for client in range(clients):
            received = dict(method.send(sent, client).weights)
            centre = expected.centres[expected.member[client]] if client in expected.member else mean
            assert received.keys() == centre.keys()
            for name, value in received.items():
                if name != "batches":  # copied from any client
                    assert_close(value, centre[name])
        for k, centre in enumerate(expected.centres):
            assert_close(sent.kept["centres/w"][k], centre["w"])


def test_the_first_clustering_takes_several_steps() -> None:
    stacked, who = models(30, 0), list(range(30))
    result = build_method("fesem", {}).aggregate(upload(stacked, [1] * 30), Broadcast(), Clock(0, 1, tuple(who), 30))
    expected, members = slow.FeSEM(3), []
    expected.seed(rows(stacked), key(0, "fesem", 0))
    for _ in range(FIRST_STEPS):
        expected.step(who, rows(stacked), [1.0] * 30)
        members.append([expected.member[client] for client in who])
    assert members[0] != members[-1]
    assert result.kept["assignment"].tolist() == members[-1]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize(("participation", "averaging"), [(1.0, "samples"), (0.6, "samples"), (1.0, "uniform")])
def test_fesem_with_one_cluster_is_fedavg(engine: str, participation: float, averaging: str) -> None:
    settings: dict[str, Any] = {"engine": engine, "participation": participation}
    plain = play("fedavg", {"averaging": averaging}, **settings)
    single = play("fesem", {"averaging": averaging, "clusters": 1}, **settings)
    assert gap(own(single), own(plain)) == 0
    for client in range(len(UNEQUAL)):
        assert gap(dict(single.method.send(single.broadcast, client).weights), dict(plain.broadcast.weights)) == 0
    for one, other in zip(single.history, plain.history, strict=True):
        assert {what: one[what] for what in ("loss", "per_client", "bytes_up", "bytes_down")} == {
            what: other[what] for what in ("loss", "per_client", "bytes_up", "bytes_down")
        }


def test_fesem_finds_clients_that_have_the_same_task() -> None:
    parts = [{0: 12, 1: 12}, {2: 12, 3: 12}, {0: 12, 1: 12}, {2: 12, 3: 12}]
    clients = federation(parts, classes=4, test=80)
    settings: dict[str, Any] = {"clients": clients, "rounds": 5, "participation": 1.0, "model": Norm, "lr": 0.1}
    run = play("fesem", {"clusters": 2}, "stacked", **settings)
    a, b, c, d = run.broadcast.kept["assignment"].tolist()
    assert (a, b) == (c, d)
    assert a != b
    plain = play("fedavg", engine="stacked", **settings)
    assert run.history[-1]["accuracy"]["global/own/head"] >= plain.history[-1]["accuracy"]["global/own/head"]
    assert run.history[-1]["accuracy"]["global/own/head"] > 75


@pytest.mark.parametrize("seed", range(8))
def test_seeds_fall_into_every_distant_group(seed: int) -> None:
    stacked = models(6, seed)
    stacked["w"] += 1e5 * torch.tensor([0, 1, 2, 0, 1, 2]).view(-1, 1, 1)
    found = seeds(stacked, 3, key("a", seed))
    assert sorted(int(w.mean() / 1e5 + 0.5) for w in found["w"]) == [0, 1, 2]
    first = {int(seeds(stacked, 1, key("a", number))["s"][0] * 1e6) for number in range(30)}
    assert len(first) > 3  # any client may be the first


def test_an_empty_cluster_gets_the_farthest_client_that_is_not_alone() -> None:
    distances = torch.tensor([1.0, 9.0, 3.0, 5.0])
    nearest = torch.tensor([0, 1, 0, 0])
    assert refill(nearest, distances, torch.tensor([0, 0, 0])).tolist() == [0, 1, 0, 2]
    assert refill(nearest, distances, torch.tensor([0, 1, 0])).tolist() == [0, 2, 0, 0]  # 1 has a member elsewhere
    assert refill(nearest, distances, torch.tensor([0, 0, 1])).tolist() == [0, 1, 0, 0]  # so has 2
    assert refill(nearest, 0 * distances, torch.tensor([0, 0, 0])).tolist() == [0, 1, 0, 0]  # nothing to part
    assert refill(nearest[:2], distances[:2], torch.tensor([0, 0, 0])).tolist() == [0, 1]  # nobody to spare
    assert nearest.tolist() == [0, 1, 0, 0]


def test_a_cluster_without_participants_keeps_its_centre() -> None:
    stacked = models(2, 0)
    centres = {name: torch.cat([value, value[:1] + (1000 if name == "w" else 0)]) for name, value in stacked.items()}
    moved, nearest = cluster(stacked, torch.tensor([1, 1]), centres, torch.tensor([0, 0, 1]))
    assert nearest.tolist() == [0, 1]
    assert torch.equal(moved["w"][2], centres["w"][2])


def test_fesem_sends_a_client_it_has_not_seen_the_mean_of_all() -> None:
    run = play("fesem", rounds=1)
    seen = run.history[0]["participants"]
    for client in range(5):
        assert (run.method.send(run.broadcast, client) is run.broadcast) == (client not in seen)
    start = play("fesem", rounds=0)
    assert start.method.send(start.broadcast, 0) is start.broadcast


# --- FedNH ------------------------------------------------------------------------------------------------------------


@quick
@given(batch=st.integers(1, 5), features=st.integers(2, 6), seed=numbers, scale=st.sampled_from([1.0, 20.0]))
def test_the_normalised_head_is_the_loop(batch: int, features: int, seed: int, scale: float) -> None:
    torch.manual_seed(seed)
    head = NormalisedHead(features, 2, scale).double()
    z = torch.randn(batch, features, dtype=torch.float64)
    assert_close(head.prototypes @ head.prototypes.T, torch.eye(2, dtype=torch.float64), atol=1e-6, rtol=0)
    assert_close(head(z), torch.stack([slow.cosine_logits(row, head.prototypes, scale) for row in z]))
    assert_close(head(7 * z), head(z))
    assert [name for name, _ in head.named_parameters()] == ["scale"]
    assert [name for name, _ in head.named_buffers()] == ["prototypes"]


def test_a_feature_of_zeros_has_a_finite_loss_and_gradient() -> None:
    head = NormalisedHead(4, 3, 20.0)
    z = torch.zeros(2, 4, requires_grad=True)
    nn.functional.cross_entropy(head(z), torch.tensor([0, 1])).backward()  # type: ignore[no-untyped-call]
    assert z.grad is not None
    assert bool(z.grad.isfinite().all())
    assert head.scale.grad is not None
    assert bool(head.scale.grad.isfinite().all())


def test_more_classes_than_features_are_refused() -> None:
    with pytest.raises(UserError, match="orthogonal"):
        build(Plain, (1, 8, 8), 7, 0, FedNH().extend)
    build(Plain, (1, 8, 8), 6, 0, FedNH().extend)


def logits_only(shape: tuple[int, int, int], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 12), nn.ReLU(), nn.Linear(12, classes))


@pytest.mark.parametrize("model", [*MODELS, logits_only, Noisy])
def test_every_model_takes_the_normalised_head(model: Any) -> None:
    shape = (512, 1, 1) if isinstance(model, str) and model.startswith("head") else (3, 16, 16)
    if model == "resnet18":
        shape = (3, 32, 32)
    classes = 8
    module = build(model, shape, classes, 0, FedNH(scale=5.0).extend)
    again = build(model, shape, classes, 0, FedNH(scale=5.0).extend)
    assert gap(module.state_dict(), again.state_dict()) == 0  # no two clients differ
    assert {"head.scale", W} == {name for name in module.state_dict() if "head." in name}
    module.eval()
    with torch.no_grad():
        out = module(torch.linspace(-1, 1, 2 * torch.Size(shape).numel()).view(2, *shape))
    head = cast(NormalisedHead, module.head)
    expected = torch.stack([slow.cosine_logits(z, head.prototypes, 5.0) for z in out.features])
    if isinstance(model, str) and model.endswith("fedpcl"):  # which scales its logits to length 1, whatever the head
        expected = nn.functional.normalize(expected.relu(), dim=1)
    assert_close(out.logits, expected, atol=1e-5, rtol=1e-4)
    module.train()
    with step(torch.tensor(0)):
        loss = nn.functional.cross_entropy(module(torch.randn(3, *shape)).logits, torch.tensor([0, 1, 2]))
    loss.backward()  # type: ignore[no-untyped-call]
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in module.parameters())


def directions(clients: int, samples: int, seed: int) -> tuple[Trained, list[dict[int, tuple[Tensor, int]]]]:
    """What clients trained, with −1 for padding and class 3 nowhere, and what each should send."""
    rng = torch.Generator().manual_seed(seed)
    features = torch.randn(clients, samples, 5, generator=rng, dtype=torch.float64)
    labels = torch.randint(-1, 3, (clients, samples), generator=rng)
    features[0, 0] = 0  # a dead feature
    weights = {"w": torch.randn(clients, 3, generator=rng), W: torch.zeros(clients, 4, 5)}
    trained = Trained(weights, torch.full((clients,), samples), features, labels, 4, torch.arange(clients))
    pairs = [[(z, int(y)) for z, y in zip(*row, strict=True) if y >= 0] for row in zip(features, labels, strict=True)]
    return trained, [slow.class_directions(own) for own in pairs]


@quick
@given(clients=st.integers(1, 4), samples=st.integers(1, 9), seed=numbers, rho=st.sampled_from([0.0, 0.5, 0.9, 1.0]))
def test_fednh_is_the_loop(clients: int, samples: int, seed: int, rho: float) -> None:
    trained, expected = directions(clients, samples, seed)
    method = build_method("fednh", {"rho": rho})
    sent = method.upload(trained)
    assert list(sent.weights) == ["w"]
    means = sent.prototypes["means"]
    for k, found in enumerate(expected):
        assert means.present[k].nonzero().flatten().tolist() == sorted(found)
        for c, (mu, n) in found.items():
            assert_close(means.vectors[k, c, 0], mu)
            assert means.counts[k, c, 0] == n

    torch.manual_seed(seed)
    old = nn.init.orthogonal_(torch.empty(4, 5, dtype=torch.float64))
    received = method.aggregate(sent, Broadcast({W: old}), Clock(0, 1, tuple(range(clients)), clients)).weights
    new = received[W]
    assert_close(received["w"], trained.weights["w"].mean(0))
    moves = slow.move(old, expected, rho)
    zero = moves.norm(dim=1) < 1e-6  # ρ = 0 and nothing but dead features
    assert_close(new[~zero], moves[~zero])
    assert_close(new.norm(dim=1), torch.ones(4, dtype=torch.float64))
    held = {c for found in expected for c in found}
    for c in set(range(4)) - held:
        assert torch.equal(new[c], old[c])
    assert 3 not in held


def test_a_prototype_that_would_vanish_stays() -> None:
    old = torch.eye(3, dtype=torch.float64)
    means = Prototypes(-old.view(1, 3, 1, 3), torch.ones(1, 3, 1, dtype=torch.float64))
    sent = Upload({"w": torch.ones(1, 2)}, {"means": means}, {"samples": torch.tensor([3])})
    new = build_method("fednh", {"rho": 0.5}).aggregate(sent, Broadcast({W: old}), Clock(0, 1, (0,), 1)).weights[W]
    assert torch.equal(new, old)


def test_prototypes_are_fixed_while_a_client_trains_and_unit_ever_after() -> None:
    run = play("fednh", rounds=0, participation=1.0)
    for _ in range(3):
        before = run.broadcast.weights[W]
        run.play_round()
        mine = run.engine.groups[0].own.take(range(5))
        assert all(torch.equal(matrix, before) for matrix in mine[W])
        assert len(set(mine["head.scale"].flatten().tolist())) == 5
        after = run.broadcast.weights[W]
        assert_close(after.norm(dim=1), torch.ones(6, dtype=torch.float64), atol=1e-6, rtol=0)
        assert torch.equal(after[5], before[5])  # nobody holds class 5
        assert all(not torch.equal(after[c], before[c]) for c in range(5))


def test_large_gradients_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one step a client moves by lr · 10 at most, weight decay aside; without clipping it moves farther."""
    setting: dict[str, Any] = {"rounds": 1, "epochs": 1, "batch_size": 64, "weight_decay": 0.0, "model": Plain}
    start, clipped = play("fednh", rounds=0, model=Plain), play("fednh", {"scale": 300.0}, **setting)
    monkeypatch.setattr(FedNH, "clip", None)
    free = play("fednh", {"scale": 300.0}, **setting)
    begin = own(start)["own/0/hidden.weight"]
    moves = [(own(run)["own/0/hidden.weight"] - begin).flatten(1).norm(dim=1) for run in (clipped, free)]
    assert bool((moves[0] <= 0.02 * 10 + 1e-9).all())
    assert bool((moves[1] > moves[0]).any())


# --- FedCDA -----------------------------------------------------------------------------------------------------------


@quick
@given(
    clients=st.integers(1, 6),
    k=st.integers(1, 3),
    groups=st.integers(1, 4),
    seed=numbers,
    smoothness=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
)
def test_fedcda_is_the_loop(clients: int, k: int, groups: int, seed: int, smoothness: float) -> None:
    """Five rounds, the first a warm-up, with changing participants and half-filled caches."""
    rng = torch.Generator().manual_seed(seed)
    params = {"k": k, "groups": groups, "smoothness": smoothness, "warmup": 1}
    method, expected, sent = build_method("fedcda", params), slow.FedCDA(k, smoothness), Broadcast()
    for number in range(5):
        who = draw(rng, clients)
        stacked = {name: value[: len(who)] for name, value in models(clients, seed + number).items()}
        loss = 5 * torch.rand(len(who), generator=rng, dtype=torch.float64)
        samples = torch.randint(1, 50, (len(who),), generator=rng).tolist()
        expected.add(who, rows(stacked), loss.tolist())
        mean = weighted_mean(rows(stacked), samples)
        order = torch.randperm(len(who), generator=generator(0, "fedcda", number)).tolist()
        if number:
            size, more = divmod(len(who), groups)
            ends = [size * (g + 1) + min(g + 1, more) for g in range(groups)]
            parts = [order[a:b] for a, b in zip([0, *ends], ends, strict=False) if b > a]
            expected.select(who, parts)
            mean |= {name: value for name, value in expected.mean().items() if name in ("w", "b", "s")}
        before = {name: value.clone() for name, value in sent.kept.items()}
        old = sent
        sent = method.aggregate(upload(stacked, samples, loss=loss), sent, Clock(number, 5, tuple(who), clients))
        assert gap(before, dict(old.kept)) == 0 if before else not old.kept
        assert_close(dict(sent.weights), mean)
        kept = Cache.unpack(sent.kept)
        for client in range(clients):
            models_of = list(expected.cache.get(client, []))
            assert int(kept.turns[client].clamp(max=k)) == len(models_of)
            if models_of:
                assert_close(
                    {name: value[0] for name, value in kept.selected(torch.tensor([client])).items()},
                    {name: value for name, value in expected.selected[client][0].items() if name in ("w", "b", "s")},
                )
                assert sorted(kept.losses[client, : len(models_of)].tolist()) == sorted(f for _, f in models_of)


def test_the_selection_is_the_best_of_all_when_there_is_one_group() -> None:
    stacked = [models(3, seed) for seed in range(3)]
    losses = torch.rand(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    everyone = torch.arange(3)
    cache_ = Cache.empty(stacked[0], losses[0], 3, 3)
    for state, loss in zip(stacked, losses, strict=True):
        cache_ = cache_.add(everyone, state, loss)
    choice = select(cache_, everyone, [everyone], 1.0, rows(stacked[0])[0]).chosen.tolist()
    values = {}
    for slots in torch.cartesian_prod(everyone, everyone, everyone).tolist():
        picks = [(rows(stacked[slot])[client], float(losses[slot, client])) for client, slot in enumerate(slots)]
        values[tuple(slots)] = slow.objective(picks, 1.0)
    assert len(values) == 27
    assert tuple(choice) == min(values, key=lambda slots: values[slots])
    # far from zero, where squares of lengths would lose all digits
    far = cache_._replace(models={name: tensor + 1e6 for name, tensor in cache_.models.items() if name != "b"})
    near = cache_._replace(models={name: tensor for name, tensor in cache_.models.items() if name != "b"})
    centre = {name: tensor + 1e6 for name, tensor in rows(stacked[0])[0].items()}
    expected = select(near, everyone, [everyone], 1.0, rows(stacked[0])[0]).chosen
    assert torch.equal(select(far, everyone, [everyone], 1.0, centre).chosen, expected)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_fedcda_that_keeps_one_model_is_the_plain_mean_of_everyone_s_last(engine: str) -> None:
    run = play("fedcda", {"k": 1, "warmup": 0}, engine, rounds=0, model=Plain)
    last: dict[int, State] = {}
    for _ in range(4):
        line = run.play_round()
        mine = run.engine.groups[0].own.take(range(5))
        last |= {client: {name: value[client] for name, value in mine.items()} for client in line["participants"]}
        expected = weighted_mean(list(last.values()), [1.0] * len(last))
        assert gap(dict(run.broadcast.weights), expected) < 1e-14
    assert 3 < len(last) <= 5  # more than take part in a round


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_fedcda_that_keeps_one_model_is_fedavg_if_all_take_part(engine: str) -> None:
    plain = play("fedavg", {"averaging": "uniform"}, engine, participation=1.0)
    run = play("fedcda", {"averaging": "uniform", "k": 1, "warmup": 0}, engine, participation=1.0)
    assert gap(own(run), own(plain)) == 0
    assert gap(dict(run.broadcast.weights), dict(plain.broadcast.weights)) == 0


def test_the_warm_up_is_fedavg() -> None:
    for rounds, same in ((2, True), (4, False)):
        warm, plain = (
            play(name, params, rounds=rounds) for name, params in (("fedcda", {"warmup": 2}), ("fedavg", {}))
        )
        assert (gap(dict(warm.broadcast.weights), dict(plain.broadcast.weights)) == 0) == same
        assert warm.broadcast.kept["turns"].sum() == 3 * rounds  # models are kept from the first round on


@pytest.mark.parametrize(("rounds", "warmup"), [(4, 0), (5, 1), (100, 20), (250, 50), (1000, 50)])
def test_the_warm_up_lasts_a_fifth_of_the_rounds(rounds: int, warmup: int) -> None:
    method, stacked = build_method("fedcda", {}), models(2, 0)
    sent = upload(stacked, [1, 9], loss=torch.tensor([1.0, 2.0]))
    fedavg, mean = (weighted_mean(rows(stacked), weight) for weight in ([1, 9], [1, 1]))
    for number in {max(0, warmup - 1), warmup}:
        result = method.aggregate(sent, Broadcast(), Clock(number, rounds, (0, 1), 2)).weights
        assert_close(result["w"], (fedavg if number < warmup else mean)["w"])
        assert_close(result["norm.running_mean"], fedavg["norm.running_mean"])  # always this round's


def test_fedcda_keeps_k_models_a_client_and_sends_none() -> None:
    run = play("fedcda", {"k": 2}, rounds=3)
    size = parameter_count(run.engine.groups[0].module)
    kept = Cache.unpack(run.broadcast.kept)
    assert sum(tensor.numel() for tensor in kept.models.values()) == 5 * 2 * size
    assert not any("running" in name for name in kept.models)
    assert not any(name.startswith("kept") or "models/" in name for name in run.broadcast.flat())


def test_a_client_sends_its_mean_loss_of_the_last_epoch() -> None:
    clients = federation([{0: 9, 1: 8}], test=30)
    one = play("fedcda", rounds=0, clients=clients, participation=1.0, epochs=1, model=Plain)
    sent, (loss,) = one.engine.round([0], one.broadcast, Clock(0, 1, (0,), 1))
    assert_close(float(sent.numbers["loss"]), loss)
    two = play("fedcda", rounds=0, clients=clients, participation=1.0, epochs=2, model=Plain)
    later, (both,) = two.engine.round([0], two.broadcast, Clock(0, 1, (0,), 1))
    first, last = float(sent.numbers["loss"]), float(later.numbers["loss"])
    assert last < first
    assert abs((first + last) / 2 - both) < 1e-12  # the first epoch has the same batches


def test_too_many_combinations_are_refused_with_the_parameters_that_make_them() -> None:
    stacked = models(33, 0)
    sent = upload(stacked, [1] * 33, loss=torch.zeros(33))
    clock = Clock(0, 100, tuple(range(33)), 33)
    with pytest.raises(UserError, match=r"groups: 3 .* k=3 .* 177,147 combinations"):
        build_method("fedcda", {}).aggregate(sent, Broadcast(), clock)  # 3¹¹, already in the warm-up
    build_method("fedcda", {"groups": 4}).aggregate(sent, Broadcast(), clock)
