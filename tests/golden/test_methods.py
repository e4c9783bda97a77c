"""Methods against what public codes make of the same inputs: turns of clients, aggregations, heads.

Each entry of methods.json says which repository, version and file its numbers are of. Where a public code differs from
ours on purpose, the inputs are such that both agree, and the method's page says where they differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Method, Server, Trained, Turn
from protofed.methods.ccvr import CCVR
from protofed.methods.ditto import Ditto
from protofed.methods.fed3r import Fed3R
from protofed.methods.fedbabu import FedBABU
from protofed.methods.fedbn import FedBN
from protofed.methods.fedcof import FedCOF
from protofed.methods.feddyn import FedDyn
from protofed.methods.fedetf import FedETF
from protofed.methods.fedgh import FedGH
from protofed.methods.fedheal import FedHEAL
from protofed.methods.fedlc import FedLC
from protofed.methods.fedncm import FedNCM
from protofed.methods.fednova import FedNova
from protofed.methods.fedpac import FedPAC
from protofed.methods.fedrod import FedRoD
from protofed.methods.fedtgp import LAYERS, FedTGP
from protofed.methods.lg_fedavg import LGFedAvg
from protofed.methods.scaffold import Scaffold
from protofed.methods.server.class_gaussians import gaussians
from protofed.methods.server.trainable_prototypes import margin_of
from protofed.models.net import Net
from protofed.models.output import Output
from protofed.prototypes import Prototypes, mean_over_holders
from tests.golden import method_cases as cases
from tests.support.given_outputs import Given
from tests.support.one_shot import served
from tests.support.turns import turn_of

GOLDEN = json.loads(cases.OUTPUTS.read_text(encoding="utf-8"))
PAGES = Path(__file__).parent.parent.parent / "docs/methods"
EMPTY = torch.empty(0)

Weights = Mapping[str, Tensor]


def golden(method: str) -> Any:
    return GOLDEN[method]["values"]


def as_tensor(value: Any) -> Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def assert_golden(found: Any, expected: Any) -> None:
    """Equal up to the rounding of float64."""
    if isinstance(expected, dict):
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert_golden(found[name], value)
    else:
        value = found.detach() if isinstance(found, Tensor) else as_tensor(found)  # a tensor has to be of float64
        assert_close(value, as_tensor(expected), atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("name", GOLDEN)
def test_the_page_links_the_code_that_the_numbers_are_of(name: str) -> None:
    repository = GOLDEN[name]["by"].split(" ")[0]
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"https://{repository}" in page
    assert f"(`tests/golden/methods.json`; {GOLDEN[name]['how']})" in " ".join(page.split())


class Small(nn.Module):
    """head(tanh(body(x)))."""

    feature_size = cases.FEATURES

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.body = nn.Linear(cases.INPUT, cases.FEATURES, dtype=torch.float64)
        self.head = nn.Linear(cases.FEATURES, cases.CLASSES, dtype=torch.float64)
        self.load_state_dict(weights_of(seed))

    def forward(self, x: Tensor) -> Output:
        features = self.body(x).tanh()
        return Output(features, self.head(features))


def weights_of(seed: int) -> dict[str, Tensor]:
    return {name: torch.from_numpy(value) for name, value in cases.network(seed).items()}


def batch_of(client: int, turn: int, step: int, classes: Callable[[Any], Any] = lambda y: y) -> Batch:
    x, y = cases.batch(client, turn, step)
    return Batch(torch.from_numpy(x), torch.from_numpy(classes(y)), torch.ones(len(y), dtype=torch.bool))


def everything(name: str) -> bool:  # noqa: ARG001 - a Phase's `trains`
    return True


def train(
    method: Method,
    module: nn.Module,
    turn: Turn,
    batches: Sequence[Batch],
    trains: Callable[[str], bool] = everything,
    weight_decay: float = 0.0,
) -> list[float]:
    """Steps of the method's optimiser on its loss; the losses."""
    chosen = [value for name, value in module.named_parameters() if trains(name)]
    optimiser = method.optimiser(chosen, cases.RATE, turn.momentum, weight_decay)
    losses = []
    for batch in batches:
        loss = method.loss(Net(module), batch, turn).mean()
        module.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.item())
    return losses


