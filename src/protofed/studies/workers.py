"""Several runs at once: here and, where that takes longer than starting a process, in worker processes."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from subprocess import PIPE, Popen
from threading import Event, RLock, Thread
from typing import IO, NamedTuple

import torch

from protofed.errors import DivergedError, Failure, NotWrittenError, UserError
from protofed.experiment import Experiment
from protofed.methods import method_class
from protofed.runs.failure import FEWER, FailedRun
from protofed.runs.folder import BusyError, RunFolder
from protofed.runs.progress import CallbackError, Progress, Relay, Standing, label
from protofed.runs.result import Result
from protofed.runs.run import Interrupted, new_run

START_UP = 2.0
"""Seconds until a worker is ready, most of them for importing torch."""

ON_A_GPU = 4
"""Runs that share a GPU: one alone leaves it idle while Python is busy."""

GPU_MEMORY = 12 * 2**30
"""Bytes of a GPU that each of them should have."""


class Task(NamedTuple):
    """A run, its folder, and what tells it from others of its method and seed."""

    experiment: Experiment
    folder: Path | None = None
    setting: str = ""

    def named(self, standing: Standing) -> Standing:
        """How far it is, with its full name."""
        return replace(standing, setting=self.setting)


Ending = Result | FailedRun
"""How a run ended."""
Play = Callable[[Task], Ending]


class WorkerDied(RuntimeError):
    """A worker ended without a word: killed, by a user or for want of memory."""


def cores() -> int:
    """The CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def at_once(jobs: int | None, experiment: Experiment, runs: int) -> int:
    """How many of the runs go on at a time: `jobs` or, unless given, what uses all cores or fits on the GPU."""
    if jobs is not None:
        if jobs < 1:
            raise UserError("--jobs", jobs, "it must be 1 or more")
        return max(1, min(jobs, runs))
    if experiment.device != "cpu" and torch.cuda.is_available():
        memory = torch.cuda.get_device_properties(0).total_memory
        return max(1, min(ON_A_GPU, memory // GPU_MEMORY, runs))
    return max(1, min(cores() // (experiment.threads or 1), runs))


def share_cores(experiment: Experiment, runs: int, jobs: int | None) -> Experiment:
    """The experiment with its CPU threads: those of one run when so many go on at a time."""
    together = at_once(jobs, experiment, runs)
    return replace(experiment, threads=experiment.threads or max(1, cores() // together))


def play_all(tasks: Sequence[Task], progress: Progress, jobs: int | None = None) -> list[Ending]:
    """How every run ended, in their order; those that have a folder already are taken from it or continued."""
    return Team(tasks, progress).play(at_once(jobs, tasks[0].experiment, len(tasks)))


def run_name(experiment: Experiment) -> str:
    """What a run's folder is called among others."""
    return f"{method_class(experiment.method).name}-seed{experiment.seed}"


def prepare(experiment: Experiment, path: Path | None) -> Callable[[Progress], Ending]:
    """What plays a run: from its beginning, from where its folder stands, or not at all if that has ended."""
    if path is None:
        return partial(new_run(experiment).play, None)
    if (path / "result.json").exists():
        result = Result.read(path)
        return lambda _: result
    if (failed := FailedRun.read(path)) is not None:
        return lambda _: failed
    if path.exists():
        opened = RunFolder.open(path).claim()
        run = new_run(opened.experiment())
        run.restore(opened)
        return partial(run.play, opened)
    run = new_run(experiment)
    return partial(run.play, RunFolder.create(path, run.experiment))


def play_one(task: Task, progress: Progress) -> Ending:
    """A run to one of its endings; what a user stops is raised, and what every other run would meet too.

    Wrong input, such as a damaged file in its folder, is a failure that is not written there: when it has been put
    right, the run goes on as it would have.
    """
    try:
        return prepare(task.experiment, task.folder)(progress)
    except (Interrupted, BusyError, NotWrittenError, CallbackError, KeyboardInterrupt):
        raise
    except UserError as error:
        return named(task, FailedRun.of(task.experiment, error))
    except Exception as error:
        if not isinstance(error, DivergedError):
            traceback.print_exc()
        return failed_at(task, (task.folder and FailedRun.read(task.folder)) or FailedRun.of(task.experiment, error))


def failed_at(task: Task, failed: FailedRun) -> FailedRun:
    """A failure with all that its task knows, kept in the run's folder."""
    if task.folder is not None:
        failed.write(task.folder)
    return named(task, failed)


def named(task: Task, failed: FailedRun) -> FailedRun:
    """A failure with all that its task knows."""
    return replace(failed, setting=task.setting, folder=None if task.folder is None else str(task.folder))


class Team:
    """This process and its workers; each takes the next run when it has played one."""

    def __init__(self, tasks: Sequence[Task], progress: Progress) -> None:
        self.progress = progress
        self.waiting = deque(enumerate(tasks))
        self.endings: dict[int, Ending] = {}
        self.workers: list[Worker] = []
        self.attendants: list[Future[None]] = []
        self.decided = Event()
        self.ending = False  # workers are told to end
        self.lock = RLock()

    def play(self, jobs: int) -> list[Ending]:
        """Play all runs, those that fail too; when Ctrl-C is pressed, no process is left behind."""
        with ThreadPoolExecutor(jobs) as threads:
            try:
                for _ in range(jobs - 1):
                    self.attendants.append(threads.submit(self._attend))
                self._take_runs(self._play_here)
                self._end(None)
                for attendant in as_completed(self.attendants):
                    attendant.result()
            except (Interrupted, KeyboardInterrupt):
                self._end(signal.SIGINT)
                wait(self.attendants)  # for the rounds they are in
                raise
            finally:
                self._end(signal.SIGKILL)
        return [ending for _, ending in sorted(self.endings.items())]

    def _take_runs(self, play: Play, able: Callable[[], bool] = lambda: True) -> None:
        while able():
            try:
                number, task = self.waiting.popleft()
            except IndexError:
                self.decided.set()
                return
            ending = play(task)
            with self.lock:
                self.endings[number] = ending
                if isinstance(ending, Result):
                    self.progress.finish(ending, task.setting)
                else:
                    self.progress.fail(ending)

    def _play_here(self, task: Task) -> Ending:
        try:
            relay = Relay(lambda standing: self._tell_and_check(task.named(standing)), self.progress.stops)
            return play_one(task, relay)
        except KeyboardInterrupt:  # a second Ctrl-C, or the first one where there is no folder to go on from
            self._end(signal.SIGKILL)
            raise

    def _attend(self) -> None:
        """Start a worker, if that pays, and give it runs; a thread, since the worker has to be listened to.

        One that dies takes its run with it, and is replaced.
        """
        self.decided.wait(START_UP)
        while True:
            with self.lock:
                if not self.waiting:
                    return
                worker = Worker()
                self.workers.append(worker)
            with worker.process:
                try:
                    worker.begin()
                    self._take_runs(partial(self._play_there, worker), partial(_lives, worker))
                except WorkerDied:
                    if worker.ready or self.waiting:  # otherwise it was ended because it came too late
                        raise
                finally:
                    worker.process.kill()
            if not worker.died:
                return

    def _play_there(self, worker: Worker, task: Task) -> Ending:
        try:
            return worker.play(task, self._tell)
        except WorkerDied as error:
            if self.ending:  # it was told to
                raise
            worker.died = True
            failed = FailedRun(method_class(task.experiment.method).name, task.experiment.seed, "died", str(error))
            return failed_at(task, replace(failed, advice=FEWER))

    def _tell(self, standing: Standing) -> None:
        with self.lock:
            self.progress.tell(standing)

    def _tell_and_check(self, standing: Standing) -> None:
        """While much is left, workers pay; when one was stopped, the run here ends with the same error."""
        self._tell(standing)
        if standing.seconds_left * len(self.waiting) > START_UP:
            self.decided.set()
        for attendant in self.attendants:
            if attendant.done():
                attendant.result()

    def _end(self, working: signal.Signals | None) -> None:
        """No more runs: workers get a signal, those that are still starting are not needed."""
        with self.lock:
            self.ending = self.ending or working is not None
            self.waiting.clear()
            self.decided.set()
            for worker in self.workers:
                how = working if worker.ready else signal.SIGKILL
                if how is not None:
                    worker.process.send_signal(how)


class Worker:
    """A process that plays runs for this one: a fresh interpreter, which lives no longer than this one.

    Not `multiprocessing`, which would run a user's script again if it lacks `if __name__ == "__main__"`.
    """

    def __init__(self) -> None:
        self.process = Popen(
            [sys.executable, "-P", "-c", "from protofed.studies.workers import serve; serve()"],
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            process_group=0,  # Ctrl-C reaches this process alone, which tells its workers
        )
        self.ready = self.died = False

    def begin(self) -> None:
        """Wait until it is ready."""
        self._receive("a worker process")
        self.ready = True

    def play(self, task: Task, tell: Callable[[Standing], None]) -> Ending:
        """Have it play a run; what stops it there is raised here."""
        experiment = task.experiment
        name = f"the process of {label(method_class(experiment.method).name, experiment.seed, task.setting)}"
        with suppress(BrokenPipeError):  # it died; the next line says so
            _send(task, self.process.stdin)
        while True:
            match self._receive(name):
                case Standing() as standing:
                    tell(task.named(standing))
                case Failure() as failure:
                    raise failure.error()
                case (Result() | FailedRun()) as ending:
                    return ending

    def _receive(self, name: str) -> object:
        assert self.process.stdout is not None
        try:
            return pickle.load(self.process.stdout)
        except (EOFError, pickle.UnpicklingError):
            code = self.process.wait()
            how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with exit code {code}"
            raise WorkerDied(f"{name} {how}") from None


def _lives(worker: Worker) -> bool:
    return not worker.died


def serve() -> None:
    """The whole life of a worker: play the runs that come in on stdin, report on stdout."""
    reports = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a method prints must not get between the reports
    sys.stdout = sys.stderr  # and must not wait in a buffer, for this process is killed at its end
    tasks: SimpleQueue[Task] = SimpleQueue()
    Thread(target=_listen, args=(tasks,), daemon=True).start()
    with suppress(KeyboardInterrupt):
        _send(None, reports)
        while True:
            _send(_play(tasks.get(), Relay(lambda standing: _send(standing, reports))), reports)


def _play(task: Task, progress: Progress) -> Ending | Failure:
    try:
        return play_one(task, progress)
    except (Interrupted, BusyError, NotWrittenError) as error:
        return Failure.of(error)


def _listen(tasks: SimpleQueue[Task]) -> None:
    """Take runs in until the other side is gone, and then go at once."""
    while True:
        try:
            tasks.put(pickle.load(sys.stdin.buffer))
        except (EOFError, pickle.UnpicklingError):
            os._exit(1)


def _send(message: object, pipe: IO[bytes] | None) -> None:
    assert pipe is not None
    pickle.dump(message, pipe)
    pipe.flush()
