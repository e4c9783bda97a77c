"""MOON, FedPer, FedRep, FedNTD and FedRCL: losses against plain loops, whole runs against a slow reference, parity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import vmap
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast
from protofed.methods.base import Batch, Clock, Method, Phase, Turn
from protofed.methods.fedavg import FedAvg
from protofed.methods.fedntd import FedNTD, not_true
from protofed.methods.fedper import FedPer
from protofed.methods.fedrcl import FedRCL
from protofed.methods.fedrep import FedRep
from protofed.methods.local import Local
from protofed.methods.moon import Moon
from protofed.models import ModelSpec, Output, build, parameter_count
from protofed.models.net import Net
from protofed.models.projection import Projected
from protofed.runs.folder import RunFolder
from protofed.runs.run import Run
from tests.reference import clients as slow
from tests.support.nets import CLASSES, Noisy, Norm, Part, Plain, assert_same_run, federation, gap, own

quick = settings(max_examples=15, deadline=None)
seeds = st.integers(0, 2**16)


class Levels(nn.Module):
    """A convolution and two dense layers that return block features, by default without randomness or state."""

    def __init__(self, shape: tuple[int, int, int], classes: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], 3, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(3) if dropout else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.hidden = nn.Linear(3 * -(-shape[1] // 2) * -(-shape[2] // 2), 6)
        self.head = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Output:
        maps = self.norm(self.conv(x))
        hidden = self.hidden(maps.relu().flatten(1))
        features = self.dropout(hidden.tanh())
        return Output(features, self.head(features), (maps, hidden))


class Restless(Levels):
    """The same with BatchNorm and dropout."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__(shape, classes, dropout=0.25)


class Given(nn.Module):
    """A network whose outputs are its parameters."""

    feature_size = 3

    def __init__(self, features: Tensor, logits: Tensor, *blocks: Tensor) -> None:
        super().__init__()
        self.features, self.logits = nn.Parameter(features), nn.Parameter(logits)
        self.blocks = nn.ParameterList(blocks)

    def forward(self, x: Tensor) -> Output:
        del x
        return Output(self.features * 1, self.logits * 1, tuple(block * 1 for block in self.blocks))


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def labels_of(number: int, classes: int, seed: int) -> Tensor:
    return torch.randint(0, classes, (number,), generator=torch.Generator().manual_seed(seed))


def added(method: Method, module: nn.Module, y: Tensor, turn: Turn, mask: Tensor | None = None) -> Tensor:
    """What a method adds to the cross-entropy."""
    batch = Batch(torch.zeros(len(y), 1), y, torch.ones(len(y), dtype=torch.bool) if mask is None else mask)
    ce = nn.functional.cross_entropy(module(batch.x).logits, y, reduction="none")
    return method.loss(Net(module), batch, turn) - ce


def turn_of(received: nn.Module, previous: nn.Module | None = None, taken: int = 0) -> Turn:
    last = {} if previous is None else previous.state_dict()
    return Turn(Broadcast(received.state_dict()), Clock(1, 3), last, taken=torch.tensor(taken))


def gradients(method: Method, module: nn.Module, y: Tensor, turn: Turn) -> list[Tensor]:
    """Of the added term, by every parameter it depends on."""
    found = torch.autograd.grad(added(method, module, y, turn).sum(), list(module.parameters()), allow_unused=True)
    return [gradient for gradient in found if gradient is not None]


# --- MOON


@quick
@given(seeds, st.integers(1, 6), st.sampled_from([0.1, 0.5, 2.0]), st.sampled_from([0.1, 5.0]))
def test_moon_contrasts_the_received_with_the_previous_model(seed: int, batch: int, tau: float, mu: float) -> None:
    y, logits = labels_of(batch, 3, seed), normal(batch, 3, seed=seed)
    now, received, last = (Given(normal(batch, 4, seed=seed + i), logits) for i in range(3))
    expected = mu * slow.moon(now.features, received.features, last.features, tau).detach()
    method = Moon(mu=mu, temperature=tau)
    for taken in (1, 7):
        assert_close(added(method, now, y, turn_of(received, last, taken)).detach(), expected)


