"""Accuracies against a slow loop: who is asked, on what, by which rule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from protofed.data import Client, Dataset, Federation, Samples, Split, federate
from protofed.engines.client_group import Group, State
from protofed.models import build
from protofed.runs.clients import LocalClients
from protofed.runs.run import Run
from tests.reference import prototypes as reference
from tests.support.nets import Norm, Plain, federation, images, play, source

CLASSES = 5
RULES = ("head", "nearest", "nearest-own")


@cache
def two_domains() -> Federation:
    """Digits and their negatives, two clients of each, a quarter of the training data held out."""
    data = source()

    def part(samples: Samples, number: int) -> Samples:
        rows = (samples.labels < CLASSES).nonzero().flatten()[:number]
        domains = torch.arange(number) % 2
        taken = samples.take(rows)
        pictures = torch.where(domains.view(-1, 1, 1, 1) == 1, 255 - taken.x, taken.x)
        return Samples(pictures, taken.labels, domains)

    names = [str(c) for c in range(CLASSES)]
    dataset = Dataset.of("two", part(data.train, 180), part(data.test, 120), names, ["plain", "negative"])
    split = Split("domains", alpha=0.5, min_size=5, balance=True, ways=2, half_width=0, shots=10, test_shots=40)
    clients = federate(dataset, split, 4, 0, 0.25).clients
    # Take classes away from some, so that they differ in what they own.
    fewer = []
    for k, client in enumerate(clients):
        keep = (client.train.labels != k).nonzero().flatten()
        own = client.own[client.pool.labels[client.own] != k]
        fewer.append(Client(client.train.take(keep), client.pool, own, client.validation, client.preparation))
    dark = replace(dataset.test.take(torch.arange(0, 120, 3)), x=dataset.test.x[::3] // 2)  # nobody trains on such
    return Federation(tuple(fewer), tuple(names), ("plain", "negative"), unseen=dark)


@cache
def played(method: str, engine: str = "stacked", metrics: str = "none") -> Run:
    """Two rounds with three of four clients each, too few to be perfect."""
    given: dict[str, Any] = {"rounds": 2, "participation": 0.75, "lr": 0.05, "metrics": metrics}
    return play(method, clients=two_domains(), engine=engine, model=Norm, **given)


class Answered(NamedTuple):
    """What a client's model says of a test set by some rule."""

    name: str  # model/test/rule
    labels: list[int]
    answers: list[int]
    features: Tensor
    logits: Tensor
    prototypes: dict[int, Any]  # of each class that may be chosen


def slow_answers(run: Run, model: str) -> Iterator[Answered]:
    """What the clients' own models say, or the averaged one, image by image: client after client."""
    shared = run.method.references(run.broadcast)
    for k, client in enumerate(run.federation.clients):
        mine = run.engine.groups[0].own.take([k])
        state = {n: v[0] for n, v in mine.items()} if model == "own" else dict(run.broadcast.weights)
        net = build(Norm, (1, 8, 8), CLASSES, 0).double()
        net.load_state_dict(state)
        net.eval()

        def outputs(samples: Samples, net: Any = net, client: Client = client) -> tuple[Tensor, Tensor]:
            answers = [
                net(((x.double() / 255 - client.preparation.mean[0]) / client.preparation.std[0]).unsqueeze(0))
                for x in samples.x
            ]
            return torch.cat([a.features for a in answers]).detach(), torch.cat([a.logits for a in answers]).detach()

        own_classes = set(client.train.labels.tolist())
        if shared is not None:
            sets = reference.as_sets(shared)
        elif model == "own":
            means = reference.class_means(outputs(client.train)[0].numpy(), client.train.labels.numpy())
            sets = {c: [mean] for c, (mean, _) in means.items()}
        else:
            sets = {}
        assert client.validation is not None
        everything = torch.arange(len(client.pool))
        tests = {
            "own": client.pool.take(client.own),
            "all": client.pool.take(everything),
            "domain": client.pool.take((client.pool.domains == client.train.domains[0]).nonzero().flatten()),
            "unseen": run.federation.unseen,
            "val": client.validation,
        }
        for test, samples in tests.items():
            assert samples is not None
            features, logits = outputs(samples)
            answers = {"head": [int(np.argmax(row.numpy())) for row in logits]}
            if sets:
                answers["nearest"] = reference.nearest_class(features.numpy(), sets)
                if test in ("own", "val"):
                    answers["nearest-own"] = reference.nearest_class(features.numpy(), sets, own_classes)
            for rule, answer in answers.items():
                chosen = {c: some for c, some in sets.items() if rule != "nearest-own" or c in own_classes}
                yield Answered(f"{model}/{test}/{rule}", samples.labels.tolist(), answer, features, logits, chosen)


