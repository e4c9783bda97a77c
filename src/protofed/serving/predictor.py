"""An exported model: `protofed.load(MODEL).predict(images)`. Nothing here trains."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from protofed.data.preparation import Shape
from protofed.errors import UserError, missing_value, unknown
from protofed.internal.atomic_files import write_folder
from protofed.internal.higher import ask
from protofed.models import MODELS, ModelSpec, build, check_size
from protofed.models.output import Output
from protofed.models.stacking import bytes_per_image
from protofed.serving import refusal
from protofed.serving.card import ModelCard
from protofed.serving.examples import Examples, chosen
from protofed.serving.inputs import of_array
from protofed.serving.prototype_index import PrototypeIndex

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from protofed.methods.base import Method
    from protofed.models.encoder import Encoder

__all__ = ["Predictions", "Predictor", "load"]

BYTES = 2**28
"""What a pass may take."""


@dataclass(frozen=True)
class Predictions:
    """Hold the best classes of n images, best first, and what the answers rest on.

    Args:
        names: the names of the classes.
        top: class numbers [n, top].
        distances: to the nearest prototype of each class [n, top]; by the head, 1 − its probability.
        margin: how much farther the second class is [n]; infinite if there is none.
        clients: whose prototype won [n]; −1 for one of several clients, and for the head's answer.
        numbers: which of the client's prototypes won [n]; −1 for the head's answer.
        counts: how many samples that prototype stands for [n].
        refused: whether the image is refused [n], bool.
        rates: the threshold, and the parts of held-out images that it refuses; None without `reject`.
        examples: of each image the nearest of the training samples that the model brings along; None without any.

    Example:
        >>> import torch
        >>> from protofed.serving.predictor import Predictions
        >>> found = Predictions(
        ...     names=["cat", "dog"],
        ...     top=torch.tensor([[1, 0], [0, 1]]),
        ...     distances=torch.tensor([[1.0, 10.0], [2.0, 3.0]]),
        ...     margin=torch.tensor([9.0, 1.0]),
        ...     clients=torch.tensor([4, 2]),
        ...     numbers=torch.tensor([0, 1]),
        ...     counts=torch.tensor([30.0, 12.0]),
        ...     refused=torch.tensor([False, True]),
        ... )
        >>> found.classes
        ['dog', None]
        >>> found.rows()[0]["client"], found.rows()[0]["count"]
        (4, 30.0)
    """

    names: list[str]
    top: Tensor
    distances: Tensor
    margin: Tensor
    clients: Tensor
    numbers: Tensor
    counts: Tensor
    refused: Tensor
    rates: dict[str, float] | None = None
    examples: list[dict[str, Any]] | None = None

    def __len__(self) -> int:
        return len(self.top)

    def __repr__(self) -> str:
        first = ", ".join(str(name) for name in self.classes[:5])
        return f"Predictions({len(self)} images: {first}{', …' if len(self) > 5 else ''})"

    def plot(self) -> Figure:
        """Draw how near the best classes of the first images are; what is refused is grey."""
        figure: Figure = ask("figure_of", self)
        return figure

    def _repr_html_(self) -> str:
        return str(ask("html_of", self))

    @property
    def classes(self) -> list[str | None]:
        """The answers; None for an image that is refused."""
        pairs = zip(self.top[:, 0].tolist(), self.refused.tolist(), strict=True)
        return [None if refused else self.names[number] for number, refused in pairs]

    def rows(self) -> list[dict[str, Any]]:
        """Return what `--json` prints of each image."""
        columns = (self.top, self.distances, self.margin, self.clients, self.numbers, self.counts, self.refused)
        rows = []
        for answer, (top, far, margin, client, number, count, refused) in zip(
            self.classes, zip(*(column.tolist() for column in columns), strict=True), strict=True
        ):
            rows.append(
                {
                    "class": answer,
                    "distance": far[0],
                    "margin": margin if math.isfinite(margin) else None,
                    "client": client if client >= 0 else None,
                    "cluster": number if number >= 0 else None,
                    "count": count if number >= 0 else None,
                    "refused": refused,
                    "top": [{"class": self.names[k], "distance": d} for k, d in zip(top, far, strict=True)],
                }
            )
        if self.examples is not None:
            for row, example in zip(rows, self.examples, strict=True):
                row["example"] = example
        return rows


class Predictor:
    """Hold a model, its prototypes and its card, on the CPU; `protofed.load` makes one.

    Args:
        card: what the model is, what it sees and where it comes from.
        state: the model's tensors by name.
        pool: the prototypes [C, M, D], with the client that each comes from.
        encoder: the frozen encoder that comes before the model; None without one.
        model: how to make a model of your own, which the card only names.
        method: a method of your own that extended the model, or by whose rule it answers; the card only names it.
        turn: what a client knew after its training, by name, where the model answers by its method's own rule.
        examples: training samples that it brings along; None without any.

    Raises:
        UserError: the tensors are not those of the model that the card names, or not what its rule needs.

    Example:
        >>> import numpy as np
        >>> import protofed
        >>> predictor = protofed.load("digits-model")
        >>> predictor.card.shape, len(predictor.card.classes)
        ((1, 8, 8), 10)
        >>> found = predictor.predict(np.zeros((2, 8, 8), dtype=np.uint8), top=3)
        >>> found.distances.shape, found.refused.tolist()
        (torch.Size([2, 3]), [False, False])
    """

    def __init__(
        self,
        card: ModelCard,
        state: Mapping[str, Tensor],
        pool: PrototypeIndex,
        encoder: Encoder | None = None,
        model: ModelSpec | None = None,
        method: str | Method | None = None,
        turn: Mapping[str, Tensor] | None = None,
        examples: Examples | None = None,
    ) -> None:
        """`model` and `method` are needed where the card names the user's own, which are code."""
        self.card, self.state, self.pool, self.encoder, self.model = card, dict(state), pool, encoder, model
        self.examples = examples
        self.method = _extending(card, method)
        """The method whose `extend` changed the model, or by whose rule it answers, if there is one."""
        named = method is not None and self.method is not None  # what a user's own leaves of the model only it knows
        if card.model in MODELS and not named:
            check_size(card.model, _shape(card, encoder), card.head_classes, state)
        self.module = _assemble(card, encoder, model, self.method)
        what = card.model if self.method is None else f"{card.model} as {self.method.name} extends it"
        own = {name: tensor.shape for name, tensor in self.module.state_dict().items()}
        given = {name: tensor.shape for name, tensor in state.items()}
        if wrong := sorted({name for name, _ in own.items() ^ given.items()}):
            raise UserError("tensors", wrong[0], f"it is missing, of another shape, or not one of {what}")
        if self.module.feature_size != card.feature_size:
            raise UserError("feature_size", card.feature_size, f"it is {self.module.feature_size} for {what}")
        self.module.load_state_dict(self.state)
        self._affine = None
        if card.preparation.kind != "none":
            middle, scale = card.preparation.affine(len(card.shape))
            self._affine = middle.float(), scale.float()
        self.turn = None if card.rule is None else dict(turn or {})
        self.own_rule = None if self.turn is None else self._checked_rule(self.turn)
        """Logits of the module's output by the method's own rule, if the card names one."""

    @classmethod
    def read(cls, path: Path, model: ModelSpec | None = None, method: str | Method | None = None) -> Predictor:
        """Read a model that `write` has written; nothing in it is executed."""
        if not (path / "card.json").is_file():
            raise UserError("MODEL", str(path), "it is not an exported model: it has no card.json")
        try:
            card = ModelCard.read(path / "card.json")
            flat = load_file(path / "prototypes.safetensors")
            pool = PrototypeIndex.from_flat(flat, len(card.classes), card.feature_size)
            encoder = _read_encoder(path) if card.encoder else None
            turn = None if card.rule is None else load_file(path / "turn.safetensors")
            examples = None
            if (path / "examples.safetensors").exists():
                kept = load_file(path / "examples.safetensors")
                examples = Examples.read(kept, len(card.classes), card.feature_size)
            return cls(card, load_file(path / "model.safetensors"), pool, encoder, model, method, turn, examples)
        except (SafetensorError, OSError, TypeError, ValueError) as error:  # UserError is a ValueError
            hint = getattr(error, "hint", None)
            raise UserError("MODEL", str(path), f"it cannot be read: {error}", hint=hint) from None

    def write(self, path: Path, held_out: Mapping[str, Tensor], more: Callable[[Path], None] | None = None) -> None:
        """Write a new folder with everything; `more` may put further files into it."""

        def fill(draft: Path) -> None:
            save_file({name: tensor.contiguous() for name, tensor in self.state.items()}, draft / "model.safetensors")
            save_file(self.pool.flat(), draft / "prototypes.safetensors")
            save_file(dict(held_out), draft / "held-out.safetensors")
            if self.examples is not None:
                save_file(self.examples._asdict(), draft / "examples.safetensors")
            if self.turn is not None:
                save_file(self.turn, draft / "turn.safetensors")
            if self.encoder is not None:
                self.encoder.write(draft / "encoder.safetensors")
            (draft / "card.json").write_text(self.card.to_json(), encoding="utf-8")
            if more is not None:
                more(draft)

        write_folder(path, fill)

    def with_card(self, pool: PrototypeIndex | None = None, **changes: Any) -> Predictor:
        """Return the same model, of which the card says some things anew; maybe with other prototypes."""
        card = dataclasses.replace(self.card, **changes)
        parts = (self.encoder, self.model, self.method, self.turn, self.examples)
        return Predictor(card, self.state, pool or self.pool, *parts)

    def with_examples(self, every: Examples, number: int) -> Predictor:
        """Return the same model with the so many training samples that are nearest to each of its prototypes."""
        prototypes = self.pool.prototypes
        kept = chosen(every, prototypes.vectors, prototypes.filled, number)
        return Predictor(self.card, self.state, self.pool, self.encoder, self.model, self.method, self.turn, kept)

    def prepared(self, x: Tensor) -> Tensor:
        """Return what the module sees of samples as the card says they are stored, or of an encoder's features."""
        if self.encoder is not None:
            return self.encoder.computed(x) if x.dtype == self.encoder.card.dtype else x
        if self._affine is not None:
            return (x - self._affine[0]) * self._affine[1]
        return x if self.card.preparation.tokens else x.float()

    @torch.no_grad()
    def outputs(self, x: Tensor, rule: str | None = None) -> tuple[Tensor, Tensor]:
        """Compute features [n, D] and logits [n, C] of samples, as `prepared` takes them.

        Logits are the head's unless `rule` is the method's own.
        """
        own = self.own_rule if rule is not None and rule == self.card.rule else None
        self.module.eval()
        at_once = max(1, BYTES // bytes_per_image(self.module, self.prepared(x[:1])[0])) if len(x) else 1
        made = [cast(Output, self.module(self.prepared(part))) for part in torch.split(x, at_once)]
        logits = [out.logits if own is None else own(out) for out in made]
        return torch.cat([out.features for out in made]), torch.cat(logits)

    def predict(self, x: Any, rule: str | None = None, top: int = 3, reject: float | None = None) -> Predictions:
        """Find the best classes of samples.

        Args:
            x: an array or a tensor of the card's dtype and shape, such as uint8 [n, channels, height, width] or, of
                grey pictures, [n, height, width]; where the card has an encoding, also a list of records: rows of a
                table as mappings, series [channels, steps], texts.
            rule: `nearest`, by the nearest prototype, `head`, by the classifier, or what the card's `rule` names, the
                method's own; the last is the default where there is one, otherwise `nearest`.
            top: how many classes of each image.
            reject: refuse an image that is farther from what is known than all but this part of held-out images.

        Returns:
            Predictions of the n images.

        Raises:
            UserError: samples are not as the card says, `rule` is unknown, or `top` or `reject` is out of bounds.
        """
        rule = self.card.rules[0] if rule is None else rule
        return self.answer(*self.outputs(of_array(x, self.card), rule), rule, top, reject)

    def answer(
        self, features: Tensor, logits: Tensor, rule: str = "nearest", top: int = 3, reject: float | None = None
    ) -> Predictions:
        """Find the best classes of images whose features [n, D] and logits [n, C] by the rule are known."""
        if rule not in self.card.rules:
            raise unknown("--rule", rule, self.card.rules)
        if top < 1:
            raise UserError("--top", top, "it must be 1 or more")
        rates = None if reject is None else refusal.at(self.card.refusal.get(rule, {}), reject)
        found, distances, won = self._nearest(features, top) if rule == "nearest" else _by_head(logits, top)
        margin = distances[:, 1] - distances[:, 0] if distances.shape[1] > 1 else torch.full((len(found),), torch.inf)
        refused = distances[:, 0] > (math.inf if rates is None else rates["threshold"])
        top = min(top, found.shape[1])
        told = None
        if self.examples is not None:
            told = self.examples.told(self.examples.nearest(features), self.card.classes, self.card.encoding)
        return Predictions(self.card.classes, found[:, :top], distances[:, :top], margin, *won, refused, rates, told)

    @torch.no_grad()
    def _checked_rule(self, turn: Mapping[str, Tensor]) -> Callable[[Output], Tensor]:
        """The method's own rule with a client's turn, once it has answered: the file is somebody's word."""
        from protofed.serving.own_rule import turn_from

        assert self.method is not None  # the card names it
        shape = _shape(self.card, self.encoder)
        try:
            rule = partial(self.method.answer, turn=turn_from(turn))
            found = rule(cast(Output, self.module.eval()(shape.example(2))))
            fits = found.shape == (2, self.card.head_classes)
        except (KeyError, IndexError, ValueError, TypeError, RuntimeError, AttributeError):
            fits = False
        if not fits or self.method.rule != self.card.rule:
            why = f"turn.safetensors, or the method {self.method.name}, is not what this rule needs"
            raise UserError("rule", self.card.rule, why)
        return rule

    def _nearest(self, features: Tensor, top: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
        found, distances, slots = self.pool.nearest(features, max(2, top))
        winner = found[:, 0], slots[:, 0]
        won = self.pool.clients[winner], self.pool.numbers[winner], self.pool.prototypes.counts[winner]
        return found, distances, won


def _by_head(logits: Tensor, top: int) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor]]:
    probability, found = logits.softmax(-1).topk(min(max(2, top), logits.shape[1]))
    nobody = torch.full((len(logits),), -1)
    return found, 1 - probability, (nobody, nobody, nobody.float())


