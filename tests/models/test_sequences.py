"""Models of series and text: padding changes nothing, nothing but padding is finite, engines agree."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from protofed.data import Client, Federation, Preparation, Samples, Shape
from protofed.errors import UserError
from protofed.models import MODELS, build, check_size
from protofed.models.layers import step
from protofed.models.sequences import Gru, TransformerBlock, positions
from tests.support.nets import SERIES, TEXT, assert_same_run, gap, own, play

KEY = torch.tensor(3)
EVERY = [
    *((name, SERIES) for name in ("cnn1d", "gru", "transformer")),
    *((name, TEXT) for name in ("cnn1d", "gru", "transformer", "embedding-bag")),
]
every_model = pytest.mark.parametrize(("name", "shape"), EVERY)


def drawn(shape: Shape, number: int, seed: int = 0) -> Tensor:
    """Sequences of every length from 1 to all steps, padded."""
    rng = torch.Generator().manual_seed(seed)
    steps = shape[-1]
    there = torch.arange(steps) < 1 + torch.arange(number).unsqueeze(1) % steps
    if shape.tokens:
        return torch.randint(1, shape.tokens, (number, steps), generator=rng) * there
    x = torch.randn(number, *shape, generator=rng) * there.unsqueeze(1)
    x[:, -1] = there
    return x


def longer(x: Tensor, steps: int) -> Tensor:
    return nn.functional.pad(x, (0, steps))


def grown(shape: Shape, steps: int) -> Shape:
    return Shape((*shape[:-1], shape[-1] + steps), shape.tokens, shape.masked)


@every_model
def test_more_padding_changes_nothing(name: str, shape: Shape) -> None:
    short, long = (build(name, kind, 3, 0).double().eval() for kind in (shape, grown(shape, 7)))
    long.load_state_dict(short.state_dict())
    x = drawn(shape, 12)
    x = x if shape.tokens else x.double()
    assert_close(long(longer(x, 7)), short(x), atol=1e-12, rtol=0)


@every_model
def test_steps_that_are_there_matter(name: str, shape: Shape) -> None:
    module = build(name, shape, 3, 0).eval()
    x = drawn(shape, 9)
    other = x.clone()
    other[..., 0] = (x[..., 0] + 1) % shape.tokens if shape.tokens else x[..., 0] * 2
    if shape.masked:
        other[:, -1] = x[:, -1]
    assert (module(x).features - module(other).features).abs().amax(1).min() > 1e-4


@every_model
@pytest.mark.parametrize("train", [True, False])
def test_nothing_but_padding_is_finite_and_so_is_its_gradient(name: str, shape: Shape, train: bool) -> None:
    module = build(name, shape, 3, 0).train(train)
    x = drawn(shape, 3)
    x[1] = 0
    with step(KEY):
        out = module(x)
    nn.functional.cross_entropy(out.logits, torch.tensor([0, 1, 2])).backward()  # type: ignore[no-untyped-call]
    assert out.logits.isfinite().all()
    assert all(weight.grad is not None and bool(weight.grad.isfinite().all()) for weight in module.parameters())


def test_the_recurrent_unit_is_torch_s() -> None:
    shape = Shape((3, 6))
    module = Gru(shape, 2).double()
    theirs = nn.GRU(3, module.width, batch_first=True).double()
    names = {"weight_ih_l0": module.entry.weight, "bias_ih_l0": module.entry.bias}
    names |= {"weight_hh_l0": module.state.weight, "bias_hh_l0": module.state.bias}
    theirs.load_state_dict({name: value.detach() for name, value in names.items()})
    x = torch.randn(5, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert_close(module.encode(*module.steps(x)), theirs(x.mT)[1][0], atol=1e-12, rtol=0)


def test_the_block_is_torch_s_encoder_layer() -> None:
    block = TransformerBlock(0.0).double().eval()
    theirs = nn.TransformerEncoderLayer(64, block.heads, 128, 0.0, batch_first=True, norm_first=True).double().eval()
    names: dict[str, nn.Module] = {"norm1.": block.norm, "norm2.": block.second_norm}
    names |= {"self_attn.in_proj_": block.qkv, "self_attn.out_proj.": block.out}
    names |= {"linear1.": block.wide, "linear2.": block.narrow}
    both = ("weight", "bias")
    theirs.load_state_dict({f"{name}{part}": getattr(names[name], part) for name in names for part in both})
    x = torch.randn(4, 7, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    real = (torch.arange(7) < torch.tensor([[7], [1], [4], [6]])).double().unsqueeze(-1)
    expected = theirs(x, src_key_padding_mask=real[..., 0] == 0)
    assert_close(block(x, real) * real, expected * real, atol=1e-12, rtol=0)


def test_positions_are_the_published_ones() -> None:
    table = positions(5, 8)
    for step_number in range(5):
        for place in range(4):
            angle = step_number / 10_000 ** (2 * place / 8)
            assert table[step_number, place].item() == pytest.approx(math.sin(angle))
            assert table[step_number, 4 + place].item() == pytest.approx(math.cos(angle))


def test_a_bag_does_not_know_the_order_of_words() -> None:
    module = build("embedding-bag", TEXT, 3, 0).eval()
    x = drawn(TEXT, 9)
    assert_close(module(x.flip(1)), module(x))


@cache
def clients(shape: Shape) -> Federation:
    """Three clients of unequal size, with batches of 8 that leave one over, and two, and a single sample."""
    preparation = Preparation(tokens=shape.tokens, masked=shape.masked)

    def samples(number: int, seed: int) -> Samples:
        return Samples.of(drawn(shape, number, seed), torch.arange(number) % 3)

    pool = samples(9, 9)
    members = [Client.of(samples(size, size), pool, preparation=preparation) for size in (17, 10, 1)]
    return Federation(tuple(members), ("a", "b", "c"))


@every_model
@pytest.mark.parametrize("method", ["fedavg", "mp-fedcl"])
def test_engines_agree_to_rounding(name: str, shape: Shape, method: str) -> None:
    how = {"clients": clients(shape), "model": name, "rounds": 2, "participation": 1.0}
    runs = [play(method, engine=engine, **how) for engine in ("sequential", "stacked")]  # type: ignore[arg-type]
    assert [run.engine.name for run in runs] == ["sequential", "stacked"]
    assert_same_run(runs[0], runs[1])
    assert gap(own(runs[1]), own(play(method, engine="stacked", **how | {"rounds": 0}))) > 1e-4  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "shape"), [("gru", SERIES), ("embedding-bag", TEXT)])
def test_examples_are_hidden_one_by_one(name: str, shape: Shape) -> None:
    """Differential privacy of examples takes the gradient of each, through an embedding and a loop too."""
    settings = {"privacy": "example", "clip": 1.0, "noise": 0.5, "clients": clients(shape), "model": name}
    before, after = (play("fedavg", rounds=rounds, **settings) for rounds in (0, 1))  # type: ignore[arg-type]
    assert 1e-4 < gap(own(before), own(after)) < math.inf


@pytest.mark.parametrize("features", [1, 30])
@pytest.mark.parametrize("name", ["mlp", "head", "linear", "mlp-fedpcl"])
def test_an_mlp_takes_any_vector(name: str, features: int) -> None:
    module = build(name, Shape((features,)), 3, 0)
    assert module(torch.randn(4, features)).logits.shape == (4, 3)


REFUSED = [
    *((name, TEXT, "pictures|numbers") for name in MODELS if name not in {name for name, _ in EVERY}),
    *((name, Shape((30,)), "pictures") for name in ("cnn", "protonet", "resnet10", "mobilenet-v2")),
    ("embedding-bag", SERIES, "token ids"),
    *((name, Shape((1, 8, 8)), "series|token ids") for name in ("embedding-bag", "cnn1d", "gru", "transformer")),
    ("gru", Shape((1, 9), masked=True), "series"),  # a mask of nothing
    ("gru", Shape((2, 4097)), "4096 steps at most"),
    ("transformer", Shape((2049,), tokens=5), "2048 steps at most"),
]


@pytest.mark.parametrize(("name", "shape", "why"), REFUSED)
def test_what_a_model_cannot_take_is_one_line(name: str, shape: Shape, why: str) -> None:
    with pytest.raises(UserError, match=f"invalid value '{name}' for --model: it takes.*({why})") as raised:
        build(name, shape, 3, 0)
    assert "\n" not in str(raised.value)


def test_a_card_with_a_huge_vocabulary_is_refused_before_there_is_room_for_it() -> None:
    with pytest.raises(UserError, match=r"embedding-bag for samples of \(9,\) has \d{13,}"):
        check_size("embedding-bag", Shape((9,), tokens=10**12), 3, {"head.weight": torch.zeros(3, 4)})
