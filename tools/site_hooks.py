"""What MkDocs does besides (mkdocs.yml): pages from outside of docs, and links to files of the repository."""

from __future__ import annotations

import os
import re
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
PAGES = {"README.md": "index.md"} | {
    path.name: f"project/{path.name}" for path in ROOT.glob("*.md") if path.name not in ("README.md", "paper.md")
}
"""Pages of the repository's root, and where they are in the site."""

LINK = re.compile(r"(\]\()([^)\s]+)(\))")
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', flags=re.DOTALL)
SEARCH = 'data-md-component="search" role="dialog"'
FENCE = re.compile(r"^```.*?^```$", flags=re.MULTILINE | re.DOTALL)


def on_config(config: Any) -> Any:
    """Put the pages of each method, and those of the root, where the navigation says `methods/*` and `project/*`."""
    names = sorted(path.stem for path in (ROOT / "docs" / "methods").glob("*.md") if path.stem != "README")
    config.nav = _filled(
        config.nav,
        {
            "methods/*": [{name: f"methods/{name}.md"} for name in names],
            "project/*": sorted(place for place in PAGES.values() if place.startswith("project/")),
        },
    )
    return config


def _filled(entry: Any, lists: dict[str, Any]) -> Any:
    if isinstance(entry, list):
        return [_filled(each, lists) for each in entry]
    if isinstance(entry, dict):
        return {title: _filled(each, lists) for title, each in entry.items()}
    return lists.get(entry, entry)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages of the root, the files of the repository that pages link to, a report and a playground."""
    texts = {place: (ROOT / name).read_text(encoding="utf-8") for name, place in PAGES.items()}
    for place, text in texts.items():
        files.append(File.generated(config, place, content=text))
    waiting = list(files.documentation_pages())
    while waiting:  # a linked file may be a page, with links of its own
        page = waiting.pop()
        for goal in sorted(_goals(page.src_uri, page.content_string)):
            place = _place(goal)
            if not place.startswith("files/") or files.get_file_from_path(place):
                continue
            if not (ROOT / goal).is_file():
                raise PluginError(f"{page.src_uri} links to {goal}, which is no file")
            content = (ROOT / goal).read_bytes()
            file = File.generated(config, place, content=content, inclusion=InclusionLevel.NOT_IN_NAV)
            files.append(file)
            waiting += [file] if file.is_documentation_page() else []
    for name in ("report", "playground"):
        path = ROOT / config.extra[f"live_{name}"]
        files.append(File.generated(config, f"live/{name}.html", content=path.read_bytes()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Let links lead to where files are in the site."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        path, mark, anchor = match[2].partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return match[0]
        goal = os.path.relpath(_place(_goal(here, path)), Path(here).parent)
        return f"{match[1]}{goal}{mark}{anchor}{match[3]}"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def on_page_content(html: str, **_: Any) -> str:
    """Show formulas as MathML, which browsers draw by themselves."""

    def drawn(match: re.Match[str]) -> str:
        block = match[1] == "div"
        return str(convert(unescape(match[2]), display="block" if block else "inline"))

    return FORMULA.sub(drawn, html)


def on_post_page(output: str, **_: Any) -> str:
    """Name the search for who hears the page: the theme calls it a dialog, and nothing else."""
    return output.replace(SEARCH, f'{SEARCH} aria-label="Search"', 1)


def on_post_template(output_content: str, **_: Any) -> str:
    """The same on the page of what is not found."""
    return on_post_page(output_content)


def _source(place: str) -> str:
    """Where a page of the site is in the repository."""
    if place.startswith("files/"):
        return place.removeprefix("files/")
    return next((name for name, moved in PAGES.items() if moved == place), f"docs/{place}")


def _goal(here: str, path: str) -> str:
    """The file of the repository that a link of a page leads to."""
    return os.path.normpath(Path(_source(here)).parent / path)


def _goals(here: str, text: str) -> set[str]:
    links = [match[2].partition("#")[0] for match in LINK.finditer(FENCE.sub("", text))]
    return {_goal(here, path) for path in links if path and not re.match(r"[a-z]+:", path)}


def _place(goal: str) -> str:
    """Where a file of the repository is in the site."""
    if goal.startswith("docs/"):
        return goal.removeprefix("docs/")
    return PAGES.get(goal, f"files/{goal}")
