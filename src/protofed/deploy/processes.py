"""Flower's own processes: started offline and without telemetry, and stopped with everything they have started."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import IO, Any

from protofed.deploy.log_lines import LogFile, formatter
from protofed.deploy.server_settings import toml
from protofed.errors import LostError, UserError
from protofed.internal.atomic_files import write_text

PATIENCE = 60.0
"""Seconds until a process must be ready."""
GRACE = 10.0
"""Seconds that processes have to end by themselves."""
CONNECTION = "protofed"
"""What our SuperLink is called in Flower's configuration."""
Ask = Callable[..., dict[str, Any]]
PARENT_DIED = 1
"""What prctl calls the choice of a signal for it."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
MARK = "PROTOFED_STARTED_FOR"
"""Names, in the environment of all that is started below one process of ours, its log."""
SIMULATION = "PROTOFED_SIMULATION"
"""Says, in the environment of simulated clients, that code which the experiment names is the user's own."""


def environment(home: Path) -> dict[str, str]:
    """Offline, silent, and with its state in a folder of ours."""
    quiet = {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # Ray on loopback
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
    }
    return os.environ | quiet


def connect(home: Path, address: str, authority: Path | None) -> None:
    """Tell Flower's commands where the SuperLink is."""
    home.mkdir(parents=True, exist_ok=True)
    how = "insecure = true" if authority is None else f"root-certificates = {toml(str(authority))}"
    text = f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\naddress = "{address}"\n{how}\n'
    write_text(home / "config.toml", text)


def free_port() -> int:
    """One that nobody on this machine listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def alone(log: Path) -> Iterator[None]:
    """Refuse to be a second one of what writes this log, and stop what an earlier one has left that was killed."""
    with log.open("ab") as claim:
        if _locked(claim):
            _stop(log)
        yield


def _locked(claim: IO[bytes]) -> bool:
    """Take the lock of a log; not on a file system without locks, where what runs might be another's."""
    for last in (False, False, True):
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if last:
                raise UserError("DIR", str(Path(claim.name).parent), "it is running already") from None
            time.sleep(0.1)  # somebody may be looking whether it runs
        except OSError:
            break
    return False


def is_running(log: Path) -> bool:
    """Whether there is a process that writes this log; on a file system without locks, that is assumed."""
    if not log.exists():
        return False
    with log.open("ab") as claim:
        try:
            fcntl.flock(claim, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@contextmanager
def logged(path: Path, who: str, warn: bool = False) -> Iterator[None]:
    """What Flower and the server say goes to a file, and warnings, if asked for, to the terminal too."""
    from flwr.supercore.logger import FLOWER_LOGGER as logger  # it sets it up when it is imported

    file = LogFile(path, encoding="utf-8")
    file.setFormatter(formatter(who))
    handlers: list[logging.Handler] = [file, *([_Terminal(logging.WARNING)] if warn else [])]
    before, level, propagate = logger.handlers[:], logger.level, logger.propagate
    logger.handlers[:] = handlers
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers[:] = before
        logger.setLevel(level)
        logger.propagate = propagate
        with suppress(OSError):  # of a full disk
            file.close()


class _Terminal(logging.Handler):
    """Prints where standard error is now, which a bar of progress may have taken."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=sys.stderr, flush=True)


@contextmanager
def running(
    command: Sequence[str],
    home: Path,
    log: Path,
    more: Mapping[str, str] = MappingProxyType({}),
    pipes: bool = False,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and all that it starts, in whatever session; none of them is left at the end.

    `more` is added to its environment; with `pipes` its input and output are the caller's, and its log has the errors.
    """
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            env=environment(home) | {MARK: str(log.resolve()), **more},
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else file,
            stderr=file,
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - it calls nothing but the system
        )
        try:
            yield process
        finally:
            _stop(log, process)
            for end in (process.stdin, process.stdout):
                if end is not None:
                    with suppress(OSError):
                        end.close()


