"""Who is asked, on what, by which rule: accuracies named model/test/rule, in percent, for every client.

Models: `own` (the client's last trained one), `global` (the averaged one, where there is one). Tests: `own` (the
client's label distribution), `all` (every class), `domain` (its domain), `unseen` (a domain nobody trains on), `val`
(held out of its training data), `novel` (classes nobody trains on). Rules: `head` (the classifier), `nearest` (nearest
prototype), `nearest-own` (the same among the client's own classes) and, on novel classes, `5-way-5-shot` and the like
(nearest mean of a few examples). What is asked for beside accuracies is named model/test/rule:metric (`names.py`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from protofed.data.federation import Federation
from protofed.engines.base import Engine
from protofed.engines.client_group import Group, State
from protofed.evaluation.few_shot import Episodes, interval
from protofed.evaluation.metrics import Choices, Metrics
from protofed.evaluation.names import asked_metrics, split_name, with_metric
from protofed.messages import Broadcast, Traffic
from protofed.methods.base import Method
from protofed.prototypes import Prototypes, class_means
from protofed.server.round import defined_at

Scores = tuple[Sequence[int], Tensor]
"""Clients and their accuracies or metrics, still on the device."""
OfDomains = tuple[int, Tensor]
"""A group, and a number of its averaged model for each domain: images that are right, or a metric."""

T = TypeVar("T")

MODELS, TESTS, RULES = ("own", "global"), ("own", "all", "domain", "unseen", "val"), ("head", "nearest", "nearest-own")
"""The parts of an accuracy's name, but on novel classes."""
NAME = re.compile(
    "/".join(f"({'|'.join(some)})" for some in (MODELS, (*TESTS, "novel"), (*RULES, r"\d+-way-\d+-shot")))
)

MODEL_BYTES = 2**30
"""What the models that are tested at once may take."""


@dataclass(frozen=True)
class Evaluation:
    """Accuracies after a round, and other metrics."""

    per_client: dict[str, list[float]] = field(default_factory=dict)
    per_domain: dict[str, dict[str, float]] = field(default_factory=dict)
    interval: dict[str, float] = field(default_factory=dict)  # of few-shot episodes
    diagnostic: list[str] = field(default_factory=list)  # by class means of the client's own data, not by the method
    tested: list[int] | None = None  # the clients that `per_client` is of, if not all
    undefined: dict[str, list[int]] = field(default_factory=dict)  # those of them that a metric is not defined for
    traffic: Traffic = field(default_factory=Traffic)  # what it took to ask clients that are elsewhere

    def means(self, without: Container[int] = ()) -> dict[str, float]:
        """Each score as one number: the mean over domains where it is known per domain, else over clients.

        `without` some clients, such as those that attack. What is defined at no other client has no mean.
        """
        found = {name: self._counted(name, without) for name in self.per_client}
        clients = {name: sum(values) / len(values) for name, values in found.items() if values}
        domains = {name: sum(values.values()) / len(values) for name, values in self.per_domain.items()}
        return clients | domains

    def worst(self, metrics: Container[str], without: Container[int] = ()) -> dict[str, float]:
        """Of each accuracy the lowest of a client, and the mean of the lowest tenth of the clients, if asked for."""
        found: dict[str, float] = {}
        for name in self.per_client:
            if not split_name(name)[1]:
                values = sorted(self._counted(name, without))
                tenth = values[: math.ceil(len(values) / 10)]
                numbers = {"worst": values[0], "worst10": sum(tenth) / len(tenth)}
                found |= {with_metric(name, metric): v for metric, v in numbers.items() if metric in metrics}
        return found

    def _counted(self, name: str, without: Container[int]) -> list[float]:
        """The values of the clients that count."""
        values, lack = self.per_client[name], self.undefined.get(name, ())
        who = defined_at(self.tested, lack, len(values))
        return [value for member, value in zip(who, values, strict=True) if member not in without]


class Outputs(NamedTuple):
    """What models make of some images: features [models, B, D] and logits [models, B, C], and their labels [B]."""

    features: Tensor
    logits: Tensor
    labels: Tensor


