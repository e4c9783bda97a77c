"""A bit that flips in a file of a run folder, of a study or of cached data is named, or changes nothing."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from protofed.data.federation_file import read_federation, write_federation
from protofed.data.sources import cache
from protofed.errors import UserError
from protofed.evaluation.motion import Motion
from protofed.evaluation.snapshot import Snapshot
from protofed.experiment import Experiment
from protofed.internal.tensor_files import read_tensors
from protofed.report.html import gather
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.result import Result
from protofed.runs.run import Run
from protofed.studies.comparison import ComparisonStudy
from tests.support.nets import Plain, federation, play, source

FLIPS = 20
"""Of each file."""


def begun() -> Run:
    """A run whose rounds are still to be played."""
    run = play("fedproto", model=Plain, rounds=0)
    run.experiment = dataclasses.replace(run.experiment, rounds=2)
    return run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a complete run, and with files that only other folders have."""
    path, run = tmp_path_factory.mktemp("whole"), begun()
    run.play(RunFolder.create(path / "run", run.experiment), Progress())
    FailedRun("fedavg", 0, "failed", "a reason", round=2, client=1).write(path)
    write_federation(federation([{0: 9, 1: 3}, {1: 9}], test=20), path / "federation.safetensors")
    ComparisonStudy(["fedavg"], Experiment(rounds=2), seeds=1).begin(path / "study")
    cache._write(path / "cached.safetensors", source())
    return path


def state(path: Path) -> object:
    """What a run goes on from."""
    run, folder = begun(), RunFolder.open(path / "run")
    assert folder.experiment().rounds == 2
    run.restore(folder)
    return folder.experiment(), run.history, {name: tensor.tolist() for name, tensor in run.state().items()}


def report(path: Path) -> object:
    """What a report shows."""
    found = gather([path / "run"])  # which also says when files were changed
    return repr([found[name] for name in ("summary", "scores", "lines", "looks", "incomplete", "trust")])


def result(path: Path) -> object:
    """What a run came to, with its rounds."""
    found = Result.read(path / "run")
    return found, found.history


def whole_federation(path: Path) -> object:
    """Every number of a federation."""
    found = read_federation(path / "federation.safetensors")
    return [(one.train.x.tolist(), one.train.labels.tolist(), one.own.tolist()) for one in found.clients], found.classes


def cached(path: Path) -> object:
    """A dataset that was decoded before; a reader that fails makes it again."""
    try:
        found = cache._read(path / "cached.safetensors")
    except Exception as error:
        raise UserError("cache", "cached", str(error)) from None
    return float(found.train.x.sum()), found.classes, found.preparation, found.train.labels.tolist()


def motion(path: Path) -> object:
    """What the report plays."""
    found = vars(Motion.read(path / "run" / "motion.safetensors"))
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in found.items()}


READ: dict[str, tuple[Callable[[Path], object], ...]] = {
    "run/config.yaml": (state,),
    "run/rounds.jsonl": (state, report, result),
    "run/result.json": (result,),
    "run/checkpoint/state.safetensors": (state,),
    "run/checkpoint/clients-0.bin": (state,),
    "run/snapshot.safetensors": (report, lambda path: repr(Snapshot.read(path / "run/snapshot.safetensors"))),
    "run/motion.safetensors": (motion,),
    "failure.json": (FailedRun.read,),
    "federation.safetensors": (whole_federation,),
    "study/compare.yaml": (lambda path: ComparisonStudy.open(path / "study"),),
    "cached.safetensors": (cached,),
}


@pytest.mark.parametrize("name", READ)
def test_a_flipped_bit_is_named_or_harmless(whole: Path, name: str) -> None:
    file, draws = whole / name, random.Random(name)
    content = file.read_bytes()
    expected = [read(whole) for read in READ[name]]
    refused = 0
    places = [draws.randrange(8 * len(content)) for _ in range(FLIPS)]
    places += range(8 * len(content) - 8, 8 * len(content))  # the end of the last line
    try:
        for place in places:
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            file.write_bytes(damaged)
            for read, right in zip(READ[name], expected, strict=True):
                try:
                    assert read(whole) == right, place
                except UserError as error:
                    refused += "\n" not in str(error)
    finally:
        file.write_bytes(content)
    assert refused >= FLIPS / 4


@pytest.mark.parametrize("name", ["run/config.yaml", "study/compare.yaml"])
def test_every_bit_of_what_was_asked_for(whole: Path, name: str) -> None:
    """Text in which a bit may turn one value into another that is just as good."""
    file = whole / name
    content = file.read_bytes()

    def read() -> object:
        if name.startswith("run"):
            return RunFolder.open(whole / "run").experiment()
        return ComparisonStudy.open(whole / "study")

    expected = read()
    try:
        for place in range(0, 8 * min(len(content), 70)):
            damaged = bytearray(content)
            damaged[place // 8] ^= 1 << place % 8
            file.write_bytes(damaged)
            try:
                assert read() == expected, place
            except UserError:
                continue
    finally:
        file.write_bytes(content)


def test_a_folder_of_before_has_no_digests_and_is_read(whole: Path) -> None:
    file = whole / "run/config.yaml"
    content = file.read_bytes()
    expected = RunFolder.open(whole / "run").experiment()
    try:
        file.write_text(expected.to_yaml())
        assert RunFolder.open(whole / "run").experiment() == expected
    finally:
        file.write_bytes(content)


def test_a_file_of_tensors_that_must_have_a_digest(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a": torch.ones(2)}, tmp_path / "a")
    assert read_tensors(tmp_path / "a")[0]["a"].tolist() == [1, 1]
    with pytest.raises(KeyError):
        read_tensors(tmp_path / "a", always=True)
