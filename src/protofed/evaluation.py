"""Who is asked, on what, by which rule: accuracies named model/test/rule, in percent, for every client.

Models: `own` (the client's last trained one), `global` (the averaged one, where there is one). Tests: `own` (the
client's label distribution), `all` (every class), `domain` (its domain), `val` (held out of its training data). Rules:
`head` (the classifier), `nearest` (nearest prototype), `nearest-own` (the same among the client's own classes).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from protofed.engines.base import Engine, Group, State
from protofed.messages import Broadcast
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


class Evaluator:
    """Tests the models of an engine's clients after each round."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.federation = engine.federation
        self.classes = len(self.federation.classes)
        clients = self.federation.clients
        self.by_domain = len(self.federation.domains) > 1 and all(client.domain is not None for client in clients)
        self.validates = all(client.validation is not None for client in clients)
        self.tests = [self._tests(group) for group in engine.groups]

    def _tests(self, group: Group) -> dict[str, Tensor]:
        """Which images of the test pool belong to each client's test sets: [clients, images]."""
        shape = len(group.clients), len(group.test)
        own = torch.zeros(shape, dtype=torch.bool)
        for row, client in enumerate(group.clients):
            own[row, client.own] = True
        tests = {"own": own, "all": torch.ones(shape, dtype=torch.bool)}
        if self.by_domain:
            domains = torch.tensor([client.domain for client in group.clients])
            tests["domain"] = group.test.domains == domains.view(-1, 1)
        return {name: mask.to(group.device) for name, mask in tests.items()}

    @torch.no_grad()
    def __call__(self, broadcast: Broadcast) -> Evaluation:
        """Every client's accuracies with its own model and with the averaged one."""
        references = self.engine.method.references(broadcast)
        values: dict[str, dict[int, float]] = {}
        domains: dict[str, dict[str, float]] = {}
        for group, tests in zip(self.engine.groups, self.tests, strict=True):
            for model, states in _models(group, broadcast).items():
                prototypes = references
                if references is None and model == "own":
                    features, labels = self.engine.embed(group, range(len(group.members)), states)
                    prototypes = class_means(features, labels, self.classes)
                correct = self._correct(group, states, prototypes, group.test.images, group.test.labels)
                for rule, hits in correct.items():
                    for test, mask in tests.items():
                        if rule == "nearest-own" and (test == "all" or references is None):
                            continue
                        scores = 100 * (hits & mask).sum(1) / mask.sum(1)
                        values.setdefault(f"{model}/{test}/{rule}", {}).update(
                            zip(group.members, scores.tolist(), strict=True)
                        )
                    if model == "global" and self.by_domain and rule != "nearest-own":
                        domains[f"global/domain/{rule}"] = self._per_domain(group, hits[0])
                if self.validates:
                    self._validate(group, model, states, prototypes, values)
        per_client = {name: [found[member] for member in sorted(found)] for name, found in values.items()}
        diagnostic = [name for name in per_client if name.endswith("/nearest") and references is None]
        return Evaluation(per_client, domains, diagnostic)

    def _correct(
        self, group: Group, states: State, prototypes: Prototypes | None, images: Tensor, labels: Tensor
    ) -> dict[str, Tensor]:
        """Which images each model gets right, by rule: [models, images] (the averaged model: [clients, images])."""
        models = len(next(iter(states.values())))
        allowed = torch.stack([client.counts(self.classes) > 0 for client in group.clients]).to(group.device)
        found: dict[str, list[Tensor]] = {}
        labels = labels.to(group.device)
        for chunk in torch.arange(len(images)).split(max(1, CHUNK // models)):
            features, logits = self.engine.forward(group, states, group.pixels(images[chunk]))
            found.setdefault("head", []).append(logits.argmax(-1) == labels[chunk])
            if prototypes is not None:
                found.setdefault("nearest", []).append(nearest_class(features, prototypes) == labels[chunk])
                features = features.expand(len(allowed), *features.shape[1:])
                own = nearest_class(features, prototypes, allowed)
                found.setdefault("nearest-own", []).append(own == labels[chunk])
        return {rule: torch.cat(hits, 1) for rule, hits in found.items()}

    def _validate(
        self,
        group: Group,
        model: str,
        states: State,
        prototypes: Prototypes | None,
        values: dict[str, dict[int, float]],
    ) -> None:
        """Each client on its held-out samples."""
        for row, (member, client) in enumerate(zip(group.members, group.clients, strict=True)):
            assert client.validation is not None  # checked in __init__
            mine = {name: value[row : row + 1] if model == "own" else value for name, value in states.items()}
            if prototypes is not None and prototypes.vectors.dim() == 4:
                prototypes_here: Prototypes | None = Prototypes(prototypes.vectors[row : row + 1], prototypes.counts[row : row + 1])
            else:
                prototypes_here = prototypes
            correct = self._correct(group, mine, prototypes_here, client.validation.images, client.validation.labels)
            for rule in ("head", "nearest"):
                if rule in correct:
                    values.setdefault(f"{model}/val/{rule}", {})[member] = 100 * float(correct[rule][0].double().mean())

    def _per_domain(self, group: Group, hits: Tensor) -> dict[str, float]:
        domains = group.test.domains.to(group.device)
        return {
            name: 100 * float(hits[domains == number].double().mean())
            for number, name in enumerate(self.federation.domains)
        }


def _models(group: Group, broadcast: Broadcast) -> dict[str, State]:
    """The models to test; there is an averaged one if the server sends a whole state."""
    models: dict[str, State] = {"own": group.own}
    if set(group.own) <= set(broadcast.weights):
        models["global"] = {name: broadcast.weights[name].unsqueeze(0) for name in group.own}
    return models
