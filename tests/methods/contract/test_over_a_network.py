"""The ideas of authors over a network: a client by itself, and a server without data, make the same to the bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from protofed.deploy.processes import SIMULATION
from protofed.deploy.server import serve
from protofed.deploy.server_settings import Settings
from protofed.experiment import Experiment
from protofed.methods.base import Method
from tests.deploy.test_rounds import assert_same, sequential
from tests.methods.contract.test_contract import every_idea
from tests.support.loopback import Loopback, in_simulation


@every_idea
def test_a_run_over_the_network_equals_the_sequential_one(
    idea: Method, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SIMULATION, "1")
    asked = Experiment(
        method=f"{type(idea).__module__}:{type(idea).__name__}",
        dataset="digits",
        public="digits",
        train_size=90,
        alpha=0.5,
        clients=3,
        rounds=2,
        model="cnn",
        engine="sequential",
        device="cpu",
        threads=1,
    )
    serve(Loopback(in_simulation(3)), asked, Settings(out=str(tmp_path / "run"), deadline=0.3, wait=0.3))
    assert_same(tmp_path / "run", sequential(asked))
