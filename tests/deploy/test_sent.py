"""What crosses the line: other clients are sent sums, and the server is sent no sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Message
from safetensors.torch import load
from torch import Tensor

from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.experiment import Experiment
from protofed.messages import Upload
from protofed.methods import build_method
from protofed.methods.base import Summed
from tests.engines.test_alone import METHODS, experiment
from tests.support.loopback import Loopback, data_of, facts_of, in_simulation, packed, with_folder

FIRST, OTHER, LAST = 100, 101, 102
"""Nodes of three clients."""
SUMS: dict[str, dict[str, Any]] = {"fedavg": {"model": "mlp"}, "fedproto": {"model": "mlp"}, "fednh": {"model": "mlp"}}
"""A method that sends weights, one that sends prototypes, and one that sends both."""


def asked(method: str) -> Experiment:
    common: dict[str, Any] = {"dataset": "digits", "train_size": 200, "alpha": 5.0, "clients": 3, "rounds": 2}
    common |= {"engine": "sequential", "device": "cpu", "threads": 1, "precision": "float64", "method": method}
    return Experiment(**common | SUMS[method])


def played(method: str, place: Path, trouble: Callable[[Message], list[Message]] | None = None) -> Loopback:
    grid = Loopback(in_simulation(3), trouble)
    serve(grid, asked(method), Settings(str(place)))
    return grid


def sent_to(node: int, grid: Loopback) -> list[Message]:
    return [message for message in grid.asked if message.metadata.dst_node_id == node]


def uploads(method: str, place: Path) -> dict[int, Upload]:
    """Those of the first round, by node."""
    found = {}

    def note(answer: Message) -> list[Message]:
        about = answer.metadata
        if (about.message_type, about.group_id) == ("train", "1"):
            found[about.src_node_id] = Upload.decode(data_of(answer))
        return [answer]

    played(method, place, note)
    return found


def moved(upload: Upload, by: float, shared: Mapping[str, Tensor], how: Summed) -> Upload:
    """An upload whose part of every sum is larger by as much; of classes that the two clients both have."""
    importance = float(upload.numbers["samples"]) if upload.weights and how.weights == "samples" else 1.0
    weights = {
        name: value + by / importance if value.is_floating_point() else value for name, value in upload.weights.items()
    }
    prototypes = {}
    for name, part in upload.prototypes.items():
        counts = part.counts.clamp(min=1) if how.prototypes == "samples" else torch.ones_like(part.counts)
        change = torch.where(shared[name], by / counts, 0.0).unsqueeze(-1)
        prototypes[name] = part._replace(vectors=part.vectors + change)
    return Upload(weights, prototypes, upload.numbers, upload.sums)


def moving(method: str, first: float, last: float, shared: Mapping[str, Tensor]) -> Callable[[Message], list[Message]]:
    """Two clients send something else than they have learned."""
    how = build_method(method, {}).summed()
    assert how is not None

    def trouble(answer: Message) -> list[Message]:
        about = answer.metadata
        by = {FIRST: first, LAST: last}.get(about.src_node_id, 0.0)
        if (about.message_type, about.group_id) == ("train", "1") and by:
            answer.content = packed(facts_of(answer), moved(Upload.decode(data_of(answer)), by, shared, how))
        return [answer]

    return trouble


def differences(one: Loopback, other: Loopback) -> list[float]:
    """How far apart the tensors are that two runs have sent to the client between; all else is the same."""
    found = []
    for ours, theirs in zip(sent_to(OTHER, one), sent_to(OTHER, other), strict=True):
        said, told = facts_of(ours), facts_of(theirs)
        assert said.keys() == told.keys()
        assert {name for name in said if said[name] != told[name]} <= {"run"}
        mine, yours = load(data_of(ours)) if data_of(ours) else {}, load(data_of(theirs)) if data_of(theirs) else {}
        assert mine.keys() == yours.keys()
        found += [float((mine[name] - yours[name]).abs().max()) for name in mine if mine[name].is_floating_point()]
    return found


@pytest.mark.parametrize("method", SUMS)
def test_another_client_is_sent_what_depends_on_sums_alone(method: str, tmp_path: Path) -> None:
    """One client adds something to its part of every sum and another takes it away: nobody else sees a difference."""
    plain = uploads(method, tmp_path / "plain")
    shared = {
        name: (plain[FIRST].prototypes[name].counts > 0) & (plain[LAST].prototypes[name].counts > 0)
        for name in plain[FIRST].prototypes
    }
    before = played(method, tmp_path / "before")
    same = differences(before, played(method, tmp_path / "same", moving(method, 3.0, -3.0, shared)))
    assert len(same) >= 2
    assert max(same) < 1e-6
    assert max(differences(before, played(method, tmp_path / "other", moving(method, 3.0, 3.0, shared)))) > 1e-3


@pytest.mark.parametrize("method", SUMS)
def test_nothing_of_an_upload_is_sent_to_another_client(method: str, tmp_path: Path) -> None:
    """No tensor of it, no prototype; but of a class that it alone has the average is its own."""
    made = uploads(method, tmp_path / "run")
    own = made[FIRST]
    parts = [tensor for tensor in own.weights.values() if tensor.any()]
    for name, found in own.prototypes.items():
        holders = sum((one.prototypes[name].counts > 0).long() for one in made.values())
        parts += [
            found.vectors[at] for at in ((found.counts > 0) & (holders > 1)).nonzero().tolist() for at in [tuple(at)]
        ]
    assert len(parts) > 3
    messages = sent_to(OTHER, played(method, tmp_path / "again"))
    assert {message.metadata.group_id for message in messages} >= {"1", "2"}
    for message in messages:
        for tensor in parts:
            assert tensor.numpy().tobytes() not in data_of(message)
        assert not {"loss", "losses", "scores", "samples", "accuracies"} & facts_of(message).keys()


def own_data(place: Path, number: int, samples: int) -> tuple[dict[str, Any], np.ndarray[Any, Any]]:
    """The node of a client with so many images of its own, and the images."""
    images = np.random.default_rng(number).integers(0, 256, (samples, 1, 8, 8), dtype=np.uint8)
    place.mkdir(exist_ok=True)
    np.savez(place / f"{number}.npz", images=images, labels=np.arange(samples) % 3)
    return with_folder(place, number, data=f"npz:{place / f'{number}.npz'}"), images


@pytest.mark.parametrize("method", METHODS)
def test_no_sample_is_in_what_a_client_sends(method: str, tmp_path: Path) -> None:
    """Not as it is stored, nor as the model sees it; nor a list or a tensor as long as samples are many."""
    answers: list[Message] = []

    def note(answer: Message) -> list[Message]:
        answers.append(answer)
        return [answer]

    sizes = (37, 53)
    nodes, images = zip(*(own_data(tmp_path, number, samples) for number, samples in enumerate(sizes)), strict=True)
    settled = replace(experiment(method), clients=2, train_size=None, rounds=2)
    serve(Loopback(dict(enumerate(nodes, FIRST)), note), settled, Settings(str(tmp_path / "run")))
    forms: list[list[Any]] = [[], []]
    for answer in answers:
        data, number = data_of(answer), answer.metadata.src_node_id - FIRST
        pixels = torch.from_numpy(images[number]).float() / 255
        seen = (pixels - pixels.mean()) / pixels.std()
        for image, scaled, normal in zip(images[number], pixels, seen, strict=True):
            for stored in (image, scaled.numpy(), normal.numpy()):
                assert stored.tobytes() not in data
        shapes = {name: tuple(tensor.shape) for name, tensor in (load(data) if data else {}).items()}
        assert not [shape for shape in shapes.values() if sizes[number] in shape]
        lists = [value for value in facts_of(answer).values() if isinstance(value, list)]
        assert not [value for value in lists if len(value) == sizes[number]]
        # how many prototypes there are may be what a clustering has found
        forms[number].append({n: s[1:] if n.startswith("prototypes/") else s for n, s in shapes.items()})
    assert len(answers) > 4
    assert any(forms[0])
    assert forms[0] == forms[1]
