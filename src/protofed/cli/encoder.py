"""Frozen encoders: train one, or import published weights."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from protofed.cli.common import Quiet, command, experiment_flags, subcommands
from protofed.errors import UserError, unknown
from protofed.experiment import Experiment
from protofed.internal.plugins import is_code

if TYPE_CHECKING:
    from protofed.models.encoder import Encoder, OwnEncoder
    from protofed.runs.run import Run

group = subcommands("encoder", "Frozen encoders, whose features stand for images or text.")

FLAGS = (
    *("dataset", "data_dir", "train_size", "image_size", "normalise", "augment", "model", "epochs", "batch_size"),
    *("lr", "momentum", "weight_decay", "seed", "device", "threads"),
)
RECIPE = {"model": "resnet18", "image_size": 32, "epochs": 5, "batch_size": 64, "momentum": 0.9}
CENTRAL = {"split": "iid", "clients": 1, "engine": "sequential"}
"""Training in one place is a federation of one client."""

Out = Annotated[Path, typer.Option("--out", metavar="FILE", help="New file for the encoder.")]
OUT = Path("encoder.safetensors")


@command("train", "encoder train --dataset digits --epochs 3", group)
@experiment_flags(FLAGS, defaults=RECIPE)
def train_command(flags: Mapping[str, Any], out: Out = OUT, quiet: Quiet = False) -> None:
    """Train a classifier on a dataset, as a federation of one client, and keep its encoder."""
    from protofed.methods import ALONE
    from protofed.models import MODELS
    from protofed.runs.progress import progress
    from protofed.runs.run import new_run

    _refuse(out)
    values = {**RECIPE, **flags}
    if values["model"] not in MODELS:
        raise unknown("--model", values["model"], MODELS, see="protofed models")
    epochs = {"rounds": values["epochs"], "eval_every": values["epochs"], "epochs": 1}  # progress tells of rounds
    Experiment.from_mapping(values)  # complains of epochs by that name
    run = new_run(Experiment.from_mapping({**values, **CENTRAL, **epochs, "method": ALONE}))
    shown = progress(quiet)
    try:
        run.play(None, shown)
    except KeyboardInterrupt:
        print("stopped; no encoder was written", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        shown.end()
    _keep(encoder_of(run), out)


@command("import", "encoder import efficientnet-lite0 --out lite0.safetensors", group)
def import_command(
    what: Annotated[
        str,
        typer.Argument(
            metavar="NAME|FILE|CODE",
            help="efficientnet-lite0 or minilm, from their packages; torchvision's ResNet-18: .safetensors or .pth; "
            "or path/to/file.py:make, any module.",
        ),
    ],
    image_size: Annotated[
        int | None, typer.Option("--image-size", help="Side of the images it will see (224).")
    ] = None,
    out: Out = OUT,
) -> None:
    """Take published weights, such as ImageNet's, from a package or a file; nothing in them is executed."""
    from protofed.models.published import PUBLISHED, SIDE, from_package, imported

    _refuse(out)
    if is_code(what):
        _keep_own(what, image_size, out)
        return
    if what in PUBLISHED:
        encoder, paths = from_package(what, image_size)
        print(PUBLISHED[what].about)
    elif not Path(what).suffix:
        raise unknown("NAME", what, PUBLISHED)
    else:
        paths = [Path(what)]
        encoder = imported(paths[0], SIDE if image_size is None else image_size)
    for path in paths:
        print(f"read: {path} ({path.stat().st_size / 1e6:.1f} MB)")
    _keep(encoder, out)


def _refuse(out: Path) -> None:
    if out.exists():
        raise UserError("--out", str(out), "it exists already", hint="name a new file")
    if not out.parent.is_dir() or not os.access(out.parent, os.W_OK):  # better now than after the training
        raise UserError("--out", str(out), f"there is no folder {out.parent} that can be written to")


def _keep_own(name: str, image_size: int | None, out: Path) -> None:
    """The weights of a user's module, which sees samples as models would."""
    import torch

    from protofed.experiment import absolute_name
    from protofed.internal.plugins import WITH
    from protofed.models.encoder import OwnEncoder

    if image_size is not None:
        raise UserError("--image-size", image_size, "your own module sees what --image-size of a run says")
    _keep(OwnEncoder(absolute_name(name), torch.device("cpu")), out)
    print(f"use it with: --encoder {name}{WITH}{out}")


def _keep(encoder: Encoder | OwnEncoder, out: Path) -> None:
    encoder.write(out)
    for name, value in dataclasses.asdict(encoder.card).items():
        if value is not None:
            print(f"{name}: {value}")
    print(f"encoder: {out}")


def encoder_of(run: Run) -> Encoder:
    """The encoder that a run of a single client has trained."""
    from protofed.models.encoder import Encoder, EncoderCard, in_encoder

    client, group, experiment = run.federation.clients[0], run.engine.groups[0], run.experiment
    channels, side, _ = client.train.x.shape[1:]
    card = EncoderCard(
        model=experiment.model,
        channels=channels,
        image_size=side,
        mean=list(client.preparation.mean),
        std=list(client.preparation.std),
        feature_size=group.module.feature_size,  # type: ignore[arg-type]  # every model has it: `adopt` sees to that
        source=experiment.dataset,
        accuracy=run.result(None).accuracy["own/all/head"].last,
        epochs=len(run.history) * experiment.epochs,
        seed=experiment.seed,
    )
    trained = group.own.take([0]).items()
    return Encoder(card, {name: tensor[0].float().cpu() for name, tensor in trained if in_encoder(name)}, run.device)
