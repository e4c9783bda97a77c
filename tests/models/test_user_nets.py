"""Networks as users write them: whatever their classifier is called, it is `head`, and every engine trains them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from protofed.errors import UserError
from protofed.methods import METHODS, method_class
from protofed.models import Output, adopt, build, parameter_count
from protofed.models.attention import Attention
from protofed.models.layers import BatchNorm, Dropout, step
from protofed.models.net import Net
from protofed.runs.folder import RunFolder
from protofed.serving.export import export
from protofed.serving.predictor import Predictor
from tests.support import user_nets
from tests.support.exported_runs import digits
from tests.support.exported_runs import plan as planned
from tests.support.exported_runs import play as play_and_keep
from tests.support.nets import Part, Shape, assert_same_run, federation, gap, play
from tests.support.resumed_runs import saved
from tests.support.user_nets import NETS, Attends, CosineHead, Tied, Twice, body

SHAPE = (1, 8, 8)
every_net = pytest.mark.parametrize("name", NETS)


@every_net
def test_the_classifier_is_head_and_nothing_else_changes(name: str) -> None:
    torch.manual_seed(0)
    original = NETS[name](SHAPE, 3).eval()
    x = torch.rand(4, *SHAPE)
    result = original(x)
    logits = result if isinstance(result, Tensor) else result[1]
    count = parameter_count(original)
    module = adopt(original, SHAPE, 3).eval()
    out = module(x)
    assert_close(out.logits, logits)
    if not isinstance(result, Tensor):
        assert_close(out.features, result[0])
        assert len(out.blocks) == (1 if isinstance(result, Output) else 0)
    heads = [n for n, _ in module.named_parameters() if n.startswith("head.")]
    assert heads
    assert len(heads) < len(list(module.named_parameters()))
    assert parameter_count(module) == count
    assert adopt(module, SHAPE, 3) is module
    with torch.no_grad():  # another head changes the logits and not the features
        module.get_submodule("head").load_state_dict(
            {n: value + 1 for n, value in module.get_submodule("head").state_dict().items()}
        )
    moved = module.eval()(x)
    assert not torch.allclose(moved.logits, out.logits)
    if name != "tied":
        assert_close(moved.features, out.features)


FEW: tuple[Part, ...] = ({0: 9, 1: 8}, {1: 4, 2: 9}, {3: 6, 4: 5})
KEYS_BIAS = "in_proj_bias"
"""Attention does not depend on it, so its gradient is rounding, of which Adam and signs make steps."""


USUAL = ("fedavg", "fedproto", "fedrep", "fedsc", "fedcof")
"""Methods that differ in what they do with a network; of the others `make test` tries one network each."""


def pairs() -> list[Any]:
    """Every network with every method; which of them `make test` leaves out is marked."""
    turns = [(name, method, (i + j) % len(NETS)) for i, name in enumerate(NETS) for j, method in enumerate(METHODS)]
    usual = [method in USUAL or turn < 1 for _, method, turn in turns]
    return [
        pytest.param(name, method, marks=() if cheap else pytest.mark.slow)
        for (name, method, _), cheap in zip(turns, usual, strict=True)
    ]


@pytest.mark.parametrize(("name", "method"), pairs())
def test_the_engines_agree(name: str, method: str) -> None:
    """Or both refuse in a line, before anybody trains: what the method cannot do with such a network."""
    options: dict[str, Any] = {"model": NETS[name], "rounds": 2, "epochs": 1, "lr": 0.005}
    options["clients"] = federation(FEW, 30)
    if method in ("fedper", "fedrep"):
        options["params"] = {"personal": "head"}
    linear = name in ("fc", "classifier", "output", "twice", "attention", "transformer")
    if method_class(method).linear_head and not linear:
        found = "shares its weights with another layer" if name == "tied" else "is (CosineHead|Sequential)"
        for engine in ("sequential", "stacked", "auto"):
            with pytest.raises(UserError, match=f"{method} needs a linear head, .*, and this model's {found}"):
                play(method, engine=engine, **options | {"rounds": 0})
        return
    if method == "fedrcl" and name != "output":
        with pytest.raises(UserError, match="fedrcl compares block features, and this model returns none"):
            play(method, **options)
        return
    one, other = (play(method, engine=engine, **options) for engine in ("sequential", "stacked"))
    assert_same_run(one, other, but=KEYS_BIAS)
    assert gap(one.state(), play(method, **{**options, "rounds": 0}).state()) > 1e-4
    if method in ("fedper", "fedrep"):
        assert one.broadcast.weights
        assert not any(n.startswith("head.") for n in one.broadcast.weights)


def test_an_intercept_needs_a_head_with_a_bias() -> None:
    with pytest.raises(UserError, match="'true' for --set intercept: the model's head has no bias for it") as error:
        play("fed3r", model=NoBias, rounds=0)
    assert error.value.hint == "--set intercept=false"
    run = play("fed3r", {"intercept": False}, model=NoBias, rounds=1)
    assert run.broadcast.weights.keys() == {"head.weight"}


class NoBias(nn.Module):
    """A classifier without a bias."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = body(shape)
        self.head = nn.Linear(6, classes, bias=False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.layers(x)
        return features, self.head(features)


@every_net
def test_a_resumed_run_is_the_uninterrupted_one(name: str, tmp_path: Path) -> None:
    whole, cut, resumed = (play("fedper", {"personal": "head"}, "stacked", n, NETS[name]) for n in (3, 2, 0))
    resumed.restore(saved(cut, tmp_path / "run"))
    while len(resumed.history) < 3:
        resumed.play_round()
    assert gap(resumed.state(), whole.state()) < 1e-14


@pytest.mark.parametrize("name", ["LogitsOnly", "Both", "OwnHead", "Twice", "Tied", "Attends", "Adapted", "Recurrent"])
def test_an_exported_model_predicts_as_in_its_run(name: str, tmp_path: Path) -> None:
    spec = f"{user_nets.__name__}:{name}"
    folder = play_and_keep(tmp_path / "run", planned("fedavg", model=spec, engine="auto"))
    exported = export(RunFolder.open(folder.path))
    exported.write(tmp_path / "model")
    images, _ = digits()
    read = Predictor.read(tmp_path / "model", model=getattr(user_nets, name))
    one, other = (predictor.outputs(images) for predictor in (exported.predictor, read))
    assert_close(one, other)
    assert one[0].shape[1] == exported.predictor.card.feature_size


# Tied weights.


@pytest.mark.parametrize(
    ("kind", "names", "aliases"),
    [
        (Tied, {"head.weight", "head.bias"}, {"body.table.weight"}),
        (Twice, {"body.first.weight", "body.first.bias"}, {"body.second.weight", "body.second.bias"}),
    ],
)
def test_tied_weights_are_there_once(kind: type[nn.Module], names: set[str], aliases: set[str]) -> None:
    module = adopt(kind(SHAPE, 3), SHAPE, 3)
    state = module.state_dict()
    assert names <= state.keys()
    assert not aliases & state.keys()
    assert state.keys() == {name for name, _ in module.named_parameters()}
    assert aliases <= {name for name, _ in module.named_parameters(remove_duplicate=False)}
    changed = {name: value + 1 for name, value in state.items()}
    module.load_state_dict(changed)
    assert_close(dict(module.state_dict()), changed)
    for alias in aliases:  # its own module still has it
        assert any(module.get_parameter(alias) is module.get_parameter(name) for name in names)
    whole = {name: value.detach() for name, value in module.named_parameters(remove_duplicate=False)}
    module.load_state_dict(whole)  # a file that has both names is read too


@pytest.mark.parametrize("kind", [Tied, Twice])
def test_training_keeps_them_tied_and_is_that_of_plain_torch(kind: type[nn.Module]) -> None:
    """A client with a single batch of SGD, against the user's own module."""
    run = play("fedavg", model=kind, rounds=1, epochs=1, batch_size=100, participation=1.0, weight_decay=0.0)
    group = run.engine.groups[0]
    module = build(kind, SHAPE, 6, 0).double()
    module.load_state_dict(group.own.initial)
    x, y = group.inputs(group.clients[0].train.x), group.clients[0].train.labels
    with step(torch.tensor(0)):
        torch.autograd.backward(F.cross_entropy(module(x).logits, y))
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.02 * parameter.grad)
    trained = {name: value[0] for name, value in group.own.take([0]).items()}
    assert_close(trained, dict(module.state_dict()), atol=1e-12, rtol=0)


