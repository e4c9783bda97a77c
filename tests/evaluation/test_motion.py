"""What a run keeps for its motion: the samples stay, answers are those of the evaluation, the file is bounded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from protofed import api
from protofed.data import Client, Federation, Samples
from protofed.errors import UserError
from protofed.evaluation import motion
from protofed.evaluation.motion import LARGEST, Motion, Recorder, key_rounds
from protofed.experiment import Experiment
from protofed.prototypes import class_means
from protofed.runs.folder import RunFolder
from protofed.runs.progress import Progress
from protofed.runs.run import Run, new_run

SMALL: dict[str, Any] = {"dataset": "digits", "train_size": 90, "clients": 3, "device": "cpu", "threads": 1}


def played(rounds: int = 2, **settings: Any) -> tuple[Run, Motion]:
    """A run and what was kept of all its rounds."""
    run = new_run(Experiment.from_mapping({**SMALL, "method": "fedproto", "rounds": rounds, **settings}))
    recorder = Recorder(run.engine, run.federation, run.experiment.seed, rounds)
    for _ in range(rounds):
        last = run.play_round()
        recorder.keep(last.round, run.broadcast, last.participants)
    return run, recorder.motion


@given(st.integers(1, 10_000))
def test_up_to_thirty_rounds_are_kept_the_first_and_the_last_among_them(rounds: int) -> None:
    kept = key_rounds(rounds)
    assert len(kept) == min(rounds, motion.ROUNDS)
    assert {1, rounds} <= kept
    assert min(kept) == 1
    assert max(kept) == rounds


@pytest.mark.parametrize("method", ["fedproto", "fedavg", "mp-fedcl", "ditto"])
def test_answers_are_those_of_the_evaluation(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all of a client's own test samples are kept, as many are answered rightly as its accuracy says."""
    monkeypatch.setattr(motion, "POINTS", 10**4)
    run, seen = played(method=method, split="iid")
    model, _, rule = run.method.score.split("/")
    for at, round in enumerate(run.history):
        right = seen.answers[at] == seen.points[:, 0]
        for member, accuracy in enumerate(round.per_client[f"{model}/own/{rule}"]):
            mine = seen.points[:, 1] == member
            assert int(mine.sum()) == len(run.federation.clients[member].own)
            assert 100 * float(right[mine].float().mean()) == pytest.approx(accuracy)


def test_prototypes_are_the_clients_class_means_and_the_servers() -> None:
    run, seen = played(model="cnn")
    (group,) = run.engine.groups
    last = seen.marks[:, 0] == 1
    vectors, marks = seen.vectors[last].float(), seen.marks[last]
    assert seen.kinds == ["local", "global"]
    for row in range(3):
        features, labels = run.engine.embed(group, [row], group.own.take([row]))
        means = class_means(features, labels, 10).take(0)
        mine = (marks[:, 1] == 0) & (marks[:, 3] == row)
        assert marks[mine, 2].tolist() == means.present.nonzero().flatten().tolist()
        torch.testing.assert_close(vectors[mine], means.vectors[means.filled], atol=5e-3, rtol=5e-3)  # float16
    sent = run.broadcast.prototypes["global"]
    torch.testing.assert_close(vectors[marks[:, 1] == 1], sent.vectors[sent.filled], atol=5e-3, rtol=5e-3)


def test_both_engines_keep_the_same() -> None:
    options: dict[str, Any] = {"precision": "float64", "model": "cnn", "method": "mp-fedcl", "params": {"k": 2}}
    (_, one), (_, other) = (played(engine=engine, **options) for engine in ("sequential", "stacked"))
    for name, value in vars(one).items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, getattr(other, name))
        else:
            assert value == getattr(other, name)


def test_looking_changes_no_round() -> None:
    run, _ = played(method="mp-fedcl")
    without = new_run(run.experiment)
    for _ in range(2):
        without.play_round()
    assert [replace(one, seconds=0) for one in run.history] == [replace(one, seconds=0) for one in without.history]


