"""python -m tools.release [--check] [TAG]: what goes with the archives of a release, into dist/release.  make release

Notes from the changelog, checksums, what is needed as a bill of materials and as a table of licences, and requirements
with the hashes of all files. --check only says whether this version may be released.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

from protofed.internal.version import VERSION
from tools.constraints import ROOT
from tools.packages import NAME, licences, needed, sbom

DIST = ROOT / "dist"


def notes(changelog: str, version: str = VERSION) -> str:
    """The part of a changelog that is of a version.

    Raises:
        ValueError: there is none, or it is not dated yet.
    """
    found = re.search(rf"^## {re.escape(version)} \((\d{{4}}-\d\d-\d\d)\)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None:
        raise ValueError(f"CHANGELOG.md has no dated section on {version}")
    return found[2].strip() + "\n"


def check(tag: str) -> str:
    """The notes of the version, if it may be released.

    Raises:
        ValueError: the tag is of another version, something is not committed, or the changelog has no date.
    """
    if tag not in ("", f"v{VERSION}"):
        raise ValueError(f"the tag is {tag}, and the version {VERSION}")
    asked = ["git", "status", "--porcelain"]
    changed = subprocess.run(asked, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    if changed:
        raise ValueError(f"not committed:\n{changed}")
    return notes((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))


def sums(paths: list[Path]) -> str:
    """Checksums as `sha256sum -c` reads them."""
    return "".join(f"{digest(path)}  {path.name}\n" for path in sorted(paths))


def digest(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def requirements(packages: str, extra: str, archives: list[Path]) -> str:
    """What pip takes with --require-hashes: the packages, and ProtoFed's archives."""
    hashes = "".join(f" \\\n    --hash=sha256:{digest(path)}" for path in sorted(archives))
    return f"{packages}{NAME}{extra}=={VERSION}{hashes}\n"


def write(tag: str) -> None:
    """Fill dist/release for the archives in dist."""
    said = check(tag)
    archives = [*DIST.glob("*.whl"), *DIST.glob("*.tar.gz")]
    if len(archives) != 2 or not all(f"-{VERSION}" in path.name for path in archives):
        raise ValueError(f"dist must hold a wheel and a source archive of {VERSION}")
    base, flower = ((ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8") for name in ("base", "flower"))
    texts = {
        "notes.md": said,
        "SHA256SUMS": sums(archives),
        "sbom.cdx.json": sbom(),
        "licences.md": licences(needed()),
        "requirements.txt": requirements(base, "", archives),
        "requirements-flower.txt": requirements(flower, "[flower]", archives),
    }
    place = DIST / "release"
    place.mkdir(exist_ok=True)
    for name, text in texts.items():
        (place / name).write_text(text, encoding="utf-8")


def main(words: list[str]) -> None:
    """Check, and unless only that is asked for, write."""
    only = words[:1] == ["--check"]
    tag = "".join(words[only:])
    try:
        check(tag) if only else write(tag)
    except ValueError as wrong:
        sys.exit(str(wrong))


if __name__ == "__main__":
    main(sys.argv[1:])
