"""What a run with differential privacy promises, and what that costs.

Client-level: the server clips what each client adds and noises the sum. Example-level: either the features are those of
a frozen encoder, or the model is trained with DP-SGD (Abadi et al., CCS 2016); all else is refused.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import ClassVar

import torch
from torch import Tensor

from protofed.engines.base import Engine, nobodys_turn
from protofed.engines.client_group import Group
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Method, Server, Trained, Turn
from protofed.models.encoder import FrozenEncoder
from protofed.models.layers import BatchNorm, Dropout, step
from protofed.models.net import Net
from protofed.prototypes import class_means
from protofed.randomness import generator
from protofed.trust.accounting import Release, epsilon
from protofed.trust.dp_mechanisms import private_sum, sampling_rate
from protofed.trust.summation import summed

Who = Callable[[int], Sequence[int]]
HEAP = 8
"""Samples in each of the two heaps of a made-up client's class."""


def made_up(group: Group, classes: int) -> Trained:
    """Two clients with two heaps of features in each class, which a clustering would find."""
    labels = torch.arange(classes).repeat(2 * HEAP).expand(2, -1)
    draws = generator("made up")
    features = 0.01 * torch.randn(*labels.shape, group.feature_size, dtype=group.dtype, generator=draws)
    features[:, : HEAP * classes] += 1
    features[:, HEAP * classes :] -= 1
    state = {name: torch.stack([value, value]).cpu() for name, value in group.own.initial.items()}
    numbers = torch.tensor([labels.shape[1]] * 2)
    return Trained(state, numbers, features, labels, classes, torch.tensor([1, 2]), torch.ones(2, dtype=group.dtype))


def made_up_upload(engine: Engine, group: Group, classes: int) -> tuple[Trained, Upload]:
    """Two made-up clients, on the CPU, and what they would send."""
    trained, first = made_up(group, classes), engine.initial_broadcast().on_host()
    memory = {name: value.cpu() for name, value in group.own.first_memory.items()}
    return trained, engine.method.upload(trained, nobodys_turn(engine.method, first, trained, memory))


def is_frozen(experiment: Experiment, method: Method, groups: Sequence[Group]) -> bool:
    """Whether what clients send are means of features that nobody trains: an encoder's, or a fixed body's."""
    names = [list(group.module.state_dict()) for group in groups]
    if not method.phases(experiment.epochs):  # nobody trains
        return all(name.startswith("head.") for some in names for name in method.shared(some))
    untouched = experiment.encoder is not None and all(name.startswith("head.") for some in names for name in some)
    return untouched and not any(method.shared(some) for some in names)


def trains_privately(experiment: Experiment, method: Method, groups: Sequence[Group]) -> bool:
    """Whether local steps are those of DP-SGD; without a clip there is nothing to protect."""
    asked = experiment.hides_examples and experiment.clip is not None
    return asked and not is_frozen(experiment, method, groups)