def hangup() -> list[signal.Signals]:
    """The signal of a terminal that is closed, unless nohup has it ignored."""
    return [] if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else [signal.SIGHUP]


@contextmanager
def told_to_end(*signals: signal.Signals) -> Iterator[list[int]]:
    """Those of the signals that have come so far, for who looks: an exception could be raised, and lost, anywhere."""
    told: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        told.append(number)

    before = {number: signal.signal(number, note) for number in signals}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interruptible() -> Iterator[None]:
    """TERM and a closed terminal interrupt as Ctrl-C does; once, for a terminal says it twice."""
    signals = [signal.SIGTERM, *hangup()]

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001
        for one in signals:
            signal.signal(one, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in signals}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_with_parent() -> None:
    """Ask Linux to end this process when the one that started it is gone, whatever ended that one."""
    if LIBC is not None:
        LIBC.prctl(PARENT_DIED, signal.SIGTERM)


def _stop(log: Path, process: subprocess.Popen[Any] | None = None) -> None:
    """End a process with its group, and all that bears the mark of its log."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
        for pid in _marked(log):
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        until = time.monotonic() + GRACE
        while time.monotonic() < until:
            if not _marked(log) and (process is None or _gone(process)):
                return
            time.sleep(0.05)


def _gone(process: subprocess.Popen[Any]) -> bool:
    """Whether nothing of its group is left."""
    process.poll()
    try:
        os.killpg(process.pid, 0)
    except ProcessLookupError:
        return True
    return False


def _marked(log: Path) -> list[int]:
    """The processes whose environment says so, in whatever session Flower put them; on Linux, which tells."""
    said, found = os.fsencode(f"{MARK}={log.resolve()}"), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it is another user's, or has ended
            if said in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def require_free(host: str, port: int) -> None:
    """Refuse an address that a server cannot listen on."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server, which does not mind old ones
            probe.bind(address)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError("port", port, f"it is in use on {host}") from None
        raise UserError("host and port", f"{host} {port}", f"no server can listen there: {error.strerror}") from None


def until_listening(process: subprocess.Popen[bytes], host: str, port: int, log: Path) -> None:
    """Wait until a process accepts connections."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        with suppress(OSError), socket.create_connection((host, port), timeout=1):
            return
        time.sleep(0.1)
    raise LostError(f"{Path(str(process.args[0])).name} does not listen on {host}:{port}; see {log}")  # type: ignore[index]  # a list of words


@contextmanager
def commands(home: Path) -> Iterator[Ask]:
    """Flower's commands in one process of theirs: a call is one, and returns what it says as JSON."""
    process = subprocess.Popen(
        [sys.executable, "-P", str(Path(__file__).with_name("flwr_commands.py"))],
        env=environment(home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,  # Ctrl-C is ours to pass on
    )

    numbers = count()

    def ask(*words: str) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        mine = next(numbers)
        with suppress(BrokenPipeError):
            process.stdin.write(json.dumps([mine, [*words, "--format", "json"]]) + "\n")
            process.stdin.flush()
        number, answer = None, {}
        while number != mine:  # an interrupted question may have left its answer
            line = process.stdout.readline()
            if not line:
                raise LostError(f"flwr {words[0]} ended without an answer")
            number, answer = json.loads(line)
        start = answer["out"].find("{")
        try:
            said: dict[str, Any] = json.loads(answer["out"][start:]) if start >= 0 else {}
        except json.JSONDecodeError:
            said = {}
        if answer["code"] or not said.get("success"):
            why = said.get("error-message") or answer["err"] or answer["out"]
            raise LostError(f"flwr {words[0]} failed: {' '.join(why.split())[-300:]}")
        return said

    try:
        yield ask
    finally:
        process.kill()  # it has started nothing
        process.wait()


def tool(name: str) -> str:
    """One of Flower's commands, from where this Python is."""
    return str(Path(sys.executable).parent / name)
