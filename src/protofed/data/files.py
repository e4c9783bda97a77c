"""Finding the files of a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from protofed.errors import UserError


def find_files(dataset: str, data_dir: Path | None, names: Sequence[str]) -> list[Path]:
    """The paths of these files, in data_dir or its folder for the dataset, written with dashes or underscores."""
    if data_dir is None:
        raise UserError("--data-dir", None, f"{dataset} is read from files: give the folder with {', '.join(names)}")
    spellings = dict.fromkeys((dataset, dataset.replace("-", "_"), dataset.replace("_", "-")))
    folders = [data_dir, *(data_dir / spelling for spelling in spellings)]
    found = []
    for name in names:
        paths = [folder / name for folder in folders if (folder / name).is_file()]
        if not paths:
            searched = ", ".join(str(folder) for folder in folders)
            raise UserError("--data-dir", str(data_dir), f"{dataset} needs the file {name}; looked in {searched}")
        found.append(paths[0])
    return found
