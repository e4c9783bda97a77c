"""Ideas that authors of methods had, each a file of its own beside this one: engines agree on them, and they resume."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.methods.base import Batch, Clock, Collect, Method, Server, Trained, Turn, cross_entropy
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedproto import FedProto
from protofed.models import ModelSpec, Output, build
from protofed.models.net import Net
from protofed.prototypes import Prototypes, class_means
from protofed.runs.run import Run, new_run
from tests.methods.contract.adamw_clients import AdamWClients
from tests.methods.contract.balanced_softmax import BalancedSoftmax
from tests.methods.contract.class_covariances import ClassCovariances
from tests.methods.contract.domain_adversary import DomainAdversary
from tests.methods.contract.dynamic_regulariser import DynamicRegulariser
from tests.methods.contract.feature_generator import FeatureGenerator
from tests.methods.contract.keyed_mixup import KeyedMixup
from tests.methods.contract.own_pace import OwnPace
from tests.methods.contract.private_temperature import PrivateTemperature
from tests.methods.contract.running_means import RunningMeans
from tests.methods.contract.second_order_maml import SecondOrderMaml
from tests.methods.contract.server_distillation import ServerDistillation, divergence
from tests.methods.contract.trained_prototypes import TrainedPrototypes
from tests.methods.contract.two_views import TwoViews
from tests.support.nets import CLASSES, Noisy, Plain, assert_same_run, federation, gap, own, source
from tests.support.prototype_cases import random_features, random_labels
from tests.support.resumed_runs import saved
from tests.support.turns import turn_of
from tests.support.whole_runs import assert_exactly_fedavg, run_of

IDEAS: tuple[Method, ...] = (
    *(TrainedPrototypes(), PrivateTemperature(), ClassCovariances(), DynamicRegulariser(), SecondOrderMaml()),
    *(AdamWClients(), FeatureGenerator(), RunningMeans(), KeyedMixup(), TwoViews(), ServerDistillation()),
    *(DomainAdversary(), OwnPace(), BalancedSoftmax()),
)
every_idea = pytest.mark.parametrize("idea", IDEAS, ids=lambda idea: idea.name)
both_engines = pytest.mark.parametrize("engine", ["sequential", "stacked"])


def played(idea: Method, engine: str, rounds: int = 3, model: ModelSpec = Noisy, **given: Any) -> Run:
    """Three of five unequal clients a round, in float64; padded batches, BatchNorm and dropout."""
    return run_of(idea, engine, rounds, model, public="digits", **given)


@every_idea
def test_the_engines_agree(idea: Method) -> None:
    one, other = (played(idea, engine) for engine in ("sequential", "stacked"))
    assert_same_run(one, other)
    assert all(bool(value.isfinite().all()) for value in one.state().values() if value.is_floating_point())
    assert gap(own(one), own(played(idea, "sequential", 0))) > 1e-4
    assert_same_run(one, played(idea, "stacked", width=2))


@every_idea
@both_engines
def test_a_resumed_run_is_the_uninterrupted_one(idea: Method, engine: str, tmp_path: Path) -> None:
    whole, cut, resumed = (played(idea, engine, rounds) for rounds in (3, 2, 0))
    resumed.restore(saved(cut, tmp_path / "run"))
    resumed.play_round()
    assert gap(resumed.state(), whole.state()) < 1e-14  # a checkpoint's tensors lie differently in memory
    assert resumed.history[-1].per_client == whole.history[-1].per_client


@every_idea
def test_auto_runs_it(idea: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = played(idea, "auto", 1)
    assert run.setup.engine_reason.startswith("measured")
    assert_same_run(run, played(idea, "sequential", 1))


@every_idea
def test_a_method_is_a_short_file(idea: Method) -> None:
    file = Path(__file__).parent / f"{idea.name.replace('-', '_')}.py"
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 60


# What each of them says.


def test_trained_prototypes_have_a_smaller_loss_than_the_last_ones() -> None:
    vectors = torch.randn(4, 3, 1, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sent = Prototypes(vectors, torch.tensor([[1.0, 2.0, 0.0]] * 4, dtype=torch.float64).unsqueeze(-1))
    method, server = TrainedPrototypes(), Server(Broadcast(), Clock(0, 3, (0, 1, 2, 3), 4, seed=1))
    begin = TrainedPrototypes(server_steps=0).aggregate(_upload(sent), server).prototypes["global"]
    end = method.aggregate(_upload(sent), server).prototypes["global"]
    losses = [float(method.server_loss(found.class_mean(), sent)) for found in (begin, end)]
    assert losses[1] < 0.8 * losses[0]
    again = method.aggregate(_upload(sent), server._replace(previous=Broadcast(prototypes={"global": end})))
    assert float(method.server_loss(again.prototypes["global"].class_mean(), sent)) < losses[1]


def _upload(sent: Prototypes) -> Upload:
    return Upload(prototypes={"means": sent})


def test_a_private_temperature_stays_and_the_averaged_model_is_tested_without_it() -> None:
    run = played(PrivateTemperature(), "stacked")
    temperatures = run.engine.groups[0].own.take(range(5))["log_temperature"]
    assert len(set(temperatures.tolist())) == 5
    assert "log_temperature" not in run.broadcast.weights
    assert {"global/all/head", "global/own/head"} <= run.history[-1].accuracy.keys()
    assert run.client_memory(run.engine.groups[0]) == 8  # a float64


def test_covariances_are_those_of_all_data() -> None:
    run = played(ClassCovariances(), "stacked", 1, participation=1.0)
    group = run.engine.groups[0]
    z, y = run.engine.embed(group, range(5), group.own.take(range(5)))
    for c in range(CLASSES):
        mine = z[y == c]
        expected = mine.T.cov(correction=0) if len(mine) else z.new_zeros(8, 8)
        assert_close(run.broadcast.numbers["covariances"][c], expected, atol=1e-12, rtol=0)
    assert len(z[y == 5]) == 0


def test_a_dynamic_regulariser_remembers_how_far_it_went() -> None:
    method = DynamicRegulariser(alpha=0.3)
    run = played(method, "stacked", 1)
    group = run.engine.groups[0]
    who = run.history[0].participants
    went = {name: value - group.own.initial[name] for name, value in group.own.take(range(5)).items()}
    for name, value in group.own.memory(range(5)).items():
        assert_close(value, -0.3 * went[name], atol=1e-15, rtol=0)
        assert all(bool((value[k] == 0).all()) for k in range(5) if k not in who)
    assert any(bool((value[who] != 0).any()) for value in group.own.memory(range(5)).values())


def test_what_clients_remember_is_counted_and_never_sent() -> None:
    plain, run = (played(method, "stacked") for method in (FedAvg(), DynamicRegulariser()))
    group = run.engine.groups[0]
    assert run.client_memory(group) == sum(value.nbytes for value in group.own.initial.values())
    assert run.result(None).client_memory == run.client_memory(group)
    assert plain.client_memory(plain.engine.groups[0]) == 0
    assert [line.bytes_up for line in run.history] == [line.bytes_up for line in plain.history]
    assert [line.bytes_down for line in run.history] == [line.bytes_down for line in plain.history]


def test_maml_differentiates_through_its_step() -> None:
    module = build(Plain, (1, 4, 4), 3, 0).double()
    batch = _batch(6)
    loss = SecondOrderMaml(inner_lr=0.4).loss(Net(module), batch, _turn())
    torch.autograd.backward(loss.mean())
    weights = dict(module.named_parameters())
    inner = cross_entropy(Net(module)(batch.x).logits, batch.y).mean()
    slopes = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
    moved = {name: value - 0.4 * slope for (name, value), slope in zip(weights.items(), slopes, strict=True)}
    outer = cross_entropy(Net(module)(batch.x, moved).logits, batch.y).mean()
    for value, slope in zip(weights.values(), torch.autograd.grad(outer, list(weights.values())), strict=True):
        assert_close(value.grad, slope)


@both_engines
def test_adamw_of_a_method_is_that_of_the_option(engine: str) -> None:
    assert gap(played(AdamWClients(), engine).state(), played(FedAvg(), engine, optimiser="adamw").state()) < 1e-12


@both_engines
@pytest.mark.parametrize(
    ("method", "part", "before"),
    [(FeatureGenerator(strength=0.0), "generator", ""), (DomainAdversary(strength=0.0), "discriminator", "body.")],
    ids=["generator", "discriminator"],
)
def test_a_phase_trains_its_part_alone(method: Method, part: str, before: str, engine: str) -> None:
    """Without its term, the rest is FedAvg to the bit: another phase, with batches of its own, leaves it alone."""
    run, plain, begun = (played(m, engine, n) for m, n in ((method, 3), (FedAvg(), 3), (method, 0)))
    found, first = (some.engine.groups[0].own.take(range(5)) for some in (run, begun))
    for name, value in plain.engine.groups[0].own.take(range(5)).items():
        assert torch.equal(found[before + name], value)
    who = [int(k) for k in run.engine.groups[0].taken.nonzero()]
    assert all(bool((found[n][who] != first[n][who]).any()) for n in found if part in n)


def test_a_generator_makes_features_of_the_class_it_is_asked_for() -> None:
    run = played(FeatureGenerator(), "stacked", 30, participation=1.0, lr=0.3, lr_decay=1.0, eval_every=30)
    state = {name: value[0] for name, value in run.engine.groups[0].own.take([0]).items()}
    asked = torch.cat([torch.full((CLASSES, 3), 0.5), torch.eye(CLASSES)], 1).double()
    made = F.linear(asked, state["generator.weight"], state["generator.bias"]).relu()
    assert F.linear(made, state["head.weight"], state["head.bias"]).argmax(1).tolist() == list(range(CLASSES))


def test_running_means_are_those_of_a_loop() -> None:
    method, old = RunningMeans(beta=0.25), torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(1))
    features, labels = random_features(3, 30, 2, seed=0), random_labels(3, 30, classes=3, seed=0)
    counts = torch.tensor([[1.0, 0.0, 2.0, 3.0]] * 3)
    old = old * (counts > 0).unsqueeze(-1)
    nobody = torch.ones(3)
    trained = Trained({}, nobody, features, labels, 4, nobody.long())
    turn = turn_of(trained)._replace(memory={"means": old.to(features), "counts": counts.to(features)})
    found = method.remember(trained, turn)
    for k in range(3):
        for c in range(4):
            mine = features[k][labels[k] == c]
            expected = old[k, c].to(features)
            if len(mine):
                expected = 0.25 * expected + 0.75 * mine.mean(0) if counts[k, c] else mine.mean(0)
            assert_close(found["means"][k, c], expected)


@both_engines
def test_running_means_without_a_past_are_fedproto(engine: str) -> None:
    plain, run = (played(method, engine) for method in (FedProto(), RunningMeans(beta=0.0)))
    assert gap(own(run), own(plain)) == 0
    assert plain.broadcast.prototypes["global"].vectors.equal(run.broadcast.prototypes["global"].vectors)


def test_mixup_of_nothing_is_fedavg() -> None:
    assert_exactly_fedavg(KeyedMixup(strength=0.0))


@pytest.mark.parametrize("method", [KeyedMixup(), TwoViews(), FeatureGenerator()], ids=lambda method: method.name)
def test_padding_changes_no_draw_of_a_real_sample(method: Method) -> None:
    module = method.extend(build(Plain, (1, 4, 4), 3, 0), 3).double()
    batch, more = _batch(5), _batch(8)
    padded = Batch(torch.cat([batch.x, more.x[5:]]), torch.cat([batch.y, more.y[5:]]), torch.arange(8) < 5)
    found, expected = (method.loss(Net(module), some, _turn()) for some in (padded, batch))
    assert_close(found[:5], expected, atol=1e-12, rtol=0)
    assert not torch.allclose(method.loss(Net(module), batch, _turn(key=8)), expected)


def test_a_server_distils_its_clients_on_public_images() -> None:
    run, method = played(ServerDistillation(), "stacked", 1), ServerDistillation(server_steps=20)
    clock = Clock(1, 3, (0, 1, 2, 3, 4), 5)
    uploads = run.engine.round(clock.who, run.broadcast, clock).uploads
    server = run.engine.server(run.broadcast, clock)
    assert server.model is not None
    assert server.public is not None
    x = server.public[: method.images]
    states = [{name: value[k] for name, value in uploads.weights.items()} for k in range(5)]
    wanted = torch.stack([server.model(x, state, train=False).logits.softmax(-1) for state in states]).mean(0)
    mean, student = (one.aggregate(uploads, server).weights for one in (FedAvg(), method))
    losses = [float(divergence({}, weights, server.model, x, wanted)) for weights in (mean, student)]
    assert losses[1] < losses[0]
    assert {name for name in mean if not torch.equal(mean[name], student[name])} == set(server.model.weights)


@pytest.mark.parametrize("normalise", ["dataset", "client", "pixels", "none"])
def test_the_servers_images_are_normalised_by_their_own_statistics(normalise: str) -> None:
    """Nobody tells it those of clients, who hold few of the digits and have some each."""
    more: dict[str, Any] = {"dataset": "digits", "alpha": 0.1, "clients": 3, "train_size": 90, "public": "digits"}
    run = new_run(
        Experiment(method="fedavg", model="mlp", device="cpu", normalise=normalise, **more),  # type: ignore[arg-type]
        ServerDistillation(),
    )
    found = run.engine.server(run.broadcast, Clock(0, 1)).public
    x = source().train.x.double()
    expected = {"none": x, "pixels": x / 255}.get(normalise, (x - x.mean()) / x.std(correction=0))
    assert_close(found, expected.float())


def test_clients_have_a_pace_of_their_own() -> None:
    run = played(OwnPace(more=4.0), "stacked", 0, lr=0.02)
    clock = Clock(0, 3, (0, 1, 2, 3, 4), 5)
    uploads = run.engine.round(clock.who, run.broadcast, clock).uploads
    steps = [2 * each for each in (2, 8, 1, 12, 1)]  # two epochs; plain ones have 5, 2, 3, 3 and 1 steps
    rates = [0.03, 0.01, 0.03, 0.01, 0.03]
    expected = [number * rate for number, rate in zip(steps, rates, strict=True)]
    assert_close(uploads.numbers["way"], torch.tensor(expected, dtype=torch.float64))


@dataclass(frozen=True)
class Hurried(FedProto):
    """Passes more often over the same samples than an epoch does; prototypes are of all of them."""

    name: ClassVar[str] = "hurried"

    def effort(self, steps: int, client: int, clock: Clock) -> tuple[int, float]:
        """More in every round."""
        return steps * (2 + clock.round) + client, 1.0


@pytest.mark.parametrize("collect", ["last-epoch", "all-epochs"])
def test_prototypes_of_many_passes_are_what_was_declared(collect: Any) -> None:
    runs = [played(Hurried(collect=collect), engine, min_count=2) for engine in ("sequential", "stacked")]
    assert_same_run(runs[0], runs[1])
    assert not any(line.left_out for line in runs[0].history)
    clock = Clock(2, 3, (0, 1, 2, 3, 4), 5)
    (found,) = runs[0].engine.round(clock.who, runs[0].broadcast, clock).uploads.prototypes.values()
    declared = runs[0].engine.declared(clock)
    plain = played(FedProto(collect=collect), "sequential", 0).engine.declared(clock)
    assert all(one > other for one, other in zip(declared, plain, strict=True))
    assert all(int(total) <= most for total, most in zip(found.counts.sum((1, 2)), declared, strict=True))


def test_a_class_that_a_client_lacks_has_no_part_in_a_balanced_softmax() -> None:
    module, batch = build(Plain, (1, 4, 4), 3, 0).double(), _batch(6)
    batch = batch._replace(y=batch.y % 2)
    turn = _turn()._replace(counts=torch.tensor([6, 2, 0]))
    logits = Net(module)(batch.x).logits
    expected = [-(logits[k, y] - torch.log(3 * logits[k, 0].exp() + logits[k, 1].exp())) for k, y in enumerate(batch.y)]
    shares = torch.tensor([3.0, 1.0]).double().log()[batch.y]
    loss = BalancedSoftmax().loss(Net(module), batch, turn)
    assert_close(loss, torch.stack(expected) - shares)
    torch.autograd.backward(loss.mean())
    assert bool((module.get_parameter("head.weight").grad[2] == 0).all())  # type: ignore[index]


def _batch(size: int) -> Batch:
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(size, 1, 4, 4, generator=rng, dtype=torch.float64)
    return Batch(x, torch.arange(size) % 3, torch.ones(size, dtype=torch.bool))


def _turn(key: int = 7) -> Turn:
    return Turn(Broadcast(), Clock(0, 3), key=torch.tensor(key))


# What is refused.


@dataclass(frozen=True)
class Draws(FedAvg):
    """Draws from a generator of the whole process, in one place."""

    name: ClassVar[str] = "draws"
    prepares: ClassVar[bool] = True
    rule: ClassVar[str] = "drawn"
    collect: Collect = "eval-pass"

    where: str = "nowhere"
    which: str = "torch"

    def _drawn(self, place: str, like: Tensor) -> Tensor:
        if place != self.where:
            return like
        with torch.no_grad():
            if self.which == "numpy":
                return like + torch.as_tensor(np.random.rand(*like.shape)).to(like)
            return like + torch.randn(like.shape, dtype=torch.float64).to(like)

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:
        loss = super().loss(model, batch, turn)
        return loss if self.where != "loss" else loss + self._drawn("loss", torch.zeros_like(loss))

    def prepare(self, features: Tensor, labels: Tensor, received: Broadcast) -> Mapping[str, Tensor]:  # noqa: ARG002
        return {"means": self._drawn("prepare", features.mean(1))}

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:
        self._drawn("remember", trained.samples.double())
        return super().remember(trained, turn)

    def prototypes(self, trained: Trained) -> Mapping[str, Prototypes]:
        means = class_means(trained.features, trained.labels, trained.classes)
        return {"means": Prototypes(self._drawn("prototypes", means.vectors), means.counts)}

    def upload(self, trained: Trained, turn: Turn) -> Upload:
        sent = super().upload(trained, turn)
        return replace(sent, weights={n: self._drawn("upload", value) for n, value in sent.weights.items()})

    def aggregate(self, uploads: Upload, server: Server) -> Broadcast:
        made = super().aggregate(uploads, server)
        return replace(made, weights={n: self._drawn("aggregate", value) for n, value in made.weights.items()})

    def send(self, broadcast: Broadcast, client: int) -> Broadcast:
        self._drawn("send", torch.zeros(client + 1))
        return broadcast

    def receive(self, broadcast: Broadcast) -> Broadcast:
        self._drawn("receive", torch.zeros(1))
        return broadcast

    def answer(self, output: Output, turn: Turn) -> Tensor:  # noqa: ARG002
        return self._drawn("answer", output.logits)


PLACES = ("loss", "prepare", "remember", "prototypes", "upload", "aggregate", "send", "receive", "answer")


class Forgetful(nn.Module):
    """A model that a method has extended with torch's dropout."""

    def __init__(self, body: nn.Module, size: int) -> None:
        super().__init__()
        self.body, self.feature_size = body, size

    def forward(self, x: Tensor) -> Output:
        out: Output = self.body(x)
        return out._replace(logits=F.dropout(out.logits, 0.1, self.training))