def lead(tensors: Weights) -> dict[str, Tensor]:
    """With an axis of one client."""
    return {name: value.detach().unsqueeze(0) for name, value in tensors.items()}


def trained_of(module: nn.Module, samples: int = 1) -> Trained:
    return Trained(lead(module.state_dict()), torch.tensor([samples]), EMPTY, EMPTY, cases.CLASSES, EMPTY)


def stack(states: Sequence[Weights]) -> dict[str, Tensor]:
    return {name: torch.stack([state[name] for state in states]) for name in states[0]}


def two_rounds(method: Method, seed: int) -> tuple[Broadcast, list[Weights]]:
    """Of clients that remember, three steps a turn: what the server sends then, and what each of the four remembers."""
    number, steps = 4, 3
    sent = Broadcast(weights_of(seed))
    memories = [dict(method.memory(sent.weights, cases.CLASSES)) for _ in range(number)]
    for round_number, who in enumerate(cases.TURNS):
        clock, uploads = Clock(round_number, len(cases.TURNS), who, number), []
        for k in who:
            module = Small(seed)
            module.load_state_dict(dict(sent.weights))
            turn = Turn(sent, clock, memory=memories[k])
            train(method, module, turn, [batch_of(k, round_number, step) for step in range(steps)])
            after = turn._replace(
                memory=lead(memories[k]), steps=torch.tensor([steps]), lr=as_tensor([cases.RATE]), momentum=0.0
            )
            uploads.append(method.upload(trained_of(module), after))
            memories[k] = {name: value[0] for name, value in method.remember(trained_of(module), after).items()}
        sent = method.aggregate(Upload.join(uploads), Server(sent, clock))
    return sent, list(memories)


def test_scaffold() -> None:
    sent, own = two_rounds(Scaffold(server_lr=0.7), seed=1)
    expected = golden("scaffold")
    assert_golden(sent.weights, expected["weights"])
    assert_golden(sent.numbers, expected["variate"])
    for memory, variate in zip(own, expected["own"], strict=True):
        assert_golden(memory, variate)


def test_feddyn() -> None:
    """The code's states are ours divided by −α."""
    sent, own = two_rounds(FedDyn(alpha=0.3), seed=2)
    expected = golden("feddyn")
    assert_golden(sent.weights, expected["weights"])
    for memory, state in zip(own, expected["own"], strict=True):
        assert_golden({name: value / -0.3 for name, value in memory.items()}, state)


@pytest.mark.parametrize(("case", "momentum"), [("plain", 0.0), ("momentum", 0.5)])
def test_fednova(case: str, momentum: float) -> None:
    method, sent, expected = FedNova(), Broadcast(weights_of(3)), golden("fednova")[case]
    uploads = []
    for k, (samples, steps) in enumerate(((10, 2), (20, 3), (40, 5))):
        module = Small(3)
        turn = Turn(sent, Clock(0, 1), steps=torch.tensor([steps]), momentum=momentum)
        train(method, module, turn, [batch_of(k, 0, step) for step in range(steps)], weight_decay=0.01)
        uploads.append(method.upload(trained_of(module, samples), turn))
    joined = Upload.join(uploads)
    assert_golden(joined.numbers["divisor"], expected["norms"])
    assert_golden(method.aggregate(joined, Server(sent, Clock(0, 1, (0, 1, 2), 3))).weights, expected["weights"])


def test_fedrod() -> None:
    method, expected = FedRoD(), golden("fedrod")
    module = method.extend(Small(4), cases.CLASSES)
    private = {f"private_{name}": value for name, value in weights_of(5).items() if name.startswith("head.")}
    module.load_state_dict({**weights_of(4), **private})
    turn = Turn(Broadcast(), Clock(0, 1), counts=torch.tensor(cases.COUNTS))
    losses = train(method, module, turn, [batch_of(0, 0, step, cases.held) for step in range(3)])
    assert_golden(losses, expected["losses"])
    assert_golden(module.state_dict(), expected["weights"])
    assert_golden(method.answer(module(batch_of(0, 1, 0).x), turn), expected["answer"])


