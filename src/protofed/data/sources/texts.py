"""Text with class labels: files in folders, lines of a file, or the tables of Orange."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from zipfile import is_zipfile

from protofed.data.corpus import Corpus, Text
from protofed.data.sources.archives import Tree, arranged
from protofed.data.sources.files import MOST, damaged
from protofed.data.sources.lines import text_lines, text_of
from protofed.errors import UserError


def texts(paths: Sequence[Path], _: int | None) -> Corpus:
    """A folder or zip of `class/file.txt` or `domain/class/file.txt`, or files of lines `label<TAB>text`."""
    if paths[0].is_dir() or is_zipfile(paths[0]):
        return _folder(paths[0])
    train, test = (_lines(path) for path in paths) if len(paths) == 2 else (_lines(paths[0]), [])
    return Corpus(paths[0], train, test)


def _folder(path: Path) -> Corpus:
    tree = Tree(path)
    names = [name for name in tree.names if name.lower().endswith(".txt")]
    if not names:
        raise UserError("PATH", str(path), "it has no text files", hint="text files end in .txt")
    if path.is_dir():
        full = {parent for name in names for parent in (path / name).parents}
        folders = (file for file in sorted(path.rglob("*")) if file.is_dir() and not file.name.startswith((".", "__")))
        if empty := [file for file in folders if file not in full]:
            raise UserError("PATH", str(empty[0]), "a class without text files")
    if (total := sum(map(tree.size, names))) > MOST:
        raise UserError("PATH", str(path), f"its text files have {total} bytes, and at most {MOST} are read")
    parts: dict[str, list[Text]] = {"train": [], "test": []}
    for place in arranged(tree, names, "text files"):
        where = f"{path}/{place.name}"
        parts[place.half].append(Text(_full(text_of(tree.read(place.name), where), where), place.label, place.domain))
    return Corpus(path, parts["train"], parts["test"])


def _lines(path: Path) -> list[Text]:
    found = []
    for number, line in text_lines(path):
        label, tab, content = line.partition("\t")
        if not tab or not label.strip():
            raise damaged(path, f"line {number} is not label<TAB>text")
        found.append(Text(_full(content, f"{path}, line {number}"), label.strip()))
    if not found:
        raise damaged(path, "it has no lines")
    return found


def _full(content: str, where: str) -> str:
    if not content.strip():
        raise UserError("PATH", where, "the text is empty")
    return content


def orange(paths: Sequence[Path], _: int | None) -> Corpus:
    """The training and the test table of Orange, with a class and a text in each line."""
    train, test = (_table(path) for path in paths)
    return Corpus(paths[0], train, test)


def _table(path: Path) -> list[Text]:
    """Three lines say names, types and roles of columns; a line without text is passed over: such tables have some."""
    lines = [line.split("\t") for _, line in text_lines(path)]
    if len(lines) < 4 or "class" not in lines[2] or "string" not in lines[1]:
        raise damaged(path, "its three first lines do not name a class and a string")
    label, content = lines[2].index("class"), lines[1].index("string")
    for row in lines[3:]:
        if len(row) > len(lines[0]) or len(row) <= label:
            raise damaged(path, f"a line has {len(row)} columns, and the first {len(lines[0])}")
    return [Text(row[content], row[label]) for row in lines[3:] if len(row) > content and row[content].strip()]
