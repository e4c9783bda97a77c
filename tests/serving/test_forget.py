"""A model without a client: exact where the server's state is a sum of what clients sent, and said where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import protofed
from protofed.data.build import federation_of
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.messages import Broadcast, Upload
from protofed.runs.folder import RunFolder
from protofed.serving.export import restored
from protofed.serving.forget import forget
from tests.serving.test_export import over_flower
from tests.support.exported_runs import arrays

SMALL: dict[str, Any] = {"train_size": 200, "clients": 4, "alpha": 1.0, "model": "cnn", "device": "cpu", "threads": 1}


def played(method: str, out: Path, **more: Any) -> RunFolder:
    protofed.run(method, out=out, quiet=True, **{**SMALL, "rounds": 2, **more})
    return RunFolder.open(out)


@pytest.mark.parametrize("method", ["fedncm", "fed3r", "fedcof"])
@pytest.mark.parametrize("client", [0, 3])
def test_a_one_shot_method_forgets_a_client_as_if_it_had_never_been_there(
    method: str, client: int, tmp_path: Path
) -> None:
    made, found = forget(played(method, tmp_path / "run", precision="float64"), client)
    assert found.exact
    everybody = federation_of(Experiment.from_mapping(SMALL))
    others = tuple(one for number, one in enumerate(everybody.clients) if number != client)
    options = {name: value for name, value in SMALL.items() if name not in ("train_size", "clients", "alpha")}
    without = protofed.run(
        method, federation=replace(everybody, clients=others), rounds=2, precision="float64", quiet=True, **options
    )
    never = without.models["global"].state_dict()
    for name, tensor in made.predictor.state.items():
        assert_close(tensor.double(), never[name].double(), atol=1e-6, rtol=0)
    assert client not in made.predictor.pool.clients[made.predictor.pool.prototypes.filled].tolist()
    assert "exact" in found.words()


def test_who_trained_beside_a_client_remembers_it(tmp_path: Path) -> None:
    folder = played("mp-fedcl", tmp_path / "run")
    made, found = forget(folder, 1)
    assert not found.exact
    assert found.prototypes > 0
    assert found.words().startswith("not exact")
    whose = made.predictor.pool.clients[made.predictor.pool.prototypes.filled]
    assert 1 not in whose.tolist()
    assert {0, 2, 3} == set(whose.tolist())
    state = folder.checkpoint.load([])
    assert state is not None
    assert int(state.broadcast.prototypes["pool"].filled.any(-1).any(-1).sum()) == 4  # the run's folder is as it was


@pytest.mark.parametrize(
    ("method", "table", "axis", "empty"),
    [
        ("fedcda", "turns", 0, 0),
        ("fedcda", "models/head.weight", 0, 0),
        ("fesem", "assignment", 0, -1),
        ("fedheal", "weights", 1, 0),
        ("fedpac", "heads/head.weight", 0, None),
    ],
)
def test_what_a_server_holds_of_each_client_is_taken_out(
    method: str, table: str, axis: int, empty: float | None, tmp_path: Path
) -> None:
    folder = played(method, tmp_path / "run", lr=0.05)
    run = restored(folder)
    before = run.broadcast.kept[table]
    cleaned = run.method.forget(run.broadcast, 1, None)
    assert cleaned is not None
    after = cleaned.kept[table]
    nothing = cleaned.weights["head.weight"] if empty is None else torch.full_like(before.select(axis, 1), empty)
    assert torch.equal(after.select(axis, 1), nothing)
    assert not torch.equal(before.select(axis, 1), nothing)
    for other in (0, 2, 3):
        assert torch.equal(after.select(axis, other), before.select(axis, other))
    _, found = forget(folder, 1)
    assert not found.exact
    assert found.words().startswith("not exact: what the server held of client 1 by itself was taken out, but the")


def test_a_centre_that_was_one_clients_alone_is_no_longer_its_model(tmp_path: Path) -> None:
    run = restored(played("fesem", tmp_path / "run", lr=0.05, params={"clusters": 2}))
    centres = run.broadcast.kept["centres/head.weight"]
    kept = {**run.broadcast.kept, "assignment": torch.tensor([0, 1, 0, 0])}
    cleaned = run.method.forget(replace(run.broadcast, kept=kept), 1, None)
    assert cleaned is not None
    assert torch.equal(cleaned.kept["centres/head.weight"][1], run.broadcast.weights["head.weight"])
    assert torch.equal(cleaned.kept["centres/head.weight"][0], centres[0])
    assert not torch.equal(centres[1], run.broadcast.weights["head.weight"])
    other = run.method.forget(replace(run.broadcast, kept=kept), 0, None)
    assert other is not None
    assert torch.equal(other.kept["centres/head.weight"], centres)


def test_a_mean_of_all_clients_models_is_that_of_the_others(tmp_path: Path) -> None:
    made, _ = forget(played("fedcda", tmp_path / "run", precision="float64", lr=0.05), 1)
    kept = restored(RunFolder.open(tmp_path / "run")).broadcast.kept
    selected = torch.stack([kept["models/head.weight"][k, kept["chosen"][k]] for k in (0, 2, 3)])
    assert_close(made.predictor.state["head.weight"], selected.mean(0).float())


SPOILT: tuple[tuple[dict[str, Any], str], ...] = (
    ({"privacy": "client", "clip": 1.0, "noise": 0.5}, "with --privacy client uploads were clipped"),
    ({"attack": "sign-flip", "attackers": 0.25}, "with --attack sign-flip attackers send what they like"),
    ({"defence": "lengths"}, "with --defence lengths what counted of an upload"),
    ({"drift": "sudden"}, "with --drift sudden what clients hold has changed"),
    ({}, "uploads were refused"),
)


@pytest.mark.parametrize(
    ("method", "more", "why"),
    [
        (method, more, why)
        for method in ("fedncm", "fedcof")
        for more, why in SPOILT
        if method == "fedncm" or "privacy" not in more  # FedCOF's server needs each upload
    ],
)
def test_what_was_made_of_more_than_uploads_is_not_forgotten_exactly(
    method: str, more: dict[str, Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sum is then not that of what clients have computed; rows of a table are taken out, and the others' stay."""
    if not more:
        monkeypatch.setattr("protofed.server.pipeline.refusals", first_of_client_2_is_refused)
    folder = played(method, tmp_path / "run", **more)
    if method == "fedncm":
        with pytest.raises(UserError, match=f"holds only sums, of which client 2 cannot be taken out: {why}"):
            forget(folder, 2)
    else:
        _, found = forget(folder, 2)
        assert not found.exact
        assert why in found.words()