def test_moon_says_nothing_in_a_clients_first_turn_and_then_log_2_at_equal_models() -> None:
    net = Given(normal(4, 5, seed=1), normal(4, 3, seed=2))
    y = labels_of(4, 3, 0)
    assert not added(Moon(), net, y, turn_of(net, net, taken=0)).any()
    assert not added(Moon(), net, y, turn_of(net)).any()
    assert_close(
        added(Moon(mu=2), net, y, turn_of(net, net, 1)), torch.full((4,), 2 * math.log(2), dtype=torch.float64)
    )


def test_moon_pulls_to_the_received_model_and_teaches_neither_it_nor_the_previous_one() -> None:
    now, received, last = (Given(normal(4, 5, seed=i), normal(4, 3, seed=9)) for i in range(3))
    turn = turn_of(received, last, 1)
    for weights in (turn.received.weights, turn.previous):
        for weight in weights.values():
            weight.requires_grad_()
    y = labels_of(4, 3, 0)
    before = added(Moon(), now, y, turn)
    sides = [turn.received.weights["features"], turn.previous["features"]]
    moved = torch.autograd.grad(before.sum(), [now.features, *sides], allow_unused=True)
    assert moved[0].abs().max() > 1e-3
    assert moved[1] is None
    assert moved[2] is None
    with torch.no_grad():
        now.features -= 0.1 * moved[0]
    assert bool((added(Moon(), now, y, turn) < before).all())


def test_moon_is_finite_without_features() -> None:
    net, other = Given(torch.zeros(3, 4).double(), normal(3, 3, seed=1)), Given(normal(3, 4, seed=2), torch.zeros(3, 3))
    y = torch.tensor([0, 1, 2])
    for turn in (turn_of(net, other, 1), turn_of(other, net, 1), turn_of(other, other, 0)):
        assert bool(added(Moon(), net, y, turn).isfinite().all())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(Moon(), net, y, turn))


def test_the_projection_head_is_the_papers_and_the_old_classifier_is_gone() -> None:
    method = Moon(projection=True)
    plain, module = (build("cnn", (1, 28, 28), 10, 5, extend) for extend in (None, method.extend))
    assert isinstance(module, Projected)
    assert parameter_count(plain) == 21_840
    assert parameter_count(module) == 21_840 - 510 + (50 * 50 + 50) + (50 * 256 + 256) + 2_570
    x = torch.linspace(-1, 1, 3 * 784).view(3, 1, 28, 28)
    out, base = module.eval()(x), plain.eval()(x)
    layers = module.projection
    assert_close(out.features, layers[2](layers[0](base.features).relu()))  # the body starts as without the projection
    assert_close(out.logits, nn.functional.linear(out.features, module.head.weight, module.head.bias))
    assert [block.shape for block in out.blocks] == [block.shape for block in base.blocks]
    assert module.feature_size == out.features.shape[1] == 256
    again = build("cnn", (1, 28, 28), 10, 5, method.extend).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in module.state_dict().items())
    assert Moon().extend(plain, 10) is plain


@pytest.mark.parametrize(("method", "modes"), [(Moon(), [True, False, False]), (FedNTD(), [True, False])])
def test_teachers_are_asked_in_eval_mode(method: Method, modes: list[bool]) -> None:
    net, seen = Given(normal(2, 3, seed=0), normal(2, 3, seed=1)), []
    net.register_forward_hook(lambda module, *_: seen.append(module.training))
    method.loss(Net(net), Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.ones(2).bool()), turn_of(net, net, 1))
    assert seen == modes


# --- FedPer and FedRep


def shared(method: Method, spec: ModelSpec, shape: tuple[int, int, int]) -> tuple[int, set[str]]:
    """How many parameters are shared, and the parts that stay."""
    module = build(spec, shape, 10, 0, method.extend)
    number = sum(value.numel() for name, value in module.named_parameters() if method.shares(name))
    return number, {name.partition(".")[0] for name in module.state_dict() if not method.shares(name)}


