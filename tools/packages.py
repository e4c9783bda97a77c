"""python -m tools.packages licences|sbom: what an installation without extras needs.  make licences, make sbom

Licences are a table; the bill of materials (SBOM) is CycloneDX, with who needs whom, and the hashes of the files that
the package index has of a version, as far as requirements/base.txt lists that version.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from typing import Any
from urllib.parse import quote

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from protofed.internal.version import VERSION
from tools.constraints import ROOT, Pin, pins

NAME = "protofed"
Graph = dict[str, set[str]]
"""For each package, by its normalised name, those that it needs itself."""


def needed(name: str = NAME) -> Graph:
    """The package and all that it needs on this system, as installed."""
    graph: Graph = {}
    waiting, seen = [(name, "")], set()
    while waiting:
        package, extra = waiting.pop()
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        graph.setdefault(package, set())
        for one in map(Requirement, requires(package) or []):
            there = canonicalize_name(one.name)
            if (one.marker is None or one.marker.evaluate({"extra": extra})) and _installed(there):
                graph[package].add(there)
                waiting += [(there, asked) for asked in ("", *sorted(one.extras))]
    return dict(sorted(graph.items()))


def _installed(name: str) -> bool:
    """Whether a package is there; one for another system is not."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def _said(package: Distribution, field: str) -> str:
    return next(iter(package.metadata.get_all(field) or []), "").partition("\n")[0].strip()


def licence(package: Distribution) -> str:
    """What a package says of its licence, in one line."""
    classified = [
        one.rpartition(" :: ")[2]
        for one in package.metadata.get_all("Classifier") or []
        if one.startswith("License ::")
    ]
    return _said(package, "License-Expression") or "; ".join(classified) or _said(package, "License") or "not said"


def licences(graph: Graph) -> str:
    """The packages and their licences as a table."""
    packages = [distribution(name) for name in graph if name != NAME]
    rows = "".join(f"| {one.name} | {one.version} | {licence(one)} |\n" for one in packages)
    return f"| package | version | licence |\n|---|---|---|\n{rows}"


def address(name: str) -> str:
    """The package URL of an installed package."""
    version = VERSION if name == NAME else distribution(name).version
    return f"pkg:pypi/{name}@{quote(version)}"


def component(name: str, hashes: tuple[str, ...]) -> dict[str, Any]:
    """An installed package as CycloneDX says it."""
    package, purl = distribution(name), address(name)
    expression = _said(package, "License-Expression")
    said: Any = {"expression": expression} if expression else {"license": {"name": licence(package)}}
    version = VERSION if name == NAME else package.version
    found: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": [said],
    }
    if hashes:
        files = [{"alg": "SHA-256", "content": content} for content in hashes]
        about = "the files that the package index has of this version, for all systems"
        found["externalReferences"] = [{"type": "distribution", "url": purl, "comment": about, "hashes": files}]
    return found


def bill_of_materials(graph: Graph, listed: list[Pin]) -> dict[str, Any]:
    """The packages as CycloneDX 1.5 says them, with the hashes of those versions that are listed."""
    hashes = {(pin.name, pin.version): pin.hashes for pin in listed}
    others = [name for name in graph if name != NAME]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(NAME, ())},
        "components": [component(name, hashes.get((name, distribution(name).version), ())) for name in others],
        "dependencies": [{"ref": address(name), "dependsOn": [*map(address, sorted(graph[name]))]} for name in graph],
    }


def sbom() -> str:
    """The bill of materials of this installation, as JSON."""
    listed = pins((ROOT / "requirements/base.txt").read_text(encoding="utf-8"))
    return json.dumps(bill_of_materials(needed(), listed), indent=2) + "\n"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["licences"]:
            print(licences(needed()), end="")
        case ["sbom"]:
            print(sbom(), end="")
        case _:
            sys.exit(__doc__)
