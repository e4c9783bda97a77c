"""A class that nobody had at training time, from a few examples and without training."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from protofed.errors import UserError, listed
from protofed.prototypes import class_means
from protofed.serving import refusal
from protofed.serving.predictor import Predictor


@dataclass(frozen=True)
class Effect:
    """What a new class does, by the nearest-prototype rule, in percent; None where there is nothing to measure on."""

    name: str
    examples: int
    recognised: float | None  # examples that are taken for the class when its prototype is made of the others
    held_out: int  # images of the old classes
    before: float | None  # of these, how many are taken for what they are
    after: float | None
    taken: float | None  # and how many for the new class


def add_class(predictor: Predictor, name: str, images: Tensor, held_out: dict[str, Tensor]) -> tuple[Predictor, Effect]:
    """A model that also knows a class by the mean feature of its examples, uint8 images of the card's shape."""
    if not name or name in predictor.card.classes:
        raise UserError("NAME", name, f"it must not be one of its classes: {listed(predictor.card.classes)}")
    examples = predictor.outputs(images)[0]
    mean = class_means(examples, torch.zeros(len(examples), dtype=torch.int64), 1)
    pool = predictor.pool.append(mean)
    features, labels = held_out["features"], held_out["labels"]
    old, new = features[labels >= 0], len(predictor.card.classes)
    truth = labels[labels >= 0]
    found = {"before": predictor.pool.nearest(old).classes, "after": pool.nearest(old).classes}
    right = {when: _percent(classes[:, 0] == truth) for when, classes in found.items()}
    taken = _percent(found["after"][:, 0] == new)
    effect = Effect(name, len(examples), _recognised(predictor, examples), len(old), **right, taken=taken)
    far = pool.nearest(features).distances[:, 0]
    table = refusal.calibrate(far[labels >= 0], far[labels < 0])
    changed = predictor.with_card(
        pool,
        classes=[*predictor.card.classes, name],
        prototypes={**predictor.card.prototypes, "number": int(pool.prototypes.filled.sum())},
        refusal={**predictor.card.refusal, "nearest": table},
        added=[*predictor.card.added, asdict(effect)],
    )
    return changed, effect


def read_held_out(path: Path, size: int) -> dict[str, Tensor]:
    """The features of held-out images that an exported model brings; none if the file was taken away."""
    if not (path / "held-out.safetensors").exists():
        return {"features": torch.empty(0, size), "labels": torch.empty(0, dtype=torch.int64)}
    try:
        found = load_file(path / "held-out.safetensors")
        features, labels = found["features"], found["labels"]
        if features.shape != (*labels.shape, size) or (features.dim(), labels.dtype) != (2, torch.int64):
            raise ValueError("features and labels do not fit together")
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise UserError("MODEL", str(path), f"held-out.safetensors cannot be read: {error}") from None
    return {"features": features, "labels": labels}


def _recognised(predictor: Predictor, examples: Tensor) -> float | None:
    """Each example is left out of its mean; how many are still nearer to it than to any old class."""
    if len(examples) < 2:
        return None
    others = (examples.sum(0) - examples) / (len(examples) - 1)
    return _percent((examples - others).norm(dim=-1) < predictor.pool.nearest(examples).distances[:, 0])


def _percent(hits: Tensor) -> float | None:
    return 100 * float(hits.double().mean()) if len(hits) else None
