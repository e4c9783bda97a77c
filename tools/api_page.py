"""python -m tools.api_page: write the pages in docs/api from the docstrings of what users import.  make api-page"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from tools.markdown import WIDTH, wrapped

FOLDER = Path(__file__).parent.parent / "docs" / "api"
MODULES = (
    "protofed.api",
    "protofed.experiment",
    "protofed.runs.result",
    "protofed.server.round",
    "protofed.studies.comparison",
    "protofed.studies.sweeps",
    "protofed.studies.spread",
    "protofed.studies.tuning",
    "protofed.serving.predictor",
    "protofed.data",
    "protofed.methods.base",
    "protofed.messages",
    "protofed.models.output",
    "protofed.prototypes",
    "protofed.report.html",
)
"""What is public is what `__all__` of these lists."""

PAGES = {
    "running": ("Running methods", ("protofed.api",)),
    "experiment": ("The options of an experiment", ("protofed.experiment",)),
    "results": ("Results", ("protofed.runs.result", "protofed.server.round", "protofed.studies.spread")),
    "studies": (
        "Several runs",
        ("protofed.studies.comparison", "protofed.studies.sweeps", "protofed.studies.tuning"),
    ),
    "predictor": ("Models in use", ("protofed.serving.predictor",)),
    "data": ("Datasets", ("protofed.data",)),
    "federation": ("Federations of clients", ("protofed.data.federation", "protofed.data.splits")),
    "encodings": (
        "Tables, series and text",
        ("protofed.data.tables", "protofed.data.series_encoding", "protofed.data.text_encoding"),
    ),
    "method": ("A method", ("protofed.methods.base.Method",)),
    "method-parts": ("What a method works with", ("protofed.methods.base",)),
    "messages": ("Messages, and what a model gives", ("protofed.messages", "protofed.models.output")),
    "prototypes": ("Prototypes", ("protofed.prototypes",)),
    "clustering": (
        "Clusters of features",
        ("protofed.prototypes.kmeans", "protofed.prototypes.dbscan", "protofed.prototypes.finch"),
    ),
    "losses": ("Losses on prototypes", ("protofed.prototypes.losses",)),
    "report": ("The report", ("protofed.report.html",)),
}
"""The title of each page, and the modules, or names, that it describes; the longest that fits a name has it."""

COMMANDS = (
    "protofed run --out digits --method fedproto --model cnn --train-size 120 --clients 2 --rounds 1 --device cpu",
    "protofed export digits --out digits-model",
)
"""What makes the folders that examples read."""

INTRODUCTION = """# The Python interface

These pages are written from the docstrings by `make api-page`. [From Python](../python.md) shows how the parts fit.

The names that `__all__` of these modules lists are public, and they are described here. A public name changes only with
a note in [CHANGELOG.md](../../CHANGELOG.md); everything else may change at any time. ★: also `protofed.NAME`.

Shapes: N clients, C classes, M or K prototypes of a class, D numbers of a feature, B samples of a batch, n samples of a
client; `...` stands for any axes. A `UserError` is a ValueError with one line for the user;
its `hint`, if it has one, says what would do.

Examples run as they are printed. Some read the folders that these commands make:

```sh
{commands}
```
"""

HEADING = re.compile(r"^(Args|Attributes|Returns|Raises|Example):$", flags=re.MULTILINE)


class Public(NamedTuple):
    """A public name: the module that lists it, what it is, its docstring, and the module that defines it.

    A constant has its declaration, too.
    """

    module: str
    name: str
    found: Any
    doc: str
    origin: str
    declared: str = ""

    @property
    def is_short(self) -> bool:
        """Whether `protofed.NAME` is the same."""
        top = importlib.import_module("protofed")
        return self.name in top.__all__ and getattr(top, self.name) is self.found

    @property
    def sections(self) -> dict[str, str]:
        """The parts of the docstring by their headings; what comes first has none."""
        first, *rest = HEADING.split(self.doc)
        named = dict(zip(rest[::2], map(inspect.cleandoc, rest[1::2]), strict=True))
        return {"": first.strip(), **named}

    def entries(self, section: str) -> dict[str, str]:
        """What a section says of each name, such as a parameter."""
        parts = re.split(r"^(\*{0,2}\w+): ", self.sections.get(section, ""), flags=re.MULTILINE)[1:]
        return {name: " ".join(text.split()) for name, text in zip(parts[::2], parts[1::2], strict=True)}


def main() -> None:
    """Write the pages, and remove those of names that are gone."""
    FOLDER.mkdir(exist_ok=True)
    texts = pages()
    for path in FOLDER.glob("*.md"):
        if path.name not in texts:
            path.unlink()
    for name, text in texts.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """The text of each page, by the name of its file."""
    found: dict[str, list[Public]] = {name: [] for name in PAGES}
    for module in MODULES:
        for item in public(module):
            found[page_of(item)].append(item)
    texts = {f"{name}.md": _page(PAGES[name][0], items) for name, items in found.items()}
    return {"README.md": _index(found), **texts}


def page_of(item: Public) -> str:
    """Which page describes a name."""
    address = f"{item.origin}.{item.name}."
    fitting = [
        (len(place), page) for page, (_, places) in PAGES.items() for place in places if address.startswith(place + ".")
    ]
    if not fitting:
        raise LookupError(f"no page of PAGES in tools/api_page.py is for {address[:-1]}")
    return max(fitting)[1]


def _index(found: dict[str, list[Public]]) -> str:
    """The first page: what is where."""
    rows = []
    for page, items in found.items():
        names = ", ".join(f"[`{item.name}`]({page}.md#{_anchor(item)})" for item in items)
        rows.append(f"| [{PAGES[page][0]}]({page}.md) | {names} |")
    table = "\n".join(("| page | names |", "|---|---|", *rows))
    return wrapped(f"{INTRODUCTION.format(commands=chr(10).join(COMMANDS))}\n{table}\n")


def _page(title: str, items: list[Public]) -> str:
    """The names of a page, module by module."""
    parts = [f"# {title}", ""]
    for module in dict.fromkeys(item.module for item in items):
        parts += [f"Import from `{module}`: {_doc(importlib.import_module(module))}", ""]
        for item in items:
            if item.module == module:
                parts += _item(item)
    return wrapped("\n".join(parts))


def _anchor(item: Public) -> str:
    """The address of a heading in its page."""
    return ("-" if item.is_short else "") + item.name.lower()


def public(module: str) -> Iterator[Public]:
    """The public names of a module."""
    for name in importlib.import_module(module).__all__:
        found = getattr(importlib.import_module(module), name)
        if inspect.isclass(found) or inspect.isfunction(found):
            yield Public(module, name, found, _doc(found), found.__module__)
        else:
            yield Public(module, name, found, *_constant(module, name))


def _constant(module: str, name: str) -> tuple[str, str, str]:
    """The text below a constant, where it is assigned, the module of that, and its declaration."""
    source = inspect.getsource(importlib.import_module(module))
    body = ast.parse(source).body
    for node, after in zip(body, [*body[1:], None], strict=True):
        match node:
            case ast.ImportFrom(module=str(origin), names=names) if name in [alias.name for alias in names]:
                return _constant(origin, name)
            case ast.AnnAssign(target=ast.Name(id=target), annotation=kind) if target == name:
                declared = f"{name}: {ast.unparse(kind)}"
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name:
                declared = ast.get_source_segment(source, node) or ""
            case _:
                continue
        match after:
            case ast.Expr(value=ast.Constant(value=str(doc))):
                return inspect.cleandoc(doc), module, declared
            case _:
                return "", module, declared
    raise LookupError(f"{module} does not assign {name}")


def _item(item: Public) -> list[str]:
    mark = "★ " if item.is_short else ""
    helped = _helped(item.found)
    declared = item.declared or f"{item.name}{'(…)' if helped else _signature(item.found)}"
    lines = [f"## {mark}{item.name}", "", f"```python\n{_broken(declared)}\n```", "", item.sections[""], ""]
    lines += helped
    for section in ("Args", "Attributes", "Returns", "Raises"):
        if section == "Returns" and section in item.sections:
            lines += ["Returns:", "", item.sections[section], ""]
        elif entries := item.entries(section):
            lines += [f"{section}:", "", *(f"- `{name}`: {text}" for name, text in entries.items()), ""]
    if members := _members(item.found):
        lines += ["Members:", "", *members, ""]
    if example := item.sections.get("Example"):
        lines += [f"```pycon\n{example}\n```", ""]
    return lines


def _helped(found: Any) -> list[str]:
    """The fields that have a help of their own: those of Experiment."""
    fields = dataclasses.fields(found) if dataclasses.is_dataclass(found) else ()
    told = [f"- `{item.name}`: {item.metadata['help']}" for item in fields if "help" in item.metadata]
    return ["Args, which are the flags of `protofed run --help`:", "", *told, ""] if told else []


def _members(found: Any) -> list[str]:
    """The public methods and properties of a class, a line each."""
    lines = []
    for name, value in vars(found).items() if inspect.isclass(found) else ():
        call = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        is_property = isinstance(value, property | cached_property)
        if not name.startswith("_") and (inspect.isfunction(call) or is_property):
            lines.append(f"- `.{name}{'' if is_property else _signature(call)}`: {_line(call)}")
    return lines


def _signature(found: Any) -> str:
    try:
        text = str(inspect.signature(found))
    except (ValueError, TypeError):
        return "(…)"
    return _plain(re.sub(r"\(self(?:, )?", "(", text).replace("(cls, ", "(").replace("(cls)", "()"))


def _broken(declared: str) -> str:
    """A long declaration with its parameters on lines of their own."""
    if len(declared) <= WIDTH or "\n" in declared or "(" not in declared:
        return declared
    name, _, rest = declared.partition("(")
    inside, _, after = rest.rpartition(")")
    lines = textwrap.wrap(inside, WIDTH, initial_indent="    ", subsequent_indent="    ", break_long_words=False)
    return "\n".join([f"{name}(", *lines, f"){after}"])


def _plain(text: str) -> str:
    """Types as they are written, and no addresses."""
    text = re.sub(r"<(?:class|function) '?([\w.]+)'?[^>]*>", r"\1", text)
    text = re.sub(r" object at 0x[0-9a-f]+", "", text)
    text = re.sub(r"ForwardRef\('([^']*)'\)", r"\1", text)
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _doc(found: Any) -> str:
    return inspect.cleandoc(found.__doc__ or "")


def _line(found: Any) -> str:
    return " ".join(_doc(found).split("\n\n")[0].split())


if __name__ == "__main__":
    main()