@pytest.mark.parametrize("kind", [FedPer, FedRep])
def test_the_personal_part_is_fedprotos(kind: type[FedPer]) -> None:
    assert shared(kind(), "cnn", (1, 28, 28)) == (5_280, {"hidden", "head"})
    assert shared(kind(), "resnet10", (3, 32, 32)) == (4_903_242 - 5_130, {"head"})
    assert shared(kind(personal="head"), "cnn", (1, 28, 28)) == (21_840 - 510, {"head"})
    assert shared(kind(personal=" conv2, head "), "cnn", (1, 28, 28)) == (260 + 16_050, {"conv2", "head"})
    assert shared(kind(), Noisy, (1, 8, 8))[1] == {"head"}


def test_a_model_without_base_or_without_personal_part_is_refused() -> None:
    with pytest.raises(UserError, match=r"personal: 'hidden,head'.*not all of the model's parts: hidden, head"):
        shared(FedPer(), Plain, (1, 8, 8))
    with pytest.raises(UserError, match=r"personal: 'fc'.*conv1, conv2, hidden, head"):
        shared(FedRep(personal="fc"), "cnn", (1, 28, 28))


def test_fedrep_trains_the_head_and_then_the_base() -> None:
    head, base = FedRep(head_epochs=4).phases(3)
    assert (head.epochs, base.epochs) == (4, 3)
    names = ["conv1.weight", "hidden.bias", "head.weight"]
    assert [head.trains(name) for name in names] == [False, True, True]
    assert [base.trains(name) for name in names] == [True, False, False]


@dataclass(frozen=True)
class HeadOnly(FedRep):
    """The first phase by itself."""

    name: ClassVar[str] = "head-only"

    def phases(self, epochs: int) -> Sequence[Phase]:
        return super().phases(epochs)[:1]


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_frozen_base_keeps_its_parameters_but_not_its_statistics(engine: str) -> None:
    run, before = (run_of(HeadOnly(), engine, rounds, Restless, participation=1.0) for rounds in (1, 0))
    moved = {name.split("/")[2]: gap({name: own(run)[name]}, {name: own(before)[name]}) for name in own(run)}
    assert {name for name, much in moved.items() if much > 1e-4} == {
        "hidden.weight",
        "hidden.bias",
        "head.weight",
        "head.bias",
        "norm.running_mean",
        "norm.running_var",
    }
    assert max(much for name, much in moved.items() if name in ("conv.weight", "conv.bias", "norm.weight")) == 0


def test_personal_layers_stay_and_the_base_is_averaged() -> None:
    run = run_of(FedPer(), "sequential", 2, Restless, participation=1.0)
    group = run.engine.groups[0]
    assert set(run.broadcast.weights) == {name for name in group.own.initial if name.startswith(("conv", "norm"))}
    share = torch.tensor(group.sizes).double() / sum(group.sizes)
    own = group.own.take(range(len(share)))
    for name, value in run.broadcast.weights.items():
        assert_close(value, torch.einsum("n,n...->...", share, own[name]))
    assert all(float((own["head.weight"][0] - other).abs().max()) > 1e-3 for other in own["head.weight"][1:])
    assert set(run.history[-1]["accuracy"]) >= {"own/own/head", "own/all/head"}
    assert not any(name.startswith("global") for name in run.history[-1]["accuracy"])  # there is no whole model


def test_fedper_with_one_client_is_local_training() -> None:
    clients = federation([{0: 9, 1: 10}], test=30)
    alone, personal = (run_of(method, "sequential", 3, Restless, clients=clients) for method in (Local(), FedPer()))
    assert gap(own(alone), own(personal)) < 1e-14


# --- FedNTD


@quick
@given(seeds, st.integers(1, 6), st.integers(2, 5), st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([0.3, 1.0]))
def test_fedntd_distils_the_wrong_classes(seed: int, batch: int, classes: int, tau: float, beta: float) -> None:
    y = labels_of(batch, classes, seed)
    now, received = (Given(torch.zeros(batch, 3), 3 * normal(batch, classes, seed=seed + i)) for i in range(2))
    expected = slow.not_true_distillation(now.logits, received.logits, y.tolist(), tau).detach()
    result = added(FedNTD(beta=beta, temperature=tau), now, y, turn_of(received)).detach()
    assert_close(result, beta * expected)
    assert classes == 2 or bool((result > 1e-6).any())


