"""What a report says, read from run folders: plain data, small enough to be put into a page."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from protofed.errors import UserError
from protofed.evaluation.names import lower_is_better
from protofed.experiment import Experiment, options
from protofed.internal.schema import fits, read_json
from protofed.report.html.looks import colours_needed, looks_of
from protofed.report.html.motions import motions_of
from protofed.report.html.run_data import Lines, drawn, problem, read_run, shared_score, short
from protofed.report.html.statistics import compared
from protofed.report.index import Row, listed, name_below, row_of, version_of
from protofed.report.plots import COLOURS, colour
from protofed.runs.folder import run_folders
from protofed.runs.network_label import OWN
from protofed.runs.result import guarantee
from protofed.studies.comparison import ComparisonStudy
from protofed.studies.kinds import kind_of

GATHERED = (
    "path",
    "experiment",
    "last",
    "label",
    "setting",
    "left_out",
    "suspected",
    "epsilon",
    "further",
    "each",
    "notes",
)
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
    names = _names(folders)
    found = numbers(names)
    return {
        **listed(_rows(names)),
        **found,
        **details(names),
        "commands": [_command(folder) for folder in folders],
        "tuning": [text for folder in folders for text in _tuning(folder)],
        "notes": [*dict.fromkeys([*(text for folder in folders for text in _notes(folder)), *found["notes"]])],
    }


def motion_of(folders: Sequence[Path]) -> dict[str, Any]:
    """What a page shows of the motion of runs, with the colours of its lines.

    Args:
        folders: as those of `gather`.

    Raises:
        UserError: as `gather`, or no run has kept how its features move.
    """
    names = _names(folders)
    lines = drawn(lines_of(names))
    found = motions_of(lines)
    if found is None:
        why = "none of its runs has kept features and prototypes"
        hint = "runs with --no-motion, over a network, or made before version 0.2 have no motion.safetensors"
        raise UserError("DIR", str(folders[0]), why, hint=hint)
    classes = max(len(one["classes"]) for one in found["samples"])
    most = max(len(COLOURS), len(lines), classes)
    about = {"about": _about([run for runs in lines.values() for run in runs])}
    return {**about, "motion": found, "lines": dict.fromkeys(lines), "colours": [colour(n) for n in range(most)]}


def _names(folders: Sequence[Path]) -> dict[Path, str]:
    """The names of the runs in some folders, each once."""
    found = {path.resolve(): (path, folder) for folder in folders for path in _run_folders(folder)}
    names = {path: name_below(path, folder) for path, folder in found.values()}
    if not any(problem(path) is None and read_run(path) for path in names):
        for path in names:
            if (wrong := problem(path)) is not None:
                raise wrong
        raise UserError("DIR", str(folders[0]), "it holds no run with a complete round")
    return names


def _rows(names: Mapping[Path, str]) -> list[Row]:
    """A row for each run; a file of which the list shows nothing may be damaged too."""
    rows = []
    for path, name in names.items():
        row, wrong = row_of(path, name, version_of(path)), problem(path)
        rows.append(replace(row, state="unreadable", reason=str(wrong)) if wrong else row)
    return rows


def numbers(names: Mapping[Path, str]) -> dict[str, Any]:
    """All but what `details` finds.

    Args:
        names: of runs, by their folders.
    """
    lines = lines_of(names)
    runs = [run for line in lines.values() for run in line]
    shown = drawn(lines)
    scores = list(dict.fromkeys(name for run in runs for name in run["curves"]))
    score = shared_score(shown) if scores else None
    return {
        "about": _about(runs) if runs else {},
        "incomplete": [*_incomplete(shown, runs), *_not_there(_rows(names))],
        "notes": [*dict.fromkeys(text for run in runs for text in run["notes"])],
        "trust": [text for run in runs if (text := _trust(run))],
        "scores": scores,
        "lower": [name for name in scores if lower_is_better(name)],
        "score": score,
        "summary": compared(lines, scores),
        "lines": {label: [_slim(run) for run in found] for label, found in shown.items()},
        "clients": {label: found[0]["each"].get(score) for label, found in shown.items()},
        "colours": [colour(number) for number in range(max(len(COLOURS), len(lines)))],
    }


DETAILS: Mapping[str, Callable[[Lines], dict[str, Any] | None]] = {
    "looks": looks_of,
    "motion": motions_of,
}
"""What takes longer than to read numbers: of the runs that are drawn something by label, under a name of its own."""


def details(names: Mapping[Path, str]) -> dict[str, Any]:
    """How runs ended; the viewer asks for it when the numbers are there."""
    lines = drawn(lines_of(names))
    found = {what: of(lines) for what, of in DETAILS.items()}
    most = max(len(COLOURS), len(lines), colours_needed(found["looks"] or {}))
    return {**found, "colours": [colour(number) for number in range(most)]}


def lines_of(names: Mapping[Path, str]) -> dict[str, list[dict[str, Any]]]:
    """The runs that can be read and have a complete round, those of the same label as the seeds of one line."""
    readable = {path: name for path, name in names.items() if problem(path) is None}
    runs = [{**run, "name": name} for path, name in readable.items() if (run := read_run(path))]
    lines: dict[str, list[dict[str, Any]]] = {}
    for run, setting, label in zip(runs, *_labels(runs), strict=True):
        run |= {"setting": setting, "label": label}
        lines.setdefault(label, []).append(run)
    return lines


def _run_folders(folder: Path) -> Iterator[Path]:
    """The run folders at a place, or below it."""
    if not folder.is_dir():
        raise UserError("DIR", str(folder), "there is no such folder")
    found = run_folders(folder)
    if ComparisonStudy.config(folder).is_file():  # methods in the order they were asked for
        methods = ComparisonStudy.open(folder).methods
        asked = {path: row_of(path, path.name, version_of(path)).options.get("method") for path in found}
        found.sort(key=lambda path: _place(str(asked[path]), methods))
    if not found:
        raise UserError("DIR", str(folder), "it holds no run with a complete round")
    yield from found


def _place(name: str, names: Sequence[str]) -> int:
    return names.index(name) if name in names else len(names)


def _labels(runs: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Of each run the setting, and what its line is called: the method and what else differs, but for the seed.

    A setting is what runs are trained and tested on, as far as that differs: they are ranked within it.
    """
    told = [{**vars(run["experiment"]), "method": run["method"]} for run in runs]
    quiet = {"seed", "method", "params", *options("machine")}
    names = [name for name in options() if name not in quiet and len({str(one[name]) for one in told}) > 1]
    settings, labels = [], []
    for one in told:
        mine, same = one["params"], [other["params"] for other in told if other["method"] == one["method"]]
        differ = sorted({key for other in same for key in {*other, *mine} if other.get(key) != mine.get(key)})
        rest = [f"{name}={one[name]}" for name in names] + [f"{key}={mine.get(key)}" for key in differ]
        settings.append(" ".join(f"{name}={one[name]}" for name in names if name in options("data")))
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


