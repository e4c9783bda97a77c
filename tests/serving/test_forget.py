"""A model without a client: exact where the server's state is a sum of what clients sent, and said where it is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch.testing import assert_close

import protofed
from protofed.data.build import federation_of
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.runs.folder import RunFolder
from protofed.serving.forget import forget

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
    ("method", "client", "says"),
    [
        ("fedavg", 1, "holds nothing of client 1 by itself, only averages"),
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
