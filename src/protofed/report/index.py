"""Every run below a folder, a row each: what a list of hundreds of them shows, read in milliseconds and without torch.

Rows are of the files alone and tell a damaged file as it is: one run must not hide the others.
"""

from __future__ import annotations

import hashlib
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from protofed.errors import UserError
from protofed.internal.digests import checked_yaml, parse_json
from protofed.internal.schema import read_json
from protofed.internal.yaml_files import parse_yaml, read_yaml
from protofed.runs.failure import FailedRun
from protofed.runs.folder import TUNING, RunFolder
from protofed.runs.progress import seconds_left

State = Literal["going on", "stopped", "ended", "failed", "unreadable"]
FILES = (
    *("config.yaml", "rounds.jsonl", "result.json", "failure.json", "profile.json"),
    *("snapshot.safetensors", "look.safetensors", "motion.safetensors"),
)
"""What a run's row and its pictures are made of."""

LONGEST = 1 << 18
"""Bytes of a config.yaml, at most."""
TAIL = 1 << 17
"""Bytes at the end of rounds.jsonl in which its last round is looked for."""


@dataclass(frozen=True)
class Row:
    """One run in a list; None is what is not known."""

    id: str  # what a page calls it by; no path
    name: str  # its folder, below the one that is shown
    version: str  # another one whenever its files change
    state: State
    reason: str = ""  # it failed, or cannot be read
    options: dict[str, Any] = field(default_factory=dict)  # config.yaml
    rounds: int | None = None  # of the experiment
    done: int = 0
    loss: float | None = None  # of the last round
    score: str = ""  # the accuracy that is shown
    value: float | None = None
    megabytes: float | None = None
    seconds: float | None = None
    left: float | None = None  # seconds that the rest may take, of a run that is not complete
    began: float = 0.0  # when the folder was made, in seconds since 1970
    trial: bool = False  # it only chooses values for others

    @property
    def failed_at_once(self) -> bool:
        """Whether there is nothing to draw of it."""
        return self.state == "failed" and not self.done


class Index:
    """The runs below a folder, as they are whenever it is asked.

    Args:
        folder: of a run, of a study, or of any number of them.

    Raises:
        UserError: there is no such folder.
    """

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise UserError("FOLDER", str(folder), "there is no such folder", hint="runs are put into runs/")
        self.folder = folder
        self.paths: dict[str, Path] = {}  # of each run by its id; nothing else can be asked for
        self.folders: list[Path] = []  # those without a run of their own: studies may be among them
        self._rows: dict[Path, Row] = {}

    def rows(self) -> list[Row]:
        """A row for each run, read again where a file has changed."""
        rows: dict[Path, Row] = {}
        paths, self.folders = below(self.folder)
        for path in paths:
            version, known = version_of(path), self._rows.get(path)
            fresh = known is None or known.version != version or known.state == "going on"
            rows[path] = row_of(path, name_below(path, self.folder), version) if fresh or not known else known
        self._rows, self.paths = rows, {row.id: path for path, row in rows.items()}
        return list(rows.values())


def listed(rows: Sequence[Row]) -> dict[str, Any]:
    """Rows for a page: options that are the same in all are there once, under `common`.

    Example:
        >>> from pathlib import Path
        >>> from protofed.report.index import Index, listed
        >>> found = listed(Index(Path("digits")).rows())
        >>> found["common"]["method"], [row["options"] for row in found["runs"]]
        ('fedproto', [{}])
    """
    first = rows[0].options if rows else {}
    common = {name: value for name, value in first.items() if all(_has(row, name, value) for row in rows)}
    own = [{name: value for name, value in row.options.items() if name not in common} for row in rows]
    runs = [{**asdict(row), "options": options} for row, options in zip(rows, own, strict=True)]
    return {"common": common, "runs": runs}


def _has(row: Row, name: str, value: Any) -> bool:
    return name in row.options and bool(row.options[name] == value)