def slow_scores(run: Run, model: str) -> dict[str, list[float]]:
    """Every accuracy of each client."""
    found: dict[str, list[float]] = {}
    for name, labels, answers, *_ in slow_answers(run, model):
        right = [a == b for a, b in zip(answers, labels, strict=True)]
        found.setdefault(name, []).append(100 * sum(right) / len(right))
    return found


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("method", ["local", "fedavg", "fedproto", "mp-fedcl"])
def test_every_accuracy_is_the_slow_loops(method: str, engine: str) -> None:
    run = played(method, engine)
    expected = slow_scores(run, "own")
    if method in ("fedavg", "mp-fedcl"):
        expected |= slow_scores(run, "global")
    result = run.history[-1].per_client
    assert result.keys() == expected.keys()
    for name, scores in expected.items():
        assert result[name] == pytest.approx(scores, abs=1e-9), name
    assert len({tuple(scores) for scores in expected.values()}) > 4  # the numbers can tell names apart


def test_rules_differ_and_own_classes_only_help() -> None:
    pairs = [
        pair
        for method in ("fedproto", "sp-fedcl", "mp-fedcl")
        for line in played(method).history
        for pair in zip(line.per_client["own/own/nearest"], line.per_client["own/own/nearest-own"], strict=True)
    ]
    assert all(restricted >= free for free, restricted in pairs)  # every image of the own test set is of an own class
    assert any(restricted > free for free, restricted in pairs)


def test_there_is_a_global_model_only_where_all_weights_are_sent() -> None:
    for method, averaged in (("local", False), ("fedproto", False), ("fedavg", True), ("sp-fedcl", True)):
        names = played(method).history[-1].per_client
        assert any(name.startswith("global/") for name in names) == averaged
        assert any(name.startswith("own/") for name in names)


def test_class_means_of_own_data_are_marked_as_a_diagnostic() -> None:
    names = ["own/own/nearest", "own/all/nearest", "own/domain/nearest", "own/unseen/nearest", "own/val/nearest"]
    for method in ("local", "fedavg"):
        marked = played(method).history[-1].diagnostic
        assert set(marked) == {*names, "own/own/nearest-own", "own/val/nearest-own"}
    for method in ("fedproto", "mp-fedcl"):
        assert played(method).history[-1].diagnostic == []


def test_what_a_run_reports_is_the_mean_over_clients_or_domains() -> None:
    line = played("fedavg").history[-1]
    for name, scores in line.per_client.items():
        if name != "global/domain/head":
            assert line.accuracy[name] == pytest.approx(sum(scores) / 4)
    domains = line.per_domain["global/domain/head"]
    assert list(domains) == ["plain", "negative"]
    assert line.accuracy["global/domain/head"] == pytest.approx(sum(domains.values()) / 2)
    by_client = line.per_client["global/domain/head"]
    home = [int(client.train.domains[0]) for client in two_domains().clients]
    assert by_client == pytest.approx([list(domains.values())[domain] for domain in home])
    assert domains["plain"] != domains["negative"]
    assert played("local").history[-1].per_domain == {}


def test_without_domains_or_validation_nothing_is_asked_about_them() -> None:
    line = play("fedavg", rounds=1, model=Plain).history[-1]
    assert line.per_domain == {}
    assert not any("/domain/" in name or "/val/" in name for name in line.per_client)


def test_who_sat_out_keeps_the_last_trained_model() -> None:
    run = play("fedavg", rounds=1, participation=0.4)
    own = run.engine.groups[0].own
    kept = own.take(range(5))
    before = run.history[-1].per_client["own/all/head"]
    line = run.play_round()
    idle = sorted(set(range(5)) - set(line.participants))
    once = [k for k in run.history[0].participants if k in idle]
    assert once  # trained in the first round, sat out the second
    for k in idle:
        assert all(torch.equal(value[0], kept[name][k]) for name, value in own.take([k]).items())
        assert line.per_client["own/all/head"][k] == before[k]
    for k in line.participants:
        assert any(not torch.equal(value[0], kept[name][k]) for name, value in own.take([k]).items())