@pytest.mark.parametrize("tau", [0.5, 1.0])
def test_fedlc(tau: float) -> None:
    """A class that the client lacks has a margin of 100 τ there, and 10⁴ here: both leave no trace in float64."""
    logits, y = torch.from_numpy(cases.normal(6, 6, 3)), torch.from_numpy(cases.held(cases.labels(7, 6)))
    module, expected = Given(torch.zeros(6, 3), logits), golden("fedlc")[str(tau)]
    turn = Turn(Broadcast(), Clock(0, 1), counts=torch.tensor(cases.COUNTS))
    losses = FedLC(tau=tau).loss(Net(module), Batch(torch.zeros(6, 1), y, torch.ones(6).bool()), turn)
    losses.mean().backward()  # type: ignore[no-untyped-call]
    assert_golden(losses, expected["losses"])
    assert_golden(module.logits.grad, expected["gradient"])


class Identity(nn.Module):
    """Features that are the input."""

    feature_size = cases.FEATURES
    head: nn.Module

    def forward(self, x: Tensor) -> Output:
        return Output(x, self.head(x))


def extended(method: Method, module: nn.Module) -> nn.Module:
    """What a method makes of an architecture, with constants that are of float64 from the start."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return method.extend(module, cases.CLASSES)
    finally:
        torch.set_default_dtype(before)


def test_fedetf() -> None:
    """The code rotates the simplex by U and ours does not: its projection P is U'P here."""
    method, expected = FedETF(scale=1.7), golden("fedetf")
    rotation = as_tensor(expected["rotation"])
    module = extended(method, Identity())
    weight, bias = torch.from_numpy(cases.normal(9, 3, 3)), torch.from_numpy(cases.normal(10, 3))
    projection = {"projection.weight": rotation.T @ weight, "projection.bias": rotation.T @ bias}
    cast(nn.Module, module.head).load_state_dict({"scale": as_tensor([1.7]), **projection})
    x, y = torch.from_numpy(cases.normal(11, 6, 3)), torch.from_numpy(cases.held(cases.labels(7, 6)))
    turn = Turn(Broadcast(), Clock(0, 1), counts=torch.tensor(cases.COUNTS))
    loss = method.loss(Net(module), Batch(x, y, torch.ones(6).bool()), turn).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert_golden(module(x).logits, expected["logits"])
    assert_golden(loss, expected["loss"])
    slopes = {name: cast(Tensor, value.grad) for name, value in module.named_parameters()}
    assert_golden(slopes["head.scale"], [expected["scale"]])
    assert_golden(rotation @ slopes["head.projection.weight"], expected["weight"])
    assert_golden(rotation @ slopes["head.projection.bias"], expected["bias"])


def means_of_holders() -> Upload:
    """One mean a client and class, of four classes."""
    vectors = torch.zeros(len(cases.HOLDERS), 4, 1, cases.FEATURES, dtype=torch.float64)
    counts = torch.zeros(len(cases.HOLDERS), 4, 1, dtype=torch.float64)
    for k, classes in enumerate(cases.HOLDERS):
        for c in classes:
            vectors[k, c, 0], counts[k, c] = torch.from_numpy(cases.class_mean(k, c)), 5
    return Upload({}, {"means": Prototypes(vectors, counts)})


@pytest.mark.parametrize("threshold", [100.0, 0.5])
def test_fedtgp(threshold: float) -> None:
    """All class means are one batch, so that their order does not matter; what nobody holds is not sent."""
    uploads, expected = means_of_holders(), golden("fedtgp")[str(threshold)]
    method = FedTGP(threshold=threshold, server_epochs=20, server_lr=0.05)
    d = cases.FEATURES
    shapes = {"embedding": (4, d), "hidden.weight": (d, d), "hidden.bias": (d,), "out.weight": (d, d), "out.bias": (d,)}
    layers = {
        LAYERS + name: torch.from_numpy(cases.normal(30 + place, *shape))
        for place, (name, shape) in enumerate(shapes.items())
    }
    found = method.aggregate(uploads, Server(Broadcast(kept=layers), Clock(0, 1, (0, 1, 2), 3))).prototypes["global"]
    assert_golden(found.vectors[:3, 0], expected["prototypes"][:3])
    assert not found.counts[3].any()
    means = mean_over_holders(uploads.prototypes["means"], method.weighting)
    assert_golden(margin_of(means, method.margin, threshold), expected["margin"])