def test_fedntd_ignores_the_true_class() -> None:
    """So FedNTD adds nothing where local and global logits differ only in the true class."""
    y = torch.tensor([0, 2, 1, 3])
    received = normal(4, 4, seed=0)
    one_hot = nn.functional.one_hot(y, 4)
    true, wrong = received + 5 * one_hot, received + 5 * one_hot.roll(1, 1)
    nets = [Given(torch.zeros(4, 3), logits) for logits in (received, true, wrong)]
    assert added(FedNTD(), nets[1], y, turn_of(nets[0])).abs().max() < 1e-14
    assert bool((added(FedNTD(), nets[2], y, turn_of(nets[0])) > 0.1).all())
    gradient = gradients(FedNTD(), nets[2], y, turn_of(nets[0]))[0]
    assert gradient.gather(1, y.unsqueeze(1)).abs().max() < 1e-14


def test_fedntd_is_finite_for_two_classes_and_for_sure_models() -> None:
    y = torch.tensor([0, 1, 1])
    for logits, other in (
        (normal(3, 2, seed=0), normal(3, 2, seed=1)),
        (1e4 * normal(3, 4, seed=0), -1e4 * normal(3, 4, seed=1)),
    ):
        net, received = Given(torch.zeros(3, 3), logits), Given(torch.zeros(3, 3), other)
        term = added(FedNTD(), net, y, turn_of(received))
        assert bool(term.isfinite().all())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(FedNTD(), net, y, turn_of(received)))
        assert bool((term == 0).all()) == (logits.shape[1] == 2)


def test_not_true_leaves_out_one_column() -> None:
    logits = torch.arange(12.0).view(3, 4)
    assert not_true(logits, torch.tensor([0, 2, 3])).tolist() == [[1, 2, 3], [4, 5, 7], [8, 9, 10]]


# --- FedRCL


def rcl_case(seed: int, batch: int, classes: int) -> tuple[Given, Tensor]:
    """Maps whose classes are tight, so that some pairs exceed the threshold, and dense features that are loose."""
    y = labels_of(batch, classes, seed)
    centres = 2 * normal(classes, 4, seed=seed + 1)
    maps = centres[y].view(batch, 4, 1, 1) + normal(batch, 4, 2, 3, seed=seed + 2)
    blocks = maps, normal(batch, 5, seed=seed + 3)
    return Given(torch.zeros(batch, 3), normal(batch, classes, seed=seed + 4), *blocks), y


@quick
@given(seeds, st.integers(1, 7), st.integers(1, 4), st.sampled_from([0.05, 0.5]), st.sampled_from([-1.0, 0.3, 0.7]))
def test_fedrcl_is_the_mean_over_levels(seed: int, batch: int, classes: int, tau: float, threshold: float) -> None:
    net, y = rcl_case(seed, batch, classes)
    readings: tuple[Literal["hardest", "all"], ...] = ("hardest", "all")
    for pairs in readings:
        for negatives in (1, 2):
            levels = [slow.relaxed_contrast(b, y.tolist(), tau, threshold, pairs, negatives) for b in net.blocks]
            expected = sum(0.5 * contrast + 2 * penalty for contrast, penalty in levels)
            method = FedRCL("uniform", pairs, negatives, tau, threshold, 0.5, 2.0)
            assert_close(added(method, net, y, turn_of(net)), torch.as_tensor(expected) / 2)


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_both_terms_of_fedrcl_are_active_and_fade_when_they_should(pairs: Any) -> None:
    net, y = rcl_case(3, 7, 2)

    def terms(threshold: float) -> tuple[Tensor, Tensor]:
        contrast = FedRCL(pairs=pairs, threshold=threshold, penalty_weight=0)
        penalty = FedRCL(pairs=pairs, threshold=threshold, contrast_weight=0)
        return added(contrast, net, y, turn_of(net)), added(penalty, net, y, turn_of(net))

    assert bool((terms(0.7)[0] > 1e-3).any())
    assert bool((terms(0.0)[1] > 1e-9).any())
    assert not terms(1.0)[1].any()  # nobody is the same as somebody else


