"""What is made of other files and committed: the API pages, the commands, the notebook, the typed options."""

from __future__ import annotations

import json

import pytest

from protofed.experiment import Options, options
from tools import api_page, command_pages, notebook, typed_options


def test_the_typed_options_are_those_of_the_fields() -> None:
    source = typed_options.MODULE.read_text(encoding="utf-8")
    assert source == typed_options.written(source), "make typed-options"
    assert {*Options.__annotations__, *typed_options.OWN} == {*options()}


def test_the_api_pages_are_those_of_the_docstrings() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in api_page.FOLDER.glob("*.md")}
    assert kept == api_page.pages(), "make api-page"


def test_a_name_is_on_the_page_of_the_longest_address_that_fits() -> None:
    pages = {item.name: api_page.page_of(item) for item in api_page.public("protofed.methods.base")}
    assert (pages["Method"], pages["Turn"]) == ("method", "method-parts")
    (dataset,) = [item for item in api_page.public("protofed.data") if item.name == "Dataset"]
    with pytest.raises(LookupError, match=r"no page of PAGES .* is for elsewhere\.Dataset$"):
        api_page.page_of(dataset._replace(origin="elsewhere"))


def test_the_pages_of_commands_are_those_of_the_command_line() -> None:
    kept = {path.name: path.read_text(encoding="utf-8") for path in command_pages.FOLDER.glob("*.md")}
    assert {name: text for name, text in kept.items() if name != "examples.md"} == command_pages.pages(), (
        "make command-pages"
    )


def test_the_notebook_is_the_executed_script() -> None:
    made = json.loads(notebook.NOTEBOOK.read_text(encoding="utf-8"))
    script = notebook.cells(notebook.SCRIPT.read_text(encoding="utf-8"))
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]] == script, "make notebook"
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert len(made["cells"]) == 10
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert sum(bool(cell["outputs"]) for cell in code) >= 6


@pytest.mark.slow
def test_the_script_of_the_notebook_runs() -> None:
    source = "\n".join(
        cell.source for cell in notebook.cells(notebook.SCRIPT.read_text("utf-8")) if cell.kind == "code"
    )
    names: dict[str, object] = {}
    exec(source.replace('"rounds": 15', '"rounds": 1'), names)  # quick: that it runs, not what comes out
    assert names["right"]
