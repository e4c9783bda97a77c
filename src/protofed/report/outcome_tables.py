"""Tables for the terminal of what comes out of studies: `outcome_table` finds the one that fits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import singledispatch

from protofed.evaluation.names import CLASS, lower_is_better, split_name, with_metric
from protofed.internal.words import counted
from protofed.report.terminal import TITLES, TextTable, model_of, size
from protofed.runs.result import common_score
from protofed.studies.choose_k import Choice
from protofed.studies.comparison import Comparison, MethodRow
from protofed.studies.grid import text_of
from protofed.studies.reproduced import Reproduction
from protofed.studies.sweeps import Sweep

COLUMNS = (
    "own/own/head",
    "own/own/nearest",
    "own/all/head",
    "own/all/nearest",
    "global/all/head",
    "global/domain/head",
    "own/unseen/head",
    "global/unseen/head",
)
"""What a comparison shows, where it exists, beside the scores of its methods' papers; compare.json has the rest."""

ABOUT = "accuracy in %, mean ± sample std; * diagnostic: nearest own class mean"

CLASSES = 10
"""Recalls of single classes are columns if there are no more."""

WORDS = 4
"""Columns of a reproduction that say what a number is of; the others are numbers."""


@singledispatch
def outcome_table(outcome: object) -> TextTable:
    """The table of what came out of a study."""
    raise NotImplementedError(type(outcome))


@outcome_table.register
def comparison_table(comparison: Comparison) -> TextTable:
    """Mean ± std over seeds of the last round's accuracies, bytes per round and seconds, for each method."""
    found = [name for row in comparison.rows for name in row.accuracy]
    papers = [row.score for row in comparison.rows]  # a rule of a method's own is in no list
    names = [name for name in dict.fromkeys((*COLUMNS, *papers)) if name in found]
    names += dict.fromkeys(name for name in found if "/novel/" in name and not split_name(name)[1])
    score = common_score([(row.score, row.accuracy.keys() - {*row.diagnostic}) for row in comparison.rows])
    names += metric_columns(comparison.rows, score)
    about = "no run came to its end"
    if comparison.results:
        first = comparison.results[0]
        about = f"{first.dataset}, {first.split}, {counted(first.clients, 'client')}, {model_of(first)}"
    more = further_columns(comparison.rows)
    ended = ["runs"] if comparison.failures else []
    tuned = {one.method: [text_of(one.chosen) or "–", one.cost] for one in comparison.tuned}
    chosen = ["chosen", "tuning"] if tuned else []
    promised = [f"\n{row.method}: {row.guarantee}" for row in comparison.rows if row.guarantee]
    rows = []
    for row in comparison.rows:
        cells = [accuracy_cell(row, name) for name in names]
        spent = [size(row.bytes_up_per_round.mean), size(row.bytes_down_per_round.mean), f"{row.seconds.mean:.1f}"]
        spent = spent if row.rounds else ["–"] * len(spent)
        rows.append(
            [
                row.method,
                *cells,
                *further_cells(row, more),
                *spent,
                *tuned.get(row.method, []),
                *([ended_cell(row)] if ended else []),
            ]
        )
    return TextTable(
        ("method", *names, *more.values(), "up a round", "down a round", "seconds", *chosen, *ended),
        rows,
        title=f"{about}; {counted(comparison.rows[0].seeds, 'seed')}, last round",
        caption=about_scores(names) + "".join(promised),
    )


@outcome_table.register
def sweep_table(sweep: Sweep) -> TextTable:
    """Mean ± std over seeds of the last round's accuracies, a row for each setting and method."""
    rows = [cell.row for cell in sweep.cells]
    usual = [name for name in COLUMNS if sweep.score is None and any(name in row.accuracy for row in rows)]
    papers = [row.score for row in rows if sweep.score is None]
    asked = metric_columns(rows, sweep.shown_score) if sweep.score is None else []
    names = list(dict.fromkeys([sweep.shown_score, *papers, *usual, *asked]))
    common = "no run came to its end"
    if sweep.results:
        first = sweep.results[0]
        about = {"dataset": first.dataset, "split": first.split, "clients": f"{first.clients} clients"}
        about["model"] = first.model
        common = ", ".join(text for name, text in about.items() if name not in sweep.grid)
    found = further_columns(rows) if sweep.score is None else {}
    more = ["privacy"] if any(row.guarantee for row in rows) else []
    more += ["runs"] if sweep.failures else []
    lines = []
    for cell in sweep.cells:
        setting = [str(cell.setting.get(name, "–")) for name in sweep.grid]
        cells = [accuracy_cell(cell.row, name) for name in names]
        told = {"privacy": cell.row.guarantee or "–", "runs": ended_cell(cell.row)}
        lines.append([*setting, cell.method, *cells, *further_cells(cell.row, found), *(told[name] for name in more)])
    return TextTable(
        (*sweep.grid, "method", *names, *found.values(), *more),
        lines,
        title=f"{common}; {counted(rows[0].seeds, 'seed')}, last round".removeprefix("; "),
        caption=about_scores(names),
        align="r" * len(sweep.grid) + "lr",
        keys=len(sweep.grid) + 1,
    )