@pytest.mark.parametrize("pairs", ["hardest", "all"])
def test_padding_of_a_batch_is_neither_kin_nor_negative(pairs: Any) -> None:
    net, y = rcl_case(5, 6, 2)
    mask = torch.tensor([True, False, True, True, False, True])
    real = Given(net.features[mask], net.logits[mask], *(block[mask] for block in net.blocks))
    method = FedRCL(pairs=pairs, threshold=0.0, temperature=0.5)
    everyone = added(method, net, y, turn_of(net), mask)
    assert_close(everyone[mask], added(method, real, y[mask], turn_of(real)))
    assert bool(everyone.isfinite().all())
    assert float((everyone - added(method, net, y, turn_of(net))).detach()[mask].abs().max()) > 1e-3


@pytest.mark.parametrize("pairs", ["hardest", "all"])
@pytest.mark.parametrize("y", [[0], [0, 0], [0, 1], [0, 0, 1], [0, 1, 2], [1, 1, 1]])
def test_fedrcl_is_finite_at_the_edges(pairs: Any, y: list[int]) -> None:
    """One sample, one class, a class alone; samples that are equal, and samples that are nothing."""
    labels, method = torch.tensor(y), FedRCL(pairs=pairs)
    logits = torch.zeros(len(y), 3).double()
    for block in (torch.ones(len(y), 3, 2, 2), torch.zeros(len(y), 3), -torch.eye(len(y), 3)):
        net = Given(torch.zeros(len(y), 3), logits, block.double())
        term = added(method, net, labels, turn_of(net))
        assert bool(term.isfinite().all())
        assert bool((term >= -1e-12).all())
        assert all(bool(gradient.isfinite().all()) for gradient in gradients(method, net, labels, turn_of(net)))
    assert len(set(y)) > 1 or not added(FedRCL(pairs=pairs, penalty_weight=0), net, labels, turn_of(net)).any()


def test_a_model_without_blocks_is_refused_by_fedrcl() -> None:
    with pytest.raises(UserError, match=r"--model: 'Norm'.*block features"):
        run_of(FedRCL(), "sequential", 1, Norm)


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_fedrcl_clips_a_clients_gradient(engine: str) -> None:
    """One step of one batch: nobody moves further than lr · 10."""
    options: dict[str, Any] = {"participation": 1.0, "batch_size": 64, "epochs": 1, "weight_decay": 0.0, "lr": 0.02}
    run, before = (run_of(FedRCL(contrast_weight=1e4), engine, n, Levels, **options) for n in (1, 0))
    squares = [(own(run)[name] - own(before)[name]).flatten(1).square().sum(1) for name in own(run)]
    assert_close(torch.stack(squares).sum(0).sqrt(), torch.full((5,), 0.2, dtype=torch.float64), atol=1e-6, rtol=0)


# --- whole runs

# Nobody holds class 5. Batches of 8: 17 leaves one over, 19 leaves three, 12 leaves four.
PARTS: tuple[Part, ...] = ({0: 9, 1: 8}, {0: 3, 2: 7, 3: 9}, {1: 2, 4: 10})


def run_of(method: Method, engine: str, rounds: int = 3, model: ModelSpec = Restless, **given: Any) -> Run:
    """A run like those of `engines.nets.play`, of a method that need not be registered."""
    clients = given.pop("clients", None) or federation()
    options: dict[str, Any] = {"participation": 0.6, "epochs": 2, "batch_size": 8, "lr": 0.02, "lr_decay": 0.9}
    options |= {"weight_decay": 1e-3, "precision": "float64", "device": "cpu", "rounds": max(1, rounds), **given}
    run = Run(Experiment(method="fedavg", engine=engine, **options), method, clients, [model])  # type: ignore[arg-type]
    for _ in range(rounds):
        run.play_round()
    return run


