"""Models: each takes (shape, classes), returns Output, and calls its classifier `head`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from protofed.data.preparation import Shape
from protofed.errors import UserError, unknown
from protofed.internal.plugins import is_code, load_code, name_of
from protofed.models.cnn import Cnn, FedAvgCnn, ProtoNet
from protofed.models.efficientnet import EfficientNetLite0
from protofed.models.linear import Linear
from protofed.models.minilm import MiniLm
from protofed.models.mlp import Mlp
from protofed.models.mobilenet import MobileNetV2
from protofed.models.output import Output
from protofed.models.resnet import resnet10, resnet18, resnet18_fine
from protofed.models.sequences import Cnn1d, EmbeddingBag, Gru, Transformer
from protofed.models.tied import tie
from protofed.models.user import adopt, swap_layers

__all__ = [
    "ENCODERS",
    "MODELS",
    "Factory",
    "ModelSpec",
    "Output",
    "adopt",
    "build",
    "check_size",
    "factory_of",
    "parameter_count",
]

Factory = Callable[[Any, int], nn.Module]
"""Makes a model for samples of a `Shape`, which is a tuple, and so many classes."""
ModelSpec = str | Factory

MNIST, FEMNIST, CIFAR = (1, 28, 28), (1, 128, 128), (3, 32, 32)
SERIES, TEXT = Shape((6, 100)), Shape((128,), tokens=10_000)

# name -> (factory, what it is, the input of its paper)
MODELS: dict[str, tuple[Factory, str, tuple[int, ...]]] = {
    "mlp": (Mlp, "MP-FedCL's MLP: 512-512 encoder, 256-d feature", MNIST),
    "head": (partial(Mlp, widths=()), "MP-FedCL's 256-d MLP on ready-made features", (512, 1, 1)),
    "linear": (Linear, "a linear classifier on ready-made features, which stay as they are", (512, 1, 1)),
    "mlp-fedpcl": (partial(Mlp, unit=True), "the MLP with FedPCL's unit-length outputs", MNIST),
    "head-fedpcl": (
        partial(Mlp, widths=(), unit=True),
        "the head with FedPCL's unit-length outputs",
        (512, 1, 1),
    ),
    "cnn": (Cnn, "FedProto's CNN: two 5x5 convolutions, 50-d feature", MNIST),
    "cnn-18": (partial(Cnn, channels=18), "FedProto's CNN with 18 channels in its second convolution", MNIST),
    "cnn-22": (partial(Cnn, channels=22), "FedProto's CNN with 22 channels in its second convolution", MNIST),
    **{
        f"cnn-femnist{name}": (
            partial(Cnn, channels=channels, first=3),
            f"FedProto's CNN for FEMNIST: 3x3, then 5x5 with {channels} channels",
            FEMNIST,
        )
        for name, channels in (("", 20), ("-18", 18), ("-22", 22))
    },
    "cnn-fedavg": (FedAvgCnn, "FedAvg's CNN as in PFLlib: two 5x5 convolutions, 512-d feature", MNIST),
    "protonet": (ProtoNet, "four 64-channel blocks of prototypical networks, flattened feature", CIFAR),
    "resnet10": (resnet10, "ResNet-10 with a 3x3 stem, 512-d feature", CIFAR),
    "resnet18": (resnet18, "ResNet-18 with a 7x7 stem, 512-d feature", (3, 224, 224)),
    "resnet18-fine": (resnet18_fine, "FedProto's ResNet-18 with strides 1 and 4 in stem and pooling", CIFAR),
    "mobilenet-v2": (MobileNetV2, "MobileNetV2 of width 1, 1280-d feature", CIFAR),
    "cnn1d": (Cnn1d, "three convolutions over the steps of a series or text, 128-d feature", SERIES),
    "gru": (Gru, "a gated recurrent unit of width 64 on a series or text, 128-d feature", SERIES),
    "transformer": (Transformer, "two blocks of attention of width 64 on a text or series, 128-d feature", TEXT),
    "embedding-bag": (EmbeddingBag, "the mean of a text's 64-d word vectors, 128-d feature", TEXT),
}
ENCODERS: dict[str, Factory] = {name: factory for name, (factory, *_) in MODELS.items()} | {
    "efficientnet-lite0": EfficientNetLite0,
    "minilm": MiniLm,
}
"""What a frozen encoder may be: one of these models, or a network that only comes with published weights."""


def build(
    spec: ModelSpec,
    shape: Sequence[int],
    classes: int,
    generator_key: int,
    extend: Callable[[nn.Module, int], nn.Module] | None = None,
) -> nn.Module:
    """Make a model from a name in MODELS, from `path/to/file.py:ClassName`, or from a callable.

    The same key gives the same weights, and torch's global generator is left as it was. `extend` may add to the model.
    """
    factory = factory_of(spec) if isinstance(spec, str) else spec
    known = Shape.of(shape)
    label = spec if isinstance(spec, str) else getattr(spec, "__name__", repr(spec))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(generator_key)  # torch.manual_seed would reseed the GPUs too
        try:
            module = factory(known, classes)
        except UserError as error:  # one of ours says what it takes
            raise UserError("--model", label, error.reason, hint=error.hint) from error
        except Exception as error:
            why = f"its constructor, called with ({tuple(shape)}, {classes}), raised {type(error).__name__}: {error}"
            raise UserError("--model", label, why) from error
        if not isinstance(module, nn.Module):
            raise UserError("--model", label, f"it must make an nn.Module, not {type(module).__name__}")
        module = adopt(module, known, classes)
        if extend is None:
            return module
        module = extend(module, classes)
        swap_layers(module)  # a method's author writes nn.Dropout as everybody does
        return tie(module)


def factory_of(spec: str) -> Factory:
    """What makes the model of a name in MODELS, of `path/to/file.py:Name` or of `package.module:Name`."""
    if spec in MODELS:
        return MODELS[spec][0]
    if is_code(spec):
        factory: Factory = load_code("--model", spec)
        return factory
    raise unknown("--model", spec, MODELS, see="protofed models")


def named_model(model: ModelSpec) -> str:
    """A model as an experiment has it: a name that `factory_of` knows."""
    if isinstance(model, str):
        return model
    if isinstance(model, nn.Module) or not callable(model):
        why = "give a name, or what makes one: a class, or a function of (shape, classes)"
        raise UserError("model", type(model).__name__, why)
    return name_of(model, getattr(model, "__name__", type(model).__name__))


def check_size(name: str, shape: Sequence[int], classes: int, state: Mapping[str, torch.Tensor]) -> None:
    """Raise if a model of ENCODERS has more weights than a file brings, before there is room made for them."""
    with torch.device("meta"):  # shapes alone
        module = ENCODERS[name](Shape.of(shape), classes)
    needed, given = (
        sum(tensor.numel() for part, tensor in tensors.items() if not part.startswith("head."))
        for tensors in (module.state_dict(), state)
    )
    if needed > given:
        raise UserError("tensors", f"{given} numbers", f"{name} for samples of {tuple(shape)} has {needed}")


def parameter_count(module: nn.Module) -> int:
    """How many numbers the model learns; running statistics do not count."""
    return sum(parameter.numel() for parameter in module.parameters())


def describe() -> list[dict[str, Any]]:
    """What `protofed models` says of each model, counted on its paper's input."""
    rows = []
    for name, (_, text, shape) in MODELS.items():
        module = build(name, shape, 10, 0)
        size = "×".join(str(side) for side in shape) + (" token ids" if Shape.of(shape).tokens else "")
        row = {"name": name, "description": text, "input": size, "classes": 10}
        rows.append(row | {"features": module.feature_size, "parameters": parameter_count(module)})
    return rows
