"""python -m tools.release [TAG]: what goes with the archives of a release, into dist/release.  make release

Notes from the changelog, checksums, every package that is needed as CycloneDX and as a table of licences, and with the
hashes of its files. `python -m tools.release --licences` prints the table alone.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution, requires
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from protofed.internal.version import VERSION

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
NAME = "protofed"


def notes(changelog: str, version: str = VERSION) -> str:
    """The part of a changelog that is of a version.

    Raises:
        ValueError: there is none, or it is not dated yet.
    """
    found = re.search(rf"^## {re.escape(version)} \((.+?)\)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None or found[1] == "unreleased":
        raise ValueError(f"CHANGELOG.md has no dated section on {version}")
    return found[2].strip() + "\n"


def needed(name: str = NAME) -> list[Distribution]:
    """The packages that an installation without extras needs, those that they need included, by name."""
    found: dict[str, Distribution] = {}
    waiting = [name]
    while waiting:
        for text in requires(waiting.pop()) or []:
            one = Requirement(text)
            known = canonicalize_name(one.name)
            if known in found or (one.marker and not one.marker.evaluate({"extra": ""})):
                continue
            try:
                found[known] = distribution(known)
            except PackageNotFoundError:  # for another system
                continue
            waiting.append(known)
    return [found[known] for known in sorted(found)]


def licence(package: Distribution) -> str:
    """What a package says of its licence, in one line."""
    about = package.metadata

    def said(name: str) -> str:
        return next(iter(about.get_all(name) or []), "").partition("\n")[0].strip()

    classified = [
        one.rpartition(" :: ")[2] for one in about.get_all("Classifier") or [] if one.startswith("License ::")
    ]
    return said("License-Expression") or "; ".join(classified) or said("License") or "not said"


def licences(packages: list[Distribution]) -> str:
    """The packages and their licences as a table."""
    rows = "".join(f"| {one.name} | {one.version} | {licence(one)} |\n" for one in packages)
    return f"| package | version | licence |\n|---|---|---|\n{rows}"


def bill_of_materials(packages: list[Distribution]) -> dict[str, Any]:
    """The packages as CycloneDX 1.5 says them."""

    def component(kind: str, name: str, version: str, said: str) -> dict[str, Any]:
        address = f"pkg:pypi/{canonicalize_name(name)}@{version}"
        named = [{"license": {"name": said}}]
        return {"type": kind, "bom-ref": address, "name": name, "version": version, "purl": address, "licenses": named}

    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("library", NAME, VERSION, "Apache-2.0")},
        "components": [component("library", one.name, one.version, licence(one)) for one in packages],
    }


def hashed(wheel: Path) -> str:
    """Every package that a wheel needs, as constraints.txt has it, with the hash of its file for this system."""
    asked = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    asked += ["--report", "-", "-c", str(ROOT / "constraints.txt"), str(wheel)]
    report = json.loads(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)
    lines = []
    for one in report["install"]:
        digest = one["download_info"]["archive_info"]["hashes"]["sha256"]
        about = one["metadata"]
        if canonicalize_name(about["name"]) != NAME:
            lines.append(f"{about['name']}=={about['version']} --hash=sha256:{digest}\n")
    return "".join(sorted(lines, key=str.lower))


def sums(paths: list[Path]) -> str:
    """Checksums as `sha256sum -c` reads them."""
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(paths))


def write(tag: str | None) -> None:
    """Fill dist/release for the archives in dist."""
    if tag not in (None, "", f"v{VERSION}"):
        raise ValueError(f"the tag is {tag}, and the version {VERSION}")
    archives = [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]
    if len(archives) != 2 or not all(f"-{VERSION}" in path.name for path in archives):
        raise ValueError(f"dist must hold a wheel and a source archive of {VERSION}")
    place, packages = DIST / "release", needed()
    texts = {
        "notes.md": notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8")),
        "SHA256SUMS": sums(archives),
        "sbom.cdx.json": json.dumps(bill_of_materials(packages), indent=2) + "\n",
        "licences.md": licences(packages),
        "requirements.txt": hashed(next(DIST.glob("*.whl"))),
    }
    place.mkdir(exist_ok=True)
    for name, text in texts.items():
        (place / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["--licences"]:
            print(licences(needed()), end="")
        case _:
            write(next(iter(sys.argv[1:]), None))