def everything(name: str) -> bool:
    return bool(name)


def base(name: str) -> bool:
    return name.startswith("conv")


def personal(name: str) -> bool:
    return not base(name)


Reading = tuple[Method, list[Callable[[str], bool]], Callable[[str], bool], bool, slow.Term]
REFERENCES: dict[str, Reading] = {
    "moon": (Moon(), [everything], everything, True, slow.moon_term(5.0, 0.5)),
    "fedper": (FedPer(), [everything], base, True, slow.nothing),
    "fedrep": (FedRep(head_epochs=1), [personal, base], base, False, slow.nothing),
    "fedntd": (FedNTD(beta=0.7, temperature=2.0), [everything], everything, True, slow.fedntd_term(0.7, 2.0)),
    "fedrcl": (FedRCL(), [everything], everything, False, slow.fedrcl_term(0.05, 0.7, "hardest")),
    "fedrcl all": (FedRCL(pairs="all"), [everything], everything, False, slow.fedrcl_term(0.05, 0.7, "all")),
}


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
@pytest.mark.parametrize("which", REFERENCES)
def test_three_rounds_are_those_of_plain_loops(which: str, engine: str) -> None:
    """Two of three clients a round, so that a client's previous model is not of the round before."""
    method, trains, shares, by_samples, term = REFERENCES[which]
    clients = federation(PARTS, test=30)
    options: dict[str, Any] = {"weight_decay": 0.0, "epochs": 1, "clients": clients, "participation": 0.67, "seed": 2}
    run = run_of(method, engine, 4, Levels, **options)
    group = run_of(method, engine, 0, Levels, **options).engine.groups[0]
    rounds: list[dict[int, list[list[list[int]]]]] = []
    for number, line in enumerate(run.history):
        rounds.append({})
        for who in line["participants"]:
            plan = run.engine.schedule(run.engine.groups[0], [who], Clock(number, 4))
            steps = [[int(row) for row in step if row >= 0] for step in plan.rows[0]]
            each = len(steps) // len(trains)
            rounds[-1][who] = [steps[phase * each : (phase + 1) * each] for phase in range(len(trains))]
    module = deepcopy(group.module).double()
    module.load_state_dict(group.own.initial)
    data = [slow.Data(group.pixels(client.train.images), client.train.labels) for client in clients.clients]
    sizes = [float(len(client.train)) if by_samples else 1.0 for client in clients.clients]
    rates = [0.02 * 0.9**number for number in range(len(rounds))]
    turns = [who for line in rounds for who in line]
    assert max(turns.count(who) for who in range(3)) > min(turns.count(who) for who in range(3)) > 1
    expected = slow.play(module, data, rounds, trains, shares, sizes, rates, term, method.clip)
    for name, value in run.engine.groups[0].own.take(range(3)).items():
        assert_close(value, torch.stack([state[name] for state in expected]), atol=1e-10, rtol=0, msg=name)


VARIANTS: dict[str, Method] = {
    "moon": Moon(),
    "moon strong": Moon(mu=1.0, temperature=0.2),
    "moon projection": Moon(projection=True),
    "fedper": FedPer(),
    "fedper head": FedPer(personal="head"),
    "fedper uniform": FedPer(averaging="uniform"),
    "fedrep": FedRep(),
    "fedrep long": FedRep(head_epochs=3, personal="head", averaging="samples"),
    "fedntd": FedNTD(),
    "fedntd warm": FedNTD(beta=0.5, temperature=3.0),
    "fedrcl": FedRCL(),
    "fedrcl all": FedRCL(pairs="all"),
    "fedrcl contrast": FedRCL(penalty_weight=0),
    "fedrcl penalty": FedRCL(contrast_weight=0, threshold=0.0),
    "fedrcl one negative": FedRCL(negatives=1, temperature=0.3, averaging="samples"),
}
every_variant = pytest.mark.parametrize("variant", VARIANTS)