class SharedNorm(nn.Module):
    """One BatchNorm in two places."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = body(shape)
        self.one = nn.BatchNorm1d(6)
        self.two = self.one
        self.fc = nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.fc(self.two(self.one(self.layers(x)).relu()))
        return made


def test_a_norm_in_two_places_has_one_set_of_statistics() -> None:
    one, other = (play("fedavg", engine=engine, model=SharedNorm) for engine in ("sequential", "stacked"))
    assert_same_run(one, other)
    assert "body.one.running_mean" in one.broadcast.weights
    assert "body.two.running_mean" not in one.broadcast.weights


def test_a_method_that_replaces_a_tied_head_unties_it() -> None:
    def extend(module: nn.Module, classes: int) -> nn.Module:
        module.head = nn.Linear(6, classes)
        return module

    module = build(Tied, SHAPE, 3, 0, extend)
    state = dict(module.state_dict())
    assert {"head.weight", "body.table.weight"} <= state.keys()
    moved = {**state, "head.weight": state["head.weight"] + 1}
    x = torch.rand(2, *SHAPE)
    one, other = (Net(module, some)(x, train=False) for some in (state, moved))
    assert_close(one.features, other.features)
    assert not torch.allclose(one.logits, other.logits)


# Attention.


@pytest.mark.parametrize("given", [{}, {"bias": False}, {"batch_first": True}, {"kdim": 5, "vdim": 3}])
@pytest.mark.parametrize("masked", ["none", "bool", "float", "per head", "padding", "float padding"])
@pytest.mark.parametrize("average", [True, False])
def test_attention_without_anything_to_drop_is_torchs(given: dict[str, Any], masked: str, average: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, dropout=0.5, **given).double().train()
    ours = Attention.of(layer)
    ours.drop.p = 0.0
    layer.dropout = 0.0
    batch, length, source = 3, 4, 5
    sizes = (8, given.get("kdim", 8), given.get("vdim", 8))
    query, key, value = (
        torch.randn(batch, n, size, generator=rng, dtype=torch.float64)
        for n, size in zip((length, source, source), sizes, strict=True)
    )
    if not given.get("batch_first"):
        query, key, value = (x.transpose(0, 1) for x in (query, key, value))
    never = torch.rand(length, source, generator=rng) < 0.3
    never[:, 0] = False
    padded = torch.arange(source) > torch.tensor([[4], [2], [3]])
    masks: dict[str, dict[str, Any]] = {
        "none": {},
        "bool": {"attn_mask": never},
        "float": {"attn_mask": torch.randn(length, source, generator=rng, dtype=torch.float64)},
        "per head": {"attn_mask": never.expand(2 * batch, -1, -1)},
        "padding": {"key_padding_mask": padded},
        "float padding": {"key_padding_mask": -3.0 * padded.double(), "attn_mask": -1.0 * never.double()},
    }
    for weights in (True, False):
        options = {**masks[masked], "need_weights": weights, "average_attn_weights": average}
        with step(torch.tensor(0)):
            found, expected = (one(query, key, value, **options) for one in (ours, layer))
        assert_close(found, expected)


def test_unbatched_attention_is_torchs() -> None:
    layer = nn.MultiheadAttention(8, 2, dropout=0.5).train()
    ours = Attention.of(layer)
    ours.drop.p, layer.dropout = 0.0, 0.0
    x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
    with step(torch.tensor(0)):
        assert_close(ours(x, x, x), layer(x, x, x))
    ours.eval()
    assert_close(ours(x, x, x), layer(x, x, x))


def test_attention_drops_by_the_steps_key() -> None:
    ours = Attention.of(nn.MultiheadAttention(8, 2, dropout=0.25, batch_first=True)).train()
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    state = torch.get_rng_state()
    found = []
    for key in (1, 1, 2):
        with step(torch.tensor(key)):
            found.append(ours(x, x, x, average_attn_weights=False))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][0], found[2][0])
    weights = [found[place][1] for place in (0, 2)]
    dropped = torch.stack([part == 0 for part in weights if part is not None]).double().mean()
    assert 0.1 < dropped < 0.4
    means = []
    for key in range(300):
        with step(torch.tensor(key)):
            means.append(ours(x, x, x)[0])
    assert_close(torch.stack(means).mean(0), ours.eval()(x, x, x)[0], atol=0.05, rtol=0)


class Scaled(nn.Module):
    """torch's function of attention, with a dropout of its own."""

    def __init__(self, shape: Shape, classes: int, dropout: float) -> None:
        super().__init__()
        self.dropout = dropout
        self.fc = nn.Linear(shape[2], classes)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(1, 2)
        p = self.dropout if self.training else 0.0
        made: Tensor = self.fc(F.scaled_dot_product_attention(rows, rows, rows, dropout_p=p).mean(1))
        return made


