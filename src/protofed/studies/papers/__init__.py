"""The seed papers as data: a YAML file each with its protocol, and results.csv with the published numbers.

A protocol is a list of statements, each some values and their source; a later statement overrides an earlier one. A
statement with `for` holds for those datasets, methods or settings only. docs/reproduce.md explains the files.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from protofed.errors import UserError, unknown
from protofed.experiment import Experiment
from protofed.internal.yaml_files import parse_yaml
from protofed.methods import method_class, parameters

PAPERS = tuple(sorted(file.name[: -len(".yaml")] for file in files(__name__).iterdir() if file.name.endswith(".yaml")))
"""Each is a file NAME.yaml beside this one."""

COMMUNICATION = "comm_params"
"""The metric of results.csv's own column: numbers sent in a round by all clients."""

EACH_ROUND = "each_round"
"""The metric of a figure that shows accuracy round by round."""

DISTANCE = "prototype_distance"
"""The metric of FedProto's Fig. 4."""

GIVEN = "given"
"""The value of `encoder` or `start` in a protocol: whatever file the user gives."""

MEAN = "AVG"
"""The setting of a cell that is the mean over a method's other cells."""

Statements = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Published:
    """A row of results.csv."""

    dataset: str
    setting: str
    method: str
    metric: str
    value: float
    std: float | None
    rounds: int | None
    communication: float | None
    note: str


@dataclass(frozen=True)
class Reading:
    """Which of a run's accuracies is compared: who is asked on what by which rule, and when; what ± is."""

    asked: str
    test: str
    rule: str
    when: str = "last"
    spread: str = "seeds"
    domains: Sequence[str] = ()  # the dataset's, as the paper calls them, in its order

    @property
    def score(self) -> str:
        """As run folders name it."""
        return f"{self.asked}/{self.test}/{self.rule}"


@dataclass(frozen=True)
class Trial:
    """What one or more cells are read from: an experiment, run with several seeds."""

    name: str
    values: Mapping[str, Any]  # fields of Experiment
    reading: Reading
    sources: Mapping[str, str]  # of each value

    def experiment(self, machine: Mapping[str, Any]) -> Experiment:
        """The experiment on a machine: its data folder, encoder, device and the like."""
        files = {name: machine.get("encoder") for name in needs_file(self.values)}
        rest = {name: value for name, value in machine.items() if name != "encoder"}
        return Experiment.from_mapping({**self.values, **rest, **files})


@dataclass(frozen=True)
class PaperCell:
    """One number of a table or figure, in the paper's words."""

    dataset: str
    setting: str
    method: str
    metric: str
    trial: Trial | None  # none: the mean over the method's other cells
    domain: str | None = None
    published: float | None = None
    published_std: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Drawing:
    """What a figure shows."""

    what: Literal["values", "rounds", "features", "holdings"]
    by: Literal["class", "client"] = "class"  # what features are coloured by
    clients: int = 0  # features of so many first clients in a panel each; 0: of all in one
    varied: tuple[str, ...] = ()  # what values are drawn over

    @classmethod
    def of(cls, target: Mapping[str, Any]) -> Drawing | None:
        """As a paper's file says it."""
        if "table" in target or "datasets" not in target:
            return None
        if "drawn" in target:
            return cls(**target["drawn"])
        rounds = EACH_ROUND in target.get("metrics", ())
        names = (name.removeprefix("params.") for name in target.get("vary", ()))
        return cls("rounds" if rounds else "values", varied=tuple(names))


@dataclass(frozen=True)
class Target:
    """A table or figure."""

    name: str  # such as mp-fedcl/table6
    title: str
    paper: str
    link: str
    variant: str | None
    full: bool  # whether it is trained as long and on as much as in the paper, so that levels can be compared
    about: str  # the variant, in words
    cells: tuple[PaperCell, ...]
    drawn: Drawing | None = None  # none: a table

    def trials(self) -> list[Trial]:
        """Everything that has to be run, once each."""
        return list({cell.trial.name: cell.trial for cell in self.cells if cell.trial}.values())

    def behind(self, cell: PaperCell) -> list[PaperCell]:
        """What a cell is made from: itself, or those it is the mean of."""
        if cell.trial is not None:
            return [cell]
        words = (cell.dataset, cell.method, cell.metric)
        return [one for one in self.cells if one.trial and (one.dataset, one.method, one.metric) == words]


