"""The pages of the documentation, and the code on them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def named(page: Path) -> str:
    """A page by its path in the repository."""
    return str(page.relative_to(ROOT))


def fenced(page: Path, *languages: str) -> list[str]:
    """The blocks of a page in some languages, in their order; "" is a block that names none."""
    found, block, language = list[str](), list[str](), None
    for line in page.read_text(encoding="utf-8").splitlines(keepends=True):
        fence = re.match(r"```(\w*)\s*$", line)
        if language is None:
            language = fence[1] if fence else None
        elif fence:
            found += ["".join(block)] if language in languages else []
            block, language = [], None
        else:
            block.append(line)
    assert language is None, f"{page}: a block has no end"
    return found


def prose(page: Path) -> str:
    """What a page says in sentences: no code, no tables, no headings, nothing that a command writes."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"<!-- (begin|from).*?<!-- end.*?-->", "", text, flags=re.DOTALL)
    text = "".join(line for line in text.splitlines(keepends=True) if not line.startswith(("|", "#")))
    return re.sub(r"`[^`]*`", "", text)


def commands(block: str) -> Iterator[list[str]]:
    """The words of each call in a block of shell, with the variables that it sets; a heredoc is left out."""
    variables, end = dict[str, str](), ""
    for line in block.replace("\\\n", " ").splitlines():
        if end:
            end = "" if line == end else end
            continue
        heredoc = re.search(r"<<'(\w+)'", line)
        end = heredoc[1] if heredoc else ""
        filled = re.sub(r"\$(\w+)", lambda found: variables.get(found[1], found[0]), line)
        if put := re.fullmatch(r"(\w+)=(?:\"([^\"]*)\"|([^\s'\"$]*))", filled):
            variables[put[1]] = put[2] or put[3]
            continue
        lexer = shlex.shlex(filled, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list[str]()
        for word in [*lexer, ";"]:
            if not re.fullmatch(r"[;&|()]+", word):
                words.append(word)
            elif words:
                kept = next((place for place, each in enumerate(words) if re.fullmatch("[<>]+", each)), len(words))
                yield from [words[:kept]] if kept else []  # where it is written to, is no part of it
                words = []


def spoken(page: Path) -> list[str]:
    """The code in the sentences and tables of a page, without its marks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [re.sub(r"\s+", " ", each) for each in re.findall(r"`([^`]+)`", text)]
