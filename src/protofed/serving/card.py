"""The card of an exported model: what it is, what it sees, where it comes from and how good it is."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

import torch

from protofed.data.encodings import Encoding, decoded, encoded
from protofed.data.preparation import Preparation, Shape
from protofed.data.samples import check_shape
from protofed.errors import UserError, listed
from protofed.experiment import Experiment
from protofed.internal.schema import check_type, read_json
from protofed.serving import refusal

MOST_AXES = 4
MOST_TOKENS = 2**20
"""Neither is exceeded: a card is somebody's word, and a model of the size it names is made."""
LARGEST_FEATURE = 2**16

PICTURE = 3
"""Axes of one: channels, height, width."""
OBJECTS = ("preparation", "encoding")
"""Fields that check themselves."""

TRAINING = ("batch_size", "lr", "momentum", "weight_decay")

Rule = Literal["nearest", "head"]
RULES: tuple[Rule, ...] = ("nearest", "head")


@dataclass(frozen=True)
class ModelCard:
    """card.json. What follows `refusal` is only told, never used, but for the parameters of `extended_by`."""

    classes: list[str]
    shape: tuple[int, ...]  # of a sample as it is stored; with an encoder, of what the encoder sees
    dtype: Literal["uint8", "float32", "int64"]
    preparation: Preparation  # what happens to samples before the model, or the encoder, sees them
    encoding: Encoding | None  # how records become samples; None for pictures and tensors
    model: str  # a name that `protofed models` lists, or a model of the user's own
    extended_by: str | None  # the method whose `extend` changed the model, or whose `rule` answers: a name; None: none
    head_classes: int  # the classifier knows the first so many classes; the others were added
    feature_size: int
    encoder: bool  # a frozen encoder, encoder.safetensors, comes first
    training: dict[str, float]  # as in the run, for clients that come later: see TRAINING
    refusal: dict[str, dict[str, list[float]]]  # by rule; see refusal.py

    whose: str  # the model: averaged, or a client's
    prototypes: dict[str, Any]  # how many there are, and who made them
    method: dict[str, Any]  # name, paper, link, params
    data: dict[str, Any]  # dataset, split, clients, seed
    rounds: dict[str, Any]  # played, planned, and whether the run was complete
    shared: dict[str, Any]  # what went up and down, in words and bytes
    accuracy: dict[str, float]  # of the run, in percent, by model/test/rule; of the last round that was tested
    diagnostic: list[str]  # those by class means that the method itself does not have
    held_out: dict[str, float]  # of this model on test images of its classes, by rule, and how many they are
    added: list[dict[str, Any]] = field(default_factory=list)  # classes without training: see add_class.py
    optimiser: str = Experiment.optimiser  # as in the run, for clients that come later; not in cards of 0.1
    rule: str | None = None  # the method's own, by which a client's model answers; what it needs: turn.safetensors

    def __post_init__(self) -> None:
        hints = get_type_hints(ModelCard)
        for item in dataclasses.fields(self):
            if item.name not in OBJECTS:
                check_type(item.name, getattr(self, item.name), hints[item.name])
        if not 1 <= self.feature_size <= LARGEST_FEATURE:
            raise UserError("feature_size", self.feature_size, f"it must be from 1 to {LARGEST_FEATURE}")
        self._check_samples()
        if not all(isinstance(name, str) for name in self.classes) or len(set(self.classes)) != len(self.classes):
            raise UserError("classes", listed(self.classes), "give a name for each, every name once")
        for name in TRAINING:
            check_type(f"training {name}", self.training.get(name), float)
        for rule, table in self.refusal.items():
            refusal.check(rule, table)
        if self.extended_by is not None:
            check_type("method params", self.method.get("params"), dict)
        if self.rule is not None and (self.extended_by is None or self.rule in ("", *RULES)):
            raise UserError("rule", self.rule, f"it needs a method, and another name than {listed(RULES)}")
        if not 1 <= self.head_classes <= len(self.classes):
            raise UserError("head_classes", self.head_classes, f"it must be from 1 to {len(self.classes)}")

    def _check_samples(self) -> None:
        if not 1 <= len(self.shape) <= MOST_AXES or min(self.shape) < 1:
            raise UserError("shape", list(self.shape), f"it must have 1 to {MOST_AXES} sizes, each 1 or more")
        check_shape(*self.shape)
        if not 0 <= self.preparation.tokens <= MOST_TOKENS:
            raise UserError("tokens", self.preparation.tokens, f"it must be from 0 to {MOST_TOKENS}")
        if (self.dtype == "int64") != bool(self.preparation.tokens):
            raise UserError("dtype", self.dtype, "token ids, and nothing else, are int64")
        self.preparation.check(torch.zeros(1, *self.shape, dtype=getattr(torch, self.dtype)))

    @property
    def rules(self) -> tuple[str, ...]:
        """By which it can be asked; the first is how it answers unless told otherwise."""
        return RULES if self.rule is None else (self.rule, *RULES)

    @property
    def seen(self) -> Shape:
        """The shape of a sample as the model, or the encoder, sees it."""
        return Shape(self.shape, self.preparation.tokens, self.preparation.masked)

    @property
    def is_picture(self) -> bool:
        """Whether samples are pictures, which are cut and scaled to the shape."""
        return self.dtype == "uint8" and len(self.shape) == PICTURE

    def to_json(self) -> str:
        """The text of card.json."""
        values = {item.name: getattr(self, item.name) for item in dataclasses.fields(self)}
        values |= {"preparation": dataclasses.asdict(self.preparation), "encoding": encoded(self.encoding)}
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def read(cls, path: Path) -> ModelCard:
        """A card from a file, also one that version 0.1 wrote."""
        values = read_json(path)
        if not isinstance(values, Mapping):
            raise UserError("card.json", values, "it must hold names and values")
        values = _of_pictures(_since_0_1(values) if "head" in values else values)
        check_type("shape", values.get("shape"), list)
        objects = {
            "shape": tuple(values["shape"]),
            "preparation": Preparation.from_json(values.get("preparation")),
            "encoding": decoded(values.get("encoding")),
        }
        return cls(**{**values, **objects})


def _of_pictures(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """What an older card says, which knew pictures only, as cards say it now."""
    old = ("channels", "height", "width", "mean", "std")
    if any(name not in values for name in old):
        return values
    channels, height, width, mean, std = (values[name] for name in old)
    return {name: value for name, value in values.items() if name not in old} | {
        "shape": [channels, height, width],
        "dtype": "uint8",
        "preparation": {"kind": "pixels", "mean": mean, "std": std},
        "encoding": None,
    }


def _since_0_1(values: Mapping[str, Any]) -> dict[str, Any]:
    """What a card of version 0.1 says, which had words for what methods of its time added, as cards say it now."""
    added = values["head"] != "linear" or bool(values.get("projected"))
    method = values.get("method")
    maker = method.get("name") if added and isinstance(method, Mapping) else None
    return {name: value for name, value in values.items() if name not in ("head", "projected")} | {"extended_by": maker}
