"""Runs in several processes, as a user meets them: the same results, and nothing left behind however they end."""

from __future__ import annotations

import json
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import torch

import protofed
from protofed.deploy.processes import end_with_parent
from protofed.experiment import Experiment
from protofed.studies import workers
from tests.support.command_line import Outcome, finish, invoke, result_of, rounds_of, succeed

MEETING = '''
import os
import time
from dataclasses import dataclass
from pathlib import Path

from torch import OutOfMemoryError

from protofed.errors import UserError
from protofed.methods.fedavg import FedAvg


@dataclass(frozen=True)
class Meeting(FedAvg):
    """FedAvg whose two runs meet in their second round, so they must go on at the same time, and then obey orders."""

    name = "meeting"

    def aggregate(self, uploads, server):
        clock = server.clock
        if clock.round == 1:
            Path(f"draft-{clock.seed}").write_text(str(os.getpid()))
            Path(f"draft-{clock.seed}").rename(f"met-{clock.seed}")
            self.wait_for("met-0", "met-1")
        order = Path("order").read_text()
        if clock.round == 1 and clock.seed == 1:
            print("a word from the method")
            if order == "refuse":
                raise UserError("--some-flag", 7, "it must be 8")
            if order == "fill the memory":
                raise OutOfMemoryError("CUDA out of memory. Tried to allocate 158.00 MiB.")
            if order == "break":
                raise ValueError("a mistake in the method")
        if clock.round >= 1:
            if order == "last first" and clock.seed == 0:
                self.wait_for("whole/meeting-seed1/result.json")
            if order == "stay":
                self.wait_for("never")
            if order == "slowly":
                time.sleep(0.3 + clock.seed)
        return super().aggregate(uploads, server)

    def wait_for(self, *names):
        while not all(Path(name).exists() for name in names):
            time.sleep(0.01)
'''

OPTIONS = (
    *("--method", "meeting.py:Meeting", "--seeds", "2", "--threads", "1"),
    *("--engine", "sequential"),  # no rehearsal of the method, whose server waits for other runs
    *("--model", "cnn", "--device", "cpu", "--train-size", "150", "--clients", "3", "--rounds", "4"),
)

AT_ONCE = "import protofed.studies.workers, protofed.cli; protofed.studies.workers.START_UP = 0; protofed.cli.main()"
"""The command line, but workers are started without waiting whether it pays."""


def write(place: Path, order: str) -> None:
    """The method, and what its runs are to do."""
    (place / "meeting.py").write_text(MEETING)
    (place / "order").write_text(order)


def start(place: Path, order: str, out: str) -> Popen[str]:
    """A comparison of two runs in two processes, in a session of its own."""
    write(place, order)
    arguments = ("compare", *OPTIONS, "--jobs", "2", "--out", out, "--json")
    command = [sys.executable, "-c", AT_ONCE, *arguments]
    return Popen(
        command,
        cwd=place,
        stdout=PIPE,
        stderr=PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=end_with_parent,  # noqa: PLW1509 - as in cli.helpers
    )


def until(holds: Callable[[], bool]) -> None:
    """Wait for something that must happen."""
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def processes(place: Path) -> list[int]:
    """Who plays the runs, by seed, once both have met."""
    until(lambda: all((place / f"met-{seed}").exists() for seed in (0, 1)))
    return [int((place / f"met-{seed}").read_text()) for seed in (0, 1)]


def gone(process: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        return ") Z " in Path(f"/proc/{process}/stat").read_text()
    except FileNotFoundError:
        return True


def results(folder: Path) -> list[dict[str, object]]:
    """What came out of both runs, without the seconds."""
    return [result_of(folder / f"meeting-seed{seed}") for seed in (0, 1)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int], Outcome]:
    """A comparison in two processes: its folder, who played, and what was printed."""
    place = tmp_path_factory.mktemp("workers")
    outcome = finish(start(place, "last first", "whole"))
    assert outcome.code == 0, outcome.err
    return place / "whole", processes(place), outcome


