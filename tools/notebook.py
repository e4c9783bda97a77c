"""python -m tools.notebook [NAME...]: make and execute notebooks of scripts in examples.  make notebook

Such a script begins with `# %%`, the mark of a cell. Its notebook has a cell more, which installs ProtoFed where it is
not: from a wheel beside the notebook, or from the package index.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, NamedTuple

EXAMPLES = Path(__file__).parent.parent / "examples"
MARK = "# %%"
INSTALL = """\
# Where ProtoFed is not yet, it is installed: from a wheel beside this notebook, or from the package index
import importlib.util
from pathlib import Path

if importlib.util.find_spec("protofed") is None:
    package = next(Path().glob("protofed-*.whl"), "protofed")
    %pip install --quiet {package}"""


class Cell(NamedTuple):
    """A part of a notebook."""

    kind: str  # code or markdown
    source: str


def scripts() -> list[Path]:
    """The scripts that become notebooks."""
    return [path for path in sorted(EXAMPLES.glob("*.py")) if path.read_text(encoding="utf-8").startswith(MARK)]


def cells(script: str) -> list[Cell]:
    """The parts that lines beginning with # %% divide; what follows the mark is a comment of the cell."""
    found = []
    for part in script.split(MARK)[1:]:
        head, _, body = part.partition("\n")
        if head.strip() == "[markdown]":
            text = "\n".join(line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines())
            found.append(Cell("markdown", text))
        else:
            found.append(Cell("code", "\n".join(filter(None, [head.strip() and f"# {head.strip()}", body.strip()]))))
    first = next(number for number, cell in enumerate(found) if cell.kind == "code")
    return [*found[:first], Cell("code", INSTALL), *found[first:]]


def executed(script: Path) -> Any:
    """The notebook of a script, with what its cells show."""
    nbformat, nbclient = map(importlib.import_module, ("nbformat", "nbclient"))
    notebook = nbformat.v4.new_notebook()
    for number, cell in enumerate(cells(script.read_text(encoding="utf-8"))):
        new = nbformat.v4.new_markdown_cell if cell.kind == "markdown" else nbformat.v4.new_code_cell
        notebook.cells.append(new(cell.source, id=f"cell-{number}"))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbclient.NotebookClient(notebook, timeout=1200, kernel_name="python3").execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day
    return notebook


def main() -> None:
    """Make and execute all, or those that are named."""
    nbformat = importlib.import_module("nbformat")
    for script in scripts():
        if script.stem in (sys.argv[1:] or [script.stem]):
            nbformat.write(executed(script), script.with_suffix(".ipynb"))


if __name__ == "__main__":
    main()