class Privacy(ABC):
    """What a run promises, and what that costs."""

    noisy_counts: ClassVar[bool] = False  # prototypes may count more samples than there are
    one_by_one: ClassVar[bool] = False  # one client's upload must not decide what becomes of another's

    def __init__(self, experiment: Experiment, engine: Engine, encoder: FrozenEncoder | None, who: Who) -> None:
        """`who` says who takes part in a round, by its number from 0."""
        self.experiment, self.engine, self._who = experiment, engine, who
        self._rounds: list[Sequence[int]] = []
        if encoder is not None and encoder.card.source in experiment.datasets:
            why = "it was trained on the data that is to be protected, and everybody has it"
            raise UserError("--encoder", experiment.encoder, why)

    @abstractmethod
    def cost(self, rounds: Sequence[Sequence[int]]) -> float:
        """ε of rounds with these participants, for whoever pays most."""

    @abstractmethod
    def release(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Upload:
        """What the server may make of a round's uploads."""

    def epsilon(self, rounds: int) -> float:
        """What so many rounds cost."""
        while len(self._rounds) < rounds:
            self._rounds.append(self._who(len(self._rounds)))
        return self.cost(self._rounds[:rounds])

    def exhausted(self, rounds: int) -> bool:
        """Whether so many rounds cost more than the budget."""
        budget = self.experiment.epsilon
        return budget is not None and self.epsilon(rounds) > budget

    def check_budget(self) -> None:
        """Refuse a budget that does not last for a single round."""
        if self.exhausted(1):
            why, hint = (
                f"the first round takes ε = {self.epsilon(1):.3g}",
                "more --noise, or less --participation, takes less",
            )
            raise UserError("--epsilon", self.experiment.epsilon, why, hint=hint)

    def spent(self, rounds: int) -> float | None:
        """The same for a file, in which there is no ∞."""
        cost = self.epsilon(rounds)
        return cost if math.isfinite(cost) else None


class ClientLevel(Privacy):
    """The sum over clients is noised by a server that is trusted to do so."""

    one_by_one: ClassVar[bool] = True

    def __init__(self, experiment: Experiment, engine: Engine, encoder: FrozenEncoder | None, who: Who) -> None:
        super().__init__(experiment, engine, encoder, who)
        check_client_level(experiment, engine.method)

    def cost(self, rounds: Sequence[Sequence[int]]) -> float:
        """Every client takes part in a round with the same probability."""
        played = Release(self.experiment.noise, self.experiment.participation, len(rounds))
        return epsilon([played], self.experiment.delta)

    def release(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Upload:
        """The noisy mean: of the number of clients that are expected, not of those that came."""
        return private_sum(uploads, sent, self.experiment.participation * clock.clients, self.experiment, clock.round)


class TrustedServer(ClientLevel):
    """Client-level over a network: the server is trusted with each upload, and draws noise that no seed tells."""

    def release(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Upload:
        """The noisy mean, as `private_sum` makes it, from whole numbers."""
        from protofed.trust.integer_noise import noisy_sum, released  # and cryptography, of the extra flower

        clip = self.experiment.clip or 0.0
        total = noisy_sum(uploads, sent, self.experiment)
        expected = self.experiment.participation * clock.clients
        return released(total, uploads, sent, clip, expected, self.experiment.noise * clip)


class UnderMasks(ClientLevel):
    """Client-level with secure aggregation: the sum has its noise before the server knows it."""

    noisy_counts: ClassVar[bool] = True

    def release(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Upload:  # noqa: ARG002
        """The sum was noised under its masks."""
        return uploads


class ExampleLevel(Privacy):
    """What a client sends is noised by itself; its noise does not depend on anybody else's."""

    noisy_counts: ClassVar[bool] = True

    def __init__(self, experiment: Experiment, engine: Engine, encoder: FrozenEncoder | None, who: Who) -> None:
        super().__init__(experiment, engine, encoder, who)
        self.frozen = is_frozen(experiment, engine.method, engine.groups)
        if engine.name != "sequential":
            raise UserError("--engine", engine.name, "--privacy example needs the sequential engine")
        if len(set(names := experiment.datasets)) < len(names):
            why = "--privacy example is accounted for samples that one client holds, and here several hold the same"
            raise UserError("--dataset", experiment.dataset, why)
        if experiment.drift != "none":
            raise UserError("--drift", experiment.drift, "--privacy example is accounted for one set of data")
        self.means = False  # whether clients send some
        for group in engine.groups:
            trained, sent = self._check_upload(group)
            self.means = bool(sent.prototypes)
            if not self.frozen:
                self._check_training(group, trained, sent)

    def cost(self, rounds: Sequence[Sequence[int]]) -> float:
        """Of the client whose samples pay most; those of different clients are different samples."""
        sizes = {member: len(client.train) for member, client in self.engine.federation.members.items()}
        turns = Counter(member for who in rounds for member in who)
        plans = {(sizes[member], number) for member, number in turns.items()}
        return max((epsilon(self._releases(*plan), self.experiment.delta) for plan in plans), default=0.0)

    def _releases(self, size: int, turns: int) -> list[Release]:
        """What a client of so many samples has released after so many turns."""
        noise = self.experiment.noise
        if self.frozen:
            return [Release(noise)]  # the same noisy means every time
        found = [Release(noise, sampling_rate(self.experiment, size), int(self.engine.steps([size])[0]) * turns)]
        return [*found, Release(noise, times=turns)] if self.means else found

    def release(self, uploads: Upload, sent: Broadcast, clock: Clock) -> Upload:  # noqa: ARG002
        """They were noised before they were sent."""
        return uploads

    def _check_upload(self, group: Group) -> tuple[Trained, Upload]:
        """Refuse what is more than weights and class means; of made-up clients, what they have and send."""
        method, classes = self.engine.method, len(self.engine.federation.classes)
        if method.exchanges_public:
            raise self._refusal("its clients also exchange what they make of public images")
        trained, upload = made_up_upload(self.engine, group, classes)
        if not (upload.weights or upload.prototypes or upload.sums):
            raise self._refusal("nothing leaves its clients")
        if more := sorted([*(upload.numbers.keys() - {"samples"}), *upload.sums]):
            raise self._refusal(f"its clients also send: {', '.join(more)}")
        means = class_means(trained.features, trained.labels, classes)
        for found in upload.prototypes.values():
            if found.counts.shape != means.counts.shape or not torch.allclose(found.vectors, means.vectors):
                raise self._refusal("its prototypes are not class means, and only of those is known what a sample does")
        return trained, upload

    def _check_training(self, group: Group, trained: Trained, sent: Upload) -> None:
        """Refuse what has no gradient of a single sample."""
        if any(isinstance(layer, BatchNorm) for layer in group.module.modules()):
            why = "its BatchNorm mixes the samples of a batch, and --privacy example needs the gradient of each"
            raise UserError("--model", self.experiment.model, why)
        if self.engine.paced:
            raise self._refusal("its clients choose how many steps they take, and each step is accounted for")
        if self.engine.method.prepares:
            raise self._refusal("its clients look at all of their data before they train, without noise")
        if coupled := self._couples(group, trained, sent):
            raise self._refusal(coupled)

    def _couples(self, group: Group, trained: Trained, sent: Upload) -> str | None:
        """Why made-up samples lose something else alone than together, or among others, dropout aside; None if not."""
        method, clock = self.engine.method, Clock(0, 2, (0, 1), 2)
        server = Server(self.engine.initial_broadcast().on_host(), clock)
        second = method.receive(method.send(method.aggregate(sent, server), 0))
        module = deepcopy(group.module).cpu()
        for layer in module.modules():
            if isinstance(layer, Dropout):
                layer.p = 0.0
        previous = {name: value[0] for name, value in trained.weights.items()} if method.keeps_previous else {}
        memory = {name: value.cpu() for name, value in group.own.first_memory.items()}
        one = nobodys_turn(method, second, trained, memory)
        turn = Turn(
            received=second,
            clock=clock._replace(round=1),
            previous=previous,
            taken=torch.tensor(1),
            memory={name: value[0] for name, value in one.memory.items()},
            counts=one.counts[0],
            steps=one.steps[0],
            lr=one.lr[0],
            key=one.key[0],
        )
        draws = generator("privacy", "images")
        x = group.shape.example(6)
        x = x if group.shape.tokens else torch.randn(x.shape, dtype=group.dtype, generator=draws)
        y = torch.arange(6) % min(2, trained.classes)

        def lost(some: slice, turn: Turn = turn) -> Tensor:
            with torch.no_grad(), step(torch.tensor(0)):
                return method.loss(Net(module), Batch(x[some], y[some], torch.ones_like(y[some]).bool()), turn)

        alone = torch.cat([lost(slice(row, row + 1)) for row in range(6)])
        if not torch.allclose(lost(slice(None)), alone, rtol=1e-3, atol=1e-4):
            return "its loss of a sample depends on the other samples of the batch"
        others = turn._replace(counts=turn.counts * torch.arange(1, trained.classes + 1))
        if not torch.allclose(lost(slice(None), others), alone, rtol=1e-3, atol=1e-4):
            return "its loss of a sample depends on how many samples of each class the client has"
        return None

    def _refusal(self, why: str) -> UserError:
        return UserError("--method with --privacy example", self.engine.method.name, why)


def check_client_level(experiment: Experiment, method: Method) -> None:
    """Refuse what needs more of clients than the sum of what they add."""
    summed(method, "--privacy client")
    if experiment.defence != "none":
        why = "it compares clients, so that one of them could change more than its own clipped part"
        raise UserError("--defence", experiment.defence, f"with --privacy client {why}")


def check_over_a_network(experiment: Experiment, method: Method) -> None:
    """Refuse client-level privacy that cannot be had over a network, before a client is asked for anything."""
    from protofed.trust.integer_noise import check_noise, share_deviation  # and cryptography, of the extra flower

    check_client_level(experiment, method)
    if experiment.secure and experiment.participation < 1:
        why = "with --secure --privacy client the server knows who takes part, so that sampling saves nothing"
        raise UserError("--participation", experiment.participation, why)
    whole = experiment.noise * (experiment.clip or 0.0)
    check_noise(experiment, share_deviation(experiment, experiment.number_of_clients) if experiment.secure else whole)


def privacy_over_a_network(experiment: Experiment, engine: Engine, who: Who) -> Privacy | None:
    """What an experiment asks for that is played over a network, if it can be had there."""
    if not experiment.hides_clients:
        return None
    kind = UnderMasks if experiment.secure else TrustedServer
    found = kind(experiment, engine, None, who)
    found.check_budget()
    return found


def privacy_of(experiment: Experiment, engine: Engine, encoder: FrozenEncoder | None, who: Who) -> Privacy | None:
    """What an experiment asks for, if it can be had."""
    if not (experiment.hides_clients or experiment.hides_examples):
        return None
    kind = ClientLevel if experiment.hides_clients else ExampleLevel
    found = kind(experiment, engine, encoder, who)
    found.check_budget()
    return found