def test_two_processes_give_what_one_gives(whole: tuple[Path, list[int], Outcome]) -> None:
    folder, (first, second), _ = whole
    assert first != second
    succeed(folder.parent, "compare", *OPTIONS, "--jobs", "1", "--out", "one", "--quiet")
    assert results(folder) == results(folder.parent / "one")
    for seed in (0, 1):
        config = f"meeting-seed{seed}/config.yaml"
        assert (folder / config).read_text() == (folder.parent / "one" / config).read_text()


def test_results_are_in_the_order_of_the_plan(whole: tuple[Path, list[int], Outcome]) -> None:
    folder, _, outcome = whole
    assert outcome.err.index("[2/2] meeting seed 1: global") < outcome.err.index("[1/2] meeting seed 0: global")
    table = json.loads((folder / "compare.json").read_text())
    assert [run["seed"] for run in table["runs"]] == [0, 1]
    (row,) = table["rows"]
    expected = [json.loads((folder / f"meeting-seed{seed}/result.json").read_text())["seconds"] for seed in (0, 1)]
    assert row["seconds"]["values"] == expected


def test_what_a_method_prints_does_not_get_into_the_output(whole: tuple[Path, list[int], Outcome]) -> None:
    folder, _, outcome = whole
    assert outcome.out == (folder / "compare.json").read_text()
    assert "a word from the method" in outcome.err


def check_resume(place: Path, whole: Path, *how: str) -> None:
    """Whatever happened, the comparison goes on to the same results."""
    (place / "order").write_text("")
    succeed(place, "resume", "cut", "--quiet", *how)
    assert results(place / "cut") == results(whole)
    assert [line["round"] for line in rounds_of(place / "cut/meeting-seed1")] == [1, 2, 3, 4]


def test_ctrl_c_ends_every_run_after_a_round(tmp_path: Path, whole: tuple[Path, list[int], Outcome]) -> None:
    command = start(tmp_path, "slowly", "cut")
    here, worker = processes(tmp_path)
    os.killpg(here, signal.SIGINT)
    outcome = finish(command)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.endswith("stopped after round 2 of 4; continue with: protofed resume cut\n")
    assert "Traceback" not in outcome.err
    assert gone(worker)
    assert [len(rounds_of(tmp_path / f"cut/meeting-seed{seed}")) for seed in (0, 1)] == [2, 2]
    check_resume(tmp_path, whole[0])


@pytest.mark.slow
def test_a_second_ctrl_c_ends_everything_at_once(tmp_path: Path) -> None:
    command = start(tmp_path, "stay", "cut")
    here, worker = processes(tmp_path)
    for _ in range(2):
        os.killpg(here, signal.SIGINT)
        time.sleep(0.2)
    outcome = finish(command)
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.endswith("stopped; continue with: protofed resume cut\n")
    assert "Traceback" not in outcome.err
    assert gone(worker)


