"""What a playground holds of an exported model: its prototypes, refusals, pictures to pick, and what drawings go by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from protofed.data.images import fit_bytes
from protofed.data.samples import Dataset, is_picture
from protofed.errors import UserError
from protofed.report.playground.drawing import placement
from protofed.report.plots import colour
from protofed.serving.card import ModelCard
from protofed.serving.examples import Examples
from protofed.serving.predictor import Predictor
from protofed.serving.prototype_index import PrototypeIndex

PICKED = 3
"""Pictures of a class to pick from, at most."""
MOST_PICKED = 60
"""And of all classes."""
PICKED_BYTES = 2**22
MEASURED = 1000
"""Pictures that say how drawings are laid."""


class Content(NamedTuple):
    """What is said in JSON, and what is packed: tensors of bytes or of float32, by name."""

    about: dict[str, Any]
    tensors: dict[str, Tensor]


class Picks(NamedTuple):
    """Pictures that a visitor may pick instead of drawing."""

    x: Tensor  # uint8 [n, c, h, w]
    about: list[dict[str, Any]]  # of each its class, and whose training picture it is, or None


def gather_playground(predictor: Predictor, held_out: Mapping[str, Tensor], data: Dataset | None) -> Content:
    """Everything that a page needs to answer as `predict` and to learn a class as `add_class` do.

    Args:
        predictor: of a model of pictures.
        held_out: features and labels of test pictures, on which the effect of a new class is measured.
        data: whose test pictures can be picked, and whose training pictures show how drawings are laid.
    """
    if data is not None and not is_picture(data.test.x):
        raise UserError("--data", data.name, "it holds no pictures")
    card, examples = predictor.card, _pictured(predictor)
    flat = predictor.pool.flat()
    seen = examples.x if examples is not None else None
    if data is not None:
        seen = fit_bytes(data.train.x[:MEASURED], card.shape)
    picks = _of_data(data, card) if data is not None else _of_examples(examples, card)
    ink = sum(card.preparation.mean) / len(card.preparation.mean) if card.preparation.kind == "pixels" else None
    facts = _facts(card)
    clients = sorted({*flat["clients"].tolist()} - {-1})
    about: dict[str, Any] = {
        "title": f"{facts.get('method', card.model)} on {facts.get('data', 'pictures')}",
        "facts": facts,
        "classes": card.classes,
        "shape": card.shape,
        "feature_size": card.feature_size,
        "placement": asdict(placement(seen, ink)),
        "refusal": card.refusal.get("nearest") or None,
        "colours": {client: colour(n) for n, client in enumerate(clients)},
        "prototypes": {name: flat[name].tolist() for name in ("classes", "clients", "numbers", "counts")},
        "picks": picks.about,
        "samples": None,
    }
    tensors = {"vectors": flat["vectors"], "picked": picks.x} | _of_held_out(predictor.pool, held_out)
    if examples is not None:
        about["samples"] = {"classes": examples.labels.tolist(), "clients": examples.clients.tolist()}
        about["prototypes"]["samples"] = _nearest_samples(flat, examples)
        tensors |= {"sample_pictures": examples.x, "sample_features": examples.features.float()}
    return Content(about, tensors)


def _facts(card: ModelCard) -> dict[str, str]:
    """What the page says of the model."""
    right = card.held_out
    facts = {
        "method": card.method.get("name"),
        "data": card.data.get("dataset"),
        "clients": card.data.get("clients"),
        "rounds": card.rounds.get("played"),
        "network": f"{card.model}, {card.whose}",
        "prototypes": ", ".join(map(str, card.prototypes.values())),
        "right answers": f"{right['nearest']:.1f} % of {right['images']:.0f} test pictures"
        if "nearest" in right
        else None,
    }
    return {name: str(value) for name, value in facts.items() if value is not None}


def _pictured(predictor: Predictor) -> Examples | None:
    """The training samples that the model brings along, if they are pictures as it sees them."""
    examples = predictor.examples
    if examples is None or not is_picture(examples.x) or examples.x.shape[1:] != predictor.card.shape:
        return None
    return examples


def _of_data(data: Dataset, card: ModelCard) -> Picks:
    """The first test pictures of each class."""
    rows, labels = _first(data.test.labels, len(data.classes), card)
    about = [{"class": data.classes[label], "client": None} for label in labels]
    return Picks(fit_bytes(data.test.x[rows], card.shape), about)


def _of_examples(examples: Examples | None, card: ModelCard) -> Picks:
    """The first training pictures of each class, or nothing."""
    if examples is None:
        return Picks(torch.empty(0, *card.shape, dtype=torch.uint8), [])
    rows, labels = _first(examples.labels, len(card.classes), card)
    whose = examples.clients[rows].tolist()
    about = [{"class": card.classes[label], "client": owner} for label, owner in zip(labels, whose, strict=True)]
    return Picks(examples.x[rows], about)


def _first(labels: Tensor, classes: int, card: ModelCard) -> tuple[Tensor, list[int]]:
    """Where the first samples of each class are, as many as there is room for, and their labels."""
    channels, height, width = card.shape
    room = max(1, min(MOST_PICKED, PICKED_BYTES // (channels * height * width)))
    each = max(1, min(PICKED, room // classes))
    rows = torch.cat([(labels == label).nonzero().flatten()[:each] for label in range(classes)])[:room]
    return rows, labels[rows].tolist()


def _of_held_out(pool: PrototypeIndex, held_out: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of test pictures the features, how far the nearest prototype is, and whether it is right (2: of no class)."""
    features, labels = held_out["features"].float(), held_out["labels"]
    found = pool.nearest(features) if len(features) else None
    far = torch.empty(0) if found is None else found.distances[:, 0]
    right = torch.empty(0, dtype=torch.uint8) if found is None else (found.classes[:, 0] == labels).byte()
    return {"held_features": features, "held_far": far.float(), "held_right": torch.where(labels < 0, 2, right).byte()}


def _nearest_samples(flat: Mapping[str, Tensor], examples: Examples) -> list[int]:
    """Of each prototype the nearest training sample of its class; -1 where there is none."""
    far = torch.cdist(flat["vectors"].double(), examples.features.double())
    far[flat["classes"].unsqueeze(1) != examples.labels] = torch.inf
    least, rows = far.min(1)
    return torch.where(least.isfinite(), rows, -1).tolist()