def test_the_function_of_attention_is_for_those_that_drop_nothing() -> None:
    with pytest.raises(UserError, match=r"'Scaled' for --model: its forward draws random numbers; of those only nn\.D"):
        build(partial(Scaled, dropout=0.1), SHAPE, 3, 0)
    one, other = (play(engine=engine, model=partial(Scaled, dropout=0.0)) for engine in ("sequential", "stacked"))
    assert_same_run(one, other)


def test_what_attention_cannot_have_with_dropout_is_refused() -> None:
    for more in ({"add_bias_kv": True}, {"add_zero_attn": True}):
        model = Attends(SHAPE, 3)
        model.layer.self_attn = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True, **more)
        with pytest.raises(UserError, match=r"layer\.self_attn \(MultiheadAttention\) has dropout with add_bias_kv or"):
            adopt(model, SHAPE, 3)


def test_a_recurrent_network_is_trained_one_client_after_the_other() -> None:
    run = play("fedper", {"personal": "head"}, "auto", model=user_nets.Recurrent)
    assert run.setup.engine_reason == "nn.LSTM cannot be batched over clients"
    assert not any(name.startswith("head.") for name in run.broadcast.weights)


class Layered(nn.Module):
    """A recurrent network that drops between its layers."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(shape[2], 4, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.head(self.lstm(x.flatten(1, 2))[0][:, -1])
        return logits


def test_dropout_between_recurrent_layers_is_refused_by_its_name() -> None:
    with pytest.raises(UserError, match="'Layered' for --model: its forward draws random numbers") as error:
        build(Layered, SHAPE, 3, 0)
    assert "the dropout that nn.LSTM and the like have" in str(error.value.hint)


# Heads.


class Inline(nn.Module):
    """Its classifier is no layer."""

    def __init__(self, shape: Shape, classes: int) -> None:
        super().__init__()
        self.layers = body(shape)
        self.weight = nn.Parameter(torch.randn(classes, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.layers(x)
        return features, features @ self.weight.mT


class Sharpened(user_nets.Both):
    """Changes the logits after the classifier."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features, logits = super().forward(x)
        return features, 2 * logits


