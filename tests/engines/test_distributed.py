"""Several processes share the clients of a run, and nothing shows it but the time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.testing import assert_close

from protofed.data import Federation
from protofed.deploy.processes import end_with_parent
from protofed.engines.distributed import ALONE, Ranks, _pack, _unpack, join
from protofed.errors import DivergedError
from protofed.experiment import Experiment
from protofed.internal.digests import checked_yaml, yaml_with_digest
from protofed.prototypes import Prototypes
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import Run, new_run
from tests.evaluation.test_accuracy import two_domains
from tests.support.command_line import TINY, Outcome, finish, invoke, refused, result_of, rounds_of, succeed
from tests.support.nets import PARAMS, SETTINGS, UNEQUAL, Noisy, Norm, Plain, federation

RUNS: dict[str, dict[str, Any]] = {
    "fedproto": {"models": [Norm, Noisy], "participation": 1.0},  # two architectures
    "fedavg": {"participation": 0.2},  # one process has nothing to do
    "moon": {"clients": two_domains},  # each client's previous model; accuracies by domain and on held-out samples
    "fedsc": {},  # clients look at their data first
    "fesem": {"participation": 1.0},  # each cluster is sent something else
    "fedplcc": {"participation": 0.4},  # as many prototypes as FINCH finds: of other shapes in each process
    "fccl-plus": {"engine": "sequential"},  # an exchange after every public batch
}
"""What two processes play in one go."""
CONTINUED = ("--method", "fedproto", "--engine", "stacked", "--precision", "float64", "--quiet")


def five() -> Federation:
    """Clients of which one process trains 0 and 2 and the other 1, 3 and 4."""
    return federation([UNEQUAL[place] for place in (0, 2, 1, 3, 4)])


def played(method: str, ranks: Ranks = ALONE) -> Run:
    """A short run in float64."""
    given: dict[str, Any] = {"participation": 0.6, "epochs": 2, "batch_size": 8, "lr": 0.02, "engine": "stacked"}
    given |= {"precision": "float64", "device": "cpu", "public": "digits", "rounds": 3}
    given |= SETTINGS.get(method, {}) | RUNS[method] | {"method": method, "params": PARAMS.get(method, {})}
    models, clients = given.pop("models", [Plain]), given.pop("clients", five)()
    run = new_run(Experiment(**given), federation=clients, models=models, ranks=ranks)
    for _ in range(3):
        run.play_round()
    return run


def one_of_two(folder: str) -> None:
    """What each of two processes does: play, leave what came out, continue a run, and fail."""
    place = Path(folder)
    try:
        with join() as ranks:
            for method in RUNS:
                run = played(method, ranks)
                state = {name: value.contiguous() for name, value in run.state().items()}
                save_file(state, place / f"{method}-{ranks.number}.safetensors")
                (place / f"{method}-{ranks.number}.json").write_text(json.dumps([one.to_json() for one in run.history]))
            opened = RunFolder.open(place / "continued")
            run = new_run(opened.experiment(), ranks=ranks)
            run.restore(opened)
            run.play(opened if ranks.number == 0 else None, Progress())
            if ranks.number == 1:
                raise DivergedError("one is enough")
            ranks.exchange(None)
    except DivergedError as error:
        (place / f"error-{ranks.number}").write_text(str(error))


def start_two(folder: Path, *command: str) -> list[subprocess.Popen[str]]:
    """Two processes as a launcher starts them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    path = os.pathsep.join(sys.path)
    return [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=folder,
            env={**os.environ, **meeting, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, "RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - as in cli.helpers
        )
        for rank in ("0", "1")
    ]