def test_the_largest_motion_fits_into_its_bound(tmp_path: Path) -> None:
    """As large as anything is: thirty rounds, long features, coloured pictures, many classes and clients."""
    rounds, marks = motion.ROUNDS, motion.ROUNDS * 2 * motion.PROTOTYPES
    points = motion.POINTS
    seen = Motion(
        *("own", "nearest", [f"class {n}" for n in range(100)], ["all"], ["local", "global"]),
        rounds=list(range(1, rounds + 1)),
        rows=["x" * motion.TEXT] * points,
        points=torch.zeros(points, 3, dtype=torch.int32),
        pictures=torch.zeros(points, 3, motion.SIDE, motion.SIDE, dtype=torch.uint8),
        features=torch.zeros(rounds, points, motion.SIZE, dtype=torch.float16),
        answers=torch.zeros(rounds, points, dtype=torch.int16),
        vectors=torch.zeros(marks, motion.SIZE, dtype=torch.float16),
        marks=torch.zeros(marks, 5, dtype=torch.int32),
    )
    seen.write(tmp_path / "motion.safetensors")
    assert (tmp_path / "motion.safetensors").stat().st_size < LARGEST
    Motion.read(tmp_path / "motion.safetensors")


def test_many_clients_classes_and_long_features_are_bounded() -> None:
    labels = torch.arange(1200) % 60
    clients = [
        Client.of(Samples.of(torch.randn(120, 40), labels[:120]), Samples.of(torch.randn(1200, 40), labels))
    ] * 24
    federation = Federation(tuple(clients), tuple(map(str, range(60))))
    plan = Experiment(method="fedpcl", rounds=2, eval_every=2, device="cpu", threads=1)
    run = new_run(plan, federation=federation)
    recorder = Recorder(run.engine, federation, 0, 1)
    run.play_round()
    recorder.keep(1, run.broadcast, range(12))
    seen = recorder.motion
    assert len(seen.points) == motion.POINTS
    assert len(recorder.clients) == motion.CLIENTS
    kinds = seen.marks[:, 1].bincount()
    assert kinds.tolist() == [motion.PROTOTYPES, motion.PROTOTYPES]
    assert seen.pictures.dim() == 1
    assert seen.features.shape[-1] <= motion.SIZE


def test_it_is_kept_beside_the_run_or_not_at_all(tmp_path: Path) -> None:
    for wanted in (True, False):
        run = new_run(Experiment.from_mapping({**SMALL, "method": "fedproto", "rounds": 1, "motion": wanted}))
        folder = RunFolder.create(tmp_path / str(wanted), run.experiment)
        run.play(folder, Progress())
        assert folder.motion.is_file() == wanted


def test_rows_of_a_table_and_words_are_told(tmp_path: Path) -> None:
    table = tmp_path / "some.csv"
    table.write_text("age,sex,label\n" + "".join(f"{20 + n},{'fm'[n % 2]},{n % 2}\n" for n in range(60)))
    api.run("fedproto", dataset=f"csv:{table}", split="iid", clients=2, rounds=1, out=tmp_path / "run")
    seen = Motion.read(tmp_path / "run/motion.safetensors")
    assert len(seen.rows) == len(seen.points)
    assert all(row.startswith("age=") for row in seen.rows)


def test_what_diverged_is_cut_to_what_the_file_holds() -> None:
    run, _ = played(1)
    recorder = Recorder(run.engine, run.federation, 0, 1)
    recorder.projection = None
    kept = recorder._kept(torch.tensor([[float("nan"), float("inf"), -1e9, 2.0]]))
    assert kept.tolist() == [[0.0, 65504.0, -65504.0, 2.0]]


@pytest.mark.parametrize(
    "change",
    [
        {"rounds": [2, 1]},
        {"rounds": [1]},
        {"classes": ["one"]},
        {"rows": ["one", "two"]},
        {"answers": torch.full((2, 1), 99, dtype=torch.int16)},
        {"features": torch.full((2, 1, 2), float("nan"), dtype=torch.float16)},
        {"pictures": torch.zeros(1, 3, 99, 99, dtype=torch.uint8)},
        {"marks": torch.tensor([[5, 0, 0, 0, 0]], dtype=torch.int32)},
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    seen = Motion(
        *("own", "head", ["a", "b"], ["all"], ["local"], [1, 2], []),
        points=torch.tensor([[1, 0, 0]], dtype=torch.int32),
        pictures=torch.zeros(0, dtype=torch.uint8),
        features=torch.zeros(2, 1, 2, dtype=torch.float16),
        answers=torch.zeros(2, 1, dtype=torch.int16),
        vectors=torch.zeros(1, 2, dtype=torch.float16),
        marks=torch.zeros(1, 5, dtype=torch.int32),
    )
    seen.write(tmp_path / "good")
    assert Motion.read(tmp_path / "good").rounds == [1, 2]
    replace(seen, **change).write(tmp_path / "bad")
    with pytest.raises(UserError, match="cannot be read"):
        Motion.read(tmp_path / "bad")
