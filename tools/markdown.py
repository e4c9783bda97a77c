"""What the tools that write Markdown pages share, and the limits that every page keeps (tests/docs/test_pages.py)."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

WIDTH = 120
"""Characters of a line; the rows of a table, and a word that is longer by itself, are left as they are."""
LENGTH = 300
"""Lines of a page."""

_FENCE = re.compile(r"\s*(```|~~~)")
_ALONE = re.compile(r"\s*(#|\||>|<|!\[|$|---)")
"""How a line begins that is no part of a paragraph."""
_ITEM = re.compile(r"(\s*)([-*]|\d+\.) ")
_MARKUP = re.compile(r" (?=(?:[-*+>|]|#+|\d+\.)(?:\s|$))")
"""The space before what would be read as markup at the beginning of a line."""


def wrapped(text: str) -> str:
    """Wrap the paragraphs and list items of a page, each of them at `WIDTH` characters.

    Args:
        text: the page. Code blocks, tables, headings and lines that begin with HTML stay as they are.

    Returns:
        The same page, which looks the same when it is rendered.
    """
    return "\n".join(_lines(text.rstrip("\n").split("\n"))) + "\n"


def _lines(lines: list[str]) -> Iterator[str]:
    paragraph: list[str] = []
    fenced = shell = False
    for line in lines:
        fence = bool(_FENCE.match(line))
        if fenced or fence or _ALONE.match(line) or _ITEM.match(line):
            yield from _filled(paragraph)
            if _ITEM.match(line) and paragraph and not _ITEM.match(paragraph[0]) and not fenced:
                yield ""  # MkDocs wants it before a list
            paragraph = []
        if fence:
            fenced, shell = not fenced, line.strip() == "```sh"
        if fence or fenced or _ALONE.match(line):
            yield from _command(line) if fenced and shell else [line.rstrip()]
        else:
            paragraph.append(line)
    yield from _filled(paragraph)


def _command(line: str) -> list[str]:
    """A line of shell, continued on the next where it is too long; a comment that does not fit comes first."""
    if len(line) <= WIDTH or line.endswith("\\"):
        return [line.rstrip()]
    command, mark, comment = line.rstrip().partition(" # ")
    parts = textwrap.wrap(
        re.sub(r" (?!--\w)", "\0", command.rstrip()),
        WIDTH - 2,
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    lines = [part.replace("\0", " ") + " \\" * (part is not parts[-1]) for part in parts]
    if mark and len(f"{lines[-1]}    # {comment}") > WIDTH:
        return [f"# {comment}", *lines]
    return [*lines[:-1], f"{lines[-1]}    # {comment}" if mark else lines[-1]]


def _filled(paragraph: list[str]) -> list[str]:
    if not paragraph:
        return []
    first = paragraph[0]
    item = _ITEM.match(first)
    start = item.group() if item else first[: len(first) - len(first.lstrip())]
    words = " ".join(line.strip() for line in paragraph)[len(start.lstrip()) :].strip()
    lines = textwrap.wrap(
        _MARKUP.sub("\0", words),
        WIDTH,
        initial_indent=start,
        subsequent_indent=" " * len(start),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace("\0", " ") for line in lines]
