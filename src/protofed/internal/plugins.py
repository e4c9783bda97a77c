"""Methods and models from a user's own file: `path/to/file.py:Name`."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from protofed.errors import UserError


def is_file_spec(spec: str) -> bool:
    """Whether a name points into a file rather than into a registry."""
    return ".py" in spec


def load_from_file(flag: str, spec: str) -> Any:
    """The object that `path/to/file.py:Name` names."""
    filename, _, name = spec.rpartition(":")
    path = Path(filename)
    if not filename.endswith(".py") or not name:
        raise UserError(flag, spec, "it must be path/to/file.py:Name")
    if not path.is_file():
        raise UserError(flag, spec, f"there is no file {filename}")
    module_spec = importlib.util.spec_from_file_location(f"protofed_user_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise UserError(flag, spec, f"{filename} cannot be imported")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses look a class's module up by name
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(flag, spec, f"importing {filename} failed: {type(error).__name__}: {error}") from error
    if not hasattr(module, name):
        raise UserError(flag, spec, f"{filename} has no {name}")
    return getattr(module, name)
