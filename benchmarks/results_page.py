"""The pages of docs/results from their templates and the JSON files beside them: every number is computed here.

`python -m benchmarks.results_page` (or `make results-page`) writes the pages and their plot.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from matplotlib.figure import Figure
from scipy.stats import spearmanr

from benchmarks import level_field
from benchmarks.level_field import Run as LevelRun
from protofed.report.plots import COLOURS
from protofed.studies.papers import MEAN, PaperCell, find_target, read_paper, target_names
from protofed.studies.reproduced import ACCURACIES, agrees, number
from protofed.studies.study import SEEDS
from tools.markdown import wrapped

DOCS = Path(__file__).parent.parent / "docs"
TEMPLATE = ".md.j2"
"""How the name of a page's template ends, which is in the folder of the page."""
ALONE = "alone"
"""Seconds of a round, by table and run, of runs that had the machine to themselves, and which: benchmarks.alone."""

PRETRAINED = "ResNet-18 of ImageNet"
NOT_AT_HAND = ("cifar100", "tiny-imagenet", "fc100", "domainnet", PRETRAINED)
"""What this page's authors did not have."""

UNTOLD = ("source", "for", "method", "params", "domains")
"""Of a protocol's statement: what is no value of the paper's, or told otherwise."""
IN_THE_PAPER = ("Sec.", "Table", "Fig.", "Eq.")
"""What the source of a value begins with that the paper states."""

LEVEL_SCORES = ("own/own/{rule}", "own/all/head")
"""What the level field compares, beside the averaged models."""

KEPT, MANY = 0.8, 5
"""A rank correlation from which the order of so many methods or more counts as the paper's."""

Cell = Mapping[str, Any]
Values = npt.NDArray[np.float64]


class Scenario(NamedTuple):
    """Part of a table in which methods are compared by what they cost, too."""

    title: str
    tables: tuple[str, ...]
    dataset: str
    setting: str
    alone: bool = True  # runs of different methods had the machine alike: their seconds can be compared

    def cells(self, table: Mapping[str, Any]) -> list[Cell]:
        """The accuracies of a table that are compared."""
        where = self.dataset, self.setting
        return [
            one for one in table["cells"] if (one["dataset"], one["setting"]) == where and one["metric"] in ACCURACIES
        ]


DOMAINS = "one client per domain;domain=Avg"
FEW, FEW_LETTERS = "n=3;k=100;stdev=2;20 clients", "n=3;k=100;stdev=1;20 clients"
SCENARIOS = (
    Scenario("Label skew, small images", ("mp-fedcl-table6-mnist",), "MNIST", "label-nonIID Dir(0.05);5 clients"),
    Scenario("Each client its own few classes, digits", ("fedproto-table2",), "MNIST", FEW, alone=False),
    Scenario(
        "Each client its own few classes, letters", ("fedproto-table1-femnist-n3",), "FEMNIST", FEW_LETTERS, alone=False
    ),
    Scenario("Domain skew, frozen encoder", ("mp-fedcl-table5",), "Digit-5", "feature-nonIID;5 clients;domain=Average"),
    Scenario("Domain skew, ResNet-10", ("fedplcc-table2", "fedplcc-table2-fccl"), "Digit-5", DOMAINS, alone=False),
    Scenario("Domain skew, photographs", ("fedplcc-table3", "fedplcc-table3-fccl"), "Office-10", DOMAINS, alone=False),
    Scenario("Label skew, photographs, short training", ("fedsc-table1",), "CIFAR10", "NID1 a=0.2", alone=False),
)
"""What the section "What we learned" compares."""


class Worth(NamedTuple):
    """What a method reached, and what a run of it cost."""

    method: str
    accuracy: float
    std: float
    megabytes: float
    seconds: float