@cache
def played(variant: str, engine: str) -> Run:
    """Three rounds of two epochs with three of five unequal clients, BatchNorm and dropout."""
    plain: dict[str, Method] = {"fedavg": FedAvg(), "fedavg uniform": FedAvg(averaging="uniform")}
    return run_of((plain | VARIANTS)[variant], engine)


@every_variant
def test_engines_agree_to_rounding_and_the_term_takes_part(variant: str) -> None:
    sequential, stacked = played(variant, "sequential"), played(variant, "stacked")
    assert_same_run(sequential, stacked)
    plain = "fedavg uniform" if getattr(VARIANTS[variant], "averaging", "") == "uniform" else "fedavg"
    assert gap(own(stacked), own(played(plain, "stacked"))) > 1e-4
    method = variant.partition(" ")[0]
    assert variant == method or gap(stacked.state(), played(method, "stacked").state()) > 1e-5


@pytest.mark.parametrize("kind", [Moon, FedPer, FedRep, FedNTD, FedRCL])
@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ([{0: 1}, {0: 9, 1: 10}, {1: 1}], {}),
        ([{0: 1}, {1: 1}], {}),
        ([{0: 3, 1: 2}, {1: 4}], {"batch_size": 1, "epochs": 1}),
        ([{0: 3, 1: 2}, {0: 12, 2: 9}], {"batch_size": 16}),
    ],
)
def test_engines_agree_at_the_edges(kind: type[Method], parts: list[Part], options: dict[str, Any]) -> None:
    options = {"rounds": 2, "clients": federation(parts, test=30), "participation": 1.0, **options}
    assert_same_run(run_of(kind(), "sequential", **options), run_of(kind(), "stacked", **options))


@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (Moon(mu=0), FedAvg()),
        (FedNTD(beta=0), FedAvg()),
        (FedRCL(contrast_weight=0, penalty_weight=0), FedAvg(averaging="uniform")),
    ],
)
def test_without_its_term_a_method_is_exactly_fedavg(method: Method, plain: Method) -> None:
    """Nothing but the term tells them apart."""
    run, average = run_of(method, "sequential"), run_of(plain, "sequential")
    assert gap(own(run), own(average)) == 0
    assert gap(dict(run.broadcast.weights), dict(average.broadcast.weights)) == 0


def test_moon_is_fedavg_until_a_client_returns() -> None:
    """With one client a round, the first return is where the runs part."""
    run, plain = (run_of(method, "stacked", 5, Restless, participation=0.2, seed=0) for method in (Moon(), FedAvg()))
    asked = [line["participants"][0] for line in run.history]
    first = next(number for number, who in enumerate(asked) if who in asked[:number])
    assert first > 1
    losses = [(a["loss"], b["loss"]) for a, b in zip(run.history, plain.history, strict=True)]
    assert all(a == b for a, b in losses[:first])
    assert losses[first][0] > losses[first][1] + 0.1


@pytest.mark.parametrize("variant", ["moon", "moon projection", "fedper", "fedrep", "fedrcl"])
@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_resumed_run_is_the_uninterrupted_one(variant: str, engine: str, tmp_path: Path) -> None:
    whole = played(variant, engine)
    begun, resumed = (run_of(VARIANTS[variant], engine, rounds) for rounds in (2, 0))
    folder = RunFolder.create(tmp_path / "run", begun.experiment)
    for line in begun.history:
        folder.append_round(line)
    folder.checkpoint.save(begun.broadcast, begun.engine.groups, 2)
    resumed.restore(folder)
    resumed.play_round()
    assert gap(resumed.state(), whole.state()) < 1e-14  # a checkpoint's tensors lie differently in memory
    assert resumed.history[-1]["per_client"] == whole.history[-1]["per_client"]