def target_names() -> list[str]:
    """Every table and figure."""
    return [f"{paper}/{name}" for paper in PAPERS for name in read_paper(paper)["targets"]]


def variant_names(paper: str) -> list[str]:
    """The named reductions and other readings of a paper's protocol."""
    return list(read_paper(paper).get("variants", {}))


@cache
def find_target(name: str, variant: str | None = None) -> Target:
    """A table or figure with the paper's protocol, or with a named reduction or another reading of it."""
    if name not in target_names():
        raise unknown("TABLE", name, target_names(), see="protofed reproduce --list")
    stem, _, key = name.partition("/")
    if variant is not None and variant not in variant_names(stem):
        raise unknown("--variant", variant, variant_names(stem))
    paper = read_paper(stem)
    reading: Mapping[str, Any] = {"full": True} if variant is None else paper["variants"][variant]
    cells = tuple(_Planner(paper, paper["targets"][key], reading.get("protocol", ())).cells())
    full, about = reading.get("full", False), reading.get("about", "")
    told = paper["targets"][key]
    drawn = Drawing.of(told)
    return Target(name, told["title"], paper["title"], paper["link"], variant, full, about, cells, drawn)


@cache
def read_paper(stem: str) -> dict[str, Any]:
    """A paper's file."""
    values: dict[str, Any] = parse_yaml(files(__name__).joinpath(f"{stem}.yaml").read_text(encoding="utf-8"), ours=True)
    return values


@cache
def published() -> Mapping[tuple[str, str], list[Published]]:
    """The published numbers by paper and table."""
    tables: dict[tuple[str, str], list[Published]] = {}
    text = files(__name__).joinpath("results.csv").read_text(encoding="utf-8")
    for row in csv.DictReader(io.StringIO(text)):
        sent = row["comm_params_per_round_all_clients"]
        tables.setdefault((row["paper"], row["table"]), []).append(
            Published(
                dataset=row["dataset"],
                setting=row["setting"],
                method=row["method"],
                metric=row["metric"],
                value=float(row["value"]),
                std=float(row["std"]) if row["std"] else None,
                rounds=int(row["rounds"]) if row["rounds"] else None,
                communication=float(sent) if sent else None,
                note=row["note"],
            )
        )
    return tables


def needs_file(values: Mapping[str, Any]) -> list[str]:
    """Those fields of an experiment that wait for the user's file."""
    return [name for name, value in values.items() if value == GIVEN]


class _Planner:
    """Makes the cells of a target."""

    def __init__(self, paper: Mapping[str, Any], target: Mapping[str, Any], variant: Statements) -> None:
        self.paper = paper
        self.target = target
        self.variant = variant

    def cells(self) -> Iterator[PaperCell]:
        """In the order of results.csv, or of the file's lists."""
        if "table" not in self.target:
            yield from self._figure()
            return
        for row in published()[self.paper["name"], str(self.target["table"])]:
            yield self._cell(row, row.metric, row.value, row.std)
            if row.communication is not None:
                yield self._cell(row, COMMUNICATION, row.communication, None)

    def _cell(self, row: Published, metric: str, value: float, std: float | None) -> PaperCell:
        words = row.setting.split(";")
        domain = next((word.partition("=")[2] for word in words if word.startswith("domain=")), None)
        words = [word for word in words if not word.startswith("domain=")]
        trial = None
        if MEAN not in words:
            statements = [statement for word in words for statement in self.paper["settings"][word]]
            trial = self._trial(row.dataset, ";".join(words), row.method, statements, row.rounds)
            domain = domain if domain in trial.reading.domains else None  # otherwise their mean
        about = row.note if metric == row.metric else ""
        note = "; ".join(part for part in (about, self._explanation(metric, row.dataset, row.method)) if part)
        return PaperCell(row.dataset, row.setting, row.method, metric, trial, domain, value, std, note)

    def _figure(self) -> Iterator[PaperCell]:
        target = self.target
        steps: list[tuple[str, Any] | None] = [
            (name, value) for name, values in target.get("vary", {}).items() for value in values
        ]
        for dataset in target["datasets"]:
            for setting in target["settings"]:
                for step in steps or [None]:
                    statements = [one for word in setting.split(";") for one in self.paper["settings"][word]]
                    label = setting if step is None else f"{setting};{step[0].removeprefix('params.')}={step[1]}"
                    for method in target["methods"]:
                        trial = self._trial(dataset, label, method, statements, None, step)
                        for metric in target.get("metrics", ["test_acc"]):
                            note = self._explanation(metric, dataset, method)
                            yield PaperCell(dataset, label, method, metric, trial, note=note)

    def _trial(
        self,
        dataset: str,
        setting: str,
        method: str,
        words: Statements,
        rounds: int | None,
        step: tuple[str, Any] | None = None,
    ) -> Trial:
        """All statements about a cell, from the general to the particular."""
        paper, target = self.paper, self.target
        statements = [*paper["protocol"], *paper["datasets"][dataset], *paper["methods"][method], *words]
        if rounds:
            statements.append({"rounds": rounds, "source": "the table's column of rounds"})
        statements += [*target.get("protocol", ()), *self.variant]
        if step is not None:
            name, value = step
            inner = name.removeprefix("params.")
            varied = {name: value} if inner == name else {"params": {inner: value}}
            statements.append({**varied, "source": target["source"]})
        values, sources = _merge(statements, {dataset, method, *setting.split(";")})
        known = parameters(method_class(values["method"]))
        values["params"] = {name: value for name, value in values["params"].items() if name in known}
        about = {item.name: values.pop(item.name) for item in dataclasses.fields(Reading) if item.name in values}
        return Trial(_slug(dataset, setting, method), values, Reading(**about), sources)

    def _explanation(self, metric: str, dataset: str, method: str) -> str:
        reasons = self.paper.get("explained", ())
        return "; ".join(
            reason["because"] for reason in reasons if reason["metric"] == metric and _holds(reason, {dataset, method})
        )