@dataclass(frozen=True)
class Page:
    """The measured tables in docs/results, and what the template may ask of them."""

    folder: Path

    def measured(self, *names: str) -> dict[str, Any]:
        """A table.json; of several, the cells of all that have a number, as if it were one."""
        first, *others = (json.loads((self.folder / f"{name}.json").read_text("utf-8")) for name in names)
        for other in others:
            first["costs"] |= other["costs"]
            first["cells"] += other["cells"]
        first["cells"] = [cell for cell in first["cells"] if cell["ours"] is not None]
        return dict(first)

    def table(self, *names: str, metric: str | None = None) -> str:
        """Every cell of a table: the paper's number, ours, the difference, and what it cost."""
        found = self.measured(*names)
        cells = [cell for cell in found["cells"] if metric is None or cell["metric"] == metric]
        columns = ["dataset", "setting", "method", "measured", "paper", "ours", "difference", "each seed"]
        lines = [*self._commands(*names), "", _row([*columns, "seconds", "MB sent"])]
        lines.append("|---|---|---|---|---:|---:|---:|---|---:|---:|")
        full = _is_full(found)
        lines += [_row(_texts(cell, found["costs"], full)) for cell in cells]
        orders = [f"- {where}: ρ = {rho:.2f} over {count} methods" for where, rho, count in _orders(cells)]
        if orders:
            lines += ["", "Order of the methods, Spearman's ρ between the paper's and ours:", "", *orders]
        return "\n".join(lines)

    def figure(self, *names: str) -> str:
        """A figure's points, which the papers do not print: a line per method, a column for each value varied."""
        points: dict[tuple[str, ...], dict[str, Cell]] = {}
        found = self.measured(*names)
        for cell in found["cells"]:
            _, _, value = cell["setting"].rpartition(";")
            points.setdefault((cell["dataset"], cell["method"], _measured(cell)), {})[value] = cell
        columns = list(dict.fromkeys(value for line in points.values() for value in line))
        head = ["dataset", "method", "measured", *columns, "seconds", "MB sent"]
        lines = [*self._commands(*names), "", _row(head), "|---|---|---" + "|---:" * (len(columns) + 2) + "|"]
        for who, line in points.items():
            sent, seconds = zip(*(_cost(cell, found["costs"]) for cell in line.values()), strict=True)
            costs = [self.span(*seconds), " to ".join(dict.fromkeys(_megabytes(end) for end in (min(sent), max(sent))))]
            lines.append(_row([*who, *(_spread(line[value], "ours") for value in columns), *costs]))
        return "\n".join(lines)

    def _commands(self, *names: str) -> list[str]:
        tables = [self.measured(name) for name in names]
        return ["```sh", *(f"{one['command']}    # {self._where(one['costs'])}" for one in tables), "```"]

    def _where(self, costs: Mapping[str, Mapping[str, Any]]) -> str:
        return "on a " + " and a ".join(sorted({"GPU" if "cuda" in one["device"] else "CPU" for one in costs.values()}))

    def cell(self, *names: str, **words: str) -> Cell:
        """The only cell that has these words."""
        found: list[Cell] = [
            cell for cell in self.measured(*names)["cells"] if all(cell[key] == word for key, word in words.items())
        ]
        if len(found) != 1:
            raise ValueError(f"{len(found)} cells of {names} have {words}")
        return found[0]

    def ours(self, *names: str, **words: str) -> str:
        """Our number of one cell."""
        return _spread(self.cell(*names, **words), "ours")

    def seeds(self, *names: str, **words: str) -> str:
        """Our number of one cell, of each seed."""
        return _listed(self.cell(*names, **words)["values"])

    def values(self, *names: str, **words: str) -> Values:
        """The same, to compute with."""
        return np.array(self.cell(*names, **words)["values"])

    def every(self, key: str, *names: str, **words: str | Sequence[str]) -> Values:
        """One number of every cell that has these words, or one of several, in the order of the table."""
        wanted = {where: {word} if isinstance(word, str) else set(word) for where, word in words.items()}
        cells = [cell for cell in self.measured(*names)["cells"] if all(cell[one] in wanted[one] for one in wanted)]
        absent = [word for where in wanted for word in wanted[where] - {cell[where] for cell in cells}]
        if absent or not cells:
            raise ValueError(f"no cell of {names} has {absent or words}")
        return np.array([cell[key] for cell in cells])

    def found(self, name: str, *keys: str) -> Values:
        """What an experiment gave with each seed, to compute with; of a curve, a row per round."""
        return _array(self._found(name, keys))

    def span(self, *values: Values | float, digits: int = 0) -> str:
        """From the smallest of these numbers to the largest, in words."""
        every = np.concatenate([np.ravel(one) for one in values])
        ends = (f"{round(float(end), digits) + 0.0:,.{digits}f}" for end in (every.min(), every.max()))
        return " to ".join(dict.fromkeys(ends))

    def within(self, *values: Values | float, digits: int = 0) -> str:
        """What none of these numbers exceeds, whatever its sign, as the tables print it: with two digits."""
        largest = max(round(float(np.abs(one).max()), 2) for one in values)
        return f"{math.ceil(round(largest * 10**digits, 6)) / 10**digits:.{digits}f}"

    def curve(self, name: str, *keys: str, rounds: Iterable[int]) -> Values:
        """What each seed had in these rounds, to compute with: a line per round."""
        found = self._found(name, keys)
        return np.array([found[str(number)] for number in rounds])

    def sent(self, *names: str, **words: str) -> float:
        """Megabytes of the runs behind one cell, both ways."""
        return _cost(self.cell(*names, **words), self.measured(*names)["costs"])[0]

    def slower(self, tables: Iterable[Iterable[str]], *methods: str) -> Values:
        """How many times as long as FedAvg's a round of these methods takes alone, in every group of tables."""
        found = []
        for names in tables:
            runs = [one for name in names for one in self._found(ALONE, [name]).items()]
            seconds = {run.rpartition("-")[2]: one["seconds"] for run, one in runs}
            found += [seconds[name] / seconds["fedavg"] for name in map(str.lower, methods) if name in seconds]
        return np.array(found)

    def paper(self, *names: str, **words: str) -> str:
        """The paper's number of one cell."""
        return _spread(self.cell(*names, **words), "paper")

    def why(self, name: str, *keys: str) -> str:
        """The mean and the spread of what an experiment gave, by the keys that lead to its list of values."""
        return _mean_and_std(self._found(name, keys))

    def best(self, name: str, *keys: str) -> str:
        """The mean and the spread of each seed's best round, by the keys that lead to a curve."""
        return _mean_and_std([max(values) for values in zip(*self._found(name, keys).values(), strict=True)])

    def each(self, name: str, *keys: str, digits: int = 1) -> str:
        """The value of each seed of an experiment."""
        return _listed(self._found(name, keys), digits)

    def told(self, name: str, *keys: str) -> str:
        """A text beside the values, such as the command."""
        return str(self._found(name, keys))

    def _found(self, name: str, keys: Iterable[str]) -> Any:
        found = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
        for key in keys:
            found = found[key]
        return found

    def summary(self, tables: Mapping[str, Iterable[str]]) -> str:
        """A line a table: how many cells, how many agree, and whether the order of methods holds.

        What a reduced protocol gives is not compared with the paper's level.
        """
        lines = [_row(["table", "accuracies", "in agreement", "mean difference", "order of methods, ρ"])]
        lines.append("|---|---:|---:|---:|---|")
        for title, names in tables.items():
            found = self.measured(*names)
            cells = [cell for cell in found["cells"] if _is_accuracy(cell)]
            levels = [*_levels(cells)] if _is_full(found) else ["–", "–"]
            orders = ", ".join(f"{rho:.2f}" for _, rho, _ in _orders(cells))
            lines.append(_row([title, str(len(cells)), *levels, orders or "–"]))
        return "\n".join(lines)

    def papers(self, papers: Mapping[str, Mapping[str, Iterable[Iterable[str]]]]) -> str:
        """A line a paper and reading: what was run at full protocol, what agrees, and where the order holds."""
        head = ["paper", "reading", "accuracies", "in agreement", "mean difference", f"orders with ρ ≥ {KEPT}"]
        lines = [_row(head), "|---|---|---:|---:|---:|---:|"]
        for paper, readings in papers.items():
            for reading, tables in readings.items():
                parts = [self.measured(*names) for names in tables]
                reduced = [part["name"] for part in parts if not _is_full(part)]
                if reduced:
                    raise ValueError(f"reduced protocols: {reduced}")
                cells = [cell for part in parts for cell in part["cells"] if _is_accuracy(cell)]
                orders = [rho for part in parts for _, rho, count in _orders(part["cells"]) if count >= MANY]
                kept = f"{sum(rho >= KEPT for rho in orders)} of {len(orders)}" if orders else "–"
                lines.append(_row([paper, reading, str(len(cells)), *_levels(cells), kept]))
        return "\n".join(lines)

    def worth(self, scenario: Scenario) -> list[Worth]:
        """Every method of a scenario, the most accurate first."""
        rows = []
        for name in scenario.tables:
            table = self.measured(name)
            for cell in scenario.cells(table):
                megabytes, seconds = _cost(cell, table["costs"])
                if not scenario.alone:
                    a_round = self._found(ALONE, [name])
                    seconds = sum(table["costs"][one]["rounds"] * a_round[one]["seconds"] for one in cell["trials"])
                rows.append(Worth(cell["method"], cell["ours"], cell["ours_std"] or 0.0, megabytes, seconds))
        return sorted(rows, key=lambda row: -row.accuracy)

    def level_field(self, setting: str, test: str = "all") -> str:
        """The methods of a setting of the level field, each at its best; their averaged models by such a test."""
        return level_field.table(self._level_runs(), setting, [*LEVEL_SCORES, _averaged(test)])

    def level_gap(self, setting: str, place: int, test: str = "all") -> str:
        """Points between the first method's averaged model and that of the one in such a place."""
        scores = (one.score(_averaged(test)) for one in level_field.tuned(self._level_runs(), setting))
        means = sorted((score[0] for score in scores if score is not None), reverse=True)
        return f"{means[0] - means[place - 1]:.1f} points"

    def level_mean(self, setting: str, method: str, test: str, **values: float) -> str:
        """What the averaged model of a method has with such values, on average over seeds."""
        runs = [
            run["accuracy"][_averaged(test)]
            for run in self._level_runs()
            if (run["setting"], run["options"]["method"]) == (setting, method)
            and values.items() <= {**run["options"], **run["options"]["params"]}.items()
        ]
        return f"{statistics.mean(runs):.1f}"

    def _level_runs(self) -> list[LevelRun]:
        return level_field.read(self.folder / "level-field.jsonl")

    def learned(self) -> str:
        """A table for every scenario: accuracy, what was sent, and accuracy for each megabyte and second."""
        parts = []
        for scenario in SCENARIOS:
            head = ["method", "accuracy", "MB sent", "seconds", "accuracy per MB", "accuracy per second"]
            alone = "" if scenario.alone else f"; seconds alone {self._where(self._found(ALONE, scenario.tables[:1]))}"
            lines = [f"**{scenario.title}** ({scenario.dataset}, {scenario.setting}{alone})", "", _row(head)]
            lines.append("|---" + "|---:" * (len(head) - 1) + "|")
            for row in self.worth(scenario):
                each = f"{row.accuracy / row.megabytes:,.3g}" if row.megabytes else "∞"
                texts = [row.method, f"{row.accuracy:.1f} ± {row.std:.1f}", _megabytes(row.megabytes)]
                lines.append(_row([*texts, f"{row.seconds:,.1f}", each, f"{row.accuracy / row.seconds:,.2g}"]))
            parts.append("\n".join(lines))
        return "\n\n".join(parts)

    def not_run(self) -> str:
        """What no file here has by the paper's own protocol: how many runs of how many rounds, and of which data."""
        runs_of = {
            (name, dataset, cell.setting, cell.method): _same(cells)
            for name, dataset, trials in _parts()
            for cells in trials.values()
            for cell in cells
        }
        made: dict[bool, dict[str, int]] = {True: {}, False: {}}  # seeds, by the paper's protocol or not
        for path in self.folder.glob("*.json"):
            table = json.loads(path.read_text("utf-8"))
            for cell in table.get("cells", ()) if "variant" in table else ():
                what = (table["name"], cell["dataset"], cell["setting"], cell["method"])
                if cell["ours"] is not None and what in runs_of:
                    seeds = made[table["variant"] is None]
                    seeds[runs_of[what]] = max(table["seeds"], seeds.get(runs_of[what], 0))
        head = ["table", "dataset", "runs", "by another protocol", "rounds × epochs of a run", "data"]
        lines = [_row(head), "|---|---|---:|---:|---|---|"]
        for name, dataset, cells in _parts():
            runs, otherwise, values = 0, 0, []
            for some in cells.values():
                own, other = (made[paper].get(_same(some), 0) for paper in (True, False))
                runs += SEEDS - own
                otherwise += min(SEEDS - own, other)
                values += [some[0].trial.values] if some[0].trial and own < SEEDS else []
            if values:
                lengths = dict.fromkeys(_length(one) for one in values)
                needed = dict.fromkeys(item for one in values for item in _needed(one))
                data = ", ".join(item + " (not available)" * (item in NOT_AT_HAND) for item in needed)
                lines.append(_row([name, dataset, str(runs), str(otherwise or ""), ", ".join(lengths), data]))
        return "\n".join(lines)

    def readings(self) -> str:
        """What protocols in studies.papers have of other sources than the papers, for all of a paper's tables."""
        lines = [_row(["paper", "for", "value", "why"]), "|---|---|---|---|"]
        for stem in dict.fromkeys(name.split("/")[0] for name in target_names()):
            paper = read_paper(stem)
            rooms = {"all": paper["protocol"], **paper["datasets"], **paper["methods"]}
            for who, statements in rooms.items():
                for said in statements:
                    values = {key: value for key, value in said.items() if key not in UNTOLD} | said.get("params", {})
                    stated = said["source"].startswith(IN_THE_PAPER) and "not stated" not in said["source"]
                    if values and not stated:
                        texts = ", ".join(f"`{key}={value}`" for key, value in values.items())
                        lines.append(_row([paper["name"], who, texts, said["source"]]))
        return "\n".join(lines)

    def compared(self, *names: str, scores: Iterable[str]) -> dict[str, dict[str, str]]:
        """The rows of compare.json files: by method, each score's mean and spread; * for a diagnostic."""
        rows = {}
        for name in names:
            for row in json.loads((self.folder / f"{name}.json").read_text("utf-8"))["rows"]:
                rows[row["method"]] = {score: _compared(row, score) for score in scores}
        return rows


