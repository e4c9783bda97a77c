"""What higher layers make of objects of lower ones, such as their pictures: found by name, when it is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_WHERE = {
    "figure_of": "report.notebook",
    "html_of": "report.notebook",
    "models_of_result": "serving.trained",
    "predictor_of_result": "serving.trained",
}


def ask(name: str, *arguments: Any) -> Any:
    """What a function of a higher layer says; the layer is imported only now, as a method of the registry is."""
    return getattr(import_module(f"protofed.{_WHERE[name]}"), name)(*arguments)