def first_of_client_2_is_refused(_: Upload, sent: Broadcast, *__: Any) -> dict[int, str]:
    return {} if sent.kept else {2: "too long"}


@pytest.mark.parametrize("method", ["fedncm", "fedcof", "mp-fedcl"])
def test_of_a_federation_only_rows_can_be_taken_out(method: str, tmp_path: Path) -> None:
    folder = played(method, tmp_path / "run")
    here = forget(folder, 1)[0].predictor.state
    there = over_flower(folder, clients=4)
    data = f"npz:{arrays(tmp_path / 'some.npz', 0, 120)}"
    with pytest.raises(UserError, match=r"images are at its clients(?s:.*) --data"):
        forget(there, 1)
    if method == "fedncm":
        with pytest.raises(UserError, match="over a network what clients sent is not kept"):
            forget(there, 1, data)
    else:
        made, found = forget(there, 1, data)
        assert found.exact == (method == "fedcof")
        assert all(torch.equal(tensor, here[name]) for name, tensor in made.predictor.state.items())


@pytest.mark.parametrize(
    ("method", "client", "says"),
    [
        ("fedavg", 1, "holds nothing of client 1 by itself, only averages"),
        ("fednova", 1, "holds nothing of client 1 by itself, only averages"),
        ("fedncm", 9, "clients are numbered from 0 to 3"),
    ],
)
def test_what_cannot_be_forgotten_is_said(method: str, client: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=says):
        forget(played(method, tmp_path / "run"), client)


def test_who_never_took_part_has_nothing_to_forget(tmp_path: Path) -> None:
    folder = played("fedncm", tmp_path / "run", rounds=1, participation=0.25)
    idle = next(number for number in range(4) if number not in folder.played()[0].participants)
    with pytest.raises(UserError, match="never took part"):
        forget(folder, idle)
    with pytest.raises(UserError, match="nobody else took part"):
        forget(folder, folder.played()[0].participants[0])