def test_a_worker_does_not_outlive_the_process_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "stay")
    (tmp_path / "met-0").touch()
    monkeypatch.chdir(tmp_path)
    experiment = Experiment(
        method="meeting.py:Meeting", seed=1, model="cnn", device="cpu", train_size=150, clients=3, engine="sequential"
    )
    with workers.Worker().process as process:
        assert process.stdin is not None
        process.stdin.write(pickle.dumps(workers.Task(experiment)))
        process.stdin.flush()
        until((tmp_path / "met-1").exists)
        process.stdin.close()  # as the end of this process would
        assert process.wait(timeout=60) == 1


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are started without waiting whether it pays, in this process too."""
    monkeypatch.setattr(workers, "START_UP", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_killed_worker_is_named_and_its_run_can_go_on(tmp_path: Path, whole: tuple[Path, list[int], Outcome]) -> None:
    write(tmp_path, "stay")

    def kill() -> list[int]:
        try:
            here, worker = processes(tmp_path)
            os.kill(worker, signal.SIGKILL)
            return [here, worker]
        finally:
            (tmp_path / "never").touch()

    with ThreadPoolExecutor(1) as beside:
        killing = beside.submit(kill)
        outcome = invoke(tmp_path, "compare", *OPTIONS, "--jobs", "2", "--out", "cut", "--json")
    here, worker = killing.result()
    assert here == os.getpid()
    assert outcome.code == 3
    (failed,) = json.loads(outcome.out)["failures"]
    assert (failed["kind"], failed["reason"]) == ("died", "the process of meeting seed 1 was killed (SIGKILL)")
    assert gone(worker)
    check_resume(tmp_path, whole[0], "--retry-failed")


@pytest.mark.usefixtures("impatient")
def test_wrong_input_in_a_worker_is_a_failure_and_the_other_run_goes_on(
    tmp_path: Path, whole: tuple[Path, list[int], Outcome]
) -> None:
    write(tmp_path, "refuse")
    outcome = invoke(tmp_path, "compare", *OPTIONS, "--jobs", "2", "--out", "cut", "--quiet")
    assert outcome.code == 3
    assert "failed: meeting seed 1: invalid value '7' for --some-flag: it must be 8" in outcome.err.splitlines()
    assert gone(processes(tmp_path)[1])
    assert (tmp_path / "cut/meeting-seed0/result.json").is_file()
    check_resume(tmp_path, whole[0])  # when it has been put right


@pytest.mark.usefixtures("impatient")
def test_after_the_memory_was_full_fewer_runs_go_on_at_a_time(
    tmp_path: Path, whole: tuple[Path, list[int], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "fill the memory")
    outcome = invoke(tmp_path, "compare", *OPTIONS, "--jobs", "2", "--out", "cut", "--quiet")
    assert outcome.code in (1, 3)  # one of two runs that fill it together, or both
    assert "the GPU's memory is full; fewer runs at a time (--jobs)" in outcome.err
    _allow_no_worker(monkeypatch)
    check_resume(tmp_path, whole[0], "--jobs", "1", "--retry-failed")


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_a_mistake_in_a_worker_is_shown_with_its_traceback(
    tmp_path: Path, whole: tuple[Path, list[int], Outcome], capfd: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "break")
    with chdir(tmp_path):
        found = protofed.compare(
            *(["meeting.py:Meeting"], 2),
            jobs=2,
            out="cut",
            threads=1,
            engine="sequential",
            model="cnn",
            device="cpu",
            train_size=150,
            clients=3,
            rounds=4,
        )
    assert {failed.reason for failed in found.failures} == {"ValueError: a mistake in the method"}
    assert 'raise ValueError("a mistake in the method")\n' in capfd.readouterr().err
    check_resume(tmp_path, whole[0], "--retry-failed")


def _allow_no_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr(workers.Worker, "__init__", refuse)


def test_a_comparison_that_is_over_soon_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _allow_no_worker(monkeypatch)
    monkeypatch.setattr(workers, "START_UP", 60.0)
    options = (
        *("--model", "cnn", "--device", "cpu", "--threads", "1"),
        *("--train-size", "150", "--clients", "3", "--rounds", "1"),
    )
    succeed(tmp_path, "compare", "--method", "local,fedavg", "--seeds", "1", "--jobs", "2", *options, "--quiet")


@pytest.mark.parametrize(
    ("jobs", "threads", "runs", "expected"),
    [
        (None, None, 12, 8),
        (None, None, 3, 3),
        (None, 4, 12, 2),
        (None, 16, 12, 1),
        (5, None, 12, 5),
        (20, None, 12, 12),
        (1, None, 12, 1),
    ],
)
def test_on_a_cpu_all_cores_are_used_and_none_twice(
    monkeypatch: pytest.MonkeyPatch, jobs: int | None, threads: int | None, runs: int, expected: int
) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 8)
    assert workers.at_once(jobs, Experiment(device="cpu", threads=threads), runs) == expected


class Card:
    """A GPU with so many GiB."""

    def __init__(self, memory: int) -> None:
        self.total_memory = memory * 2**30


@pytest.mark.parametrize(
    ("memory", "jobs", "runs", "expected"),
    [(139, None, 12, 4), (139, None, 3, 3), (24, None, 12, 2), (6, None, 12, 1), (6, 4, 12, 4)],
)
def test_on_a_gpu_a_few_runs_share_it(
    monkeypatch: pytest.MonkeyPatch, memory: int, jobs: int | None, runs: int, expected: int
) -> None:
    monkeypatch.setattr(workers, "cores", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: Card(memory))
    assert workers.at_once(jobs, Experiment(device="auto"), runs) == expected
    assert workers.at_once(jobs, Experiment(device="cuda:0", threads=4), runs) == expected
