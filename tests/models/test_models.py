"""The built-in models: published sizes, shapes, and reproducible weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.functional import normalize

from protofed.errors import UserError
from protofed.models import MODELS, Output, adopt, build, parameter_count
from protofed.models.layers import step
from tests.support.nets import taken_by

Shape = tuple[int, int, int]
KEY = torch.tensor(0)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "count"),
    [
        ("mlp", (1, 28, 28), 10, 798_474),
        ("head", (512, 1, 1), 10, 133_898),
        ("linear", (512, 1, 1), 10, 5_130),
        ("cnn", (1, 28, 28), 10, 21_840),
        ("cnn-18", (1, 28, 28), 10, 19_738),
        ("cnn-22", (1, 28, 28), 10, 23_942),
        ("cnn-femnist", (1, 128, 128), 62, 849_332),
        ("cnn-femnist-18", (1, 128, 128), 62, 764_730),
        ("cnn-femnist-22", (1, 128, 128), 62, 933_934),
        ("protonet", (1, 28, 28), 10, 111_936 + 650),  # the encoder's published count, and the head
        ("resnet10", (3, 32, 32), 10, 4_903_242),
        ("resnet10", (3, 32, 32), 100, 4_949_412),
        ("resnet18", (3, 32, 32), 10, 11_181_642),
        ("resnet18", (3, 32, 32), 1000, 11_689_512),
        ("mobilenet-v2", (3, 32, 32), 10, 2_236_682),
        ("mobilenet-v2", (3, 32, 32), 1000, 3_504_872),
    ],
)
def test_published_parameter_counts(name: str, shape: Shape, classes: int, count: int) -> None:
    with torch.device("meta"):
        module = MODELS[name][0](shape, classes)
    assert parameter_count(module) == count


def test_encoder_of_the_mlp_is_separable() -> None:
    sizes = {"encoder": 0, "hidden": 0, "head": 0}
    for name, parameter in build("mlp", (1, 28, 28), 10, 0).named_parameters():
        sizes[name.partition(".")[0]] += parameter.numel()
    assert sizes == {"encoder": 664_576, "hidden": 131_328, "head": 2_570}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("shape", "classes"), [((1, 8, 8), 3), ((1, 28, 28), 10), ((3, 32, 32), 7)])
def test_shapes(name: str, shape: Shape, classes: int) -> None:
    known = taken_by(name, shape)
    module = build(name, known, classes, 0)
    assert isinstance(module.head, nn.Linear)
    assert list(module.named_children())[-1][0] == "head"
    for training in (True, False):
        module.train(training)
        with step(KEY), torch.no_grad():
            out = module(known.example(3))
        assert isinstance(out, Output)
        assert out.features.shape == (3, module.feature_size)
        assert out.logits.shape == (3, classes)
        assert out.blocks
        assert all(len(block) == 3 for block in out.blocks)
        assert all(tensor.isfinite().all() for tensor in (out.features, out.logits, *out.blocks))
    logits = module.head(out.features)  # eval: no dropout in between
    torch.testing.assert_close(normalize(logits.relu()) if "fedpcl" in name else logits, out.logits)


@pytest.mark.parametrize(
    ("name", "shape", "sides"),
    [
        ("cnn", (1, 8, 8), [4, 2, None]),
        ("cnn", (1, 16, 16), [6, 1, None]),
        ("protonet", (1, 8, 8), [8, 4, 2, 1]),
        ("resnet10", (3, 32, 32), [32, 32, 16, 8, 4]),
        ("resnet18", (3, 32, 32), [16, 8, 4, 2, 1]),
        ("mobilenet-v2", (3, 32, 32), [32, 32, 32, 16, 8, 8, 4, 4, 4]),
        ("mobilenet-v2", (3, 96, 96), [48, 48, 24, 12, 6, 6, 3, 3, 3]),
    ],
)
def test_sides_of_the_block_features(name: str, shape: Shape, sides: list[int | None]) -> None:
    out = build(name, shape, 2, 0).eval()(torch.rand(1, *shape))
    assert [block.shape[-1] if block.dim() == 4 else None for block in out.blocks] == sides


@pytest.mark.parametrize("name", [name for name in MODELS if name != "linear"])
def test_block_features_are_before_the_relu(name: str) -> None:
    shape = taken_by(name, (1, 16, 16))
    x = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    out = build(name, shape, 4, 0).eval()(shape.example(4) if shape.tokens else x)
    assert all(block.min() < 0 for block in out.blocks)
    assert out.features.min() >= 0


def test_resnet18_is_the_ordinary_one() -> None:
    """Against the textbook order of ReLU, pooling and addition."""
    module = build("resnet18", (3, 32, 32), 10, 0).eval()
    x = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    hidden = module.pool(module.stem(x).relu())  # type: ignore[operator]
    for stage in module.stages:  # type: ignore[union-attr]
        for block in stage:
            hidden = (block.second(block.first(hidden).relu()) + block.shortcut(hidden)).relu()
    torch.testing.assert_close(module(x).features, hidden.mean((2, 3)))


def _convolutions(name: str) -> list[nn.Conv2d]:
    return [layer for layer in build(name, (3, 32, 32), 10, 0).modules() if isinstance(layer, nn.Conv2d)]


def test_convolutions_of_resnet10_begin_as_torch_draws_them() -> None:
    """As in RethinkFL's and FedSC's code: uniform within the inverse root of a unit's inputs."""
    for layer in _convolutions("resnet10"):
        bound = layer.weight[0].numel() ** -0.5
        assert 0.99 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.05)


