"""python -m tools.notebook: make examples/quickstart.ipynb of its script and execute it.  make notebook"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import NamedTuple

SCRIPT = Path(__file__).parent.parent / "examples" / "quickstart.py"
NOTEBOOK = SCRIPT.with_suffix(".ipynb")


class Cell(NamedTuple):
    """A part of the script."""

    kind: str  # code or markdown
    source: str


def cells(script: str) -> list[Cell]:
    """The parts that lines beginning with # %% divide; what follows the mark is a comment of the cell."""
    found = []
    for part in script.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            found.append(Cell("markdown", text))
        else:
            found.append(Cell("code", "\n".join(filter(None, [head.strip() and f"# {head.strip()}", body.strip()]))))
    return found


def main() -> None:
    """Make and execute it."""
    nbformat, nbclient = map(importlib.import_module, ("nbformat", "nbclient"))
    notebook = nbformat.v4.new_notebook()
    for number, cell in enumerate(cells(SCRIPT.read_text(encoding="utf-8"))):
        new = nbformat.v4.new_markdown_cell if cell.kind == "markdown" else nbformat.v4.new_code_cell
        notebook.cells.append(new(cell.source, id=f"cell-{number}"))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
    nbformat.write(notebook, NOTEBOOK)


if __name__ == "__main__":
    main()