def _merge(statements: Statements, names: set[str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The values that hold in the end for what is called `names`, and where each is from; parameters are united."""
    values: dict[str, Any] = {"params": {}}
    sources: dict[str, str] = {}
    for statement in statements:
        if not _holds(statement, names):
            continue
        for name, value in statement.items():
            if name == "params":
                values["params"] |= value
                sources |= dict.fromkeys(value, statement["source"])
            elif name not in ("source", "for"):
                values[name] = value
                sources[name] = statement["source"]
    return values, sources


def _holds(statement: Mapping[str, Any], names: set[str]) -> bool:
    only = statement.get("for", names)
    return bool(names & set([only] if isinstance(only, str) else only))


def _slug(*words: str) -> str:
    """A name for a folder."""
    return "-".join(re.sub(r"[^a-z0-9.+=]+", "-", word.lower()).strip("-") for word in words if word)


def chosen(target: Target, only: Iterable[str], methods: Iterable[str]) -> Target:
    """Some of its cells: of the datasets or settings called `only`, and of methods, by the paper's or our name."""
    cells = target.cells
    datasets = {_slug(cell.dataset): cell.dataset for cell in cells}
    words = {_slug(word): word for cell in cells for word in cell.setting.split(";")}
    names: dict[str, set[str]] = {}
    for cell in cells:
        names.setdefault(_slug(cell.method), set()).add(cell.method)
        if cell.trial:
            names.setdefault(cell.trial.values["method"], set()).add(cell.method)
    exact = {cell.method: {cell.method} for cell in cells}  # FedProto is the paper's, fedproto with FedProto-mh ours
    for term in only:
        if _slug(term) not in (*datasets, *words):
            raise unknown("--only", term, [*datasets.values(), *words.values()])
    for term in methods:
        if _slug(term) not in names:
            raise unknown("--methods", term, names)
    in_datasets = {datasets[_slug(term)] for term in only if _slug(term) in datasets} or set(datasets.values())
    settings = [set(cell.setting.split(";")) for cell in cells]
    in_words: list[set[str]] = []  # n=3 and n=4 are of no cell both: either; n=3 and stdev=2: both
    for word in (words[_slug(term)] for term in only if _slug(term) not in datasets):
        others = {other for setting in settings if word in setting for other in setting}
        either = next((either for either in in_words if not either & others), None)
        if either is None:
            in_words.append(either := set())
        either.add(word)
    of_methods = {name for term in methods for name in exact.get(term) or names[_slug(term)]}
    kept = tuple(
        cell
        for cell in cells
        if cell.dataset in in_datasets
        and all(either & set(cell.setting.split(";")) for either in in_words)
        and (not of_methods or cell.method in of_methods)
    )
    if not kept:
        raise UserError("--only", ",".join(only), f"{target.name} has no such cell")
    return dataclasses.replace(target, cells=kept)
