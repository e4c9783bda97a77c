"""A method as a directory in the form of Flower's own baselines: it needs Flower and PyTorch, and nothing of ProtoFed.

Its files are templates in `baseline/`: those of a method in a folder with the method's name, what they share in
`common/`. Tests hold what is made to the method's own results (tests/deploy/test_flower_baseline.py).
"""

from __future__ import annotations

from pathlib import Path

from protofed.errors import UserError, unknown
from protofed.internal.atomic_files import write_folder
from protofed.internal.yaml_files import read_yaml

HERE = Path(__file__).parent / "baseline"
CODE = ("__init__", "client_app", "dataset", "model", "prototypes", "server_app", "strategy", "utils")


def baselines() -> list[str]:
    """The methods that there are templates of."""
    return sorted(path.parent.name for path in HERE.glob("*/baseline.yaml"))


def write_baseline(folder: Path, method: str) -> None:
    """Write a method as a Flower baseline into a new folder.

    Args:
        folder: the new folder.
        method: one of `baselines()`.

    Raises:
        UserError: the folder is there already, or there is no such baseline.
    """
    if method not in baselines():
        raise unknown("--method", method, baselines())
    if folder.exists():
        raise UserError("DIR", str(folder), "it exists already", hint="name a new folder")
    package = method.replace("-", "_")
    places = {
        "README.md": "README.md",
        "pyproject.toml": "pyproject.toml",
        "gitignore": ".gitignore",
        "mnist.toml": "conf/mnist.toml",
        **{f"{name}.py": f"{package}/{name}.py" for name in CODE},
    }

    def fill(draft: Path) -> None:
        for name, place in places.items():
            (draft / place).parent.mkdir(exist_ok=True)
            (draft / place).write_text(_rendered(method, name, package), encoding="utf-8")

    write_folder(folder, fill)


def _rendered(method: str, name: str, package: str) -> str:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    said = read_yaml(HERE / method / "baseline.yaml")
    place = method if (HERE / method / f"{name}.j2").exists() else "common"
    templates = Environment(
        loader=FileSystemLoader(HERE), undefined=StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    return templates.get_template(f"{place}/{name}.j2").render(**said, package=package)
