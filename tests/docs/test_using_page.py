"""The NumPy example of docs/using.md gives ProtoFed's answers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import protofed
from protofed.serving.export import export
from tests.docs.test_docs import blocks
from tests.support.exported_runs import digits, plan, play


def test_the_numpy_example_runs_as_printed(tmp_path: Path) -> None:
    export(play(tmp_path / "run", plan(rounds=2))).write(tmp_path / "model")
    images, _ = digits()
    np.savez(tmp_path / "test.npz", images=images.numpy())
    (example,) = [block for block in blocks("docs/using.md", "python") if "load_file" in block]
    assert "protofed" not in example
    assert "torch" not in example
    done = subprocess.run([sys.executable, "-c", example], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = protofed.load(tmp_path / "model").predict(images).rows()
    for line, row in zip(done.stdout.splitlines(), rows, strict=True):
        label, distance, _, client = line.split()
        assert (label, int(client)) == (row["class"], row["client"])
        assert float(distance) == pytest.approx(row["distance"], rel=1e-3)
