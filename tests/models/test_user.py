"""A user's own module: swapped, wrapped, checked, or refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from protofed.errors import UserError
from protofed.models import Output, adopt, build
from protofed.models.layers import BatchNorm, Dropout, Dropout2d, step

SHAPE = (1, 8, 8)
KEY = torch.tensor(0)


def plain(*extra: nn.Module, classes: int = 3) -> nn.Sequential:
    """A module like torchvision's: convolution, what is tested, pooling, and a classifier of two layers."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        *extra,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, classes)),
    )


class Pair(nn.Module):
    """Returns (features, logits)."""

    def __init__(self, shape: tuple[int, int, int] = SHAPE, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 5), nn.BatchNorm1d(5))
        self.head = nn.Linear(5, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


class Own(Pair):
    """Returns Output."""

    def forward(self, x: Tensor) -> Output:  # type: ignore[override]
        return Output(*super().forward(x), blocks=(x,))


class Functional(Pair):
    """Draws from torch's generator without a layer for it."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = F.dropout(self.body(x), training=self.training)
        return features, self.head(features)


class Then(nn.Module):
    """Runs a module, then a function."""

    def __init__(self, inner: nn.Module, then: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.inner = inner
        self.then = then

    def forward(self, x: Tensor) -> object:
        return self.then(self.inner(x))


def test_a_module_that_returns_logits_is_cut_before_its_last_linear() -> None:
    original = plain().eval()
    x = torch.rand(3, *SHAPE)
    features, logits = original[:-1](x), original(x)
    module = adopt(deepcopy(original), SHAPE, 3).eval()
    out = module(x)
    assert isinstance(module.head, nn.Linear)
    assert module.feature_size == 6
    torch.testing.assert_close(out.features, original[-1][:2](features))  # type: ignore[index]
    torch.testing.assert_close(out.logits, logits)
    names = {"body.0.weight", "body.0.bias", "body.3.0.weight", "body.3.0.bias", "head.weight", "head.bias"}
    assert set(module.state_dict()) == names


def test_a_pair_and_an_output_keep_module_and_names() -> None:
    for original in (Pair(), Own()):
        names = {name for name, _ in original.named_parameters()}
        module = adopt(original, SHAPE, 3)
        assert module is original
        assert {name for name, _ in module.named_parameters()} == names
        assert module.feature_size == 5
        out = module.eval()(torch.rand(2, *SHAPE))
        assert isinstance(out, Output)
        assert len(out.blocks) == (1 if isinstance(original, Own) else 0)


def test_adopting_twice_changes_nothing() -> None:
    for original in (plain(nn.BatchNorm2d(4)), Pair(), Own()):
        once = adopt(original, SHAPE, 3)
        assert adopt(once, SHAPE, 3) is once


def test_layers_are_swapped_with_their_weights() -> None:
    norm = nn.BatchNorm2d(4, eps=1e-3, momentum=0.2)
    norm.running_mean = torch.arange(4.0)
    norm.weight.requires_grad_(False)
    shared = nn.Dropout2d(0.3)
    module = adopt(plain(norm, shared, nn.Dropout(0.2), shared, nn.BatchNorm2d(4, affine=False)), SHAPE, 3)
    ours, dropout2d, dropout, again, bare = module.body[1:6]  # type: ignore[index]
    assert isinstance(ours, BatchNorm)
    assert (ours.eps, ours.momentum) == (1e-3, 0.2)
    assert ours.weight is norm.weight
    assert torch.equal(ours.running_mean, torch.arange(4.0))
    assert isinstance(bare, BatchNorm)
    assert bare.weight is None
    assert isinstance(dropout2d, Dropout2d)
    assert dropout2d is again
    assert dropout2d.p == 0.3
    assert type(dropout) is Dropout
    assert dropout.p == 0.2


@pytest.mark.parametrize("original", [plain(nn.BatchNorm2d(4), nn.Dropout(0.2)), Pair()])
def test_adopted_modules_stack(original: nn.Module) -> None:
    module = adopt(original, SHAPE, 3).double()
    states = [{name: tensor.detach() + k * 0.1 for name, tensor in module.state_dict().items()} for k in range(2)]
    stacked = {name: torch.stack([state[name] for state in states]) for name in states[0]}
    x, keys = torch.rand(2, 4, *SHAPE, dtype=torch.float64), torch.tensor([1, 2])

    def forward(state: dict[str, Tensor], x: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        with step(key):
            out = functional_call(module, state, (x,))
        return out.features, out.logits

    loop = [forward(states[k], x[k], keys[k]) for k in range(2)]
    torch.testing.assert_close([*zip(*vmap(forward)(stacked, x, keys), strict=True)], loop, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (plain(nn.AlphaDropout()), "random"),
        (plain(nn.RReLU()), "random"),
        (Functional(), "random"),
        (plain(nn.Dropout3d()), "random"),
        (plain(nn.SyncBatchNorm(4)), r"layer 1 is SyncBatchNorm"),
        (plain(nn.BatchNorm3d(4)), r"layer 1 is BatchNorm3d"),
        (plain(nn.BatchNorm2d(4, momentum=None)), "needs a momentum"),
        (plain(nn.BatchNorm2d(4, track_running_stats=False)), "running statistics"),
        (plain(nn.InstanceNorm2d(4, track_running_stats=True)), r"body\.1 \(InstanceNorm2d\) keeps state"),
        (plain(nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 1))), "keeps state"),
        (plain(classes=4), r"Sequential.*logits have shape \(2, 4\), not \(2, 3\)"),
        (Then(plain(), lambda x: x.log_softmax(-1)), "straight from an nn.Linear"),
        (nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten()), "straight from an nn.Linear"),
        (Then(plain(), lambda x: {"logits": x}), "must return"),
        (Then(plain(), lambda x: (x, x)), "named `head`"),
        (nn.Linear(8, 3), "must return"),
        (nn.Dropout(), "must return"),
        (nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), r"shape \(2, 1, 8, 8\) raised RuntimeError"),
    ],
)
def test_what_engines_cannot_run_is_refused(module: nn.Module, reason: str) -> None:
    with pytest.raises(UserError, match=f"(?=.* for --model: ).*{reason}"):
        adopt(module, SHAPE, 3)


def test_checking_leaves_weights_statistics_and_generator_alone() -> None:
    original = Pair()
    before = {name: tensor.clone() for name, tensor in original.state_dict().items() if "num_batches" not in name}
    state = torch.get_rng_state()
    module = adopt(original, SHAPE, 3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.testing.assert_close(dict(module.state_dict()), before, rtol=0, atol=0)


def test_build_from_a_callable() -> None:
    before = torch.get_rng_state()
    first, again = build(Pair, SHAPE, 7, 1), build(Pair, SHAPE, 7, 1)
    assert torch.equal(torch.get_rng_state(), before)
    torch.testing.assert_close(first.state_dict(), again.state_dict(), rtol=0, atol=0)
    with step(KEY):
        assert first(torch.rand(2, *SHAPE)).logits.shape == (2, 7)


FILE = """
from dataclasses import dataclass
from torch import nn

@dataclass
class Size:
    width: int = 6

class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(64, Size().width), nn.ReLU(), nn.Linear(6, classes))

class Wrong(nn.Module):
    def __init__(self):
        super().__init__()

def number(shape, classes):
    return classes
"""


def test_build_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    module = build(f"{path}:Net", SHAPE, 3, 0).eval()
    assert module(torch.rand(2, *SHAPE)).features.shape == (2, 6)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("gone.py:Net", "there is no file"),
        ("mine.py:Missing", "has no Missing"),
        ("mine.py:Wrong", "constructor, called with .* raised TypeError"),
        ("mine.py:number", "must make an nn.Module, not int"),
        ("broken.py:Net", "SyntaxError"),
    ],
)
def test_a_file_that_does_not_serve_is_named(
    spec: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(FILE)
    Path("broken.py").write_text("class Net(")
    with pytest.raises(UserError, match=f"'{spec}' for --model: .*{reason}"):
        build(spec, SHAPE, 3, 0)
