"""Tables for the terminal, and the form that all of them have; those of studies are in outcome_tables."""

from __future__ import annotations

import math
import os
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from protofed.evaluation.names import worst_of
from protofed.internal.words import counted
from protofed.runs.network_label import OWN

if TYPE_CHECKING:
    from protofed.data.federation import Federation
    from protofed.methods.convergence import Estimates
    from protofed.runs.result import Result
    from protofed.studies.theory import Report

UNKNOWN_WIDTH = 140
"""Columns where nothing says how wide the output is: a file or a pipe."""

GAP = 2
"""Columns between two columns of a table."""

TITLES = {"prototypes_per_class": "prototypes/class", "rejected_uploads": "rejected", "suspected_uploads": "suspected"}
"""What columns are called of numbers that only some runs have."""

CONTROLS = {number: ascii(chr(number))[1:-1] for number in (*range(32), *range(127, 160)) if chr(number) != "\n"}
"""Characters that would move the cursor of a terminal or change its colours, if names held them."""

LEAST = 24
"""Columns that free text has at least, unless it is shorter."""


def console() -> Console:
    """Standard output, as wide as COLUMNS says, or else the terminal is."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return Console(width=int(columns))
    found = Console()
    return found if found.is_terminal else Console(width=UNKNOWN_WIDTH)


class _Column(NamedTuple):
    """The title and the cells of a column."""

    cells: list[Text]
    right: bool = False
    free: bool = False  # text, which may be made to fit

    @property
    def width(self) -> int:
        """What it needs at least."""
        needed = max(cell_len(line) for cell in self.cells for line in cell.plain.split("\n"))
        return min(needed, LEAST) if self.free else needed


Block = list[_Column]
"""Columns beside each other."""


@dataclass(frozen=True)
class TextTable:
    """A table that never breaks or cuts a name or a number, however narrow the console.

    Where it is too wide, rows become columns; where that is too wide as well, the columns are divided into blocks below
    each other, each of which repeats the first ones. Only where a single column beside those is too wide are lines
    longer than the console.
    """

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    caption: str = ""
    align: str = "lr"  # l or r for each column; the last letter holds for the rest
    keys: int = 1  # how many of the first columns tell the rows apart: each block repeats them
    text: Literal["cut", "wrapped"] | None = None  # whether the last column is free text, and what becomes of it
    bold: Collection[int] = ()  # rows that stand out

    def print(self) -> None:
        """On standard output."""
        console().print(self, crop=False)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        yield from _paragraph(self.title, width, "italic")
        for number, block in enumerate(self._layout(width)):
            if number or self.title:
                yield Text()
            drawn = [self._fitted(column, width - _width(block) + column.width) for column in block]
            # rich would shrink the columns of what is wider than the console
            yield from console.render(_drawn(drawn), options.update(max_width=max(width, _width(drawn))))
        yield from _paragraph(self.caption, width, "dim")

    def _layout(self, width: int) -> list[Block]:
        """The first arrangement that fits, or else the narrowest."""
        columns = self._columns()
        arrangements = [[columns], _divided(columns, self.keys, width)]
        if self.text is None:
            turned = self._turned(columns)
            arrangements = [[columns], [turned], _divided(columns, self.keys, width), _divided(turned, 1, width)]
        return min(arrangements, key=lambda blocks: max(0, *(_width(block) - width for block in blocks)))

    def _columns(self) -> Block:
        last = len(self.titles) - 1
        made = []
        for number, title in enumerate(self.titles):
            cells = [
                Text(row[number].translate(CONTROLS), "bold" if at in self.bold else "")
                for at, row in enumerate(self.rows)
            ]
            right = self.align[min(number, len(self.align) - 1)] == "r"
            made.append(_Column([Text(title), *cells], right, self.text is not None and number == last))
        return made

    @staticmethod
    def _turned(columns: Block) -> Block:
        """Rows become columns; the first column is the line of titles."""
        rows = zip(*(column.cells for column in columns), strict=True)
        return [_Column(list(row), right=number > 0) for number, row in enumerate(rows)]

    def _fitted(self, column: _Column, room: int) -> _Column:
        """A column of free text, cut or wrapped to the room there is; any other as it is."""
        if not column.free:
            return column
        cells = [cell.copy() for cell in column.cells]
        for number, cell in enumerate(cells):
            if self.text == "cut":
                cell.truncate(room, overflow="ellipsis")
            else:
                cells[number] = Text("\n".join(_lines(cell.plain, room)), cell.style)
        return _Column(cells, column.right)


def _width(block: Block) -> int:
    return sum(column.width for column in block) + GAP * (len(block) - 1)


def _divided(columns: Block, keys: int, width: int) -> list[Block]:
    """Blocks with as many columns as fit, and at least one, beside the first ones."""
    first = columns[:keys]
    blocks: list[Block] = []
    for column in columns[keys:]:
        if blocks and _width([*blocks[-1], column]) <= width:
            blocks[-1].append(column)
        else:
            blocks.append([*first, column])
    return blocks or [first]


def _drawn(block: Block) -> Table:
    """As rich draws it, which aligns cells and may be given lines of several."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for column in block:
        table.add_column(column.cells[0], justify="right" if column.right else "left", no_wrap=True)
    for row in zip(*(column.cells[1:] for column in block), strict=True):
        table.add_row(*row)
    return table


def _paragraph(text: str, width: int, style: str) -> Iterator[Text]:
    for line in _lines(text, width) if text else ():
        yield Text(line, style, no_wrap=True, overflow="ignore")


