"""FedSC's terms are measured while it trains as it would."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gradients
from protofed.experiment import Experiment
from protofed.runs.run import Run, new_run

SMALL = Experiment(
    method="fedsc", model="mlp", clients=3, train_size=90, batch_size=16, rounds=3, engine="sequential", params={}
)


def play(experiment: Experiment) -> Run:
    run = new_run(experiment)
    for _ in range(experiment.rounds):
        run.play_round()
    return run


def test_measuring_changes_nothing() -> None:
    plain = play(SMALL).state()
    for_measure = play(replace(SMALL, method=f"{gradients.HERE}:Measured")).state()
    assert plain.keys() == for_measure.keys()
    assert all(torch.equal(plain[name], for_measure[name]) for name in plain)


def test_every_round_but_the_first_is_measured() -> None:
    found = dict(gradients.measured(SMALL))
    assert list(found) == ["2", "3"]
    for step in found.values():
        assert list(step) == ["CE", "RPCL", "RPCL at temperature 0.5", "CPDR", "cosine of CE and RPCL"]
        assert min(list(step.values())[:4]) > 0
        assert -1 <= step["cosine of CE and RPCL"] <= 1


def test_a_term_is_measured_at_full_weight_whatever_it_is_trained_with() -> None:
    first = {weight: _second_round(rpcl_weight=weight, cpdr_weight=weight) for weight in (0.0, 1e-6)}
    for name, value in first[0.0].items():
        assert first[1e-6][name] == pytest.approx(value, rel=1e-3)
    softer = _second_round(rpcl_weight=0.0, cpdr_weight=0.0, temperature=0.5)
    assert softer["RPCL"] == pytest.approx(first[0.0]["RPCL at temperature 0.5"], rel=1e-3)


def _second_round(**params: Any) -> dict[str, float]:
    return dict(gradients.measured(replace(SMALL, rounds=2, params=params)))["2"]


def test_each_seed_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "RESULTS", tmp_path)
    monkeypatch.setattr(gradients, "measured", lambda e: iter([(str(e.rounds), {"CE": float(e.seed)})]))
    gradients.main(["--data-dir", str(tmp_path), "--rounds", "2"])
    assert json.loads((tmp_path / "fedsc-gradients.json").read_text()) == {"2": {"CE": [0.0, 1.0, 2.0]}}
    monkeypatch.setattr(gradients, "measured", lambda e: iter([(str(n), {"CE": 7.0}) for n in range(2, e.rounds + 1)]))
    gradients.main(["--data-dir", str(tmp_path), "--rounds", "2", "--seeds", "4"])  # goes on
    assert json.loads((tmp_path / "fedsc-gradients.json").read_text()) == {"2": {"CE": [0.0, 1.0, 2.0, 7.0]}}
    gradients.main(["--data-dir", str(tmp_path), "--rounds", "3", "--seeds", "1"])  # another measurement
    assert json.loads((tmp_path / "fedsc-gradients.json").read_text()) == {"2": {"CE": [7.0]}, "3": {"CE": [7.0]}}