class Tallies(NamedTuple):
    """What models came to, by the score's name."""

    scores: dict[str, list[Scores]]
    right: dict[str, list[OfDomains]]  # images of each domain
    measured: dict[str, list[OfDomains]]  # metrics in each domain
    played: dict[str, list[Scores]]  # episodes

    def add(self, name: str, members: Sequence[int], scores: Tensor) -> None:
        """Scores of some clients."""
        self.scores.setdefault(name, []).append((members, scores))


class TestView(NamedTuple):
    """What belongs to some clients: images of the test pool, [clients, images], and classes, [clients, C]."""

    tests: dict[str, Tensor]
    classes: Tensor


class TestPool:
    """The test images of a group, on its device, and which of them are whose."""

    def __init__(self, group: Group, federation: Federation, by_domain: bool) -> None:
        device, clients = group.device, group.clients
        unseen = [] if federation.unseen is None else [federation.unseen]
        parts = [group.test, *unseen]  # what is unseen is asked along with the rest, and in no other test
        self.x, self.labels = (
            torch.cat([getattr(part, what) for part in parts]).to(device) for what in ("x", "labels")
        )
        self._seen = torch.arange(len(self.labels), device=device) < len(group.test)
        self._has_unseen = bool(unseen)
        sizes = torch.tensor([len(client.own) for client in clients])
        self._ends = [0, *sizes.cumsum(0).tolist()]
        self._owner = torch.arange(len(clients)).repeat_interleave(sizes).to(device)
        self._own = torch.cat([client.own for client in clients]).to(device)
        self._classes = torch.stack([client.counts(len(federation.classes)) > 0 for client in clients]).to(device)
        of_domain = group.test.domains == torch.arange(len(federation.domains)).view(-1, 1)
        of_domain = pad(of_domain, (0, len(self.labels) - len(group.test)))
        self.domain_sizes = of_domain.sum(1)
        self.of_domain = of_domain.to(device)  # [domains, images]
        self._home = torch.tensor([client.domain for client in clients], device=device) if by_domain else None

    def view(self, rows: range) -> TestView:
        """Of some clients, computed when it is needed: for all of them it would be large."""
        mine, some = slice(self._ends[rows.start], self._ends[rows.stop]), slice(rows.start, rows.stop)
        own = torch.zeros(len(rows), len(self.labels), dtype=torch.bool, device=self.labels.device)
        own.view(-1).index_fill_(0, (self._owner[mine] - rows.start) * len(self.labels) + self._own[mine], True)
        tests = {"own": own, "all": self._seen.expand_as(own)}
        if self._has_unseen:
            tests["unseen"] = ~tests["all"]
        if self._home is not None:
            tests["domain"] = self.of_domain[self._home[some]]
        return TestView(tests, self._classes[some])


