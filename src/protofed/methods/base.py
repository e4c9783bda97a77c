"""What a method may say: its loss, what a client sends, what the server makes of it, how a prediction is made.

A method never loops over epochs, batches, clients or samples and never touches devices or files: engines do that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from protofed.internal.schema import Bounds
from protofed.messages import Broadcast, Upload
from protofed.methods.convergence import Bound, Estimates, Used
from protofed.methods.optimisers import SGD
from protofed.models.net import Net
from protofed.models.output import Output
from protofed.prototypes import Prototypes
from protofed.randomness import generator

__all__ = ["Batch", "Clock", "Method", "Phase", "Server", "Trained", "Turn", "cross_entropy", "param"]

T = TypeVar("T")

Collect = Literal["eval-pass", "last-epoch", "all-epochs"]
"""When prototypes are taken: after training in eval mode, or while training, before each batch's update."""

Initial = Literal["common", "own"]
"""Whose initial weights: one draw for all clients, or one for each."""

Averaging = Literal["samples", "uniform", "prototypes"]
"""How clients count in an average of weights."""

# What parameters that several methods have are: see `param`.
AVERAGING = (
    "how clients count in the average of weights: by their samples, all alike, or by samples and near class means"
)
COLLECT = "when features are taken for prototypes: after training in eval mode, or while training"