@dataclass(frozen=True)
class Extends(FedAvg):
    """Adds torch's functional dropout to the model."""

    name: ClassVar[str] = "extends"

    def extend(self, module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG002
        return Forgetful(module, module.feature_size)  # type: ignore[arg-type]


class Seldom(Plain):
    """Draws from torch's generator for larger batches than those it is looked at with."""

    def forward(self, x: Tensor) -> Output:
        out = super().forward(x)
        return out._replace(logits=F.dropout(out.logits, 0.1, self.training)) if len(x) > 2 else out


REFUSED = "for --method: it or its model draws from a global generator"


@pytest.mark.parametrize(
    ("method", "model"),
    [(Draws(where="loss"), Noisy), (Extends(), Noisy), (FedAvg(), Seldom)],
    ids=["loss", "method", "model"],
)
@pytest.mark.parametrize("clients", [1, 5])
@pytest.mark.parametrize(("engine", "width"), [("sequential", None), ("stacked", None), ("stacked", 1), ("auto", None)])
def test_draws_from_torchs_generator_are_refused(
    method: Method, model: ModelSpec, engine: str, width: int | None, clients: int
) -> None:
    some = federation(({0: 20, 1: 16}, {1: 9, 2: 8}, {0: 3, 3: 16}, {3: 12, 4: 12}, {0: 4, 4: 5})[:clients])
    with torch.random.fork_rng(), pytest.raises(UserError, match=f"'{method.name}' {REFUSED}") as error:
        played(method, engine, 1, model, clients=some, width=width, participation=1.0)
    assert "turn.key" in str(error.value.hint)


@both_engines
@pytest.mark.parametrize("which", ["torch", "numpy"])
@pytest.mark.parametrize("place", PLACES)
def test_a_draw_without_an_address_is_refused_wherever_it_is(place: str, which: str, engine: str) -> None:
    with torch.random.fork_rng(), pytest.raises(UserError, match=REFUSED) as error:
        played(Draws(where=place, which=which), engine, 1, Plain, epochs=1)
    assert "server.draws(purpose)" in str(error.value.hint)


@both_engines
def test_draws_with_an_address_pass(engine: str) -> None:
    played(Draws(), engine, 1, Plain, epochs=1)


class Functional(Plain):
    """A user's model with torch's functional dropout."""

    def forward(self, x: Tensor) -> Output:
        out = super().forward(x)
        return out._replace(logits=F.dropout(out.logits, 0.1, self.training))


@pytest.mark.parametrize("engine", ["sequential", "stacked", "auto"])
def test_functional_dropout_in_a_model_is_refused_at_once(engine: str) -> None:
    with pytest.raises(UserError, match="'Functional' for --model: its forward draws random numbers") as error:
        played(FedAvg(), engine, 0, Functional)
    assert "\n" not in str(error.value)
    assert "nn.Dropout" in str(error.value.hint)


@dataclass(frozen=True)
class Remembers(FedAvg):
    """Remembers something of another form than at first."""

    name: ClassVar[str] = "remembers"
    what: str = "another name"

    def memory(self, weights: Mapping[str, Tensor], classes: int) -> Mapping[str, Tensor]:
        return {"turns": next(iter(weights.values())).new_zeros(classes)}

    def remember(self, trained: Trained, turn: Turn) -> Mapping[str, Tensor]:  # noqa: ARG002
        old = turn.memory["turns"]
        return {
            "another name": {"terms": old},
            "another shape": {"turns": old[:, :2]},
            "another type": {"turns": old.long()},
            "more": {"turns": old, "more": old},
            "nothing": {},
            "no client axis": {"turns": old[0]},
        }[self.what]


@both_engines
@pytest.mark.parametrize("what", ["another name", "another shape", "another type", "more", "nothing", "no client axis"])
def test_a_memory_of_another_form_is_refused_by_the_methods_name(what: str, engine: str) -> None:
    with pytest.raises(UserError, match="'remembers' for --method: what it remembers must have the names, types and"):
        played(Remembers(what=what), engine, 1)


@pytest.mark.parametrize("effort", [(0, 1.0), (3, 0.0), (3, float("nan"))])
@both_engines
def test_no_effort_is_refused(effort: tuple[int, float], engine: str) -> None:
    @dataclass(frozen=True)
    class Idle(FedAvg):
        name: ClassVar[str] = "idle"

        def effort(self, steps: int, client: int, clock: Clock) -> tuple[int, float]:  # noqa: ARG002
            return effort

    with pytest.raises(UserError, match="'idle' for --method: a client must take 1 step or more, at a rate above 0"):
        played(Idle(), engine, 1)


def test_a_file_of_ones_own_runs_by_its_path() -> None:
    """As `protofed run --method FILE:CLASS --set alpha=0.2` does."""
    file = Path(__file__).parent / "dynamic_regulariser.py"
    options: dict[str, Any] = {"train_size": 120, "clients": 2, "rounds": 1, "device": "cpu", "engine": "stacked"}
    run = new_run(Experiment(f"{file}:DynamicRegulariser", {"alpha": 0.2}, **options))
    run.play_round()
    assert run.result(None).params == {"averaging": "samples", "norm": "mean", "alpha": 0.2}
