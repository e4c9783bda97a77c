"""What a method may say: its loss, what a client sends, what the server makes of it, how a prediction is made.

A method never loops over epochs, batches, clients or samples and never touches devices or files: engines do that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
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
from protofed.prototypes import Prototypes

T = TypeVar("T")

Collect = Literal["eval-pass", "last-epoch", "all-epochs"]
"""When prototypes are taken: after training in eval mode, or while training, before each batch's update."""

Initial = Literal["common", "own"]
"""Whose initial weights: one draw for all clients, or one for each."""

Averaging = Literal["samples", "uniform"]
"""How clients count in an average of weights."""

# What parameters that several methods have are: see `param`.
AVERAGING = "how clients count in the average of weights: by their samples, or all alike"
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
    """A parameter of a method: a field that says what it is and, of a number, where it may lie.

    Args:
        default: its value, unless a user gives another.
        help: what it is, as `protofed methods --json` tells it.
        at_least: the least value; or `above`, which it must exceed.
        above: see `at_least`.
        at_most: the largest value; or `below`, which it must not reach.
        below: see `at_most`.

    Returns:
        The field of the dataclass. A value outside the bounds is a UserError when the method is made.
    """
    return field(default=default, metadata={"help": help, "bounds": Bounds(at_least, above, at_most, below)})


class Batch(NamedTuple):
    """One client's mini-batch: images, labels, and which samples are real (padding is not)."""

    x: Tensor
    y: Tensor
    mask: Tensor


class Clock(NamedTuple):
    """The number of a round, from 0, how many there are, who takes part out of how many clients, and the run's seed."""

    round: int
    rounds: int
    who: tuple[int, ...] = ()
    clients: int = 0
    seed: int = 0


class Turn(NamedTuple):
    """A client's turn in a round: what it received, when, and what it knows by itself."""

    received: Broadcast
    clock: Clock
    previous: Mapping[str, Tensor] = MappingProxyType({})  # its model after its last turn, if `keeps_previous`
    prepared: Mapping[str, Tensor] = MappingProxyType({})  # what `prepare` made
    taken: Tensor = torch.tensor(0)  # how many turns it had before


class Phase(NamedTuple):
    """A part of a turn: so many epochs in which the parameters chosen by name are trained."""

    epochs: int
    trains: Callable[[str], bool]


class Trained(NamedTuple):
    """Clients after local training; every tensor has a leading client axis."""

    weights: Mapping[str, Tensor]
    samples: Tensor  # [N]: training samples
    features: Tensor  # [N, n, D]: what prototypes are made of; empty when the method collects none
    labels: Tensor  # [N, n]: -1 for padding
    classes: int
    keys: Tensor  # [N]: for draws in clustering
    losses: Tensor | None = None  # [N]: mean training loss of the last local epoch


class Summed(NamedTuple):
    """How uploads enter a server that only adds them up: by what a client's weights and prototypes are weighed."""

    weights: Literal["samples", "uniform"] = "samples"
    prototypes: Literal["samples", "uniform"] = "uniform"


@dataclass(frozen=True)
class Method(ABC):
    """A federated method. Its fields are the parameters a user may set."""

    name: ClassVar[str]
    paper: ClassVar[str] = ""  # authors, venue, year
    link: ClassVar[str] = ""
    up: ClassVar[str] = ""  # what a client sends, in words
    down: ClassVar[str] = ""
    score: ClassVar[str] = "own/own/head"  # the model/test/rule that its paper reports

    keeps_previous: ClassVar[bool] = False  # a client keeps the model of its last turn for the loss
    prepares: ClassVar[bool] = False  # a client looks at its data before it trains
    clip: ClassVar[float | None] = None  # largest norm of a client's gradient
    exchanges_public: ClassVar[bool] = False  # clients exchange what they make of public images; see PublicExchange
    unit_features: ClassVar[bool] = False  # its paper's theory is of features scaled to length 1

    collect: Collect | None = field(default=None, init=False)
    initial: Initial = field(default="common", init=False)

    def __post_init__(self) -> None:
        """Check the bounds of parameters; a method that checks more calls this first."""
        for item in fields(self):
            if "bounds" in item.metadata:
                item.metadata["bounds"].check(item.name, getattr(self, item.name))

    @abstractmethod
    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        """The local objective, one value per sample [B]; the engine averages over the samples that are real."""

    def shares(self, name: str) -> bool:  # noqa: ARG002 - subclasses decide by name
        """Whether the parameter or buffer of this name leaves the client."""
        return False

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        """The architecture that the method trains, made from the user's."""
        return module

    def phases(self, epochs: int) -> Sequence[Phase]:
        """The parts of a turn."""
        return [Phase(epochs, lambda _: True)]

    def optimiser(
        self, parameters: Iterable[Tensor], lr: float, momentum: float, weight_decay: float
    ) -> torch.optim.Optimizer:
        """A fresh optimiser; its state does not outlive a phase."""
        return SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay, fused=True)

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> Mapping[str, Tensor]:  # noqa: ARG002
        """What clients compute from their features [N, n, D] before training; labels are -1 for padding."""
        return {}

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:  # noqa: ARG002
        """The prototype sets a client sends, made from the collected features."""
        return {}

    def upload(self, trained: Trained) -> Upload:
        """What the clients send."""
        weights = {name: tensor for name, tensor in trained.weights.items() if self.shares(name)}
        return Upload(weights, self.prototypes(trained), {"samples": trained.samples} if weights else {})

    def aggregate(self, uploads: Upload, previous: Broadcast, clock: Clock) -> Broadcast:  # noqa: ARG002
        """What the server makes of a round's uploads (one per participant, in client order) and sends next."""
        return Broadcast()

    def summed(self) -> Summed | None:
        """How uploads are added up, if the server needs nothing of them but sums; None if it needs each client's.

        It holds for the `aggregate` beside it: a class with one of its own says this again.
        """
        return None

    def send(self, broadcast: Broadcast, client: int) -> Broadcast:  # noqa: ARG002
        """What the server sends to one client."""
        return broadcast

    def receive(self, broadcast: Broadcast) -> Broadcast:
        """What a client makes of a broadcast before it trains, once a round."""
        return broadcast

    def references(self, broadcast: Broadcast) -> Prototypes | None:  # noqa: ARG002
        """The prototypes [C, M, D] of the nearest-prototype rule, or None where the method has none."""
        return None

    def sets_are_of_clients(self) -> bool:
        """Whether prototypes [N, C, M, D] of a broadcast belong to the round's N participants, in their order."""
        return True

    def bounds(self, found: Estimates, used: Used) -> Sequence[Bound]:  # noqa: ARG002
        """What the paper's convergence theory asks of a run; nothing where it states nothing.

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
    """CE per sample. Not torch's, which looks for labels to ignore, at twice the kernels."""
    return -logits.log_softmax(-1).gather(-1, labels.unsqueeze(-1)).squeeze(-1)


def weighted_mean(weights: Mapping[str, Tensor], importance: Tensor) -> dict[str, Tensor]:
    """The mean over clients of every floating-point tensor; integer buffers are the first client's."""
    share = importance.to(torch.float64) / importance.sum()
    return {
        name: torch.tensordot(share.to(tensor.dtype), tensor, dims=1) if tensor.is_floating_point() else tensor[0]
        for name, tensor in weights.items()
    }