class Evaluator:
    """Tests the models of an engine's clients after each round."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.federation = engine.federation
        self.classes = len(self.federation.classes)
        clients = self.federation.clients
        self.by_domain = len(self.federation.domains) > 1 and all(
            client.domain is not None and bool((client.pool.domains == client.domain).any()) for client in clients
        )
        self.validates = all(client.validation is not None for client in clients)
        self.rule = engine.method.rule
        self.metrics = Metrics(asked_metrics(engine.experiment, self.federation.classes), self.federation)
        self.pools = [TestPool(group, self.federation, self.by_domain) for group in engine.groups]
        asked = engine.experiment
        self.episodes = None
        if self.federation.novel is not None:
            self.episodes = Episodes(
                self.federation.novel, asked.episode_ways, asked.episode_shots, asked.episodes, asked.seed
            )

    @torch.no_grad()
    def __call__(self, broadcast: Broadcast) -> Evaluation:
        """Every client's accuracies with its own model and with the averaged one."""
        references = self.engine.method.references(broadcast)
        found = Tallies({}, {}, {}, {})
        ranks = self.engine.ranks
        for number, (group, pool) in enumerate(zip(self.engine.groups, self.pools, strict=True)):
            sent = sent_to(self.engine.method, group, broadcast)
            mine = slice((ranks.number - number) % ranks.count, None, ranks.count)
            shared = "global" if len(sent) == 1 and not group.personal else None  # one model of all: it is asked once
            seen: list[Outputs] = []
            novel: Tensor | None = None
            for rows in list(_parts(self.engine, group))[mine]:
                view, members = pool.view(rows), group.members[rows.start : rows.stop]
                models = models_of(self.engine.method, group, rows, sent)
                if self.episodes is not None:
                    model = "global" if "global" in models else "own"
                    if novel is None or model != shared:
                        novel = self._play(self.episodes, group, rows, models[model])
                    scores = novel.expand(len(members), -1)
                    found.played.setdefault(f"{model}/novel/{self.episodes.rule}", []).append((members, scores))
                for model, states in models.items():
                    prototypes = references
                    if references is None and model == "own":
                        prototypes = class_means(*self.engine.embed(group, rows, states), self.classes)
                    choosing = 1 if prototypes is None else len(rows)
                    outputs: Iterable[Outputs] = self._outputs(group, rows, states, pool.x, pool.labels, choosing)
                    if model == shared:
                        outputs = seen = seen or list(outputs)
                    answers = self._answers(outputs, prototypes, view.classes)
                    own_rule = self.rule if model == "own" else ""
                    answers |= self._answered(own_rule, group, rows, states, broadcast, pool.x, pool.labels)
                    self._test(found, model, answers, pool, view, members)
                    if rows.start == 0 and model == shared and self.by_domain:
                        _test_domains(found, number, answers, pool, self.metrics)
                    held_out = self._validate(group, view, rows, states, prototypes, own_rule, broadcast)
                    for rule, scores in held_out.items():
                        found.add(f"{model}/val/{rule}", members, scores)
        everyones = ranks.gather([found], self.engine.device)
        found = Tallies(*(_merged(parts) for parts in zip(*everyones, strict=True)))
        found.scores.update(
            {name: [(members, scores.mean(1)) for members, scores in parts] for name, parts in found.played.items()}
        )
        evaluation = self._evaluation(found, diagnostic=references is None)
        intervals = {name: interval(torch.cat([scores for _, scores in parts])) for name, parts in found.played.items()}
        return replace(evaluation, interval=intervals)

    def _test(
        self,
        found: Tallies,
        model: str,
        answers: Mapping[str, Choices],
        pool: TestPool,
        view: TestView,
        members: Sequence[int],
    ) -> None:
        """Accuracies and metrics of some clients by each rule on each test set."""
        for rule, answered in answers.items():
            for test in ["own"] if rule == "nearest-own" else view.tests:
                mask, name = view.tests[test], f"{model}/{test}/{rule}"
                found.add(name, members, 100 * (answered.hits & mask).sum(1).double() / mask.sum(1))
                for metric, values in self.metrics.values(answered, pool.labels, mask).items():
                    found.add(with_metric(name, metric), members, values)

    def _evaluation(self, found: Tallies, diagnostic: bool) -> Evaluation:
        """Everything in one transfer from the device."""
        scores = [scores for parts in found.scores.values() for _, scores in parts]
        right = [torch.stack([right for _, right in parts]).sum(0).double() for parts in found.right.values()]
        measured = [values for parts in found.measured.values() for _, values in parts]
        numbers = iter(torch.cat([*scores, *right, *measured]).tolist())
        per_client: dict[str, list[float]] = {}
        undefined: dict[str, list[int]] = {}
        for name, parts in found.scores.items():
            by_member = sorted((member, next(numbers)) for members, _ in parts for member in members)
            if known := [score for _, score in by_member if not math.isnan(score)]:
                per_client[name] = known
                if len(known) < len(by_member):
                    undefined[name] = [member for member, score in by_member if math.isnan(score)]
        per_domain = {}
        for name, rights in found.right.items():
            sizes = torch.stack([self.pools[number].domain_sizes for number, _ in rights]).sum(0).tolist()
            hits = [next(numbers) for _ in sizes]
            of_domains = zip(self.federation.domains, hits, sizes, strict=True)
            per_domain[name] = {domain: 100 * (number / size) for domain, number, size in of_domains if size}
        for name, groups in found.measured.items():
            each = [[next(numbers) for _ in self.federation.domains] for _ in groups]
            weights = [self.pools[number].domain_sizes.tolist() for number, _ in groups]
            means = [_weighted(*pair) for pair in zip(zip(*each, strict=True), zip(*weights, strict=True), strict=True)]
            of_domain = zip(self.federation.domains, means, strict=True)
            if defined := {domain: mean for domain, mean in of_domain if mean is not None}:
                per_domain[name] = defined
        marked = [name for name in per_client if diagnostic and "/nearest" in split_name(name)[0]]
        return Evaluation(per_client, per_domain, diagnostic=marked, undefined=undefined)

    def _answers(
        self, outputs: Iterable[Outputs], prototypes: Prototypes | None, own_classes: Tensor
    ) -> dict[str, Choices]:
        """What each rule says of images."""
        chunks: dict[str, list[Choices]] = {}
        for features, logits, y in outputs:
            chunks.setdefault("head", []).append(self.metrics.by_logits(logits, y))
            if prototypes is not None:
                for rule, allowed in (("nearest", None), ("nearest-own", own_classes)):
                    answered = self.metrics.by_distance(features, prototypes, allowed, y)
                    chunks.setdefault(rule, []).append(answered)
        return {rule: Choices.joined(parts) for rule, parts in chunks.items()}

    def _outputs(
        self, group: Group, rows: Sequence[int], states: State, samples: Tensor, labels: Tensor, clients: int = 1
    ) -> Iterator[Outputs]:
        """What models make of samples, as many at a time as they, or so many clients' choices, leave room for."""
        step = group.images_at_once(max(len(next(iter(states.values()))), clients))
        for x, y in zip(torch.split(samples, step), torch.split(labels, step), strict=True):
            yield Outputs(*self.engine.forward(group, states, group.inputs(x, rows)), y)

    def _answered(
        self,
        rule: str,
        group: Group,
        rows: Sequence[int],
        states: State,
        broadcast: Broadcast,
        samples: Tensor,
        labels: Tensor,
    ) -> dict[str, Choices]:
        """What the method's own rule says of images, if it has one."""
        if not rule:
            return {}
        turns = self.engine.turns_after(group, rows, broadcast)
        step = group.images_at_once(len(rows))
        chunks = zip(torch.split(samples, step), torch.split(labels, step), strict=True)
        parts = [
            self.metrics.by_logits(self.engine.answers(group, states, turns, group.inputs(x, rows)), y)
            for x, y in chunks
        ]
        return {rule: Choices.joined(parts)}

    def _play(self, episodes: Episodes, group: Group, rows: Sequence[int], states: State) -> Tensor:
        """How each model fares in every episode: [models, episodes]."""
        scores = []
        for place in range(len(next(iter(states.values())))):  # features of many models at once would be large
            state = {name: value[place : place + 1] for name, value in states.items()}
            chunks = torch.split(episodes.x, group.images_at_once(1))
            features = [
                self.engine.forward(group, state, group.inputs(x, rows[place : place + 1]))[0].squeeze(0)
                for x in chunks
            ]
            scores.append(episodes.play(torch.cat(features)))
        return torch.stack(scores)

    def _validate(
        self,
        group: Group,
        view: TestView,
        rows: range,
        states: State,
        prototypes: Prototypes | None,
        own_rule: str,
        broadcast: Broadcast,
    ) -> dict[str, Tensor]:
        """Each client on the samples held out of its training data, if all have held some out: by rule and metric."""
        if not self.validates:
            return {}
        personal = len(next(iter(states.values()))) > 1
        scores: dict[str, list[Tensor]] = {}
        for place, row in enumerate(rows):
            mine = slice(place, place + 1)
            state = {name: value[mine] for name, value in states.items()} if personal else states
            local = prototypes.take(mine) if prototypes is not None and prototypes.counts.dim() == 3 else prototypes
            held_out = group.clients[row].validation
            assert held_out is not None  # all have some
            labels = held_out.labels.to(group.device)
            outputs = self._outputs(group, [row], state, held_out.x, labels)
            answers = self._answers(outputs, local, view.classes[mine])
            answers |= self._answered(own_rule, group, [row], state, broadcast, held_out.x, labels)
            every = torch.ones(1, len(labels), dtype=torch.bool, device=group.device)
            for rule, answered in answers.items():
                scores.setdefault(rule, []).append(100 * answered.hits.double().mean())
                for metric, values in self.metrics.values(answered, labels, every).items():
                    scores.setdefault(with_metric(rule, metric), []).append(values.squeeze(0))
        return {rule: torch.stack(values) for rule, values in scores.items()}