def test_a_client_whose_classes_nobody_sent_scores_nothing_among_them() -> None:
    clients = federation([{0: 9}, {1: 9}], test=40)
    run = play("fedproto", clients=clients, rounds=1, participation=0.5, model=Plain)
    (asked,) = run.history[0].participants
    scores = run.history[0].per_client["own/own/nearest-own"]
    assert scores[asked] == 100
    assert scores[1 - asked] == 0


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("engines.client_group.CPU_IMAGES", 17),
        ("engines.base.Engine.tested_at_once", 3),
        ("evaluation.accuracy.MODEL_BYTES", 1),
    ],
)
@pytest.mark.parametrize("method", ["mp-fedcl", "fedavg", "fesem"])
def test_evaluation_in_pieces_is_evaluation_at_once(
    method: str, where: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played(method)
    expected = run.clients.evaluate(run.broadcast)
    monkeypatch.setattr(f"protofed.{where}", value)
    result = run.clients.evaluate(run.broadcast)
    assert result == expected
    assert run.history[-1].per_client == expected.per_client


def test_few_models_are_in_memory_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    import protofed.evaluation.accuracy as module

    run = played("fedavg")
    taken: list[list[int]] = []
    take = run.engine.groups[0].own.take

    def note(rows: range) -> dict[str, Tensor]:
        taken.append(list(rows))
        return take(rows)

    monkeypatch.setattr(run.engine.groups[0].own, "take", note)
    run.clients.evaluate(run.broadcast)
    size = run.engine.groups[0].own.layout.size
    monkeypatch.setattr(module, "MODEL_BYTES", 3 * size)
    run.clients.evaluate(run.broadcast)
    monkeypatch.setattr(type(run.engine), "tested_at_once", 2)
    run.clients.evaluate(run.broadcast)
    assert taken == [[0, 1, 2, 3], [0, 1, 2], [3], [0, 1], [2, 3]]


def separate_pools() -> Federation:
    """Two domains, each client with a test pool of its own that holds its own domain only."""
    clients = [
        Client.of(images(n, (1, 8, 8), 3, seed=d, domain=d), images(20, (1, 8, 8), 3, seed=9 + d, domain=d))
        for d, n in ((0, 60), (1, 4))
    ]
    return Federation(tuple(clients), ("a", "b", "c"), ("first", "second"))


def test_domains_with_pools_of_their_own_are_each_scored_on_their_own_images() -> None:
    """A user's own federation: every client brings its test set, so no pool holds both domains."""
    line = play("fedavg", clients=separate_pools(), rounds=1, participation=1.0, model=Plain).history[-1]
    by_client = line.per_client["global/domain/head"]
    assert by_client[0] != by_client[1]
    assert list(line.per_domain["global/domain/head"].values()) == pytest.approx(by_client)
    assert line.accuracy["global/domain/head"] == pytest.approx(sum(by_client) / 2)


def test_a_client_of_another_input_is_tested_on_its_own_pool() -> None:
    small, large = (
        Client.of(images(24, shape, 3, seed=1), images(15, shape, 3, seed=2)) for shape in ((1, 8, 8), (3, 12, 12))
    )
    run = play(
        "fedproto",
        clients=Federation((small, large), ("a", "b", "c")),
        rounds=8,
        participation=1.0,
        model=Norm,
        lr=0.05,
    )
    assert len(run.engine.groups) == 2
    scores = run.history[-1].per_client
    assert all(len(values) == 2 for values in scores.values())
    assert min(scores["own/all/head"]) > 60


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_the_averaged_model_is_asked_once_however_many_clients_there_are(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played("fedavg", engine)
    forward, images = run.engine.forward, {"own": 0, "global": 0}
    averaged = run.broadcast.weights["head.weight"]

    def counted(group: Group, states: State, x: Tensor) -> tuple[Tensor, Tensor]:
        for head in states["head.weight"]:
            images["global" if torch.equal(head, averaged) else "own"] += len(x)
        return forward(group, states, x)

    monkeypatch.setattr(run.engine, "forward", counted)
    monkeypatch.setattr(run.engine, "width", 1)
    assert isinstance(run.clients, LocalClients)
    monkeypatch.setattr(run.clients.evaluator, "validates", False)
    run.clients.evaluate(run.broadcast)
    assert run.federation.unseen is not None
    pool = len(run.federation.clients[0].pool) + len(run.federation.unseen)
    assert images == {"own": 4 * pool, "global": pool}
