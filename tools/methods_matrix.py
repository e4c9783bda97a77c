"""python -m tools.methods_matrix: write docs/methods/README.md, all methods beside each other.  make methods-matrix"""

from __future__ import annotations

from pathlib import Path

from protofed.report.methods_matrix import COLUMNS, matrix

PAGE = Path(__file__).parent.parent / "docs" / "methods" / "README.md"
HEAD = """# Methods

Written by `make methods-matrix` from the methods themselves; `protofed methods --matrix` prints the same. *Stays at the
client* is what is trained or remembered there and never leaves it. *Model*: whose accuracy its paper reports.
*Architectures*: whether clients may have different ones. *Needs*: a linear head is an `nn.Linear`
([models](../models.md#heads-tied-weights-transformers)). *Secure sums*: whether the server needs nothing but sums, so
that `--secure` works. *Private*: which `--privacy` a run may begin with, on a model without BatchNorm; a refusal says
why. *Lines*: of the method's file and of the modules that no other method uses, comments and imports included.
"""


def text() -> str:
    """The page."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for row in matrix():
        name = row["method"]
        cells = [f"[{name}]({name}.md)", *(row[column] for column in COLUMNS[1:])]
        lines.append(f"| {' | '.join(cells)} |")
    table = "\n".join(lines)
    return f"{HEAD}\n{table}\n"


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
