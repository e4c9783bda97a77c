"""`protofed run`: what it prints, what it writes, and that it can be run again."""

from __future__ import annotations

import json
import os
import pty
from pathlib import Path
from statistics import fmean

import pytest
import yaml
from safetensors import safe_open

from protofed.cli import main
from protofed.cli.common import GETTING_READY
from protofed.internal.digests import parse_json
from tests.support.command_line import TINY, Outcome, finish, invoke, result_of, rounds_of, start, succeed

MINE = '''
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from protofed.methods.fedproto import FedProto


@dataclass(frozen=True)
class Mine(FedProto):
    """A method of a user's own."""

    name: ClassVar[str] = "mine"
    strength: int = 7


class Net(nn.Sequential):
    def __init__(self, shape, classes):
        super().__init__(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], 5), nn.ReLU(), nn.Linear(5, classes))
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one finished run of seven rounds in `run`."""
    folder = tmp_path_factory.mktemp("place")
    succeed(folder, "run", *TINY, "--rounds", "7", "--out", "run", "--quiet")
    return folder


def test_the_folder_holds_config_rounds_result_and_checkpoint(place: Path) -> None:
    found = {str(path.relative_to(place / "run")) for path in (place / "run").rglob("*") if path.is_file()}
    checkpoint = {"checkpoint/state.safetensors", "checkpoint/clients-0.bin"}
    assert found == {
        "config.yaml",
        "rounds.jsonl",
        "result.json",
        "snapshot.safetensors",
        "motion.safetensors",
        *checkpoint,
    }
    with safe_open(place / "run/checkpoint/state.safetensors", framework="pt") as file:
        assert file.metadata()["rounds"] == "7"
        assert {name.split("/")[0] for name in file.keys()} == {"server", "taken", "slots", "size", "digests"}  # noqa: SIM118


def test_the_result_has_the_documented_fields(place: Path) -> None:
    result = json.loads((place / "run/result.json").read_text())
    assert {name: result[name] for name in ("method", "dataset", "split", "clients", "rounds", "seed", "device")} == {
        "method": "fedproto",
        "dataset": "digits",
        "split": "dirichlet",
        "clients": 3,
        "rounds": 7,
        "seed": 0,
        "device": "cpu",
    }
    assert result["engine"] in ("sequential", "stacked")
    assert result["params"]["lam"] == 1.0
    assert result["seconds"] > 0
    assert {"own/own/head", "own/all/head", "own/own/nearest", "own/all/nearest"} <= set(result["accuracy"])
    for entry in result["accuracy"].values():
        assert {"last", "last5", "best", "best_round", "per_client"} <= set(entry)
        assert len(entry["per_client"]) == 3
        assert all(0 <= number <= 100 for number in (entry["last"], entry["last5"], entry["best"]))


def test_the_result_follows_from_the_rounds(place: Path) -> None:
    result, rounds = result_of(place / "run"), rounds_of(place / "run")
    assert [line["round"] for line in rounds] == [1, 2, 3, 4, 5, 6, 7]
    assert result["bytes_up"] == sum(line["bytes_up"] for line in rounds) > 0
    assert result["bytes_down"] == sum(line["bytes_down"] for line in rounds) > 0
    for name, entry in result["accuracy"].items():
        means = [fmean(line["per_client"][name]) for line in rounds]
        assert entry["last"] == pytest.approx(means[6])
        assert entry["last5"] == pytest.approx(sum(means[2:]) / 5)
        assert entry["best"] == pytest.approx(max(means))
        assert means[entry["best_round"] - 1] == pytest.approx(max(means))
        assert entry["per_client"] == rounds[6]["per_client"][name]


def test_the_saved_configuration_runs_again_as_it_is(place: Path) -> None:
    succeed(place, "run", "--config", "run/config.yaml", "--out", "again", "--quiet")
    assert result_of(place / "again") == result_of(place / "run")
    assert (place / "again/config.yaml").read_bytes() == (place / "run/config.yaml").read_bytes()


def test_another_seed_gives_another_result(place: Path) -> None:
    succeed(place, "run", "--config", "run/config.yaml", "--seed", "1", "--out", "other", "--quiet")
    assert result_of(place / "other")["accuracy"] != result_of(place / "run")["accuracy"]


def test_flags_override_the_file_which_overrides_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "method: mp-fedcl\nmodel: cnn\ntrain_size: 150\nclients: 3\nrounds: 4\nlr: 1e-2\nparams: {k: 3, start: random}"
    )
    succeed(tmp_path, "run", "--config", "mine.yaml", "--rounds", "1", "--set", "k=1", "--out", "run", "--quiet")
    saved = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert (saved["rounds"], saved["clients"], saved["lr"], saved["batch_size"]) == (1, 3, 0.01, 32)
    assert saved["params"] == {"k": 1, "start": "random"}
    assert result_of(tmp_path / "run")["params"]["k"] == 1


def test_set_reaches_the_method(tmp_path: Path) -> None:
    settings = ("--set", "lam=1e-1", "--set", "metric=l2", "--set", "share_weights=true")
    succeed(tmp_path, "run", *TINY, "--rounds", "1", *settings, "--out", "run", "--quiet")
    params = result_of(tmp_path / "run")["params"]
    assert (params["lam"], params["metric"], params["share_weights"]) == (0.1, "l2", True)


def test_without_out_runs_get_fresh_folders(tmp_path: Path) -> None:
    for _ in range(2):
        succeed(tmp_path, "run", *TINY, "--rounds", "1", "--quiet")
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"fedproto-digits-seed0", "fedproto-digits-seed0-2"}


def test_quiet_prints_the_table_only(tmp_path: Path) -> None:
    outcome = succeed(tmp_path, "run", *TINY, "--rounds", "1", "--quiet", "--out", "run")
    assert outcome.err == ""
    assert "own/own/nearest" in outcome.out
    assert "run folder: run" in outcome.out


def test_without_a_terminal_progress_is_a_plain_line_a_round(tmp_path: Path) -> None:
    ready, *lines = succeed(tmp_path, "run", *TINY, "--out", "run", "--engine", "sequential").err.splitlines()
    assert ready == GETTING_READY
    assert len(lines) == 4
    assert lines[0] == "fedproto seed 0: 3 rounds, sequential engine on cpu (as asked)"
    for number, line in enumerate(lines[1:], 1):
        assert line.startswith(f"fedproto seed 0: round {number}/3  own/own/nearest ")
        assert "\x1b" not in line


def test_auto_says_which_engine_it_picked_and_why(tmp_path: Path) -> None:
    outcome = succeed(tmp_path, "run", *TINY, "--rounds", "1", "--out", "run")
    assert f"{result_of(tmp_path / 'run')['engine']} engine on cpu (measured for a client and step: " in outcome.err


def test_json_goes_to_standard_output_alone(tmp_path: Path) -> None:
    outcome = succeed(tmp_path, "run", *TINY, "--json", "--out", "run")
    assert json.loads(outcome.out) == parse_json((tmp_path / "run/result.json").read_text())
    assert "round 3/3" in outcome.err


def test_a_terminal_shows_a_live_bar_beside_clean_json(tmp_path: Path) -> None:
    shown = _in_terminal(tmp_path, "run", *TINY, "--json", "--out", "run")
    assert shown.code == 0
    assert json.loads(shown.out) == parse_json((tmp_path / "run/result.json").read_text())
    assert "━" in shown.err
    assert "3/3" in shown.err
    assert "\x1b[" in shown.err
    assert "round 3/3" not in shown.err  # the plain line
    assert "own/own/nearest" in shown.err


def _in_terminal(folder: Path, *arguments: str) -> Outcome:
    ours, theirs = pty.openpty()
    process = start(folder, *arguments, stderr=theirs)
    os.close(theirs)
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # Linux reports the other side's end as an error
        pass
    finally:
        os.close(ours)
    return finish(process)._replace(err=shown.decode())


def test_a_time_budget_stops_early_and_says_so(tmp_path: Path) -> None:
    outcome = succeed(tmp_path, "run", *TINY, "--time-budget", "1e-6", "--out", "run", "--quiet")
    result = result_of(tmp_path / "run")
    assert (result["rounds"], result["stopped"]) == (1, "time budget")
    assert "1 round (stopped by time budget)" in outcome.out


def test_a_method_and_a_model_of_ones_own_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    own = ("--method", "mine.py:Mine", "--model", "mine.py:Net", "--set", "strength=9")
    succeed(tmp_path, "run", *TINY, *own, "--out", "run", "--quiet")
    result = result_of(tmp_path / "run")
    assert (result["method"], result["params"]["strength"]) == ("mine", 9)
    assert result["model_parameters"] == [64 * 5 + 5 + 5 * 10 + 10]


def test_models_of_several_architectures_are_dealt_out(tmp_path: Path) -> None:
    succeed(tmp_path, "run", *TINY, "--model", "cnn-18,cnn-22", "--rounds", "1", "--out", "run", "--quiet")
    small, large = result_of(tmp_path / "run")["model_parameters"]
    assert small < large


@pytest.mark.parametrize("engine", ["sequential", "stacked"])
def test_a_diverging_loss_names_method_client_round_and_step(tmp_path: Path, engine: str) -> None:
    outcome = invoke(tmp_path, "run", *TINY, "--lr", "1e30", "--engine", engine, "--out", "run", "--quiet")
    assert outcome.code == 1
    assert outcome.out == ""
    line, hint = outcome.err.splitlines()
    assert line.startswith("error: fedproto with seed 0 diverged: the loss of client 0 became ")
    assert " in round 1, step " in line
    assert hint == "hint: try a smaller --lr"
    assert not (tmp_path / "run/result.json").exists()


SPLIT = """
import torch

def odd_and_even(dataset, split, clients, seed):
    return [(dataset.train.labels % 2 == client).nonzero().flatten() for client in range(clients)]
"""


def test_a_split_of_ones_own_is_a_function_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SPLIT)
    words = ("--split", "mine.py:odd_and_even", "--clients", "2")
    counts = json.loads(succeed(tmp_path, "split", *words, "--json").out)["counts"]
    assert all(bool(count) == (label % 2 == client) for client in (0, 1) for label, count in enumerate(counts[client]))
    succeed(tmp_path, "run", *TINY[:-2], *words, "--rounds", "1", "--out", "run", "--quiet")
    assert f"split: {tmp_path.resolve()}/mine.py:odd_and_even" in (tmp_path / "run/config.yaml").read_text()
    outcome = invoke(tmp_path, "split", "--split", "mine.py:nothing")
    assert (outcome.code, "has no nothing" in outcome.err) == (2, True)


def test_patience_without_validation_data_leaves_no_folder(tmp_path: Path) -> None:
    outcome = invoke(tmp_path, "run", *TINY, "--patience", "2", "--out", "run")
    assert outcome.code == 2
    assert "invalid value '2' for --patience: it needs validation data" in outcome.err
    assert not (tmp_path / "run").exists()
    succeed(tmp_path, "run", *TINY, "--patience", "1", "--val-fraction", "0.1", "--out", "run", "--quiet")


def test_a_note_is_printed_beside_the_table(tmp_path: Path) -> None:
    asked = succeed(tmp_path, "run", *TINY, "--method", "dp-fedcl", "--set", "eps=2.0", "--quiet")
    assert "note: the clustering of dp-fedcl found one prototype" in asked.out


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_threads_that_wait_sleep_unless_told_otherwise(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["protofed", "--version"])
    monkeypatch.setenv("OMP_WAIT_POLICY", given or "")
    if given is None:
        monkeypatch.delenv("OMP_WAIT_POLICY")
    with pytest.raises(SystemExit):
        main()
    assert os.environ["OMP_WAIT_POLICY"] == (given or "PASSIVE")
