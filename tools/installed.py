"""python -m tools.installed ARCHIVE…: install each into an empty environment, and run the first tutorial there.

Packages are those of constraints.txt, from the package index that pip is set up with; nothing of this folder is found
from there.  make test-install
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from tools.lowest import PYPROJECT

ROOT = PYPROJECT.parent
TUTORIAL = ROOT / "docs" / "tutorials" / "first-comparison.md"
LESS = ((r"--rounds \d+", "--rounds 1"), (r"--seeds \d+", "--seeds 1"))
"""What of the tutorial is made smaller."""


def commands(page: str) -> str:
    """What a page has its reader type, with less to train."""
    lines = "".join(re.findall(r"^```sh\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL))
    for pattern, less in LESS:
        lines = re.sub(pattern, less, lines)
    return lines


def play(archive: Path, page: str, options: tuple[str, ...]) -> list[str]:
    """Install an archive, run the commands of a page in an empty folder, and say which files that made.

    Raises:
        subprocess.CalledProcessError: it was not installed, or a command failed.
    """
    with tempfile.TemporaryDirectory() as made:
        place, here = Path(made, "environment"), Path(made, "here")
        here.mkdir()
        venv.create(place, with_pip=True)
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["PATH"] = os.pathsep.join([str(place / "bin"), os.environ["PATH"]])
        pip = [str(place / "bin/python"), "-m", "pip", "install", "--quiet", "--no-compile"]
        subprocess.run([*pip, *options, str(archive)], env=environment, check=True)
        subprocess.run(["bash", "-euxo", "pipefail", "-c", commands(page)], cwd=here, env=environment, check=True)
        return sorted(str(path.relative_to(here)) for path in here.rglob("*") if path.is_file())


if __name__ == "__main__":
    for archive in sys.argv[1:]:
        files = play(Path(archive).resolve(), TUTORIAL.read_text("utf-8"), ("-c", str(ROOT / "constraints.txt")))
        if "compared/report.html" not in files:
            sys.exit(f"{archive}: no report among {files}")
        print(f"{archive}: the first tutorial made {len(files)} files")
