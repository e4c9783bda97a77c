"""What a report says, read from run folders: plain data, small enough to be put into a page."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.evaluation.names import lower_is_better
from protofed.evaluation.snapshot import Snapshot
from protofed.experiment import Experiment, options
from protofed.internal.schema import fits, read_json
from protofed.internal.yaml_files import read_yaml
from protofed.methods import METHODS, method_class
from protofed.report.html.statistics import compared
from protofed.report.plots import COLOURS, colour
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder, run_folders
from protofed.runs.network_label import OWN
from protofed.runs.result import Accuracy, Result, common_score, further, guarantee, summarise
from protofed.server.round import Round
from protofed.studies.comparison import ComparisonStudy
from protofed.studies.kinds import kind_of

DIGITS = 4
SAME = 1e-9
"""Features that differ by less than this part of their length lie in one point."""
GATHERED = ("path", "experiment", "last", "label", "setting", "left_out", "suspected", "epsilon", "further")
"""What is known of a run and not put into the page as it is."""


def gather(folders: Sequence[Path]) -> dict[str, Any]:
    """Gather everything a report says about the runs in some folders.

    Args:
        folders: folders of runs, or of comparisons, sweeps and tables with runs below them.

    Returns:
        Plain data for `write_report`. Under `lines` runs of the same label are the seeds of one line.

    Raises:
        UserError: a folder is not there, or holds no run with a complete round.

    Example:
        >>> from pathlib import Path
        >>> from protofed.report.html import gather
        >>> data = gather([Path("digits")])
        >>> data["score"], {label: len(runs) for label, runs in data["lines"].items()}
        ('own/own/nearest', {'fedproto': 1})
    """
    found = {path.resolve(): (path, folder) for folder in folders for path in _run_folders(folder)}  # each once
    runs = [_run(path, path.relative_to(folder)) for path, folder in found.values()]
    lines: dict[str, list[dict[str, Any]]] = {}
    for run, setting, label in zip(runs, *_labels(runs), strict=True):
        run |= {"setting": setting, "label": label}
        lines.setdefault(label, []).append(run)
    scores = list(dict.fromkeys(name for run in runs for name in run["curves"]))
    looks = {label: snapshot for label, found in lines.items() if (snapshot := _snapshot(found)) is not None}
    return {
        "commands": [_command(folder) for folder in folders],
        "about": _about(runs),
        "incomplete": [_incomplete(run) for run in runs if not run["complete"]] + _failed_at_once(folders),
        "tuning": [text for folder in folders for text in _tuning(folder)],
        "trust": [text for run in runs if (text := _trust(run))],
        "scores": scores,
        "lower": [name for name in scores if lower_is_better(name)],
        "score": common_score([_scores(run) for run in runs]) if scores else None,
        "summary": compared(lines, scores),
        "lines": {label: [_slim(run) for run in found] for label, found in lines.items()},
        "looks": looks,
        "colours": [colour(number) for number in range(max([len(COLOURS), len(lines), *map(_told, looks.values())]))],
    }


def _run_folders(folder: Path) -> Iterator[Path]:
    """The run folders at a place, or below it."""
    if not folder.is_dir():
        raise UserError("DIR", str(folder), "there is no such folder")
    found = [path for path in run_folders(folder) if RunFolder.open(path).played()]
    if ComparisonStudy.config(folder).is_file():  # methods in the order they were asked for
        methods = ComparisonStudy.open(folder).methods
        found.sort(key=lambda path: _place(str(read_yaml(path / "config.yaml").get("method")), methods))
    if not found:
        raise UserError("DIR", str(folder), "it holds no run with a complete round")
    yield from found


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names)


def _run(path: Path, name: Path) -> dict[str, Any]:
    """One run, with a curve for each accuracy."""
    experiment = Experiment.from_mapping(read_yaml(path / "config.yaml"))
    rounds = RunFolder.open(path).played()
    tested = [played for played in rounds if played.accuracy]
    method, score = _named(experiment, path)
    profile = path / "profile.json"
    return {
        "name": str(name),
        "path": path,
        "experiment": experiment,
        "method": method,
        "score": score,
        "complete": (path / "result.json").is_file(),
        "failed": failed.short if (failed := FailedRun.read(path)) else "",
        "rounds": [played.round for played in rounds],
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
        "last": _last(rounds, score) if tested else {},
        "prototypes": _prototypes(rounds),
        "profile": _profile(profile) if profile.is_file() else None,
        "left_out": Counter(why for played in rounds for why in played.left_out.values()),
        "suspected": Counter(member for played in rounds for member in played.suspected or ()),
        "epsilon": rounds[-1].epsilon,
        "further": further(rounds),
    }


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
    return {name: [_short(played.accuracy.get(name)) for played in tested] for name in names}


def _prototypes(rounds: Sequence[Round]) -> dict[str, dict[str, list[Any]]]:
    """Of each set the server sends: prototypes a class, padding and drift over rounds; and what clients send."""
    found: dict[str, dict[str, list[Any]]] = {}
    for name in rounds[-1].prototypes:
        lines = [played.prototypes.get(name) for played in rounds]
        found[name] = {
            "each": [None if line is None else line["each"] for line in lines],
            "padded": [None if line is None else _short(line["padded"]) for line in lines],
            "drift": [None if line is None else _short(line["drift"]) for line in lines],
        }
    for name in rounds[-1].clusters:
        each = [(played.clusters.get(name), len(played.participants)) for played in rounds]
        means = [_short(sum(counts) / who) if counts and who else None for counts, who in each]
        found[f"{name}, of a client"] = {"mean": means}
    return found


def _snapshot(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """How the first complete run of a line ended: places in the plane instead of features."""
    paths = [path for run in runs if (path := RunFolder(run["path"]).snapshot).is_file()]
    if not paths:
        return None
    seen = Snapshot.read(paths[0])
    places = [[_short(x), _short(y)] for x, y in plane(seen)]
    points, marks = places[: len(seen.points)], places[len(seen.points) :]
    return {
        "model": seen.model,
        "rule": seen.rule,
        "classes": seen.classes,
        "domains": seen.domains,
        "kinds": seen.kinds,
        "holds": seen.holds.tolist(),
        "homes": seen.homes.tolist(),
        "confusion": seen.confusion.tolist(),
        "points": [[*place, *what] for place, what in zip(points, seen.points.tolist(), strict=True)],
        "marks": [[*place, *what] for place, what in zip(marks, seen.marks.tolist(), strict=True)],
    }


def _told(look: Mapping[str, Any]) -> int:
    """How many colours its plane needs: by class, by client or by domain."""
    return max(len(look["classes"]), len(look["homes"]), len(look["domains"]))


def plane(seen: Snapshot) -> list[list[float]]:
    """Features and prototypes together in the plane, by t-SNE."""
    import numpy as np
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    every = np.concatenate([seen.features.double().numpy(), seen.prototypes.double().numpy()])
    if len(every) < 5:
        return [[float(place), 0.0] for place in range(len(every))]
    # A model that has nearly diverged has features that are all the same, or too large to be squared: t-SNE, which does
    # not depend on the scale, crashes on both.
    every = np.nan_to_num(every)
    every /= max(np.abs(every).max(), np.finfo(np.float64).tiny)
    every -= every.mean(0)
    if np.abs(every).max() < SAME:
        return [[0.0, 0.0]] * len(every)
    perplexity = min(30.0, (len(every) - 1) / 3)
    start = "pca" if min(every.shape) > 1 else "random"
    with threadpool_limits(1):  # two threads that wait for each other take longer than one
        placed = TSNE(perplexity=perplexity, init=start, max_iter=300, random_state=0).fit_transform(every)
    return [[float(x), float(y)] for x, y in placed]


def _scores(run: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The accuracy that the method's paper reports, and those that the run has by the method's own rules."""
    return run["score"], [name for name, found in run["last"].items() if not found.diagnostic]


