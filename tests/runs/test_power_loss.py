"""A run whose machine loses power at any moment goes on from its folder: nothing but the last round is lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from torch import Tensor

from protofed.errors import UserError
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress, Standing
from protofed.runs.run import Run
from tests.support.nets import Plain, gap, play
from tests.support.power_loss import Disk, recorded

ROUNDS = 3


def begun(every: int) -> Run:
    """A run whose rounds are still to be played, with clients of whom some rest in each."""
    run = play("fedproto", model=Plain, rounds=0, participation=0.6)
    run.experiment = dataclasses.replace(run.experiment, rounds=ROUNDS, checkpoint_every=every)
    return run


class Counting(Progress):
    """Tells a disk which rounds its user has seen."""

    def __init__(self, disk: Disk) -> None:
        self.disk = disk

    def tell(self, standing: Standing) -> None:
        self.disk.finished = standing.done


def states(every: int) -> dict[int, dict[str, Tensor]]:
    """The state of a run after each round, without a folder."""
    run, found = begun(every), {}
    for number in range(1, ROUNDS + 1):
        run.play_round()
        found[number] = run.state()
    return found


@pytest.mark.parametrize("every", [1, 2])
def test_after_any_loss_of_power_a_run_goes_on(tmp_path: Path, every: int) -> None:
    (tmp_path / "runs").mkdir()
    with recorded(tmp_path / "runs") as disk:
        run = begun(every)
        run.play(RunFolder.create(tmp_path / "runs/run", run.experiment), Counting(disk))
    expected = states(every)
    assert gap(run.state(), expected[ROUNDS]) == 0
    assert len(disk.images) > 10 * ROUNDS / every
    found = set()
    for number, (finished, image) in enumerate(disk.images):
        place = tmp_path / f"image-{number}"
        disk.write(image, place)
        found.add(restored(place / "run", finished, every, expected))
    assert found == {None, 0, *(number for number in range(1, ROUNDS + 1) if number % every == 0 or number == ROUNDS)}


def restored(place: Path, finished: int, every: int, expected: dict[int, dict[str, Tensor]]) -> int | None:
    """How many rounds are left; none where there is no folder yet."""
    if not place.exists():
        assert finished == 0
        return None
    run = begun(every)
    folder = RunFolder.open(place)
    assert folder.experiment() == run.experiment
    run.restore(folder)
    left = len(run.history)
    assert left >= (finished - 1) // every * every
    if left:
        assert gap(run.state(), expected[left]) == 0
    if folder.result.exists():
        assert left == ROUNDS
    return left


@pytest.mark.parametrize("module", ["internal.atomic_files", "runs.checkpoint"])
def test_without_syncing_rounds_would_be_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """The recording finds what is not synced."""
    monkeypatch.setattr(f"protofed.{module}.sync", lambda _: None)
    (tmp_path / "runs").mkdir()
    with recorded(tmp_path / "runs") as disk:
        run = begun(1)
        run.play(RunFolder.create(tmp_path / "runs/run", run.experiment), Counting(disk))
    lost, expected = 0, states(1)
    for number, (finished, image) in enumerate(disk.images):
        disk.write(image, tmp_path / f"image-{number}")
        try:
            restored(tmp_path / f"image-{number}/run", finished, 1, expected)
        except (AssertionError, UserError):
            lost += 1
    assert lost
