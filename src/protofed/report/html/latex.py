"""A report's summary as a table of LaTeX, and its figures with captions; `booktabs` and `graphicx` are all it needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protofed.errors import unknown
from protofed.report.outcome_tables import ended_text
from protofed.studies.significance import SURE

COLUMNS = 4
"""Accuracies of a table whose columns nobody has chosen: as many as fit a page beside a method's name."""
ROWS = 40
"""Of a table, at most: as many as fit a page. Further ones go into further tables."""
DAGGER = "†"
COSTS = {"bytes": "MB", "seconds": "s"}
"""Columns that are no accuracy."""


def table_columns(data: Mapping[str, Any], asked: Sequence[str] = ()) -> list[str]:
    """The columns of the table: those asked for, or the common accuracy and, of the others, the first few that differ.

    Where no run came to its end, the common accuracy alone, in whose column the table says how they ended.

    Raises:
        UserError: there is no such column.
    """
    for name in asked:
        if name not in (*data["scores"], *COSTS):
            raise unknown("--columns", name, [*data["scores"], *COSTS])
    if asked:
        return list(dict.fromkeys(asked))
    shown: dict[str, list[str]] = {}
    own = {row["score"] for row in data["summary"]}
    for name in sorted(data["scores"], key=lambda name: (name != data["score"], name not in own)):
        cells = [_cell(row, name) for row in data["summary"]]
        if cells not in shown.values() and any(name in row["cells"] for row in data["summary"]):
            shown[name] = cells
    return list(shown)[:COLUMNS] or [data["score"]]


def latex(data: Mapping[str, Any], columns: Sequence[str] = ()) -> str:
    """The summary as a tabular in booktabs' style.

    The best mean of each setting is bold, a diagnostic has a star, and what is clearly below the best a dagger. A line
    of which no run came to its end says how they ended; a mean of fewer seeds than were run has their number.
    """
    rows, shown = data["summary"], table_columns(data, columns)
    lines = [f"\\begin{{tabular}}{{l{'r' * len(shown)}}}", "\\toprule"]
    titles = [f"{name} ({COSTS[name]})" if name in COSTS else name for name in shown]
    lines += [" & ".join(["method", *map(escaped, titles)]) + " \\\\"]
    for number, row in enumerate(rows):
        if not number or row["setting"] != rows[number - 1]["setting"]:
            lines.append("\\midrule")
        cells = [_cost(row, name) if name in COSTS else _cell(row, name) for name in shown]
        if not row["seeds"]:
            cells[0] = escaped(", ".join(dict.fromkeys(row["failed"])))
        lines.append(" & ".join([escaped(row["label"]), *cells]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}"]) + "\n"


def table_environment(data: Mapping[str, Any], columns: Sequence[str] = ()) -> str:
    """The table with its caption, made narrower where it would not fit a column; a long one is in several parts."""
    rows, shown = data["summary"], table_columns(data, columns)
    parts = [rows[at : at + ROWS] for at in range(0, max(1, len(rows)), ROWS)]
    tables = []
    for number, part in enumerate(parts, 1):
        which = f" Part {number} of {len(parts)}." if len(parts) > 1 else ""
        tables.append(_table({**data, "summary": part}, shown, which, f"-{number}" if number > 1 else ""))
    return "\n".join(["% \\usepackage{booktabs,graphicx}", *tables])


def _table(data: Mapping[str, Any], columns: Sequence[str], which: str, label: str) -> str:
    """One of them."""
    about = ", ".join(f"{name} {value}" for name, value in data["about"].items())
    text = latex(data, columns)
    lost = lost_of(data)
    words = f"Accuracy in percent after the last round, {spread_of(data)} ({about}). Bold: the best mean.{lost}{which}"
    if "$^\\dagger$" in text:
        words += f" {DAGGER}: below the best, p < {SURE:g} (paired t-test over seeds, Holm)."
    if "$^*$" in text:
        words += " *: by a rule that the method itself does not have; not ranked."
    fitting = "\\resizebox{\\ifdim\\width>\\linewidth\\linewidth\\else\\width\\fi}{!}{%"
    lines = ["\\begin{table}", "\\centering"]
    lines += [f"\\caption{{{escaped(words)}}}", f"\\label{{tab:summary{label}}}"]
    return "\n".join([*lines, fitting, f"{text.rstrip()}}}", "\\end{table}"]) + "\n"


def figure_environments(captions: Mapping[str, str]) -> str:
    """Each figure with its caption, to be copied into a paper."""
    parts = [
        f"\\begin{{figure}}\n\\centering\n\\includegraphics[width=\\columnwidth]{{{name}.pdf}}\n"
        f"\\caption{{{escaped(caption)}}}\n\\label{{fig:{name}}}\n\\end{{figure}}\n"
        for name, caption in captions.items()
    ]
    return "\n".join(["% \\usepackage{graphicx}", *parts])


def spread_of(data: Mapping[str, Any]) -> str:
    """What numbers are the mean of."""
    seeds = sorted({row["seeds"] for row in data["summary"]} - {0})
    if not seeds:
        return "of runs that did not come to their end"
    if seeds == [1]:
        return "one seed"
    number = " to ".join(map(str, dict.fromkeys([*seeds[:1], *seeds[-1:]])))
    return f"mean and sample standard deviation over {number} seeds"


def lost_of(data: Mapping[str, Any]) -> str:
    """Which runs are in no number, and how they ended; a sentence of its own, or nothing."""
    lost = [f"{row['label']} {ended_text(row['failed'], row['runs'])}" for row in data["summary"] if row["failed"]]
    return f" In no mean: {'; '.join(lost)}." if lost else ""


def _cell(row: Mapping[str, Any], name: str) -> str:
    cell = row["cells"].get(name)
    if cell is None:
        return "--"
    value = f"{cell['mean']:.2f}" + ("" if cell["std"] is None else f" $\\pm$ {cell['std']:.2f}")
    if len(cell["values"]) < row["runs"]:
        value += f" ($n={len(cell['values'])}$)"
    if cell["best"]:
        return f"\\textbf{{{value}}}"
    if cell["diagnostic"]:
        return f"{value}$^*$"
    return f"{value}$^\\dagger$" if below_best(cell) else value


def below_best(cell: Mapping[str, Any] | None) -> bool:
    """Whether an accuracy is clearly below the best of its setting."""
    test = (cell or {}).get("test") or {}
    return test.get("p_holm") is not None and bool(test["p_holm"] < SURE)


def _cost(row: Mapping[str, Any], name: str) -> str:
    value = row["megabytes" if name == "bytes" else "seconds"]
    return "--" if value is None else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def escaped(text: str) -> str:
    """Text in which nothing is a command of LaTeX's."""
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "$<$", ">": "$>$"}
    special |= {DAGGER: "$^\\dagger$", "±": "$\\pm$"}
    return "".join(special.get(letter, f"\\{letter}" if letter in "&%$#_{}" else letter) for letter in text)
