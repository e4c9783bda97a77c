"""One cell of every table and figure, end to end: on its own data where the files are there, else on a stand-in.

The files are looked for beside the repository and in its folder `data`. CIFAR-100, Tiny ImageNet, FC100 and DomainNet
are in neither, nor is an encoder: where a table has nothing else, digits or digit-domains stand in.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from protofed.data import describe
from protofed.runs.progress import Progress
from protofed.studies.papers import find_target, target_names
from protofed.studies.reproduction import ReproductionStudy

ROOT = Path(__file__).parents[3]
PLACES = [place for place in (ROOT / "data", ROOT.parent / "shared" / "data") if place.is_dir()]


def one_trial(name: str) -> ReproductionStudy:
    """The last trial of a target that can be run, the paper's own method as a rule."""
    machine: dict[str, Any] = {"engine": "sequential", "device": "cpu", "threads": 1}
    for place in PLACES:
        study = ReproductionStudy(name, "tiny", seeds=1, jobs=1, machine=machine | {"data_dir": str(place)})
        if study.trials():
            break
    else:
        study = ReproductionStudy(name, "stand-in", seeds=1, jobs=1, machine=machine)
    last = study.trials()[-1].name
    *_, cell = (cell for cell in study.table.cells if cell.trial and cell.trial.name == last)
    words = [word for word in cell.setting.split(";") if not word.startswith("domain=")]
    return dataclasses.replace(study, only=[cell.dataset, *words], methods=[cell.method])


@pytest.mark.slow
@pytest.mark.parametrize("name", target_names())
def test_a_cell_runs_from_end_to_end(name: str, tmp_path: Path) -> None:
    study = one_trial(name)
    cells = study.table.cells
    print(f"{name}: {study.variant}, {cells[0].dataset}, {cells[0].method}")
    folder = tmp_path / "table"
    done = study.begin(folder).play(folder, Progress())
    assert [row.cell for row in done.rows] == list(cells)
    for row in done.rows:
        if row.cell.metric.startswith("rounds_to"):  # too short to get there
            assert row.ours is not None or "not reached" in row.missing
        else:
            assert row.ours is not None
            assert row.ours.mean >= 0
    written = json.loads((folder / "table.json").read_text())
    assert [cell["paper"] for cell in written["cells"]] == [cell.published for cell in cells]


def test_every_dataset_of_the_papers_has_a_reader() -> None:
    known = {row["name"] for row in describe(None)}
    for name in target_names():
        for trial in find_target(name).trials():
            assert {*trial.values["dataset"].split("+"), trial.values.get("public", "mnist")} <= known
