"""Digests of texts within the texts themselves: a bit that flips in a file is noticed when it is read."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

OTHER = "it is not what was written: its digest is another"
_AT_END = re.compile(r',\s*"digest": "([0-9a-f]{32})"\s*\}\s*\Z')
_LINE = re.compile(r"# digest: ([0-9a-f]{32})\n---\n")
_LONGEST = 100
"""Characters in which the digest at the end of a JSON text lies."""


def digest_of(text: str) -> str:
    """Of a text, 32 hexadecimal digits."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def json_with_digest(text: str) -> str:
    """The text of a JSON object with another key at its end, `digest`, of all that is before."""
    whole = text.rstrip()
    head = whole.removesuffix("}").rstrip()
    before, after = (",\n  ", "\n}\n") if "\n" in head else (", ", "}")
    return f'{head}{before}"digest": "{digest_of(head)}"{after}'


def parse_json(text: str) -> Any:
    """The value of a JSON text, without its digest if it has one; texts of before version 0.2 have none.

    Raises:
        ValueError: it is no JSON, or not what was written.
    """
    found = _AT_END.search(text, max(0, len(text) - _LONGEST))
    if found and found[1] != digest_of(text[: found.start()]):
        raise ValueError(OTHER)
    values = json.loads(text)
    if found:
        del values["digest"]
    return values


def yaml_with_digest(text: str) -> str:
    """A YAML text with its digest in a comment of its own, so that it can also be read as any other."""
    return f"# digest: {digest_of(text)}\n---\n{text}"


def checked_yaml(text: str) -> str:
    """A YAML text without its digest, if it is what was written, or has none.

    Raises:
        ValueError: it is another.
    """
    found = _LINE.match(text)
    if found is None:
        return text
    if found[1] != digest_of(text[found.end() :]):
        raise ValueError(OTHER)
    return text[found.end() :]
