"""python -m tools.api_page: write docs/api.md from the docstrings of what users import.  make api-page"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
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

COMMANDS = (
    "protofed run --out digits --method fedproto --model cnn --train-size 120 --clients 2 --rounds 1 --device cpu",
    "protofed export digits --out digits-model",
)
"""What makes the folders that examples read."""

INTRODUCTION = """# The Python interface

Written from the docstrings by `make api-page`. ★: also `protofed.NAME`.

The names that `__all__` of these modules lists are public, and they are described here. A public name changes only with
a note in [CHANGELOG.md](../CHANGELOG.md); everything else may change at any time.

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
    """A public name: the module that lists it, what it is, its docstring, and its declaration if it is a constant."""

    module: str
    name: str
    found: Any
    doc: str
    declared: str = ""

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
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Its text."""
    parts = [INTRODUCTION.format(commands="\n".join(COMMANDS))]
    for name in MODULES:
        parts += [f"## {name}", "", _doc(importlib.import_module(name)), ""]
        for item in public(name):
            parts += _item(item)
    return "\n".join(parts)


def public(module: str) -> Iterator[Public]:
    """The public names of a module."""
    for name in importlib.import_module(module).__all__:
        found = getattr(importlib.import_module(module), name)
        if inspect.isclass(found) or inspect.isfunction(found):
            yield Public(module, name, found, _doc(found))
        else:
            yield Public(module, name, found, *_constant(module, name))


def _constant(module: str, name: str) -> tuple[str, str]:
    """The text below a constant, where it is assigned, and its declaration."""
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
                return inspect.cleandoc(doc), declared
            case _:
                return "", declared
    raise LookupError(f"{module} does not assign {name}")


def _item(item: Public) -> list[str]:
    top = importlib.import_module("protofed")
    mark = "★ " if item.name in top.__all__ and getattr(top, item.name) is item.found else ""
    helped = _helped(item.found)
    declared = item.declared or f"{item.name}{'(…)' if helped else _signature(item.found)}"
    lines = [f"### {mark}{item.name}", "", f"```python\n{declared}\n```", "", item.sections[""], ""]
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
