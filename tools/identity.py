"""python -m tools.identity: write what identity.yaml says into the files that need it.  make identity

CITATION.cff; the head of paper/paper.md and its sections that only its authors can write; authors and addresses of
pyproject.toml; the site's address in mkdocs.yml.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from protofed.internal.version import VERSION

ROOT = Path(__file__).parent.parent
TITLE = "ProtoFed: federated prototype learning"
BEGIN, END = "# begin: written by make identity\n", "# end: written by make identity\n"


@cache
def identity() -> dict[str, Any]:
    """What identity.yaml says."""
    return dict(yaml.safe_load((ROOT / "identity.yaml").read_text(encoding="utf-8")))


def citation(_: str) -> str:
    """The text of CITATION.cff."""
    about = identity()
    authors = [
        {
            "given-names": author["given"],
            "family-names": author["family"],
            "orcid": f"https://orcid.org/{author['orcid']}",
            "affiliation": author["affiliation"],
        }
        for author in about["authors"]
    ]
    values = {
        "cff-version": "1.2.0",
        "title": TITLE,
        "message": "If you use it, please cite it and the paper of the method you used (`protofed methods NAME`).",
        "type": "software",
        "authors": authors,
        "version": VERSION,
        "license": "Apache-2.0",
        "repository-code": about["repository"],
        "url": about["site"],
        "doi": about["doi"],
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000)


def paper(text: str) -> str:
    """The text of paper/paper.md with the head, and the sections, that identity.yaml says."""
    about = identity()
    places = list(dict.fromkeys(author["affiliation"] for author in about["authors"]))
    head = {
        "title": TITLE,
        "tags": ["Python", "federated learning", "prototypes", "representation learning", "privacy"],
        "authors": [
            {
                "name": f"{author['given']} {author['family']}",
                "orcid": author["orcid"],
                "affiliation": places.index(author["affiliation"]) + 1,
            }
            for author in about["authors"]
        ],
        "affiliations": [{"name": place, "index": number} for number, place in enumerate(places, 1)],
        "date": about["paper"]["date"],
        "bibliography": "paper.bib",
    }
    body = text.split("\n---\n", 1)[1]
    for title, key in (("AI usage disclosure", "ai_usage"), ("Acknowledgements", "acknowledgements")):
        section = f"# {title}\n\n{about['paper'][key]}\n\n"
        before, after = re.split(rf"^# {title}\n.*?(?=^# )", body, maxsplit=1, flags=re.M | re.S)
        body = f"{before}{section}{after}"
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n{body}"


def project(text: str) -> str:
    """The text of pyproject.toml with authors and addresses."""
    about = identity()
    names = ", ".join(
        f"{{ name = {_quoted(author['given'] + ' ' + author['family'])} }}" for author in about["authors"]
    )
    addresses = {
        "Documentation": about["site"],
        "Repository": about["repository"],
        "Issues": f"{about['repository']}/issues",
        "Changelog": f"{about['repository']}/blob/main/CHANGELOG.md",
    }
    lines = f"authors = [{names}]\n" + "".join(f"urls.{name} = {_quoted(url)}\n" for name, url in addresses.items())
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{lines}{END}{rest.partition(END)[2]}"


def _quoted(text: str) -> str:
    """As TOML and YAML take it."""
    return json.dumps(text, ensure_ascii=False)


def site(text: str) -> str:
    """The text of mkdocs.yml with the site's address."""
    return re.sub(r"^site_url: .*$", lambda _: f"site_url: {identity()['site']}", text, flags=re.M)


MADE = {"CITATION.cff": citation, "paper/paper.md": paper, "pyproject.toml": project, "mkdocs.yml": site}
"""The files, and what each becomes."""


if __name__ == "__main__":
    for name, text in MADE.items():
        path = ROOT / name
        path.write_text(text(path.read_text(encoding="utf-8")), encoding="utf-8")
