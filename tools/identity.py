"""python -m tools.identity: write CITATION.cff and the head of paper/paper.md from identity.yaml.  make identity"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from protofed.internal.version import VERSION

ROOT = Path(__file__).parent.parent
CITATION, PAPER = ROOT / "CITATION.cff", ROOT / "paper" / "paper.md"
TITLE = "ProtoFed: federated prototype learning"


def identity() -> dict[str, Any]:
    """What identity.yaml says."""
    return dict(yaml.safe_load((ROOT / "identity.yaml").read_text(encoding="utf-8")))


def citation() -> str:
    """The text of CITATION.cff."""
    known = identity()
    authors = [
        {
            "given-names": one["given"],
            "family-names": one["family"],
            "orcid": f"https://orcid.org/{one['orcid']}",
            "affiliation": one["affiliation"],
        }
        for one in known["authors"]
    ]
    values = {
        "cff-version": "1.2.0",
        "title": TITLE,
        "message": "If you use it, please cite it and the paper of the method you used (`protofed methods NAME`).",
        "type": "software",
        "authors": authors,
        "version": VERSION,
        "license": "Apache-2.0",
        "repository-code": known["repository"],
        "doi": known["doi"],
    }
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=1000)


def paper() -> str:
    """The text of paper/paper.md with its head as identity.yaml says."""
    authors = identity()["authors"]
    places = list(dict.fromkeys(one["affiliation"] for one in authors))
    head = {
        "title": TITLE,
        "tags": ["Python", "federated learning", "prototypes", "representation learning", "privacy"],
        "authors": [
            {
                "name": f"{one['given']} {one['family']}",
                "orcid": one["orcid"],
                "affiliation": places.index(one["affiliation"]) + 1,
            }
            for one in authors
        ],
        "affiliations": [{"name": place, "index": number} for number, place in enumerate(places, 1)],
        "bibliography": "paper.bib",
    }
    body = PAPER.read_text(encoding="utf-8").split("\n---\n", 1)[1]
    return f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n{body}"


if __name__ == "__main__":
    CITATION.write_text(citation(), encoding="utf-8")
    PAPER.write_text(paper(), encoding="utf-8")
