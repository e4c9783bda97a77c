"""What is made of other files and committed: the API pages, the commands, the notebook, the typed options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protofed.experiment import Options, options
from tools import api_page, command_pages, notebook, typed_options

LARGEST = 300_000
"""Bytes of a notebook."""


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


@pytest.mark.parametrize("script", notebook.scripts(), ids=lambda script: script.stem)
def test_a_notebook_is_its_executed_script(script: Path) -> None:
    made = json.loads(script.with_suffix(".ipynb").read_text(encoding="utf-8"))
    cells = notebook.cells(script.read_text(encoding="utf-8"))
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in made["cells"]] == cells, "make notebook"
    code = [cell for cell in made["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    assert not [out for cell in code for out in cell["outputs"] if out["output_type"] == "error"]
    assert 2 * sum(bool(cell["outputs"]) for cell in code) >= len(code)
    shown = [kind for cell in code for out in cell["outputs"] for kind in out.get("data", {})]
    assert {"text/html", "image/png"} & {*shown}  # pictures
    assert script.with_suffix(".ipynb").stat().st_size < LARGEST


def test_a_script_is_a_notebook_if_it_begins_with_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [script.stem for script in notebook.scripts()] == sorted(
        path.stem for path in notebook.EXAMPLES.glob("*.ipynb")
    )
    (tmp_path / "b.py").write_text("# %% [markdown]\n# # Title\n# %% why\n1 + 1\n# %%\n2\n")
    (tmp_path / "a.py").write_text("print('# %%')\n")
    monkeypatch.setattr(notebook, "EXAMPLES", tmp_path)
    (script,) = notebook.scripts()
    assert notebook.cells(script.read_text()) == [
        ("markdown", "# Title"),
        ("code", notebook.INSTALL),
        ("code", "# why\n1 + 1"),
        ("code", "2"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("there", "wheel"), [(True, True), (False, True), (False, False)])
def test_the_first_cell_installs_what_is_missing(
    there: bool, wheel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell, asked = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell(), list[str]()
    shell.register_magic_function(asked.append, magic_name="pip")
    if wheel:
        (tmp_path / "protofed-9.9.9-py3-none-any.whl").touch()
    if not there:
        monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.chdir(tmp_path)
    shell.run_cell(notebook.INSTALL).raise_error()
    package = "protofed-9.9.9-py3-none-any.whl" if wheel else "protofed"
    assert asked == ([] if there else [f"install --quiet {package}"])


@pytest.mark.slow
@pytest.mark.parametrize("script", notebook.scripts(), ids=lambda script: script.stem)
def test_a_notebook_can_be_executed(script: Path) -> None:
    made = notebook.executed(script)  # a cell that fails raises
    outputs = [out for cell in made.cells if cell.cell_type == "code" for out in cell.outputs]
    assert any("image/png" in out.get("data", {}) or "<img" in str(out.get("data", {})) for out in outputs)
    assert len(json.dumps(made)) < LARGEST
