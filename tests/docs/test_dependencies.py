"""What `pip install protofed` brings is enough to run; the rest is for extras."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

WITHOUT = """
import sys
from importlib.machinery import PathFinder
absent = set(sys.argv.pop(1).split(","))
class Present(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else PathFinder.find_spec(name, path, target)
sys.meta_path = [Present if finder is PathFinder else finder for finder in sys.meta_path]
from protofed.cli import main
try:
    main()
finally:
    print("torch.compile:", "torch._dynamo" in sys.modules)
"""


def needed(name: str, found: set[str]) -> set[str]:
    """A distribution and all that it cannot do without."""
    if canonicalize_name(name) not in found:
        found.add(canonicalize_name(name))
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needed(requirement.name, found)
    return found


def test_a_run_needs_nothing_of_the_extras(tmp_path: Path) -> None:
    base = needed("protofed", set())
    absent = {
        module
        for module, sources in packages_distributions().items()
        if module.isidentifier() and not base & {canonicalize_name(source) for source in sources}
    }
    assert {"pytest", "flwr", "dp_accounting"} <= absent
    assert not {"torch", "numpy", "protofed"} & absent
    words = ("run", "--method", "fedproto", "--rounds", "1", "--model", "cnn", "--train-size", "100", "--out", "run")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, ",".join(absent), *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/result.json").exists()
    assert done.stdout.endswith("torch.compile: False\n")  # to import it takes longer than such a run
