"""python -m tools.lowest: the lowest versions that pyproject.toml allows, as constraints of pip.  make test-lowest"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

PYPROJECT = Path(__file__).parent.parent / "pyproject.toml"


def lowest(pyproject: str) -> str:
    """A line NAME==VERSION for every package that the wheel asks for; it runs before anything is installed."""
    asked = tomllib.loads(pyproject)["project"]["dependencies"]
    bounds = [re.fullmatch(r"([\w.-]+)>=([\w.]+)", text) for text in asked]
    return "".join(f"{bound[1]}=={bound[2]}\n" for bound in bounds if bound)


if __name__ == "__main__":
    print(lowest(PYPROJECT.read_text(encoding="utf-8")), end="")
