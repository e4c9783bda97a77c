"""The rounds of the Flower engine equal the sequential ones to the bit, and survive what clients do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engines.flower.loopback import Loopback, in_simulation
from engines.test_alone import METHODS, experiment
from protofed.engines.flower.server import Settings, serve
from protofed.results.folder import RunFolder
from protofed.runner import Run

QUICK = {"deadline": 0.5, "wait": 0.2}


def checkpoint(path: Path) -> dict[str, torch.Tensor]:
    """What the server had in the end."""
    found = RunFolder.open(path).checkpoint
    from safetensors.torch import load_file

    return {name: value for name, value in load_file(found.file).items() if name.startswith(("server/", "kept/"))}


def lines(path: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(line) for line in (path / "rounds.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("method", METHODS)
def test_a_run_over_the_network_equals_the_sequential_one(method: str, tmp_path: Path) -> None:
    local = Run(experiment(method))
    for _ in range(3):
        local.play_round()
    serve(Loopback(in_simulation(4)), experiment(method), Settings(out=str(tmp_path / "run")))
    for name, value in checkpoint(tmp_path / "run").items():
        part, _, rest = name.partition("/")
        assert torch.equal(value, (local.broadcast.flat() if part == "server" else local.broadcast.kept)[rest]), name
    for line, expected in zip(lines(tmp_path / "run"), local.history, strict=True):
        for what in ("per_client", "per_domain", "accuracy", "participants", "scalars_up", "diagnostic"):
            assert line[what] == expected[what], what
        assert line["loss"] == pytest.approx(expected["loss"])