def test_fedgh() -> None:
    """All class means are one batch, as for FedTGP."""
    head = {
        "head.weight": torch.from_numpy(cases.normal(40, 4, cases.FEATURES)),
        "head.bias": torch.from_numpy(cases.normal(41, 4)),
    }
    method = FedGH(server_lr=0.2, server_epochs=4, server_batch=10)
    found = method.aggregate(means_of_holders(), Server(Broadcast(head), Clock(0, 1, (0, 1, 2), 3)))
    assert_golden(found.weights, golden("fedgh"))


def clients() -> Trained:
    """Clients with features of four classes, the last of which nobody holds."""
    data = cases.samples()
    longest = max(len(y) for _, y in data)
    features = torch.zeros(len(data), longest, cases.FEATURES, dtype=torch.float64)
    labels = torch.full((len(data), longest), -1)
    for k, (x, y) in enumerate(data):
        features[k, : len(y)], labels[k, : len(y)] = torch.from_numpy(x), torch.from_numpy(y)
    numbers = torch.tensor([len(y) for _, y in data])
    return Trained({}, numbers, features, labels, 4, torch.arange(len(data)))


def test_fedncm() -> None:
    found = served(FedNCM(), clients()).weights["head.weight"]
    assert_golden(found[:3], golden("fedncm"))


@pytest.mark.parametrize("lam", [0.01, 2.0])
def test_fed3r(lam: float) -> None:
    found, expected = served(Fed3R(lam=lam), clients()).weights, golden("fed3r")[str(lam)]
    assert_golden(found["head.weight"], expected["weight"])
    assert_golden(found["head.bias"], expected["bias"])


@pytest.mark.parametrize("gamma", [1.0, 0.1])
def test_fedcof(gamma: float) -> None:
    assert_golden(served(FedCOF(gamma=gamma), clients()).weights["head.weight"], golden("fedcof")[str(gamma)])


def test_ccvr() -> None:
    trained, method, expected = clients(), CCVR(), golden("ccvr")
    sums = method.upload(trained, turn_of(trained, method)).sums
    means, covariances = gaussians({name: value.sum(0) for name, value in sums.items()})
    assert_golden(means[:3], expected["means"])
    assert_golden(covariances[:3], expected["covariances"])


def test_fedpac_serves_as_the_code() -> None:
    """Heads to 1e-8: ours adds a floor of 1e-9 to variances, so that clients alike in all get the same."""
    trained, method, expected = clients(), FedPAC(), golden("fedpac")
    heads = torch.stack([torch.from_numpy(cases.normal(60 + k, 4, cases.FEATURES)) for k in range(3)])
    trained = trained._replace(weights={"head.weight": heads})
    upload = method.upload(trained, turn_of(trained, method))
    assert_golden(upload.numbers["v"], expected["v"])
    assert_golden(upload.numbers["h"], expected["h"])
    server = Server(Broadcast({"head.weight": torch.zeros_like(heads[0])}), Clock(0, 1, (0, 1, 2), 3))
    sent = method.aggregate(upload, server)
    assert_golden(sent.prototypes["global"].vectors[:3, 0], expected["prototypes"])
    for k, head in enumerate(expected["heads"]):
        assert_close(method.send(sent, k).weights["head.weight"], as_tensor(head), atol=1e-8, rtol=0)


def test_fedpac_pulls_as_the_code() -> None:
    module, expected = Small(7), golden("fedpac")
    known = Prototypes(as_tensor(expected["prototypes"]).unsqueeze(1), torch.ones(3, 1, dtype=torch.float64))
    turn = Turn(Broadcast({}, {"global": known}), Clock(1, 2), phase=1)
    loss = FedPAC(lam=2.0).loss(Net(module), batch_of(0, 0, 0), turn).mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert_golden(loss, expected["loss"])
    assert_golden({name: value.grad for name, value in module.body.named_parameters()}, expected["gradient"])