def load(path: str | Path, model: ModelSpec | None = None, method: str | Method | None = None) -> Predictor:
    """Load an exported model.

    Args:
        path: the folder that `protofed export` has made.
        model: how to make a model of your own, which the card only names.
        method: a method of your own that extended the model, or by whose rule it answers: `path/to/file.py:ClassName`,
            which takes the card's parameters, or a Method object, which has its own.

    Returns:
        What predicts classes of images.

    Raises:
        UserError: the folder holds no such model, or its model or method is your own and was not named.

    Example:
        >>> import numpy as np
        >>> import protofed
        >>> predictor = protofed.load("digits-model")
        >>> len(predictor.predict(np.zeros((2, 8, 8), dtype=np.uint8)).classes)
        2
    """
    return Predictor.read(Path(path), model, method)


def _extending(card: ModelCard, method: str | Method | None) -> Method | None:
    """The method whose `extend` changed the model, or whose rule answers; a card never names code that is run."""
    if card.extended_by is None:
        return None
    from protofed.methods import build_method, method_names
    from protofed.methods.base import Method

    if isinstance(method, Method):
        return method
    if method is None and card.extended_by not in method_names():
        does = "was extended by" if card.rule is None else f"answers by {card.rule}, a rule of"
        why = f"the model {does} the method {card.extended_by}, which is your own code"
        raise missing_value("--method", why, hint="name its file")
    return build_method(method or card.extended_by, card.method["params"])


def _assemble(card: ModelCard, encoder: Encoder | None, model: ModelSpec | None, method: Method | None) -> nn.Module:
    """The module that the weights belong to; a card never names code that is run."""
    spec = card.model if card.model in MODELS else model
    if spec is None:
        raise missing_value("--model", f"the model is {card.model}, which is your own code", hint="name its file")
    return build(spec, _shape(card, encoder), card.head_classes, 0, None if method is None else method.extend)


def _shape(card: ModelCard, encoder: Encoder | None) -> Shape:
    """Of what the module sees."""
    return card.seen if encoder is None else Shape((encoder.card.feature_size, 1, 1))


def _read_encoder(path: Path) -> Encoder:
    from protofed.models.encoder import Encoder

    return Encoder.read(path / "encoder.safetensors", torch.device("cpu"))
