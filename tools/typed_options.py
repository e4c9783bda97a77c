"""python -m tools.typed_options: write Options, the keyword arguments of protofed.run.  make typed-options"""

from __future__ import annotations

from pathlib import Path

from protofed.experiment import PATHS, Experiment, options

MODULE = Path(__file__).parent.parent / "src" / "protofed" / "experiment.py"
BEGIN, END = "# Options: written by `make typed-options`.\n", "# End of Options.\n"
OWN = ("method", "model", "split")
"""Arguments of their own: they may be objects."""


def main() -> None:
    """Write them into the module."""
    MODULE.write_text(written(MODULE.read_text(encoding="utf-8")), encoding="utf-8")


def written(source: str) -> str:
    """The text of the module with the options that its fields ask for."""
    before, _, rest = source.partition(BEGIN)
    _, _, after = rest.partition(END)
    kinds = {name: Experiment.__annotations__[name].replace("'", '"') for name in options() if name not in OWN}
    kinds |= {name: f"Path | {kinds[name]}" for name in PATHS}
    lines = "".join(f"    {name}: {kind}\n" for name, kind in kinds.items())
    head = (
        'class Options(TypedDict, total=False):\n    """The fields of Experiment that calls name, with their types."""'
    )
    return f"{before}{BEGIN}{head}\n\n{lines}\n\n{END}{after}"


if __name__ == "__main__":
    main()
