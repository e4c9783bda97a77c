"""The run folder: whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.internal.atomic_files import write_text
from protofed.internal.digests import parse_json
from protofed.runs.folder import RunFolder, fresh_path, make_folder
from tests.support.made_rounds import a_round


class Killed(BaseException):
    """Stands for SIGKILL."""


def die(*_: object, **__: object) -> None:
    """Stop right here."""
    raise Killed


def test_a_write_that_is_killed_leaves_the_old_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_text(tmp_path / "file", "old")
    monkeypatch.setattr("os.replace", die)
    with pytest.raises(Killed):
        write_text(tmp_path / "file", "new")
    assert (tmp_path / "file").read_text() == "old"


def test_a_folder_that_is_killed_while_it_is_made_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", die)
        with pytest.raises(Killed):
            RunFolder.create(tmp_path / "run", Experiment())
    assert not (tmp_path / "run").exists()
    assert RunFolder.create(tmp_path / "run", Experiment(rounds=3)).experiment() == Experiment(rounds=3)


def test_a_new_folder_holds_the_experiment_alone(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "some/where/run", Experiment())
    assert [path.name for path in folder.path.iterdir()] == ["config.yaml"]
    assert [path.name for path in folder.path.parent.iterdir()] == ["run"]
    assert RunFolder.open(folder.path).experiment() == Experiment()


def test_an_existing_folder_is_never_taken(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="exists"):
        make_folder(tmp_path / "empty", "name", "text")
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_folder_that_cannot_be_made_leaves_no_draft(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UserError, match="No space left on device"):
        make_folder(tmp_path / "run", "name", "text")
    assert list(tmp_path.iterdir()) == []


def test_rounds_are_cut_back_to_the_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    lines = [a_round(number, loss=number / 3) for number in (1, 2, 3)]
    for line in lines:
        folder.append_round(line)
    with folder.rounds.open("a") as file:
        file.write('{"round": 4, "val')
    kept = folder.read_rounds(2)
    assert kept == lines[:2]
    folder.keep_rounds(kept)
    assert [parse_json(line) for line in folder.rounds.read_text().splitlines()] == [one.to_json() for one in lines[:2]]
    folder.append_round(lines[2])
    assert folder.read_rounds(3) == lines


def test_one_process_plays_a_run(tmp_path: Path) -> None:
    first = RunFolder.create(tmp_path / "run", Experiment())
    second = RunFolder.open(tmp_path / "run")
    with first:
        with pytest.raises(UserError, match="another process is running it"):
            second.claim()
        with pytest.raises(UserError, match="another process"), second:
            pass
    with second.claim():
        pass


def test_rounds_out_of_order_are_refused(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    for number in (1, 2, 2):
        folder.append_round(a_round(number))
    with pytest.raises(UserError, match="invalid value '2' for round in line 3: it must be 3"):
        folder.played()


@pytest.mark.parametrize(
    ("name", "path"),
    [("a", "a"), ("ü" * 300, "ü" * 100), ("a-npz:/b/c.npz-seed0", "a-npz:-b-c.npz-seed0"), ("../a", "..-a")],
)
def test_a_new_folder_is_never_elsewhere(tmp_path: Path, name: str, path: str) -> None:
    assert fresh_path(name, tmp_path) == tmp_path / path
    (tmp_path / path).mkdir()
    assert fresh_path(name, tmp_path) == tmp_path / f"{path}-2"


WRONG: dict[str, Any] = {
    "round": None,
    "loss": float("nan"),
    "seconds": 10**400,
    "participants": [0, 1],
    "per_client": {"own/own/head": [1.0]},
    "scalars_up": {"weights": 3},
    "prototypes": {"pool": {"each": [1], "padded": "no", "drift": None}},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_line_that_is_not_a_rounds_is_one_error(tmp_path: Path, name: str) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    folder.rounds.write_text(json.dumps({**a_round(1).to_json(), name: WRONG[name]}) + "\n")
    for read in (folder.played, lambda: folder.read_rounds(1)):
        with pytest.raises(UserError, match=rf"run.*rounds\.jsonl cannot be read.*{name} in line 1"):
            read()


@pytest.mark.parametrize("content", [b"\xff\n", b"[" * 10_000 + b"\n", b"1\n", b"{}\n", b"9" * 5000 + b"\n"])
def test_rounds_that_are_no_lines_are_one_error(tmp_path: Path, content: bytes) -> None:
    folder = RunFolder.create(tmp_path / "run", Experiment())
    folder.rounds.write_bytes(content)
    with pytest.raises(UserError, match=r"rounds\.jsonl cannot be read"):
        folder.played()


def test_fresh_paths_are_numbered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for expected in ("runs/a", "runs/a-2", "runs/a-3"):
        path = fresh_path("a")
        assert path == Path(expected)
        path.mkdir(parents=True)