def _labels(runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Of each run the setting, and what its line is called: the method and what else differs, but for the seed.

    A setting is of the options that a method has several values of: what is swept, not what is a method's own.
    """
    told = [{**vars(run["experiment"]), "method": run["method"]} for run in runs]
    quiet = {"seed", "method", "params", *options("machine")}
    names = [name for name in options() if name not in quiet and len({str(one[name]) for one in told}) > 1]
    swept = {
        name
        for name in names
        if len({(one["method"], str(one[name])) for one in told}) > len({one["method"] for one in told})
    }
    settings, labels = [], []
    for one in told:
        mine, same = one["params"], [other["params"] for other in told if other["method"] == one["method"]]
        differ = sorted({key for other in same for key in {*other, *mine} if other.get(key) != mine.get(key)})
        rest = [f"{name}={one[name]}" for name in names] + [f"{key}={mine.get(key)}" for key in differ]
        settings.append(" ".join(f"{name}={one[name]}" for name in names if name in swept))
        labels.append(" ".join([one["method"], *rest]))
    return settings, labels


def _command(folder: Path) -> str:
    """What runs it again."""
    if kind := kind_of(folder):
        return kind.open(folder).again(folder)
    if (folder / "config.yaml").is_file():
        return f"protofed run --config {shlex.quote(str(folder / 'config.yaml'))}"
    return f"protofed resume {shlex.quote(str(folder))}/…"


def _about(runs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The fields of the experiments that say most, where they are the same in all."""
    where = ("dataset", "split", "alpha", "clients", "participation", "model")
    how = ("rounds", "epochs", "steps", "batch_size", "optimiser", "lr")
    values = {name: {str(getattr(run["experiment"], name)) for run in runs} for name in (*where, *how)}
    if values["split"] == {OWN}:  # nothing was divided
        del values["split"], values["alpha"], values["clients"]
    if values["steps"] != {"None"}:
        del values["epochs"]  # a run with steps has none
    else:
        del values["steps"]
    return {name: ", ".join(sorted(found)) for name, found in values.items() if len(found) <= 4}


def _incomplete(run: Mapping[str, Any]) -> str:
    if run["failed"]:
        return f"{run['name']}: {run['failed']}; it is in no mean and no test"
    return f"{run['name']} was cut off after round {run['rounds'][-1]} of {run['experiment'].rounds}"


def _failed_at_once(folders: Sequence[Path]) -> list[str]:
    """Runs that failed in their first round, of which there is nothing else to show."""
    paths = [path for folder in folders for path in run_folders(folder) if not RunFolder.open(path).played()]
    found = {path: failed for path in paths if (failed := FailedRun.read(path)) is not None}
    return [f"{path.name}: {failed.short}; it is in no mean and no test" for path, failed in found.items()]


def _tuning(folder: Path) -> list[str]:
    """What a comparison has chosen for each method."""
    path = folder / ComparisonStudy.end
    values = read_json(path) if path.is_file() else {}
    tuned: Any = values.get("tuning", []) if isinstance(values, dict) else None
    if not fits(tuned, list[dict[str, Any]]) or not all(isinstance(one.get("told"), str) for one in tuned):
        raise UserError("FILE", str(path), "its tuning must tell what was chosen")
    return [one["told"] for one in tuned]


def _trust(run: Mapping[str, Any]) -> str:
    """Uploads that were lost or rejected, whom a defence suspects, and the privacy guarantee, in one line."""
    experiment: Experiment = run["experiment"]
    told = []
    if experiment.attack != "none":
        told.append(f"{experiment.attackers:.0%} of the clients attack: {experiment.attack}")
    if run["left_out"]:
        reasons = ", ".join(f"{why} ({number})" for why, number in run["left_out"].most_common())
        told.append(f"{run['left_out'].total()} uploads are missing: {reasons}")
    if experiment.defence != "none":
        whom = ", ".join(f"{member} ({number} rounds)" for member, number in run["suspected"].most_common(10))
        told.append(f"{experiment.defence} left out clients: {whom or 'none'}")
    if experiment.hides_clients or experiment.hides_examples:
        told.append(guarantee(experiment.privacy, run["epsilon"], experiment.delta))
    return f"{run['name']}: {'; '.join(told)}" if told else ""


def _slim(run: Mapping[str, Any]) -> dict[str, Any]:
    """Without what only the gathering needs."""
    kept = {key: value for key, value in run.items() if key not in GATHERED}
    clients = {name: [_short(value) for value in found.per_client] for name, found in run["last"].items()}
    undefined = {name: found.undefined for name, found in run["last"].items() if found.undefined}
    domains = {name: found.per_domain for name, found in run["last"].items() if found.per_domain}
    return {**kept, "seed": run["experiment"].seed, "clients": clients, "domains": domains, "undefined": undefined}


def _running(values: Any) -> list[float]:
    total, found = 0.0, []
    for value in values:
        total += value
        found.append(_short(total))
    return found


def _short(value: float | None) -> Any:
    """A number as precise as a picture can show."""
    return None if value is None else float(f"{value:.{DIGITS}g}") if abs(value) < 1e4 else round(value)