def test_convolutions_of_resnet18_begin_as_in_torchvision() -> None:
    """He's normal draws, scaled by a unit's outputs."""
    for layer in _convolutions("resnet18"):
        outputs = layer.weight[:, 0].numel()
        assert layer.weight.std().item() == pytest.approx((2 / outputs) ** 0.5, rel=0.05)


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet10", "mobilenet-v2"])
def test_same_key_same_weights_and_global_generator_untouched(name: str) -> None:
    before = torch.get_rng_state()
    first, again, other = (build(name, (1, 8, 8), 2, key) for key in (5, 5, 6))
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(first.state_dict(), again.state_dict(), rtol=0, atol=0)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize("name", MODELS)
def test_our_own_models_need_no_adoption(name: str) -> None:
    shape = taken_by(name, (1, 8, 8))
    module = MODELS[name][0](shape, 3)
    before = {key: tensor.clone() for key, tensor in module.state_dict().items()}
    assert adopt(module, shape, 3) is module
    torch.testing.assert_close(dict(module.state_dict()), before, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["mlp", "cnn", "protonet", "mobilenet-v2"])
def test_stacked_models_equal_a_loop(name: str) -> None:
    modules = [build(name, (1, 8, 8), 3, key).double() for key in range(2)]
    states = [{key: tensor.detach().clone() for key, tensor in module.state_dict().items()} for module in modules]
    stacked = {key: torch.stack([state[key] for state in states]) for key in states[0]}
    x = torch.randn(2, 4, 1, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    keys, masks = torch.tensor([1, 2]), torch.arange(4) < torch.tensor([[4], [2]])

    def forward(state: dict[str, Tensor], x: Tensor, key: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        with step(key, mask):
            out = functional_call(modules[0], state, (x,))
        return out.features, out.logits

    loop = [forward(states[k], x[k], keys[k], masks[k]) for k in range(2)]
    features, logits = vmap(forward)(stacked, x, keys, masks)
    torch.testing.assert_close([*zip(features, logits, strict=True)], loop, rtol=1e-10, atol=1e-10)
    for key, tensor in stacked.items():
        torch.testing.assert_close(tensor, torch.stack([state[key] for state in states]), rtol=1e-10, atol=1e-12)


def test_unknown_name_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match=r"'resnet-10' for --model(?s:.*)did you mean 'resnet10'"):
        build("resnet-10", (3, 32, 32), 10, 0)