@outcome_table.register
def reproduction_table(reproduction: Reproduction) -> TextTable:
    """Ours beside the paper's; what is the same in every row is said once, below, and why ours is missing in notes."""
    columns = {name: list(cells) for name, *cells in zip(reproduction.COLUMNS, *reproduction.lines(), strict=True)}
    columns["setting"], said = _without_common([text.split(";") for text in columns["setting"]])
    columns["ours"] = [
        "–" if row.ours is None else text for row, text in zip(reproduction.rows, columns["ours"], strict=True)
    ]
    names = list(columns)[:WORDS]
    same = [name for name in names if name != "method" and len({*columns[name]}) == 1]
    common = [*said, *(f"{name} {columns[name][0]}" for name in same if columns[name][0])]
    shown = {name: cells for name, cells in columns.items() if name not in same}
    keys = WORDS - len(same)
    return TextTable(
        tuple(shown),
        list(zip(*shown.values(), strict=True)),
        title=reproduction.headline(),
        caption=f"in every row: {', '.join(common)}" if common else "",
        align="l" * keys + "r",
        keys=keys,
    )


def _without_common(settings: Sequence[Sequence[str]]) -> tuple[list[str], list[str]]:
    """Each setting without the words that all have, and those words."""
    common = [word for word in settings[0] if all(word in words for words in settings)]
    return [";".join(word for word in words if word not in common) for words in settings], common


@outcome_table.register
def choice_table(choice: Choice) -> TextTable:
    """Mean ± std over seeds of what speaks for each K; the chosen one stands out."""
    rows = []
    for found in choice.candidates:
        silhouette = found.silhouette
        cell = "–" if silhouette is None else silhouette.text(3)
        rows.append([str(found.k), found.accuracy.text(2), cell])
    return TextTable(
        ("K", "own/val/nearest", "silhouette"),
        rows,
        title=f"{choice.method}, {choice.dataset}; {counted(len(choice.lead.values), 'seed')}",
        caption="accuracy in % on held-out training data; silhouette within classes, trained with K = 1",
        align="r",
        bold=[number for number, found in enumerate(choice.candidates) if found.k == choice.k],
    )


def metric_columns(rows: Sequence[MethodRow], score: str) -> list[str]:
    """The metrics that were asked for, of one score or, where its rule lacks them, of the clients' heads."""
    found = dict.fromkeys(name for row in rows for name in row.accuracy)
    metrics = [metric for metric in dict.fromkeys(split_name(name)[1] for name in found) if metric]
    if sum(metric.startswith(f"{CLASS}=") for metric in metrics) > CLASSES:
        metrics = [metric for metric in metrics if not metric.startswith(f"{CLASS}=")]
    named = [
        next((with_metric(of, metric) for of in (score, "own/own/head") if with_metric(of, metric) in found), None)
        for metric in metrics
    ]
    return [name for name in named if name is not None]


def about_scores(names: Iterable[str]) -> str:
    """What a table's numbers are."""
    return f"{ABOUT}; of ece the lower is the better" if any(map(lower_is_better, names)) else ABOUT


def accuracy_cell(row: MethodRow, name: str) -> str:
    """What a table says of an accuracy of a method."""
    spread = row.accuracy.get(name)
    if spread is None:
        return "–"
    return f"{spread.text(1)}{'*' if name in row.diagnostic else ''}"


def further_columns(rows: Sequence[MethodRow]) -> dict[str, str]:
    """The titles of those columns that a study has."""
    return {name: title for name, title in TITLES.items() if any(row.further[name] for row in rows)}


def further_cells(row: MethodRow, names: Iterable[str]) -> list[str]:
    """What a row has in those columns."""
    found = [row.further[name] for name in names]
    return ["–" if spread is None else f"{spread.mean:.1f}" for spread in found]


def ended_cell(row: MethodRow) -> str:
    """How the runs of a row ended; those that failed are in none of its numbers."""
    return ended_text(row.failed, row.seeds)


def ended_text(failed: Sequence[str], runs: int) -> str:
    """How so many runs ended, of which some may have failed."""
    if not failed:
        return "ended"
    return failed[0] if len(failed) == runs else f"{failed[0]}, {len(failed)} of {runs}"
