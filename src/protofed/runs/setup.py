"""What a run needs before its first round: the process's settings, the device, the encoder, public images."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import torch

from protofed.data.build import dataset_of
from protofed.engines.base import Engine
from protofed.engines.distributed import Ranks
from protofed.errors import UserError
from protofed.experiment import Experiment, flag_of, with_absolute_paths
from protofed.methods.base import Method, PublicExchange
from protofed.models.encoder import Encoder


def public_images(experiment: Experiment, method: Method, encoder: Encoder | None) -> torch.Tensor | None:
    """The public, unlabelled images of a method that needs some."""
    if not isinstance(method, PublicExchange):
        return None
    if experiment.public is None:
        raise UserError("--public", None, f"{method.name} needs a public dataset, such as digit-domains")
    images = dataset_of(experiment, experiment.public, None, encoder).train.images[: method.public_images]
    return images if encoder is None else encoder.features(images)


def encoder_of(experiment: Experiment, device: torch.device) -> Encoder | None:
    """The frozen encoder of an experiment, which alone decides how images are seen."""
    if experiment.encoder is None:
        return None
    for name in ("image_size", "normalise", "augment"):
        if getattr(experiment, name) != getattr(Experiment, name):
            why = "the encoder knows what it sees, and sees every image once"
            raise UserError(flag_of(name), getattr(experiment, name), why)
    return Encoder.read(Path(experiment.encoder), device)


def settle(experiment: Experiment) -> None:
    """What holds for the whole process: CPU threads, the arithmetic of a GPU, and whether it repeats bit by bit."""
    if experiment.threads is not None:
        torch.set_num_threads(experiment.threads)
    torch.backends.cuda.matmul.allow_tf32 = experiment.precision in ("tf32", "bf16")
    torch.backends.cudnn.allow_tf32 = experiment.precision in ("tf32", "bf16")
    if torch.are_deterministic_algorithms_enabled() != experiment.deterministic:  # saying it imports a compiler
        torch.use_deterministic_algorithms(experiment.deterministic)
    torch.backends.cudnn.deterministic = experiment.deterministic
    if experiment.deterministic:
        torch.backends.cudnn.benchmark = False
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # read when CUDA starts


def resolved(experiment: Experiment, engine: Engine) -> Experiment:
    """The experiment as it is run, so that it runs again the same way, and from any folder."""
    settled: dict[str, Any] = {"engine": engine.name, "width": engine.width, "device": str(engine.device)}
    settled["threads"] = torch.get_num_threads()
    return Experiment.from_mapping(dataclasses.asdict(with_absolute_paths(experiment)) | settled)


def device_of(name: str, ranks: Ranks) -> torch.device:
    """The device of a name; each of several processes has a GPU of its own."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and ranks.count > 1:
        name = f"cuda:{ranks.local}"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError("--device", name, f"this machine cannot use it: {str(error).splitlines()[0]}") from None
    if device.type == "cuda" and ranks.count > 1:
        torch.cuda.set_device(device)  # or each process would also take memory of the first GPU
    return device
