"""Folders of version 0.1 are still resumed, reported and exported.

`version_0_1/run` is what that version left of

    protofed run --method fedproto --attack stale-replay --attackers 0.4 --defence outliers --clients 2 --model cnn \
      --dataset digits --train-size 60 --min-size 4 --rounds 2 --engine sequential --device cpu --threads 1 \
      --precision float64

and `four_rounds.jsonl` what it wrote when the same run went on for two rounds more.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from protofed.evaluation.snapshot import Snapshot
from protofed.runs.folder import RunFolder
from protofed.server.round import Round
from tests.support.command_line import result_of, succeed

HERE = Path(__file__).parent / "version_0_1"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    shutil.copytree(HERE / "run", tmp_path / "run")
    return tmp_path / "run"


def test_it_goes_on_with_what_its_attackers_remember(old: Path) -> None:
    config = old / "config.yaml"
    config.write_text(config.read_text().replace("rounds: 2\n", "rounds: 4\n"))
    (old / "result.json").unlink()
    succeed(old.parent, "resume", "run", "--quiet")
    lines = (HERE / "four_rounds.jsonl").read_text().splitlines()
    expected = [Round.from_json(json.loads(line), number) for number, line in enumerate(lines, 1)]
    for found, wanted in zip(RunFolder.open(old).played(), expected, strict=True):
        assert found.losses == pytest.approx(wanted.losses, rel=1e-9)
        for name in ("per_client", "participants", "bytes_up", "bytes_down", "clusters", "suspected"):
            assert getattr(found, name) == getattr(wanted, name), name
    assert result_of(old)["rounds"] == 4


def test_its_snapshot_is_found_by_its_old_name(old: Path) -> None:
    folder = RunFolder.open(old)
    assert folder.snapshot.name == "look.safetensors"
    assert Snapshot.read(folder.snapshot).classes == [str(digit) for digit in range(10)]
    succeed(old.parent, "report", "run")
    assert (old / "report.html").is_file()


def test_it_is_exported(old: Path) -> None:
    succeed(old.parent, "export", "run", "--out", "model")
    assert (old.parent / "model/card.json").is_file()