@pytest.mark.parametrize("variant", ["moon", "moon projection", "fedper", "fedrep", "fedntd", "fedrcl"])
def test_bytes_are_those_of_the_shared_weights(variant: str) -> None:
    """|w|, or |base| for FedPer and FedRep, both ways; in float64, plus names and the sample count."""
    run = played(variant, "stacked")
    method, group = VARIANTS[variant], run.engine.groups[0]
    scalars = sum(value.numel() for name, value in group.module.state_dict().items() if method.shares(name))
    if variant in ("fedper", "fedrep"):
        assert scalars == 3 * 9 + 3 + 4 * 3  # the convolution, and BatchNorm's weight, bias and statistics
    else:
        assert scalars == sum(value.numel() for value in group.module.state_dict().values())
    up, down = (run.history[-1][way] / len(run.history[-1]["participants"]) for way in ("bytes_up", "bytes_down"))
    header = 100 * (1 + len(group.own.initial))
    assert 8 * scalars < down <= up <= 8 * scalars + header


def test_what_a_client_keeps_between_rounds_is_counted() -> None:
    memory = {name: run.client_memory(run.engine.groups[0]) for name in VARIANTS for run in [played(name, "stacked")]}
    whole = sum(value.numel() for value in played("moon", "stacked").engine.groups[0].own.initial.values())
    assert memory["moon"] == 8 * whole
    assert memory["fedper"] == memory["fedrep"] == 8 * (whole - 42)
    assert memory["fedntd"] == memory["fedrcl"] == 0


@pytest.mark.parametrize("method", [Moon(mu=1.0), FedPer(), FedRep(), FedNTD(), FedRCL()])
def test_methods_learn(method: Method) -> None:
    """After 12 rounds on three clients that know all four classes, far better than a guess by its own score."""
    clients = federation([dict.fromkeys(range(4), 12)] * 3, classes=4, test=80)
    run = run_of(
        method, "stacked", 12, Restless, clients=clients, participation=1.0, lr=0.1, lr_decay=1.0, eval_every=12
    )
    assert run.history[-1]["accuracy"][method.score] > 70


WRONG: list[tuple[type[Method], dict[str, Any], str]] = [
    (Moon, {"mu": -1.0}, "mu: -1.0.*0 or more"),
    (Moon, {"temperature": 0.0}, "temperature: 0.0.*above 0"),
    (FedPer, {"personal": " , "}, "personal: ' , '.*hidden,head"),
    (FedRep, {"personal": ""}, "personal: ''"),
    (FedRep, {"head_epochs": 0}, "head_epochs: 0.*1 or more"),
    (FedNTD, {"beta": -1.0}, "beta: -1.0.*0 or more"),
    (FedNTD, {"temperature": -1.0}, "temperature: -1.0.*above 0"),
    (FedRCL, {"temperature": 0}, "temperature: 0.*above 0"),
    (FedRCL, {"threshold": 1.5}, "threshold: 1.5.*-1 to 1"),
    (FedRCL, {"negatives": 0}, "negatives: 0.*1 or more"),
    (FedRCL, {"penalty_weight": -1.0}, "penalty_weight: -1.0.*0 or more"),
]


@pytest.mark.parametrize(("kind", "values", "message"), WRONG)
def test_a_wrong_parameter_is_named(kind: type[Method], values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(**values)


def test_the_losses_run_under_vmap_with_clients_in_different_turns() -> None:
    """A stacked step where one client has no previous model and another has."""
    module = build(Levels, (1, 8, 8), CLASSES, 0).double()
    x, y = normal(2, 5, 1, 8, 8, seed=0), labels_of(10, CLASSES, 0).view(2, 5)
    last = {name: torch.stack([value, value + 0.3]) for name, value in module.state_dict().items()}

    def one(x: Tensor, y: Tensor, last: dict[str, Tensor], taken: Tensor) -> Tensor:
        turn = Turn(Broadcast(module.state_dict()), Clock(1, 3), last, taken=taken)
        return Moon().loss(Net(module), Batch(x, y, torch.ones_like(y, dtype=torch.bool)), turn)

    both = vmap(one)(x, y, last, torch.tensor([0, 2]))
    for k, taken in enumerate((0, 2)):
        alone = one(x[k], y[k], {name: value[k] for name, value in last.items()}, torch.tensor(taken))
        assert_close(both[k], alone)
    ce = nn.functional.cross_entropy(module(x[0]).logits, y[0], reduction="none")
    assert_close(both[0], ce, atol=0, rtol=1e-12)