def test_ditto() -> None:
    """The code takes a step of either model in turn; here each has a phase, on the same batches."""
    method, expected = Ditto(lam=0.6), golden("ditto")
    module = method.extend(Small(8), cases.CLASSES)
    received = {name: value.clone() for name, value in module.state_dict().items() if method.shares(name)}
    cast(nn.Module, module.personal).load_state_dict(weights_of(9))
    for number, phase in enumerate(method.phases(1)):
        turn = Turn(Broadcast(received), Clock(0, 1), phase=number)
        train(method, module, turn, [batch_of(1, 0, step) for step in range(3)], phase.trains)
    for part in ("personal", "average"):
        assert_golden(cast(nn.Module, getattr(module, part)).state_dict(), expected[part])


def test_fedheal() -> None:
    """Four rounds; in the second, some updates are dropped by everybody."""
    method, expected = FedHEAL(), golden("fedheal")
    sent, who = Broadcast(weights_of(70)), (0, 1, 2)
    memory = stack([method.memory(sent.weights, cases.CLASSES) for _ in who])
    for number in range(4):
        moved = [weights_of(100 + 40 * number + 10 * k) for k in who]
        new = stack([{n: sent.weights[n] + 0.3 * (k + 1) * v for n, v in moved[k].items()} for k in who])
        trained = Trained(new, torch.ones(3, dtype=torch.int64), EMPTY, EMPTY, cases.CLASSES, EMPTY)
        clock = Clock(number, 4, who, 3)
        turn = Turn(sent, clock, memory=memory, taken=torch.full((3,), number))
        upload, memory = method.upload(trained, turn), dict(method.remember(trained, turn))
        sent = method.aggregate(upload, Server(sent, clock))
    assert_golden(sent.weights, expected["weights"])
    assert_golden(sent.kept["weights"][0], expected["importance"])


def test_fedbabu() -> None:
    """The code fine-tunes once, after all rounds; here a turn ends with it."""
    method, expected, sent = FedBABU(), golden("fedbabu"), Broadcast(weights_of(80))
    body, head = method.phases(1)
    uploads, turn = [], Turn(sent, Clock(0, 1))
    for k, samples in enumerate((10, 30)):
        module = Small(80)
        train(method, module, turn, [batch_of(k, 0, step) for step in range(3)], body.trains)
        if k == 0:
            train(method, module, turn, [batch_of(k, 0, step) for step in (3, 4)], head.trains)
            assert_golden(module.state_dict(), expected["own"])
        uploads.append(method.upload(trained_of(module, samples), turn))
    found = method.aggregate(Upload.join(uploads), Server(sent, Clock(0, 1, (0, 1), 2))).weights
    assert_golden({name: value for name, value in found.items() if name.startswith("body.")}, expected["average"])


def averaged(method: Method, states: Sequence[Weights]) -> Weights:
    """What the server sends after a round of clients with different numbers of samples."""
    trained = Trained(stack(states), torch.tensor([1, 2, 3]), EMPTY, EMPTY, cases.CLASSES, EMPTY)
    upload = method.upload(trained, Turn(Broadcast(), Clock(0, 1)))
    return method.aggregate(upload, Server(Broadcast(), Clock(0, 1, (0, 1, 2), 3))).weights


def test_fedbn() -> None:
    shapes = enumerate(cases.NORMED.items())
    places = [(name, place, shape) for place, (name, shape) in shapes]
    states = [
        {name: torch.from_numpy(cases.normal(200 + 20 * k + place, *shape)) for name, place, shape in places}
        for k in range(3)
    ]
    assert_golden(averaged(FedBN(), states), golden("fedbn"))


def test_lg_fedavg() -> None:
    assert_golden(averaged(LGFedAvg(), [weights_of(300 + 10 * k) for k in range(3)]), golden("lg-fedavg"))