def _merged(parts: Iterable[Mapping[str, list[T]]]) -> dict[str, list[T]]:
    """Lists by name, as one after the other."""
    merged: dict[str, list[T]] = {}
    for part in parts:
        for name, values in part.items():
            merged.setdefault(name, []).extend(values)
    return merged


def _test_domains(found: Tallies, group: int, answers: Mapping[str, Choices], pool: TestPool, metrics: Metrics) -> None:
    """How the one averaged model of a group fares in each domain."""
    for rule, answered in answers.items():
        if rule != "nearest-own":
            name, right = f"global/domain/{rule}", (answered.hits & pool.of_domain).sum(1)
            found.right.setdefault(name, []).append((group, right))
            for metric, values in metrics.values(answered, pool.labels, pool.of_domain).items():
                found.measured.setdefault(with_metric(name, metric), []).append((group, values))


def _weighted(values: Iterable[float], weights: Iterable[float]) -> float | None:
    """The weighted mean of what is defined; none if nothing is."""
    known = [(value, weight) for value, weight in zip(values, weights, strict=True) if not math.isnan(value)]
    return sum(value * weight for value, weight in known) / sum(weight for _, weight in known) if known else None


def _parts(engine: Engine, group: Group) -> Iterator[range]:
    """Clients whose models fit on the device at once, some for each process."""
    each = -(-len(group.members) // engine.ranks.count)
    most = min(engine.tested_at_once, engine.width or engine.tested_at_once)  # the fewer, the more images each sees
    step = max(1, min(most, MODEL_BYTES // group.own.layout.size, each))
    for begin in range(0, len(group.members), step):
        yield range(begin, min(begin + step, len(group.members)))


def validation_name(score: str, metric: str, known: Container[str]) -> str:
    """A metric on held-out training data by the score's model and rule; where it is not known, by heads."""
    model, _, rule = score.split("/")
    name = with_metric(f"{model}/val/{rule}", metric)
    return name if name in known else with_metric("own/val/head", metric)


def certain_names(method: Method, group: Group, broadcast: Broadcast) -> set[str]:
    """The names of accuracies that every client has, whatever data it holds."""
    names = {"own/own/head", "own/all/head", "own/own/nearest", "own/all/nearest", "own/own/nearest-own"}
    if method.rule:
        names |= {f"own/own/{method.rule}", f"own/all/{method.rule}"}
    if "global" in models_of(method, group, range(1), sent_to(method, group, broadcast)):
        names |= {"global/own/head", "global/all/head"}
        if method.references(broadcast) is not None:
            names |= {"global/own/nearest", "global/all/nearest", "global/own/nearest-own"}
    return names


def sent_to(method: Method, group: Group, broadcast: Broadcast) -> list[Broadcast]:
    """What the server sends: one message if all clients get the same, otherwise one for each."""
    sent = [method.send(broadcast, member) for member in group.members]
    return sent[:1] if all(message is sent[0] for message in sent) else sent


def models_of(method: Method, group: Group, rows: range, sent: Sequence[Broadcast]) -> dict[str, State]:
    """The models of some clients to test, and the server's, if there is one."""
    models: dict[str, State] = {"own": group.own.take(rows)}
    whole = [
        averaged_model(method, group, message) for message in (sent if len(sent) == 1 else sent[rows.start : rows.stop])
    ]
    known = [state for state in whole if state is not None]
    if known and len(known) == len(whole):
        models["global"] = {name: torch.stack([state[name] for state in known]) for name in group.own.initial}
        if group.personal and len(known) == 1:  # each client sees samples in its own way
            models["global"] = {
                name: value.expand(len(rows), *value.shape[1:]) for name, value in models["global"].items()
            }
    return models


def lacking(method: Method, group: Group, sent: Broadcast) -> list[str]:
    """What of a model is not sent, and cannot be done without."""
    return [name for name in group.own.initial if name not in sent.weights and not method.does_without(name)]


def averaged_model(method: Method, group: Group, sent: Broadcast) -> State | None:
    """The server's model, if what it sends is one; what a model does without is as it was at the beginning."""
    if not sent.weights.keys() & group.own.initial.keys() or lacking(method, group, sent):
        return None
    return {name: sent.weights.get(name, value) for name, value in group.own.initial.items()}
