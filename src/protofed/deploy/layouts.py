"""What of a model clients of a run share: whose samples would make it another is left out, not the whole run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from protofed.data import Federation, Shape
from protofed.deploy.wire import LARGEST
from protofed.errors import RefusedError, UserError
from protofed.experiment import Experiment
from protofed.methods import build_method
from protofed.models import MODELS, build
from protofed.runs.network_label import MOST_TOKENS

CLASSES = 2
"""For which models are made: their number is the same at all clients, whatever their samples are."""

Form = tuple[Any, ...] | str
"""The shapes of what is shared; or why there is no model for such samples."""


def model_of(experiment: Experiment, number: int) -> str:
    """The model of the client of a number; one that joined later has that of the last."""
    models, total = experiment.model.split(","), experiment.number_of_clients
    return models[min(number, total - 1) * len(models) // total]


def form_of(experiment: Experiment, model: str, shape: Shape) -> Form:
    """What a client with such a model shares of it, if its samples are of a shape."""
    method = build_method(experiment.method, experiment.params)
    try:
        _check_size(model, shape)
        module = build(model, shape, CLASSES, 0, extend=method.extend)
    except UserError as error:
        return str(error)
    state = module.state_dict()
    parts = [(name, tuple(state[name].shape)) for name in sorted(method.shared(state))]
    features = None if method.collect is None else module.feature_size
    return (*parts, ("mask", shape.masked and bool(parts)), ("features", features))


def _check_size(model: str, shape: Shape) -> None:
    """Refuse one of our models that samples would make too large, before there is room made for it."""
    if model in MODELS:
        try:
            with torch.device("meta"):  # shapes alone
                tensors = MODELS[model][0](shape, CLASSES).state_dict().values()
        except UserError:  # `build` says which model it is
            return
        if (size := sum(tensor.nbytes for tensor in tensors)) > LARGEST:
            raise UserError("--model", model, f"for samples of {list(shape)} it has {size / 1e9:.1f} GB")


def with_tokens(federation: Federation, tokens: Any) -> Federation:
    """Clients whose token ids are arrays' with as many as all clients of the run have together; a text has its own.

    Raises:
        RefusedError: it is no usable number.
    """
    if type(tokens) is not int or not 0 <= tokens <= MOST_TOKENS:
        raise RefusedError(f"{tokens!r} token ids")
    if federation.encoding is not None:
        return federation
    members = []
    for client in federation.clients:
        own = client.preparation
        united = replace(own, tokens=max(own.tokens, tokens)) if own.tokens else own
        members.append(replace(client, preparation=united))
    return replace(federation, clients=tuple(members))
