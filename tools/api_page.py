"""python -m tools.api_page: write docs/api.md from the docstrings of what users import.  make api-page"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parent.parent / "docs" / "api.md"
MODULES: dict[str, tuple[str, ...]] = {
    "protofed.api": ("run", "compare", "sweep"),
    "protofed.experiment": ("Experiment",),
    "protofed.runs.result": ("Result", "Accuracy"),
    "protofed.studies.comparison": ("Comparison", "MethodRow", "Spread"),
    "protofed.serving.predictor": ("load", "Predictor", "Predictions"),
    "protofed.data": ("load", "federate", "Dataset", "Split", "Federation", "Client", "Samples"),
    "protofed.methods.base": ("Method", "param", "Batch", "Turn", "Clock", "Trained", "Phase"),
    "protofed.messages": ("Message", "Upload", "Broadcast"),
    "protofed.models.output": ("Output",),
    "protofed.prototypes": (),
    "protofed.report.html": ("gather", "write_report"),
}
"""What is described; every public name where none is listed."""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(), encoding="utf-8")


def page() -> str:
    """Its text."""
    parts = [
        "# The Python interface",
        "",
        "Written from the docstrings by `make api-page`. ★: also `protofed.NAME`.",
        "",
    ]
    top = importlib.import_module("protofed")
    for name, wanted in MODULES.items():
        module = importlib.import_module(name)
        parts += [f"## {name}", "", _doc(module), ""]
        for item in wanted or module.__all__:
            found = getattr(module, item)
            parts += _item(item, found, "★ " if item in top.__all__ and getattr(top, item) is found else "")
    return "\n".join(parts)


def _item(name: str, found: Any, mark: str) -> list[str]:
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        return [f"### {mark}{name}", "", f"`{_plain(str(found))}`", ""]
    lines = [f"### {mark}{name}", "", f"```python\n{name}{_signature(found)}\n```", "", _doc(found), ""]
    if inspect.isclass(found):
        if name == "Experiment":
            lines = [f"### {mark}{name}", "", _doc(found), "", "Its fields are the flags of `protofed run --help`.", ""]
        for member, value in vars(found).items():
            call = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            if member.startswith("_") or not (inspect.isfunction(call) or isinstance(value, property)):
                continue
            if isinstance(value, property):
                lines.append(f"- `.{member}`: {_line(value)}")
            else:
                lines.append(f"- `.{member}{_signature(call)}`: {_line(call)}")
        lines.append("")
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
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _doc(found: Any) -> str:
    return inspect.cleandoc(found.__doc__ or "")


def _line(found: Any) -> str:
    return " ".join(_doc(found).split("\n\n")[0].split())


if __name__ == "__main__":
    main()