def _parts() -> Iterator[tuple[str, str, dict[str, list[PaperCell]]]]:
    """Every target and dataset, with the cells of each of its trials."""
    for name in target_names():
        parts: dict[str, dict[str, list[PaperCell]]] = {}
        for cell in find_target(name).cells:
            if cell.trial is not None:
                parts.setdefault(cell.dataset, {}).setdefault(cell.trial.name, []).append(cell)
        for dataset, cells in parts.items():
            yield name, dataset, cells


def _needed(values: Mapping[str, Any]) -> Iterator[str]:
    """The datasets and weights of a run."""
    yield values["dataset"]
    if values.get("public"):
        yield values["public"]
    if values.get("start"):
        yield PRETRAINED


def _same(cells: Sequence[PaperCell]) -> str:
    """The same text for the same runs, which several tables may show."""
    assert cells[0].trial is not None
    return json.dumps(cells[0].trial.values, sort_keys=True)


def _length(values: Mapping[str, Any]) -> str:
    seconds = values.get("time_budget")
    return f"{values['rounds']} × {values.get('epochs', 1)}" if seconds is None else f"{seconds:g} s"


def _compared(row: Mapping[str, Any], score: str) -> str:
    if score not in row["accuracy"]:
        return "–"
    spread = row["accuracy"][score]
    return f"{spread['mean']:.1f} ± {spread['std']:.1f}" + "*" * (score in row["diagnostic"])