class DropsLogits(user_nets.Both):
    """Dropout after the classifier, which is nothing in eval mode."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.layers(x)
        return features, self.dropout(self.classifier(features))


class OtherFeatures(user_nets.Both):
    """Returns other features than its classifier takes."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.layers(x)
        return features[:, :4], self.classifier(features)


@pytest.mark.parametrize("kind", [Inline, Sharpened, DropsLogits, OtherFeatures])
def test_a_classifier_that_cannot_be_told_from_the_rest_is_refused(kind: Callable[..., nn.Module]) -> None:
    with pytest.raises(UserError, match="for --model: its logits must come straight from a layer") as error:
        build(kind, SHAPE, 3, 0)
    assert "\n" not in str(error.value)


def test_a_head_that_ends_a_sequence_is_taken_alone() -> None:
    module = adopt(nn.Sequential(body(SHAPE), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), CosineHead(5, 3))), SHAPE, 3)
    assert isinstance(module.head, CosineHead)
    assert module.feature_size == 5
    whole = adopt(nn.Sequential(body(SHAPE), nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))), SHAPE, 3)
    assert isinstance(whole.head, nn.Linear)
    assert whole.feature_size == 5


def test_layers_that_a_method_adds_are_swapped_too() -> None:
    def extend(module: nn.Module, classes: int) -> nn.Module:  # noqa: ARG001
        module.more = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.1))
        return module

    module = build(user_nets.Both, SHAPE, 3, 0, extend)
    assert [type(layer) for layer in module.more.children()] == [nn.Linear, BatchNorm, Dropout]  # type: ignore[union-attr]