def below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The folders of runs, sorted, and all others; drafts and what links lead to are left out."""
    runs, others = [], []
    for place, folders, files in os.walk(folder):
        if "config.yaml" in files:
            runs.append(Path(place))
            folders.clear()  # a run has no runs below it
        else:
            others.append(Path(place))
        folders[:] = [name for name in folders if not name.startswith(".")]
    return sorted(runs), sorted(others)


def name_below(path: Path, folder: Path) -> str:
    """What a run is called in a list of those below a folder, which may be its own."""
    return folder.resolve().name if path == folder else str(path.relative_to(folder))


def version_of(path: Path) -> str:
    """Something that changes whenever a file of a run does."""
    return hashlib.blake2b(repr([*_stamps(path)]).encode(), digest_size=8).hexdigest()


def _stamps(path: Path) -> Iterator[tuple[str, int, int]]:
    for name in FILES:
        try:
            found = (path / name).stat()
        except OSError:
            continue
        yield name, found.st_size, found.st_mtime_ns


def row_of(path: Path, name: str, version: str) -> Row:
    """The row of a run; of one that cannot be read, why."""
    known: dict[str, Any] = {"id": _id(path), "name": name, "version": version, "began": _began(path)}
    known["trial"] = TUNING in Path(name).parts
    try:
        return Row(**{**known, **_read(path)})
    except Exception as error:  # whatever a damaged file leads to
        return Row(**known, state="unreadable", reason=" ".join(str(error).split()))


def _id(path: Path) -> str:
    return hashlib.blake2b(os.fsencode(path), digest_size=8).hexdigest()


def _read(path: Path) -> dict[str, Any]:
    folder, options = RunFolder(path), options_of(path)
    rounds = int(options["rounds"])
    base = {"options": options, "rounds": rounds}
    if folder.result.is_file():
        return {**base, "state": "ended", **_of_result(_object(folder.result), folder.rounds)}
    budget = options.get("time_budget")
    base |= _so_far(folder.rounds, rounds, None if budget is None else float(budget))
    failed = FailedRun.read(path)
    if failed is not None:
        return {**base, "state": "failed", "reason": f"{failed.short}: {failed.reason}"}
    if not folder.is_played():
        return {**base, "state": "stopped"}
    return {**base, "state": "going on"}


def _of_result(result: Mapping[str, Any], rounds: Path) -> dict[str, Any]:
    """What a run that is complete came to."""
    score = str(result["score"])
    return {
        "done": int(result["rounds"]),
        "loss": _number(last_line(rounds).get("loss")),
        "score": score,
        "value": _number(result["accuracy"][score]["last"]),
        "megabytes": (int(result["bytes_up"]) + int(result["bytes_down"])) / 1e6,
        "seconds": _number(result["seconds"]),
        "reason": "" if result.get("stopped", "rounds") == "rounds" else f"ended by its {result['stopped']}",
    }


def _so_far(path: Path, planned: int, budget: float | None) -> dict[str, Any]:
    """What the rounds of a run come to that is not complete; the last line may be in the writing."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.is_file() else []
    rounds = [parse_json(line.decode("utf-8")) for line in lines]
    if not rounds:
        return {}
    seconds = [float(one["seconds"]) for one in rounds]
    accuracy: Mapping[str, Any] = next((found for one in reversed(rounds) if (found := one.get("accuracy"))), {})
    score = next((name for name in ("own/own/head", *accuracy) if name in accuracy), "")
    return {
        "done": len(rounds),
        "loss": _number(rounds[-1].get("loss")),
        "score": score,
        "value": _number(accuracy.get(score)),
        "megabytes": sum(int(one["bytes_up"]) + int(one["bytes_down"]) for one in rounds) / 1e6,
        "seconds": sum(seconds),
        "left": seconds_left(seconds, planned, budget),
    }


def _number(value: Any) -> float | None:
    """What a page can show as a number; a damaged file may hold anything."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _object(path: Path) -> dict[str, Any]:
    found = read_json(path)
    if not isinstance(found, dict):
        raise UserError("FILE", str(path), "it must hold an object")
    return found


def _began(path: Path) -> float:
    try:
        return (path / "config.yaml").stat().st_mtime
    except OSError:
        return 0.0


def last_line(path: Path) -> dict[str, Any]:
    """The last round of a file, from its end; empty without one, or where its line is very long."""
    if not path.is_file():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL))
        lines = file.read().split(b"\n")
    return (
        dict(parse_json(lines[-2].decode("utf-8")))
        if len(lines) > 2 or (len(lines) == 2 and path.stat().st_size <= TAIL)
        else {}
    )


def options_of(path: Path) -> dict[str, Any]:
    """What config.yaml says. Runs share most of their lines, and parsing is slow: each different one is parsed once."""
    config = path / "config.yaml"
    if config.stat().st_size > LONGEST:
        raise UserError("FILE", str(config), f"it has more than {LONGEST} bytes")
    values: dict[str, Any] = {}
    for block in _blocks(checked_yaml(config.read_text(encoding="utf-8"))):
        found = _parsed(block)
        if found is None:  # it is not as we write it
            values = read_yaml(config, as_written=True)
            break
        values |= found
    return {str(name): _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """What JSON can say; YAML knows more."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    return str(value)


def _blocks(text: str) -> Iterator[str]:
    """The entries of a mapping: each line that is not indented, with those below it that are."""
    block: list[str] = []
    for line in text.splitlines(keepends=True):
        if block and line[:1] not in (" ", "-", "#", "\n"):
            yield "".join(block)
            block = []
        block.append(line)
    yield "".join(block)


@lru_cache(maxsize=4096)
def _parsed(block: str) -> dict[str, Any] | None:
    """One entry; none if it is something else."""
    try:
        found = parse_yaml(block)
    except Exception:  # whatever PyYAML stumbles over: the whole file will say it better
        return None
    return found if isinstance(found, dict) and len(found) == 1 else None
