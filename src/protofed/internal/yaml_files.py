"""YAML, read without any code in it: numbers as people write them, and no aliases in files of others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from protofed.errors import UserError
from protofed.internal.digests import checked_yaml


class _Loader(yaml.SafeLoader):
    """YAML 1.1 takes 1e-3 and 1.5e3 for text; here they are numbers."""


class _Stranger(_Loader):
    """For files of others: a few lines of aliases can stand for gigabytes, so there are none."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node, if it is no alias."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not read")
        return super().compose_node(parent, index)


def _whole(loader: _Loader, node: yaml.ScalarNode) -> int:
    value = int(loader.construct_yaml_int(node))
    if abs(value) >= 2**63:  # with so many digits in base 16 it could be read, but not written
        raise yaml.YAMLError("a number is too large")
    return value


_Loader.add_constructor("tag:yaml.org,2002:int", _whole)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def parse_yaml(text: str, ours: bool = False) -> Any:
    """The value that a YAML text holds; only one of our own may have aliases."""
    return yaml.load(text, _Loader if ours else _Stranger)


def read_yaml(path: Path, as_written: bool = False) -> dict[str, Any]:
    """The mapping in a YAML file; if it must be as it was written, by the digest in it."""
    try:
        text = path.read_text(encoding="utf-8")
        if as_written:
            text = checked_yaml(text)
        values = parse_yaml(text)
    except FileNotFoundError:
        raise UserError("--config", str(path), "there is no such file") from None
    except Exception as error:  # of a value that is not of its tag, whatever PyYAML stumbles over
        raise UserError("--config", str(path), f"it cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise UserError("--config", str(path), "it must hold `name: value` lines")
    return values
