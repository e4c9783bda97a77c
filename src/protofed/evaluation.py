"""Who is asked, on what, by which rule: accuracies named model/test/rule, in percent, for every client.

Models: `own` (the client's last trained one), `global` (the averaged one, where there is one). Tests: `own` (the
client's label distribution), `all` (every class), `domain` (its domain), `val` (held out of its training data). Rules:
`head` (the classifier), `nearest` (nearest prototype), `nearest-own` (the same among the client's own classes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from protofed.data.samples import Samples
from protofed.engines.base import Engine
from protofed.engines.group import Group, State
from protofed.messages import Broadcast
from protofed.methods.base import Method
from protofed.prototypes import Prototypes, class_means, nearest_class

CHUNK = 10_000  # models × images in one forward pass


@dataclass(frozen=True)
class Evaluation:
    """Accuracies after a round."""

    per_client: dict[str, list[float]] = field(default_factory=dict)
    per_domain: dict[str, dict[str, float]] = field(default_factory=dict)
    diagnostic: list[str] = field(default_factory=list)  # by class means of the client's own data, not by the method

    def means(self) -> dict[str, float]:
        """Each accuracy as one number: the mean over domains where it is known per domain, else over clients."""
        clients = {name: sum(values) / len(values) for name, values in self.per_client.items()}
        domains = {name: sum(values.values()) / len(values) for name, values in self.per_domain.items()}
        return clients | domains


class View(NamedTuple):
    """What belongs to each client of a group: images of the test pool [clients, images], and classes [clients, C]."""

    tests: dict[str, Tensor]
    classes: Tensor


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
        self.views = [self._view(group) for group in engine.groups]

    def _view(self, group: Group) -> View:
        shape = len(group.clients), len(group.test)
        own = torch.zeros(shape, dtype=torch.bool)
        for row, client in enumerate(group.clients):
            own[row, client.own] = True
        tests = {"own": own, "all": torch.ones(shape, dtype=torch.bool)}
        if self.by_domain:
            domains = torch.tensor([client.domain for client in group.clients])
            tests["domain"] = group.test.domains == domains.view(-1, 1)
        classes = torch.stack([client.counts(self.classes) > 0 for client in group.clients])
        return View({name: mask.to(group.device) for name, mask in tests.items()}, classes.to(group.device))

    @torch.no_grad()
    def __call__(self, broadcast: Broadcast) -> Evaluation:
        """Every client's accuracies with its own model and with the averaged one."""
        references = self.engine.method.references(broadcast)
        found: dict[str, dict[int, float]] = {}
        by_domain: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for group, view in zip(self.engine.groups, self.views, strict=True):
            for model, states in _models(self.engine.method, group, broadcast).items():
                prototypes = references
                if references is None and model == "own":
                    embedded = self.engine.embed(group, range(len(group.members)), states)
                    prototypes = class_means(*embedded, self.classes)
                for rule, hits in self._hits(group, states, prototypes, view.classes, group.test).items():
                    for test in ["own"] if rule == "nearest-own" else view.tests:
                        scores = 100 * (hits & view.tests[test]).sum(1).double() / view.tests[test].sum(1)
                        scored = zip(group.members, scores.tolist(), strict=True)
                        found.setdefault(f"{model}/{test}/{rule}", {}).update(scored)
                    if model == "global" and self.by_domain and rule != "nearest-own" and len(hits) == 1:
                        by_domain.setdefault(f"global/domain/{rule}", []).append((group.test.domains, hits[0].cpu()))
                if self.validates:
                    self._validate(group, view, model, states, prototypes, found)
        per_client = {name: [scores[member] for member in sorted(scores)] for name, scores in found.items()}
        diagnostic = [name for name in per_client if references is None and "/nearest" in name]
        per_domain = {name: self._per_domain(parts) for name, parts in by_domain.items()}
        return Evaluation(per_client, per_domain, diagnostic)

    def _hits(
        self, group: Group, states: State, prototypes: Prototypes | None, own_classes: Tensor, samples: Samples
    ) -> dict[str, Tensor]:
        """Which samples are classified correctly by each rule: [models, samples]."""
        labels = samples.labels.to(group.device)
        models = len(next(iter(states.values())))
        chunks: dict[str, list[Tensor]] = {}
        for rows in torch.split(torch.arange(len(samples)), max(1, CHUNK // models)):
            features, logits = self.engine.forward(group, states, group.pixels(samples.images[rows]))
            answers = {"head": logits.argmax(-1)}
            if prototypes is not None:
                everyone = features.expand(len(own_classes), -1, -1)
                answers["nearest"] = nearest_class(features, prototypes)
                answers["nearest-own"] = nearest_class(everyone, prototypes, own_classes)
            for rule, answer in answers.items():
                chunks.setdefault(rule, []).append(answer == labels[rows])
        return {rule: torch.cat(hits, 1) for rule, hits in chunks.items()}

    def _validate(
        self,
        group: Group,
        view: View,
        model: str,
        states: State,
        prototypes: Prototypes | None,
        found: dict[str, dict[int, float]],
    ) -> None:
        """Each client on the samples held out of its training data."""
        for row, (member, client) in enumerate(zip(group.members, group.clients, strict=True)):
            mine = slice(row, row + 1)
            personal = len(next(iter(states.values()))) > 1
            state = {name: value[mine] for name, value in states.items()} if personal else states
            local = prototypes.take(mine) if prototypes is not None and prototypes.counts.dim() == 3 else prototypes
            assert client.validation is not None  # the caller has checked
            for rule, hits in self._hits(group, state, local, view.classes[mine], client.validation).items():
                found.setdefault(f"{model}/val/{rule}", {})[member] = 100 * float(hits.double().mean())

    def _per_domain(self, parts: Sequence[tuple[Tensor, Tensor]]) -> dict[str, float]:
        """Percent correct of each domain's images, from the domains and hits of every group's pool."""
        domains, hits = (torch.cat(column) for column in zip(*parts, strict=True))
        return {
            name: 100 * float(hits[domains == number].double().mean())
            for number, name in enumerate(self.federation.domains)
            if bool((domains == number).any())
        }


def _models(method: Method, group: Group, broadcast: Broadcast) -> dict[str, State]:
    """The models to test; there is one of the server's if it sends a whole state, the same to all or one to each."""
    models: dict[str, State] = {"own": group.own}
    sent = [method.send(broadcast, member) for member in group.members]
    if all(message is sent[0] for message in sent):
        sent = sent[:1]
    if set(group.own) <= set(sent[0].weights):
        models["global"] = {name: torch.stack([message.weights[name] for message in sent]) for name in group.own}
    return models