def until_both_end(processes: Sequence[subprocess.Popen[str]]) -> list[Outcome]:
    """What they left; none is left running."""
    try:
        return [finish(process) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which two processes have played; a run that a single one had begun is in `continued`."""
    folder = tmp_path_factory.mktemp("two")
    succeed(folder, "run", *TINY, *CONTINUED, "--rounds", "4", "--out", "whole")
    succeed(folder, "run", *TINY, *CONTINUED, "--rounds", "2", "--out", "continued")
    (folder / "continued/result.json").unlink()
    set_rounds(folder / "continued", 2, 4)
    code = "import sys; from tests.engines.test_distributed import one_of_two; one_of_two(sys.argv[1])"
    outcomes = until_both_end(start_two(folder, "-X", "faulthandler", "-c", code, str(folder)))
    for rank, outcome in enumerate(outcomes):
        # PyTorch may abort a process whose interpreter is ending (pytorch#179291); all was done by then.
        ended = outcome.code == 0 or (outcome.code == -signal.SIGABRT and (folder / f"error-{rank}").exists())
        assert ended, outcomes
    return folder


def set_rounds(folder: Path, before: int, after: int) -> None:
    """Let a run end in another round."""
    config = (folder / "config.yaml").read_text()
    assert f"\nrounds: {before}\n" in config
    changed = checked_yaml(config).replace(f"\nrounds: {before}\n", f"\nrounds: {after}\n")
    (folder / "config.yaml").write_text(yaml_with_digest(changed))


@pytest.mark.parametrize("method", RUNS)
def test_two_processes_come_to_what_one_does(method: str, two: Path) -> None:
    alone = played(method)
    first, second = (load_file(two / f"{method}-{rank}.safetensors") for rank in (0, 1))
    state = alone.state()
    assert first.keys() == second.keys() == state.keys()
    for name, value in state.items():
        assert torch.equal(first[name], second[name]), name
        assert_close(first[name], value, atol=1e-9, rtol=0, msg=f"{name} differs")
    for rank in (0, 1):
        history = json.loads((two / f"{method}-{rank}.json").read_text())
        for line, expected in zip(history, alone.history, strict=True):
            assert abs(line["loss"] - expected.loss) < 1e-9
            for what in ("participants", "per_client", "per_domain", "bytes_up", "bytes_down"):
                assert line[what] == expected.to_json()[what], what


def test_two_processes_continue_what_one_began(two: Path) -> None:
    assert result_of(two / "continued") == result_of(two / "whole")


def test_an_error_of_one_is_the_error_of_all(two: Path) -> None:
    assert [(two / f"error-{rank}").read_text() for rank in (0, 1)] == ["one is enough"] * 2


@pytest.mark.slow
def test_when_one_is_killed_the_other_ends_and_the_run_goes_on_alone(tmp_path: Path) -> None:
    endless = ("-m", "protofed", "run", *TINY, *CONTINUED, "--rounds", "100000", "--out", "run")
    processes = start_two(tmp_path, *endless)
    rounds = tmp_path / "run/rounds.jsonl"
    try:
        until = time.monotonic() + 60
        while not (rounds.exists() and len(rounds.read_text().splitlines()) > 1):
            assert time.monotonic() < until
            assert [process.poll() for process in processes] == [None, None]
            time.sleep(0.05)
        processes[1].send_signal(signal.SIGKILL)
        first, second = (finish(process) for process in processes)  # within a minute
    finally:
        for process in processes:
            process.kill()
    assert first.code == 1
    assert first.err == (
        "another process of this run is gone, or was too long silent; continue with: protofed resume run\n"
    )
    assert (second.out, second.err) == ("", "")

    end = len(rounds_of(tmp_path / "run")) + 2
    set_rounds(tmp_path / "run", 100000, end)
    succeed(tmp_path, "resume", "run", "--quiet")
    succeed(tmp_path, "run", *TINY, *CONTINUED, "--rounds", str(end), "--out", "whole")
    assert result_of(tmp_path / "run") == result_of(tmp_path / "whole")


@settings(max_examples=50, deadline=None)
@given(costs=st.lists(st.integers(1, 100), max_size=12), count=st.integers(1, 4))
def test_every_piece_is_shared_out_once_and_evenly(costs: list[int], count: int) -> None:
    shares = [Ranks(number, count).share(costs) for number in range(count)]
    assert sorted(piece for share in shares for piece in share) == list(range(len(costs)))
    assert max(map(len, shares)) <= -(-len(costs) // count)
    assert all(share == sorted(share) for share in shares)


def test_long_and_short_work_is_mixed() -> None:
    costs = [3, 9, 7, 5]
    assert [sum(costs[piece] for piece in Ranks(number, 2).share(costs)) for number in (0, 1)] == [12, 12]


def test_trees_survive_the_way() -> None:
    weights = torch.arange(6.0).view(2, 3).T
    found = Prototypes(torch.rand(2, 4, 1, 5, dtype=torch.float64), torch.ones(2, 4, 1))
    rest = {"flag": torch.tensor([True, False]), "none": torch.empty(0, 3), "one": torch.tensor(7)}
    pieces = [(3, [0, 4], {"w": weights, "found": found}), (5, [1], {"again": weights, **rest})]
    outline, buffer = _pack(pieces, torch.device("cpu"))
    assert buffer.dtype == torch.uint8
    assert len(buffer) == 64 + 320 + 64 + 64 + 0 + 64  # `weights` once
    unpacked = _unpack(outline, buffer)
    assert unpacked[0][:2] == (3, [0, 4])
    assert isinstance(unpacked[0][2]["found"], Prototypes)
    assert_close([piece[2] for piece in unpacked], [piece[2] for piece in pieces], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "two", "WORLD_SIZE": "2"}, "invalid value 'two' for RANK: it must be a number, set by a launcher"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "missing value for MASTER_ADDR: the 2 processes of this run cannot meet"),
    ],
)
def test_a_wrong_environment_is_one_line(
    environment: dict[str, str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    outcome = invoke(tmp_path, "run", *TINY, "--out", "run")
    (line,) = refused(outcome).splitlines()
    assert line.startswith(f"error: {message}")
    assert not (tmp_path / "run").exists()


def test_a_comparison_is_not_shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    outcome = invoke(tmp_path, "compare", "--methods", "fedavg,local", "--seeds", "1")
    assert (outcome.code, "--jobs" in outcome.err) == (2, True)
    monkeypatch.setenv("RANK", "1")
    assert invoke(tmp_path, "compare", "--methods", "fedavg,local").err == ""
