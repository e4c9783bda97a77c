"""One run as a report needs it: read once from its folder, and again only when a file of it has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.evaluation.motion import Motion
from protofed.evaluation.snapshot import Snapshot
from protofed.experiment import Experiment
from protofed.internal.schema import fits, read_json
from protofed.internal.yaml_files import read_yaml
from protofed.methods import METHODS, method_class
from protofed.report.index import version_of
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.runs.result import Accuracy, Result, common_score, further, summarise
from protofed.server.round import Round

Lines = Mapping[str, Sequence[Mapping[str, Any]]]
"""The runs of each line of a report, by its label."""

DIGITS = 4
MOST = 40
"""Rounds, at most, of which every client's accuracy is kept."""
REMEMBERED = 256
"""Runs whose numbers and pictures are remembered: more than are compared at a time."""


def read_run(path: Path) -> dict[str, Any]:
    """One run, with a curve for each accuracy; empty before its first round.

    Raises:
        UserError: a file of it cannot be read.
    """
    return dict(_read(path, version_of(path)))


def problem(path: Path) -> UserError | None:
    """What is wrong with a file of a run that a report reads; None where it can be shown."""
    return _problem(path, version_of(path))


@lru_cache(maxsize=REMEMBERED)
def _problem(path: Path, version: str) -> UserError | None:
    folder = RunFolder(path)
    try:
        _read(path, version)
        if folder.snapshot.is_file():
            Snapshot.read(folder.snapshot)
        if folder.motion.is_file():
            Motion.read(folder.motion)
    except UserError as error:
        return error
    return None


@lru_cache(maxsize=REMEMBERED)
def _read(path: Path, version: str) -> dict[str, Any]:  # noqa: ARG001 - what is remembered is of one version
    experiment = Experiment.from_mapping(read_yaml(path / "config.yaml", as_written=True))
    rounds = RunFolder.open(path).played()
    if not rounds:
        return {}
    tested = [played for played in rounds if played.accuracy]
    method, score = _named(experiment, path)
    profile = path / "profile.json"
    complete, failed = (path / "result.json").is_file(), FailedRun.read(path)
    return {
        "path": path,
        "experiment": experiment,
        "method": method,
        "score": score,
        "complete": complete,
        "failed": failed.short if failed else "",
        "reason": failed.reason if failed else "",
        "ending": failed.short if failed else f"round {rounds[-1].round} of {experiment.rounds}",
        "notes": Result.read(path).notes() if complete else [],
        "rounds": [played.round for played in rounds],
        "loss": [short(played.loss) for played in rounds],
        "bytes": _running(played.bytes_up + played.bytes_down for played in rounds),
        "seconds": _running(played.seconds for played in rounds),
        "up": sum(played.bytes_up for played in rounds),
        "down": sum(played.bytes_down for played in rounds),
        "scalars": {
            "weights": sum(played.scalars_up["weights"] for played in rounds),
            "prototypes": sum(played.scalars_up["prototypes"] for played in rounds),
        },
        "tested": [played.round for played in tested],
        "curves": _curves(tested),
        "each": _each_client(tested),
        "last": _last(rounds, score) if tested else {},
        "prototypes": _prototypes(rounds),
        "profile": _profile(profile) if profile.is_file() else None,
        "left_out": Counter(why for played in rounds for why in played.left_out.values()),
        "suspected": Counter(member for played in rounds for member in played.suspected or ()),
        "epsilon": rounds[-1].epsilon,
        "further": further(rounds),
    }


def drawn(lines: Lines) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Of each line the runs that are shown: those that came to their end or, where none did, all."""
    return {label: [run for run in runs if run["complete"]] or runs for label, runs in lines.items()}


def shared_score(lines: Lines) -> str:
    """The accuracy by which lines are compared; one of which no run came to its end is not asked, if another did."""
    runs = [run for some in lines.values() for run in some]
    ended = [run for run in runs if run["complete"]]
    own = [[name for name, found in run["last"].items() if not found.diagnostic] for run in ended or runs]
    return common_score([(run["score"], names) for run, names in zip(ended or runs, own, strict=True)])


def _profile(path: Path) -> dict[str, dict[str, dict[str, float]]]:
    """What profile.json says of the parts of a round."""
    values = read_json(path)
    form = dict[str, dict[str, float]]
    sections: Any = values.get("sections", {}) if isinstance(values, dict) else None
    if not fits(sections, form):
        raise UserError("FILE", str(path), f"its sections must be {form}")
    return {"sections": sections}


def _named(experiment: Experiment, path: Path) -> tuple[str, str]:
    """The method's name and score; a user's own is a file with code, which a report must not run."""
    if experiment.method in METHODS:
        return experiment.method, method_class(experiment.method).score
    if (path / "result.json").is_file():
        found = Result.read(path)
        return found.method, found.score
    return experiment.method.rpartition(":")[2], "own/own/head"


def _last(rounds: Sequence[Round], score: str) -> dict[str, Accuracy]:
    """Accuracies at the end; what the method's paper reports is by a rule of the method's own."""
    found = summarise(rounds)
    return {name: replace(one, diagnostic=one.diagnostic and name != score) for name, one in found.items()}


def _curves(tested: Sequence[Round]) -> dict[str, list[float]]:
    names = tested[-1].accuracy if tested else {}
    return {name: [short(played.accuracy.get(name)) for played in tested] for name in names}


def _each_client(tested: Sequence[Round]) -> dict[str, Any]:
    """Every client's accuracies over rounds, evenly spaced ones if there are many."""
    places = range(len(tested))
    if len(tested) > MOST:
        places = sorted({round(place * (len(tested) - 1) / (MOST - 1)) for place in range(MOST)})  # type: ignore[assignment]
    some = [tested[place] for place in places]
    names = some[-1].per_client if some else {}
    return {
        name: {
            "rounds": [played.round for played in some if name in played.per_client],
            "clients": [played.clients_of(name) for played in some if name in played.per_client],
            "values": [
                [short(value) for value in played.per_client[name]] for played in some if name in played.per_client
            ],
        }
        for name in names
    }


def _prototypes(rounds: Sequence[Round]) -> dict[str, dict[str, list[Any]]]:
    """Of each set the server sends: prototypes per class, padding and drift over rounds; and what clients send."""
    found: dict[str, dict[str, list[Any]]] = {}
    for name in rounds[-1].prototypes:
        lines = [played.prototypes.get(name) for played in rounds]
        found[name] = {
            "each": [None if line is None else line["each"] for line in lines],
            "padded": [None if line is None else short(line["padded"]) for line in lines],
            "drift": [None if line is None else short(line["drift"]) for line in lines],
        }
    for name in rounds[-1].clusters:
        each = [(played.clusters.get(name), len(played.participants)) for played in rounds]
        means = [short(sum(counts) / who) if counts and who else None for counts, who in each]
        found[f"{name}, of a client"] = {"mean": means}
    return found


def _running(values: Any) -> list[float]:
    total, found = 0.0, []
    for value in values:
        total += value
        found.append(short(total))
    return found


def short(value: float | None) -> Any:
    """A number as precise as a picture can show."""
    return None if value is None else float(f"{value:.{DIGITS}g}") if abs(value) < 1e4 else round(value)