def _listed(values: Iterable[float], digits: int = 1) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def _array(found: Any) -> Values:
    """Numbers in lists and in named parts of the same size, in their order."""
    parts = [_array(part) for part in found.values()] if isinstance(found, dict) else found
    return np.array(parts, dtype=np.float64)


def _is_accuracy(cell: Cell) -> bool:
    return cell["paper"] is not None and cell["metric"] in ACCURACIES


def _is_full(table: Mapping[str, Any]) -> bool:
    return find_target(table["name"], table["variant"]).full


def _averaged(test: str) -> str:
    return f"global/{test}/head"


def _levels(cells: Sequence[Cell]) -> tuple[str, str]:
    """How many accuracies agree, with their part of all, and the mean difference."""
    near = sum(_agrees(cell) for cell in cells)
    mean = statistics.fmean(cell["difference"] for cell in cells)
    return f"{near} ({near / len(cells):.0%})", f"{mean:+.1f}"


def _agrees(cell: Cell) -> bool:
    return agrees(cell["difference"], cell["values"])


def _orders(cells: Iterable[Cell]) -> Iterator[tuple[str, float, int]]:
    """For every dataset and setting with several methods: where, the rank correlation, and over how many."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if _is_accuracy(cell):
            groups.setdefault((cell["dataset"], cell["setting"]), []).append(cell)
    averaged = {dataset for dataset, setting in groups if setting.endswith(MEAN)}
    for (dataset, setting), some in groups.items():
        if len(some) > 2 and (dataset not in averaged or setting.endswith(MEAN)):
            rho = spearmanr([cell["paper"] for cell in some], [cell["ours"] for cell in some]).statistic
            yield f"{dataset}, {setting}", float(rho), len(some)


def _texts(cell: Cell, costs: Mapping[str, Mapping[str, Any]], full: bool) -> list[str]:
    """A cell as a line of a table; what a reduced protocol gives is not marked as different."""
    sent, seconds = _cost(cell, costs)
    difference = (
        ""
        if cell["difference"] is None
        else f"{cell['difference']:+,.2f}" + " ≠" * (full and _is_accuracy(cell) and not _agrees(cell))
    )
    each = " ".join(number(value) for value in cell["values"])
    words = [cell["dataset"], cell["setting"], cell["method"], _measured(cell)]
    return [
        *words,
        _spread(cell, "paper"),
        _spread(cell, "ours"),
        difference,
        each,
        f"{seconds:,.0f}",
        _megabytes(sent),
    ]


def _measured(cell: Cell) -> str:
    return str(cell["score"] if cell["metric"] in ACCURACIES and cell["score"] else cell["metric"])


def _cost(cell: Cell, costs: Mapping[str, Mapping[str, Any]]) -> tuple[float, float]:
    """What the runs behind a cell took: megabytes sent, both ways, and seconds."""
    taken = [costs[trial] for trial in cell["trials"]]
    return sum(cost["bytes_up"] + cost["bytes_down"] for cost in taken) / 1e6, sum(cost["seconds"] for cost in taken)


def _megabytes(sent: float) -> str:
    return f"{sent:,.3g}" if sent < 1000 else f"{sent:,.0f}"


def _mean_and_std(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.1f} ± {statistics.stdev(values):.1f}"


def _spread(cell: Cell, whose: str) -> str:
    if cell[whose] is None:
        return "–"
    std = cell[f"{whose}_std"]
    return number(cell[whose]) + (f" ± {number(std)}" if std else "")


def _row(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def render(docs: Path = DOCS) -> dict[str, str]:
    """The text of each page, by the name of its file."""
    folder = docs / "results"
    world = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return {
        path.name.removesuffix(".j2"): wrapped(world.get_template(path.name).render(page=Page(folder)))
        for path in sorted(folder.glob(f"*{TEMPLATE}"))
    }


def plot(page: Page, path: Path) -> None:
    """A row for each scenario, a line for each method: its accuracy, what was sent for it, and how long it took."""
    figure = Figure(figsize=(11, 2.2 * len(SCENARIOS)), layout="constrained")
    panels = figure.subplots(len(SCENARIOS), 3, squeeze=False, sharey="row")
    for scenario, (accuracy, sent, took) in zip(SCENARIOS, panels, strict=True):
        found = page.worth(scenario)[::-1]
        names, style = [row.method for row in found], {"color": COLOURS[0]}
        spread = [row.std for row in found]
        accuracy.errorbar([row.accuracy for row in found], names, xerr=spread, fmt="o", capsize=2, **style)
        sent.plot([row.megabytes for row in found], names, "o", **style)  # a bar's length means nothing on a log axis
        sent.set_xscale("symlog", linthresh=1)  # Local sends nothing
        sent.set_xlim(-0.5, 3 * max(row.megabytes for row in found))
        took.barh(names, [row.seconds for row in found], **style)
        accuracy.set_title(scenario.title, fontsize=9, loc="left")
        for axes, what in ((accuracy, "accuracy, %"), (sent, "MB sent"), (took, "seconds")):
            axes.set_xlabel(what, fontsize=8)
            axes.tick_params(labelsize=8)
            axes.grid(visible=True, axis="x", alpha=0.3)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Write the pages and their plot."""
    for name, text in render().items():
        (DOCS / "results" / name).write_text(text, encoding="utf-8")
    plot(Page(DOCS / "results"), DOCS / "results" / "worth.png")


if __name__ == "__main__":
    main()