def _incomplete(shown: Lines, runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Of each run that did not come to its end, what happened and where it is still to be seen."""
    told = []
    for run in runs:
        if not run["complete"]:
            drawn_too = any(run["name"] == other["name"] for other in shown[run["label"]])
            where = "no mean and no test, and figures have the rounds it played" if drawn_too else "no number or figure"
            why = f": {run['failed']}: {run['reason']}" if run["failed"] else f" was cut off after {run['ending']}"
            told.append(f"{run['name']}{why}; it is in {where}")
    return told


def _not_there(rows: Sequence[Row]) -> list[str]:
    """Of each run of which nothing can be shown, why."""
    told = [f"{row.name}: {row.reason}; it is in no number or figure" for row in rows if row.failed_at_once]
    lost = [row for row in rows if row.state == "unreadable"]
    return [*told, *(f"{row.name} cannot be read: {row.reason}; it is in no number or figure" for row in lost)]


def _tuning(folder: Path) -> list[str]:
    """What a comparison has chosen for each method."""
    path = folder / ComparisonStudy.end
    tuned = _said(path, "tuning")
    if not fits(tuned, list[dict[str, Any]]) or not all(isinstance(one.get("told"), str) for one in tuned):
        raise UserError("FILE", str(path), "its tuning must say what was chosen")
    return [one["told"] for one in tuned]


def _notes(folder: Path) -> list[str]:
    """What a reader of a study's numbers has to know."""
    kind = kind_of(folder)
    if kind is None:
        return []
    notes = _said(folder / kind.end, "notes")
    if not fits(notes, list[str]):
        raise UserError("FILE", str(folder / kind.end), "its notes must be texts")
    return list(notes)


def _said(path: Path, name: str) -> Any:
    """What the file that ends a study says under a name; an empty list if it does not, or is not there yet."""
    values = read_json(path) if path.is_file() else {}
    return values.get(name, []) if isinstance(values, dict) else None


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
    clients = {name: [short(value) for value in found.per_client] for name, found in run["last"].items()}
    undefined = {name: found.undefined for name, found in run["last"].items() if found.undefined}
    domains = {name: found.per_domain for name, found in run["last"].items() if found.per_domain}
    return {**kept, "seed": run["experiment"].seed, "clients": clients, "domains": domains, "undefined": undefined}
