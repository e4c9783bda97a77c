"""python -m tools.constraints [PACKAGE…]: the version of each package, with the hashes of its files.  make constraints

uv resolves for all systems and Pythons at once, and takes hashes from the package index that it is set up with.
Versions stay as they are, but for those of the packages that are named, which become the newest.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tools.lowest import PYPROJECT

ROOT = PYPROJECT.parent
PYTHON = "3.11.5"  # the oldest that packages of the extra docs still take
SETS = {"all": ("--all-extras",), "base": (), "flower": ("--extra", "flower")}
"""The files in requirements, and what each covers: the first is resolved, the others follow it."""

HEAD = "# The versions that the README's commands install; pyproject.toml keeps ranges. Made by `make constraints`.\n"


class Pin(NamedTuple):
    """A package of a file with hashes."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def pins(text: str) -> list[Pin]:
    """The packages of a file that uv wrote."""
    found = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        head = re.match(r"([\w.-]+)==([^\s;\\]+)(?: ; ([^\\\n]+?))?(?: \\)?(?:\n|$)", block)
        if head is None:
            raise ValueError(f"not NAME==VERSION: {block.partition(chr(10))[0]}")
        hashes = tuple(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
        found.append(Pin(head[1], head[2], head[3] or "", hashes))
    return found


def constraints(found: list[Pin]) -> str:
    """The versions alone, as pip's constraints; a marker where systems or Pythons have different ones."""
    times = Counter(pin.name for pin in found)
    lines = [f"{pin.name}=={pin.version}" + (f" ; {pin.marker}" if times[pin.name] > 1 else "") for pin in found]
    return HEAD + "".join(f"{line}\n" for line in lines)


def write(root: Path, newest: list[str]) -> None:
    """Write constraints.txt and the files in requirements of a project."""
    for name, extras in SETS.items():
        asked = [sys.executable, "-m", "uv", "pip", "compile", "pyproject.toml", "--universal", "--generate-hashes"]
        asked += ["--no-header", "--no-annotate", "--quiet", "--python-version", PYTHON]
        asked += ["--python", sys.executable, "--output-file", f"requirements/{name}.txt", *extras]
        if name == "all":
            asked += [word for package in newest for word in ("--upgrade-package", package)]
        else:
            asked += ["--constraints", "constraints.txt"]
        subprocess.run(asked, cwd=root, check=True, stdout=subprocess.DEVNULL)
        found = pins((root / f"requirements/{name}.txt").read_text(encoding="utf-8"))
        if name == "all":
            (root / "constraints.txt").write_text(constraints(found), encoding="utf-8")


if __name__ == "__main__":
    write(ROOT, sys.argv[1:])
