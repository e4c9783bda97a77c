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
    """Pixels from 0 to 255, as float32 [n, c, h, w], to features and logits, by the card's rule if it names one."""

    middle: Tensor
    scale: Tensor

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.module, self.rule = predictor.module.eval(), predictor.own_rule
        self.encoder = None if predictor.encoder is None else predictor.encoder.module
        mean, std = (torch.tensor(part).view(-1, 1, 1) for part in (predictor.card.mean, predictor.card.std))
        self.register_buffer("middle", 255 * mean)
        self.register_buffer("scale", 1 / (255 * std))

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        x = (images - self.middle) * self.scale
        if self.encoder is not None:
            x = self.encoder(x).features[..., None, None]
        out = self.module(x)
        return out.features, out.logits if self.rule is None else self.rule(out)


def write_onnx(predictor: Predictor, path: Path) -> None:
    """One file: input `images`, outputs `features` and `logits`."""
    if not (find_spec("onnx") and find_spec("onnxscript")):
        raise misused("--onnx", "it needs two packages", hint="pip install 'protofed[onnx]'")
    network, images = _Network(predictor).eval(), torch.zeros(2, *predictor.card.shape)
    with warnings.catch_warnings(), _quiet("torch.onnx"):
        warnings.simplefilter("ignore")  # of torch's own making
        torch.onnx.export(
            network,
            (images,),
            path,
            input_names=["images"],
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