def _lines(text: str, width: int) -> list[str]:
    """Text in lines of whole words."""
    found: list[str] = []
    for line in text.split("\n"):
        found += textwrap.wrap(line, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]
    return found


def size(number: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000 or unit == "GB":
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    raise AssertionError


def result_table(result: Result) -> TextTable:
    """Every accuracy of one run."""
    r = result
    limit = "" if r.stopped == "rounds" else f" (stopped by {r.stopped})"
    promised = "" if r.guarantee is None else f"\n{r.guarantee}"
    start = "" if r.drawn_anew is None else f"\ninitial weights from a file, but for {', '.join(r.drawn_anew)}"
    spent = f"{counted(r.rounds, 'round')}{limit}, {r.seconds:.1f} s, {size(r.bytes_up)} up, {size(r.bytes_down)} down"
    told = {title: getattr(r, name) for name, title in TITLES.items()}
    spent += "".join(f", {title} {number:.3g}" for title, number in told.items() if number is not None)
    rows = []
    for name, value in result.accuracy.items():
        mark = " *" if value.diagnostic else ""
        numbers = [f"{number:.2f}" for number in (value.last, value.last5, value.best)]
        if value.interval is not None:
            numbers[0] += f" ± {value.interval:.2f}"
        rows.append([name + mark, *numbers, str(value.best_round), f"{worst_of(name)(value.per_client):.2f}"])
    return TextTable(
        ("model/test/rule", "last", "last 5", "best", "in round", "worst client"),
        rows,
        title=f"{r.method}, {data_of(r)}, {model_of(r)}, seed {r.seed}",
        caption=f"{spent}{start}{promised}",
        bold=[number for number, name in enumerate(result.accuracy) if name == result.score],
    )


def data_of(result: Result) -> str:
    """What a run was trained on, and by how many."""
    if result.split == OWN:
        return result.dataset
    return f"{result.dataset}, {result.split}, {counted(result.clients, 'client')}"


def drift_table(drift: Mapping[str, Mapping[str, float]]) -> TextTable:
    """Every accuracy before, at and after what clients hold changed."""
    names = next(iter(drift.values()))
    rows = [[name, *(f"{found[name]:.2f}" if name in found else "–" for found in drift.values())] for name in names]
    return TextTable(("model/test/rule", *drift), rows, title="drift: accuracy before, at and after")


def profile_table(report: Mapping[str, Any]) -> TextTable:
    """Where the time of a round went."""
    rounds, warm_up = report["rounds"], report["warm_up"]
    rows = []
    for name, found in report["sections"].items():
        first = warm_up["sections"][name]["per_round"]
        share = f"{100 * found['share']:.1f} %"
        rows.append([name, f"{1000 * found['per_round']:.1f}", share, f"{1000 * first:.1f}"])
    return TextTable(
        ("section", "a round", "share", "warm-up round"),
        rows,
        title=f"where the time goes: a mean round of {len(rounds)} on {report['device']}",
        caption=f"milliseconds; warm-up: rounds {warm_up['rounds'][0]} to {warm_up['rounds'][-1]}",
    )


def constants_table(report: Report) -> TextTable:
    """What the papers' assumptions bound, as far as it was found: a column for each point of the run."""
    constants: dict[str, Callable[[Estimates], float]] = {
        "L1, smoothness": lambda found: found.L1,
        "L2, Lipschitz constant of the encoder": lambda found: found.L2,
        "σ², variance of gradients": lambda found: found.variance,
        "G, mean norm of gradients": lambda found: found.G,
        "‖∇L‖², squared norm of the gradient (mean)": lambda found: found.mean_gradient,
        "E, local steps in a round": lambda found: found.steps,
    }
    return TextTable(
        ("", *(str(point.round) for point in report.points)),
        [[name, *(f"{of(point.estimates):.4g}" for point in report.points)] for name, of in constants.items()],
        title=f"{report.method}: estimated constants, after round",
    )


def bounds_table(report: Report) -> TextTable:
    """The conditions of the method's paper beside what was used."""
    rows = []
    for last in report.points[-1].bounds:
        which = (last.quantity, last.equation)
        for point in report.points:
            for bound in point.bounds:
                if (bound.quantity, bound.equation) == which:
                    limit = "∞" if math.isinf(bound.bound) else f"{bound.bound:.4g}"
                    cells = (f"{bound.relation} {limit}", f"{bound.used:.4g}", "yes" if bound.holds else "no")
                    rows.append([*which, str(point.round), *cells])
    return TextTable(
        ("condition", "of", "after round", "bound", "used", "holds"),
        rows,
        title="bounds that follow, from estimates",
        caption="a learning rate below 0 does not exist; ∞: any lambda, or no number of rounds",
        align="llr",
        keys=3,
    )


def split_table(federation: Federation) -> TextTable:
    """Training samples of each client and class."""
    rows = []
    for number, (client, counts) in enumerate(zip(federation.clients, federation.counts.tolist(), strict=True)):
        cells = [str(count) if count else "·" for count in counts]
        rows.append([str(number), *cells, str(sum(counts)), str(len(client.own))])
    titles = ("client", *federation.classes, "all", "own test")
    return TextTable(titles, rows, title="training samples: clients × classes")


def model_of(result: Result) -> str:
    """With the encoder before it."""
    card = result.encoder
    return result.model if card is None else f"{result.model} on features of {card['model']} ({card['source']})"
