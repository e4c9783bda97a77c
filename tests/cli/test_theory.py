"""`protofed theory`: what the papers' conditions say of a run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.command_line import TINY, invoke, refused, rounds_of, succeed


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run in it."""
    folder = tmp_path_factory.mktemp("theory")
    succeed(folder, "run", *TINY, "--out", "run", "--quiet")
    return folder


def test_bounds_stand_beside_what_was_used_and_nothing_is_written(place: Path) -> None:
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    out = succeed(place, "theory", "run").out
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    assert "estimated constants" in out
    for equation in ("Eq. 16", "Eq. 17", "Eq. 18"):
        assert equation in out
    assert "a client's loss fell from one of its turns to the next in" in out
    assert "momentum 0.5" in out


def test_json_has_every_client(place: Path) -> None:
    values = json.loads(succeed(place, "theory", "run", "--json").out)
    losses = [line["losses"] for line in rounds_of(place / "run")]
    assert values["estimates_only"] is True
    assert [point["round"] for point in values["points"]] == [0, 1, 2, 3]
    last = values["points"][-1]
    assert [client["client"] for client in last["clients"]] == [0, 1, 2]
    assert last["estimates"]["L1"] == max(client["L1"] for client in last["clients"])
    assert [bound["used"] for bound in last["bounds"] if bound["quantity"] == "rounds"] == [3]
    assert values["trends"] == [
        {"client": k, "turns": 2, "rose": [n + 1 for n in (1, 2) if losses[n][k] >= losses[n - 1][k]]} for k in range(3)
    ]


def test_what_is_known_against_a_theory_is_said(place: Path) -> None:
    succeed(place, "run", *TINY, "--method", "mp-fedcl", "--out", "mp", "--rounds", "1", "--quiet")
    out = succeed(place, "theory", "mp", "--points", "1").out
    assert out.count("note: the proof of MP-FedCL's Lemma 2") == 1
    assert "Lemma 2" not in succeed(place, "theory", "run", "--points", "1").out


def test_a_method_without_theory_has_constants_only(place: Path) -> None:
    succeed(place, "run", *TINY, "--method", "fedrep", "--out", "fedrep", "--rounds", "1", "--quiet")
    out = succeed(place, "theory", "fedrep").out
    assert "note: no convergence bound is stated for fedrep as it was run" in out
    assert "bounds that follow" not in out


def test_a_folder_without_a_run_is_one_line(place: Path) -> None:
    (place / "empty").mkdir()
    outcome = invoke(place, "theory", "empty")
    assert "no config.yaml" in refused(outcome)


def test_a_run_that_has_just_begun_has_no_checkpoint(place: Path) -> None:
    (place / "begun").mkdir()
    (place / "begun" / "config.yaml").write_bytes((place / "run" / "config.yaml").read_bytes())
    outcome = invoke(place, "theory", "begun")
    assert "no checkpoint yet" in refused(outcome)