def param(
    default: T,
    help: str,
    *,
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> T:
    """Declare a parameter of a method: its default, its help and, of a number, its bounds.

    Args:
        default: its value, unless a user gives another.
        help: what it is, as `protofed methods --json` tells it.
        at_least: the least value; or `above`, which it must exceed.
        above: see `at_least`.
        at_most: the largest value; or `below`, which it must not reach.
        below: see `at_most`.

    Returns:
        The field of the dataclass. A value outside the bounds is a UserError when the method is made.

    Example:
        >>> from dataclasses import dataclass
        >>> from protofed.methods.base import Method, param
        >>> @dataclass(frozen=True)
        ... class Pulled(Method):
        ...     name = "pulled"
        ...     strength: float = param(0.5, "weight of the pull", at_least=0)
        ...
        ...     def loss(self, model, batch, turn):
        ...         return self.strength * model(batch.x).features.square().mean(-1)
        >>> Pulled().strength
        0.5
        >>> Pulled(strength=-1.0)
        Traceback (most recent call last):
            ...
        protofed.errors.UserError: invalid value '-1.0' for --set strength: it must be 0 or more
    """
    return field(default=default, metadata={"help": help, "bounds": Bounds(at_least, above, at_most, below)})


class Batch(NamedTuple):
    """Hold one client's mini-batch.

    Args:
        x: normalised images [B, channels, height, width], or features [B, D, 1, 1] that stand for them.
        y: their classes [B], int64.
        mask: which samples are real [B], bool; the others pad the batch, and the engine leaves them out of the loss.

    Example:
        >>> import torch
        >>> from protofed.methods.base import Batch
        >>> batch = Batch(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 1, 0]), torch.tensor([True, True, True, False]))
        >>> int(batch.mask.sum())
        3
    """

    x: Tensor
    y: Tensor
    mask: Tensor


class Clock(NamedTuple):
    """Tell the round, who takes part in it, and the seed of the run.

    Args:
        round: the number of the round, from 0.
        rounds: how many rounds there are.
        who: the numbers of the clients that take part.
        clients: how many clients there are.
        seed: the seed of the run.

    Example:
        >>> from protofed.methods.base import Clock
        >>> clock = Clock(round=0, rounds=10, who=(1, 3), clients=5)
        >>> clock.round == clock.rounds - 1
        False
    """

    round: int
    rounds: int
    who: tuple[int, ...] = ()
    clients: int = 0
    seed: int = 0


class Turn(NamedTuple):
    """Hold what a client knows in its turn: what it received, when, and what it has by itself.

    A loss sees the turn of one client. `upload` and `remember` see those of N clients: every tensor then has a leading
    client axis, but for what all of them received alike.

    Args:
        received: the server's broadcast, as `Method.receive` made it.
        clock: the round.
        previous: the client's model after its last turn, by name, if the method `keeps_previous`; see `taken`.
        prepared: what `Method.prepare` made of the client's data, by name.
        taken: how many turns the client had before, a scalar.
        memory: what the client remembers for itself, by name; see `Method.remember`.
        counts: the client's training samples of each class [C], int64.
        steps: how many steps the client takes in this turn, a scalar.
        lr: the learning rate of its steps, a scalar.
        key: for draws, which `protofed.randomness.uniform` makes: in a loss a key of each step, in an upload one of the
            turn.
        phase: the number of the phase, from 0; see `Method.phases`.
        momentum: that of the experiment's SGD; 0 where it names another optimiser.

    Example:
        >>> import torch
        >>> from protofed.messages import Broadcast
        >>> from protofed.methods.base import Clock, Turn
        >>> turn = Turn(Broadcast(), Clock(round=0, rounds=10), counts=torch.tensor([3, 0, 5]))
        >>> turn.received.prototypes.get("global") is None, (turn.counts > 0).tolist()
        (True, [True, False, True])
    """

    received: Broadcast
    clock: Clock
    previous: Mapping[str, Tensor] = MappingProxyType({})
    prepared: Mapping[str, Tensor] = MappingProxyType({})
    taken: Tensor = torch.tensor(0)
    memory: Mapping[str, Tensor] = MappingProxyType({})
    counts: Tensor = torch.empty(0, dtype=torch.int64)
    steps: Tensor = torch.tensor(0)
    lr: Tensor = torch.tensor(0.0)
    key: Tensor = torch.tensor(0)
    phase: int = 0
    momentum: float = 0.0


class Server(NamedTuple):
    """Hold what the server knows when it aggregates.

    Args:
        previous: the last broadcast, with what the server kept.
        clock: the round, and whose uploads there are.
        model: runs the architecture of the first clients: `server.model(x, weights, train=False)`; what `weights` lacks
            is as it was sent last, or at the beginning. None where nobody asks for it.
        public: public, unlabelled images [n, channels, height, width], normalised by their own statistics as
            `--normalise` says, if the experiment names some and the method `uses_public`; otherwise None.

    Example:
        >>> from protofed.messages import Broadcast
        >>> from protofed.methods.base import Clock, Server
        >>> server = Server(Broadcast(), Clock(round=0, rounds=10, seed=7))
        >>> server.draws("heads").initial_seed() == server.draws("heads").initial_seed()
        True
    """

    previous: Broadcast
    clock: Clock
    model: Net | None = None
    public: Tensor | None = None

    def draws(self, purpose: str) -> torch.Generator:
        """Return a generator on the CPU for draws of this round and purpose: the same in every engine and on resume."""
        return generator(self.clock.seed, "server", purpose, self.clock.round)


class Phase(NamedTuple):
    """Describe a part of a turn: some epochs in which some of the parameters are trained.

    Args:
        epochs: how many epochs the phase has.
        trains: says by a parameter's name whether it is trained.

    Example:
        >>> from protofed.methods.base import Phase
        >>> head = Phase(epochs=1, trains=lambda name: name.startswith("head."))
        >>> head.trains("head.weight"), head.trains("body.weight")
        (True, False)
    """

    epochs: int
    trains: Callable[[str], bool]


class Trained(NamedTuple):
    """Hold N clients after local training; every tensor has a leading client axis.

    Args:
        weights: parameters and buffers by name [N, ...].
        samples: the numbers of training samples [N].
        features: what prototypes are made of [N, n, D]; empty if the method collects none.
        labels: the features' classes [N, n]; −1 for padding.
        classes: the number of classes, C.
        keys: the clients' keys for draws in clustering [N], int64.
        losses: mean training losses of the last local epoch [N], or None.

    Example:
        >>> import torch
        >>> from protofed.methods.base import Trained
        >>> from protofed.prototypes import class_means
        >>> trained = Trained({}, torch.tensor([2]), torch.ones(1, 2, 3), torch.tensor([[0, 1]]), 2, torch.tensor([7]))
        >>> class_means(trained.features, trained.labels, trained.classes).vectors.shape
        torch.Size([1, 2, 1, 3])
    """

    weights: Mapping[str, Tensor]
    samples: Tensor
    features: Tensor
    labels: Tensor
    classes: int
    keys: Tensor
    losses: Tensor | None = None


class Summed(NamedTuple):
    """How uploads enter a server that only adds them up: by what a client's weights and prototypes are weighed.

    With weights by `prototypes` a method `needs_each`.
    """

    weights: Averaging = "samples"
    prototypes: Literal["samples", "uniform"] = "uniform"


@dataclass(frozen=True)
class Method(ABC):
    """Describe a federated method: its loss, what a client sends and what the server makes of it.

    A method is a frozen dataclass that extends `Method` or another method. Its fields are the parameters a user may
    set; declare them with `param`. Only `loss` has to be written. See docs/adding-a-method.md.

    Attributes:
        name: what lists and tables call it.
        paper: authors, venue and year.
        link: where the paper is.
        up: what a client sends, in words.
        down: what the server sends, in words.
        score: the model/test/rule accuracy that its paper reports.
        advice: what to do where a loss of it is no longer finite.
        keeps_previous: whether a client keeps the model of its last turn for the loss, as `Turn.previous`.
        prepares: whether a client looks at its data before it trains; see `prepare`.
        clip: the largest norm of a client's gradient; None for no limit.
        exchanges_public: whether clients exchange what they make of public images; see `PublicExchange`.
        uses_public: whether the server looks at public images; see `Server.public`.
        linear_head: whether the server makes, trains or mixes heads as linear ones: a model with another is refused.
        rule: what accuracies by `answer` are called, as in `own/own/both-heads`; empty for a method without a rule of
            its own.
        unit_features: whether its paper's theory is of features scaled to length 1.
        collect: when features are taken for prototypes: `eval-pass`, `last-epoch` or `all-epochs`; None for never.
        initial: whose initial weights: `common`, one draw for all clients, or `own`, one for each.

    Example:
        >>> from dataclasses import dataclass
        >>> import protofed
        >>> from protofed.methods.base import Method, cross_entropy, param
        >>> @dataclass(frozen=True)
        ... class SmallFeatures(Method):
        ...     name = "small-features"
        ...     weight: float = param(0.1, "weight of the features' squares", at_least=0)
        ...
        ...     def loss(self, model, batch, turn):
        ...         out = model(batch.x)
        ...         return cross_entropy(out.logits, batch.y) + self.weight * out.features.square().mean(-1)
        >>> tiny = {"model": "cnn", "train_size": 120, "clients": 2, "rounds": 1, "device": "cpu"}
        >>> result = protofed.run(SmallFeatures(weight=0.5), **tiny)
        >>> result.method, result.params["weight"], result.bytes_up
        ('small-features', 0.5, 0)
    """

    name: ClassVar[str]
    paper: ClassVar[str] = ""
    link: ClassVar[str] = ""
    up: ClassVar[str] = ""
    down: ClassVar[str] = ""
    score: ClassVar[str] = "own/own/head"
    advice: ClassVar[str] = "try a smaller --lr"

    keeps_previous: ClassVar[bool] = False
    prepares: ClassVar[bool] = False
    clip: ClassVar[float | None] = None
    exchanges_public: ClassVar[bool] = False
    uses_public: ClassVar[bool] = False
    linear_head: ClassVar[bool] = False
    rule: ClassVar[str] = ""
    unit_features: ClassVar[bool] = False

    collect: Collect | None = field(default=None, init=False)
    initial: Initial = field(default="common", init=False)

    def __post_init__(self) -> None:
        """Check the bounds of parameters; a method that checks more calls this first."""
        for item in fields(self):
            if "bounds" in item.metadata:
                item.metadata["bounds"].check(f"--set {item.name}", getattr(self, item.name))

    @abstractmethod
    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """Compute the local objective of one client's batch, in every step: one value per sample.

        It runs under `torch.func.vmap`: no `.item()`, no `if` on a tensor's values, no boolean indexing.

        Args:
            model: the client's model; `model(batch.x)` returns an `Output`.
            batch: the mini-batch.
            turn: what the client received and knows.

        Returns:
            One value per sample [B]; the engine averages over the samples that are real.
        """

    def shares(self, name: str) -> bool:  # noqa: ARG002 - subclasses decide by name
        """Say whether the parameter or buffer of this name leaves the client; none does where no method says so."""
        return False

    def shared(self, names: Collection[str]) -> set[str]:
        """Return those of a model's parameters and buffers that leave the client, where a name alone does not tell."""
        return {name for name in names if self.shares(name)}

    def does_without(self, name: str) -> bool:  # noqa: ARG002
        """Say whether the averaged model answers without this parameter, which stays: else no `global/…` accuracies."""
        return False

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """Return the architecture that the method trains, made from the user's; asked again for an exported model.

        BatchNorm and dropout in what it adds are swapped like those of a model.
        """
        return module

    def phases(self, epochs: int) -> Sequence[Phase]:
        """Return the parts of a turn of so many epochs, numbered by `turn.phase`; none where nobody trains."""
        return [Phase(epochs, lambda _: True)]

    def optimiser(
        self, parameters: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """Make a fresh optimiser for a phase, SGD; an `--optimiser` takes its place."""
        return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Compute something from the clients' features before they train, if the method `prepares`: `turn.prepared`.

        Args:
            features: the clients' features [N, n, D].
            labels: their classes [N, n]; −1 for padding.
            received: the server's broadcast.

        Returns:
            Tensors by name [N, ...]; each client finds its own in `Turn.prepared`.
        """
        return {}

    def memory(self, weights: Mapping[str, Tensor], classes: int) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return what a client remembers before its first turn: checkpointed, counted, never sent; nothing by default.

        Args:
            weights: the initial parameters and buffers by name.
            classes: the number of classes, C.

        Returns:
            Tensors by name, each client's `turn.memory`.
        """
        return {}

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:  # noqa: ARG002
        """Return what clients remember after a turn, by the names that `memory` has [N, ...]."""
        return turn.memory

    def effort(self, steps: int, client: int, clock: Clock) -> tuple[int, float]:  # noqa: ARG002
        """Return how many steps a client takes in place of so many in an epoch, and a factor on its learning rate."""
        return steps, 1.0

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:  # noqa: ARG002
        """Make the prototype sets that clients send from the features that were collected.

        Args:
            trained: the clients after training; its features are [N, n, D].

        Returns:
            Prototype sets by name, vectors [N, C, M, D] and counts [N, C, M].
        """
        return {}

    def upload(self, trained: Trained, turn: Turn) -> Upload:  # noqa: ARG002
        """Make what clients send: shared weights, prototype sets, with weights the numbers of samples [N]; also `sums`.

        `Upload.sums` is for what the server only adds up, as secure and private sums do.

        Args:
            trained: the clients after training.
            turn: their turns; every tensor has a leading client axis, but for what all received alike.

        Returns:
            Their uploads, [N, ...].
        """
        shared = self.shared(trained.weights.keys())
        weights = {name: tensor for name, tensor in trained.weights.items() if name in shared}
        return Upload(weights, self.prototypes(trained), {"samples": trained.samples} if weights else {})

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:  # noqa: ARG002
        """Make the next broadcast from a round's uploads, at the server; `Broadcast.kept` stays there.

        Args:
            uploads: what the participants sent, [N, ...] in client order.
            server: the last broadcast, the round, and what else the server has.

        Returns:
            What the server sends next; its weights have no client axis.
        """
        return Broadcast()

    def summed(self) -> Summed | None:
        """Say how uploads are added up, if the server needs nothing of them but sums; None if it needs each client's.

        It holds for the `aggregate` beside it: a class with one of its own says this again.
        """
        return None

    def needs_each(self) -> bool:
        """Say whether the server needs each client's own upload after all, whatever `summed` says of the rest."""
        return False

    def pools(self) -> bool:
        """Say whether the server averages weights and, apart from that, holds every client's prototypes side by side.

        Then prototypes may be of more clients than weights are, as in asynchronous rounds. It holds for the `aggregate`
        beside it.
        """
        return False

    def forget(self, broadcast: Broadcast, client: int, sent: Upload | None) -> Broadcast | None:  # noqa: ARG002
        """Return the broadcast without what the server holds of a client by itself; None if it can take nothing out.

        Where nobody trains it must be what it would be had the client never taken part; elsewhere the others remember
        it. Rows of a broadcast's prototypes [N, C, M, D] are taken out without the method.

        Args:
            broadcast: what the server sends, with what it kept.
            client: the number of the client.
            sent: what the client sent in its first turn [1, ...]; None where that is not known any more.
        """
        return None

    def with_room(self, broadcast: Broadcast, clients: int) -> Broadcast:  # noqa: ARG002
        """Return the broadcast with room for so many clients, where the server keeps something of each.

        Over a network clients may join a run that goes on: numbers of clients grow, and are never used again.
        """
        return broadcast

    def send(self, broadcast: Broadcast, client: int) -> Broadcast:  # noqa: ARG002
        """Return what the server sends to one client."""
        return broadcast

    def receive(self, broadcast: Broadcast) -> Broadcast:
        """Return what a client makes of a broadcast before it trains, once a round."""
        return broadcast

    def references(self, broadcast: Broadcast) -> Prototypes | None:  # noqa: ARG002
        """Return the prototypes [C, M, D] of the nearest-prototype rule, or None where the method has none."""
        return None

    def answer(self, output: Output, turn: Turn) -> Tensor:  # noqa: ARG002
        """Return logits [B, C] by the method's own rule of prediction, if it has one and names it (`rule`).

        Args:
            output: what the client's own model makes of a batch.
            turn: the client's turn, as it is after training.
        """
        return output.logits

    def clusters_features(self) -> bool:
        """Say whether clients look for several prototypes of a class; a run in which they find one each says so."""
        return False

    def sets_are_of_clients(self) -> bool:
        """Say whether prototypes [N, C, M, D] of a broadcast belong to the round's N participants, in their order."""
        return True

    def bounds(self, found: Estimates, used: Used) -> Sequence[Bound]:  # noqa: ARG002
        """State what the paper's convergence theory asks of a run; nothing where it states nothing.

        It holds for the objective of the class that says it. A subclass says it again, or there are no bounds.
        """
        return []


@dataclass(frozen=True)
class PublicExchange(Method):
    """A method whose clients, before local training, exchange what they make of public, unlabelled images.

    Each does so with the model of its last turn; the aggregate of these models is where local training starts.
    """

    exchanges_public: ClassVar[bool] = True

    public_images: int = param(5000, "how many; 5,000 of CIFAR-100")
    public_batch: int = param(256, "public images in a batch; 128 on Office-Caltech")
    exchange: Literal["batch", "round"] = param("batch", "before every public batch; round: once for all of them")

    @abstractmethod
    def public_upload(self, features: Tensor, logits: Tensor) -> Upload:
        """What clients send about one public batch: from features [N, B, D] and logits [N, B, C]."""

    @abstractmethod
    def public_aggregate(self, uploads: Upload) -> Broadcast:
        """What the server makes of it."""

    @abstractmethod
    def public_loss(self, model: Net, x: Tensor, received: Broadcast) -> Tensor:
        """A client's loss of one public batch, a single number."""


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Compute the cross-entropy of each sample.

    It is not torch's, which looks for labels to ignore, at twice the kernels.

    Args:
        logits: [..., C].
        labels: classes [...], int64, from 0 to C − 1.

    Returns:
        One value per sample [...].

    Example:
        >>> import torch
        >>> from protofed.methods.base import cross_entropy
        >>> cross_entropy(torch.zeros(2, 4), torch.tensor([0, 3])).exp().round(decimals=3).tolist()
        [4.0, 4.0]
    """
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def weighted_mean(weights: Mapping[str, Tensor], importance: Tensor) -> dict[str, Tensor]:
    """The mean over clients of every floating-point tensor; integer buffers are the first client's."""
    share = importance.to(torch.float64) / importance.sum()
    return {
        name: torch.tensordot(share.to(tensor.dtype), tensor, dims=1) if tensor.is_floating_point() else tensor[0]
        for name, tensor in weights.items()
    }


def total_variances(weights: Mapping[str, Tensor], importance: Tensor, mean: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """BatchNorm's variances over all clients' data, by the law of total variance: Σ_k s_k (v_k + (m_k − m)²).

    Args:
        weights: the clients' models [N, ...].
        importance: what s_k is proportional to [N].
        mean: their mean, of which m is taken.
    """
    found: dict[str, Tensor] = {}
    for name, variances in weights.items():
        centre = name.removesuffix("running_var") + "running_mean"
        if name.endswith("running_var") and centre in weights:
            apart = (weights[centre] - mean[centre]).square()
            found |= weighted_mean({name: variances + apart}, importance)
    return found
