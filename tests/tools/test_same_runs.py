"""The comparison of two recordings finds what differs, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tools.same_runs import differences, main


def write(folder: Path, tensor: str = "kept/a", **changes: object) -> Path:
    """A recording of one run."""
    (folder / "run").mkdir(parents=True)
    line = {"round": 1, "seconds": folder.name, "per_client": {"own/own/head": [1.0, 2.0]}, **changes}
    (folder / "run/rounds.jsonl").write_text(json.dumps(line) + "\n")
    save_file({tensor: torch.tensor([1.0, float("nan")])}, folder / "run/state.safetensors")
    return folder


def test_seconds_may_differ(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = write(tmp_path / "one"), write(tmp_path / "other")
    assert differences(one, other) == []
    assert main(["compare", str(one), str(other)]) == 0
    assert "values are equal" in capsys.readouterr().out


def test_a_value_or_a_tensor_may_not(tmp_path: Path) -> None:
    one = write(tmp_path / "one")
    assert differences(one, write(tmp_path / "other", round=2)) == ["differs: run/rounds.jsonl:1/round"]
    assert len(differences(one, write(tmp_path / "third", tensor="kept/b"))) == 2
    assert main(["compare", str(one), str(tmp_path / "third")]) == 1


def test_attackers_memory_is_found_where_it_was_before(tmp_path: Path) -> None:
    one = write(tmp_path / "one", tensor="kept/attack/a")
    assert differences(one, write(tmp_path / "two", tensor="attack/a")) == []
