"""A user's own code by name: `path/to/file.py:Name`, `package.module:Name`, or `session:NAME`, of this process only."""

from __future__ import annotations

import importlib
import importlib.util
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from protofed.errors import UserError

SESSION = "session:"
"""Before the name of an object that no other process can find: one of a notebook, or made inside a function."""

WITH = "@"
"""Between the name of a function that makes a module and the file of its weights."""

_given: WeakValueDictionary[str, Any] = WeakValueDictionary()
"""Objects of this session by name; who uses one holds it."""
_importing: list[str] = []
"""The files that are being imported."""


def is_code(spec: str) -> bool:
    """Whether a name points to a user's code rather than into a registry."""
    return ":" in spec or spec.endswith(".py")


def load_code(flag: str, spec: str) -> Any:
    """The object that a name points to.

    Raises:
        UserError: there is none, or what it is in cannot be imported.
    """
    if (found := _given.get(spec)) is not None:
        return found
    if spec.startswith(SESSION):
        why = "it was made in a Python session, and only there it can go on: "
        raise UserError(flag, spec, f"{why}protofed.resume(DIR, {flag.removeprefix('--')}=…)")
    if ".py" in spec:
        return _from_file(flag, spec)
    module, _, name = spec.partition(":")
    try:
        found = importlib.import_module(module)
    except ImportError as error:
        raise UserError(flag, spec, f"{module} cannot be imported here: {error}") from error
    return _attribute(flag, spec, found, name)


def name_of(found: Any, label: str) -> str:
    """The name by which `load_code` finds an object: in any process, or if that is not possible in this session.

    Args:
        found: a class, a function or anything else.
        label: what it is called in this session, if it has no place where others find it.
    """
    module, name = sys.modules.get(getattr(found, "__module__", None) or ""), getattr(found, "__qualname__", "")
    if module is not None and name and _same(module, name, found):
        file = getattr(module, "__file__", None) or ""
        if file.endswith(".py") and "." not in module.__name__ and not hasattr(module, "__path__"):
            return f"{Path(file).resolve()}:{name}"  # where the module is on the path is another matter in a shell
        if module.__name__ != "__main__":
            return f"{module.__name__}:{name}"
    label, number = re.sub(r"[^\w.-]", "", label), 1
    spec = f"{SESSION}{label}"
    while _given.get(spec, found) is not found:
        number += 1
        spec = f"{SESSION}{label}-{number}"
    give(spec, found)
    return spec


def give(spec: str, found: Any) -> None:
    """Let a name stand for an object, as long as somebody holds it."""
    _given[spec] = found


def given(spec: str) -> Any | None:
    """The object that a name was given to."""
    return _given.get(spec)


def only_here(spec: str) -> bool:
    """Whether other processes cannot load it, or not without running this process's script again."""
    return spec.startswith(SESSION) or (".py:" in spec and _running(Path(spec.rpartition(":")[0])) is not None)


def refuse_while_importing(what: str) -> None:
    """A file that is imported for the class in it must not start what it starts as a script."""
    if _importing:
        why = 'put what the script runs below `if __name__ == "__main__":`'
        raise UserError(_importing[-1], what, f"it is called while the file is imported for what it defines: {why}")


def _from_file(flag: str, spec: str) -> Any:
    """The object that `path/to/file.py:Name` names."""
    filename, _, name = spec.rpartition(":")
    path = Path(filename)
    if not filename.endswith(".py") or not name:
        raise UserError(flag, spec, "it must be path/to/file.py:Name")
    if not path.is_file():
        raise UserError(flag, spec, f"there is no file {filename}")
    if (main := _running(path)) is not None:
        return _attribute(flag, spec, main, name)
    module_spec = importlib.util.spec_from_file_location(f"protofed_user_{path.stem}", path)
    if module_spec is None or module_spec.loader is None:
        raise UserError(flag, spec, f"{filename} cannot be imported")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[module_spec.name] = module  # dataclasses look a class's module up by name
    _importing.append(filename)
    try:
        module_spec.loader.exec_module(module)
    except Exception as error:
        raise UserError(flag, spec, f"importing {filename} failed: {type(error).__name__}: {error}") from error
    finally:
        _importing.pop()
    return _attribute(flag, spec, module, name)


def _running(path: Path) -> Any | None:
    """The module of the script that this process runs, if it is this file: it is not to be run twice."""
    main = sys.modules.get("__main__")
    file = getattr(main, "__file__", None)
    return main if file is not None and Path(file).resolve() == path.resolve() else None


def _attribute(flag: str, spec: str, module: Any, name: str) -> Any:
    try:
        return attrgetter(name)(module)
    except AttributeError:
        raise UserError(flag, spec, f"{getattr(module, '__file__', None) or module.__name__} has no {name}") from None


def _same(module: Any, name: str, found: Any) -> bool:
    get: Callable[[Any], Any] = attrgetter(name)
    try:
        return get(module) is found
    except AttributeError:
        return False
