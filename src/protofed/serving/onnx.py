"""The network of an exported model as ONNX, for programs without PyTorch."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from protofed.errors import misused
from protofed.serving.predictor import Predictor


class _Network(nn.Module):
    """Samples as they are stored, bytes as float32, to features and logits, by the card's rule if it names one."""

    middle: Tensor
    scale: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.module, self.rule = predictor.module.eval(), predictor.own_rule
        self.encoder = None if predictor.encoder is None else predictor.encoder.module
        self.standardised = predictor.card.preparation.kind != "none"
        if self.standardised:
            middle, scale = predictor.card.preparation.affine(len(predictor.card.shape))
            self.register_buffer("middle", middle.float())
            self.register_buffer("scale", scale.float())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.standardised:
            x = (x - self.middle) * self.scale
        if self.encoder is not None:
            x = self.encoder(x).features[..., None, None]
        out = self.module(x)
        return out.features, out.logits if self.rule is None else self.rule(out)


def can_write_onnx() -> bool:
    """Whether the packages are there that write it."""
    return all(map(find_spec, ("onnx", "onnxscript")))


def write_onnx(predictor: Predictor, path: Path) -> None:
    """One file: input `images`, or `x` if samples are none, outputs `features` and `logits`."""
    if not can_write_onnx():
        raise misused("--onnx", "it needs two packages", hint="pip install 'protofed[onnx]'")
    network, samples = _Network(predictor).eval(), predictor.card.seen.example(2)
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # of torch's own making
        torch.onnx.export(
            network,
            (samples,),
            path,
            input_names=["images" if predictor.card.is_picture else "x"],
            output_names=["features", "logits"],
            dynamic_shapes=[{0: torch.export.Dim("n")}],
            dynamo=True,
            external_data=False,
            verbose=False,
        )


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without what a package logs below errors."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
