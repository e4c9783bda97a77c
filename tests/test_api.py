"""The Python interface: names or objects in, typed results out."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import yaml
from torch import Tensor, nn

import protofed
from protofed.api import AnyMethod
from protofed.data import Dataset, federate, load
from protofed.data.build import federation_of
from protofed.data.splits import Split
from protofed.errors import UserError
from protofed.methods.base import Batch, Turn, cross_entropy
from protofed.methods.fedavg import FedAvg
from protofed.models.net import Net
from protofed.report.html import gather
from protofed.runs.folder import RunFolder
from protofed.runs.result import Result
from protofed.studies import workers
from protofed.studies.comparison import Comparison
from tests.support.command_line import result_of, succeed

SMALL: dict[str, Any] = {"train_size": 150, "clients": 3, "rounds": 2, "device": "cpu", "threads": 1}


@dataclass(frozen=True)
class Halved(FedAvg):
    """Half the loss: a method that a user might write."""

    name: ClassVar[str] = "halved"
    factor: float = 0.5

    def loss(self, model: Net, batch: Batch, turn: Turn) -> Tensor:  # noqa: ARG002
        """Less of it."""
        return self.factor * cross_entropy(model(batch.x).logits, batch.y)


def net(shape: tuple[int, int, int], classes: int) -> nn.Module:
    """A model that a user might write."""
    return nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 6), nn.ReLU(), nn.Linear(6, classes))


def own_federation() -> protofed.Federation:
    """Two clients with images of 4×4 and three classes: bright, dark and grey."""

    def samples(size: int, seed: int) -> protofed.Samples:
        labels = torch.arange(size) % 3
        noise = torch.randint(0, 40, (size, 1, 4, 4), generator=torch.Generator().manual_seed(seed))
        return protofed.Samples.of((noise + 100 * labels.view(-1, 1, 1, 1)).to(torch.uint8), labels)

    pool = samples(30, 9)
    clients = tuple(protofed.Client.of(samples(size, size), pool) for size in (24, 36))
    return protofed.Federation(clients, ("dark", "grey", "bright"))


def test_a_run_by_names_is_the_run_of_the_command_line(tmp_path: Path) -> None:
    result = protofed.run("fedproto", model="cnn", out=tmp_path / "python", **SMALL)
    options = [text for name, value in SMALL.items() for text in (f"--{name.replace('_', '-')}", str(value))]
    succeed(tmp_path, "run", "--method", "fedproto", "--model", "cnn", *options, "--out", "shell", "--quiet")
    assert result_of(tmp_path / "python") == result_of(tmp_path / "shell")
    assert Result.read(tmp_path / "python") == result
    assert result.folder == str(tmp_path / "python")


def test_a_run_without_out_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = protofed.run("local", model="cnn", **SMALL)
    assert result.folder is None
    assert list(tmp_path.iterdir()) == []


def test_results_are_typed() -> None:
    result = protofed.run("mp-fedcl", model="cnn", params={"k": 3}, **SMALL)
    assert isinstance(result, Result)
    assert (result.method, result.clients, result.rounds, result.params["k"]) == ("mp-fedcl", 3, 2, 3)
    score = result.accuracy[result.score]
    assert score.last == pytest.approx(sum(score.per_client) / 3)


def test_a_method_object_is_the_method_of_that_name() -> None:
    named = protofed.run("fedavg", model="cnn", **SMALL)
    assert protofed.run(FedAvg(), model="cnn", **SMALL).accuracy == named.accuracy
    halved = protofed.run(Halved(), model="cnn", **SMALL)
    assert (halved.method, halved.params["factor"]) == ("halved", 0.5)
    assert protofed.run(Halved(factor=1.0), model="cnn", **SMALL).accuracy == named.accuracy
    assert halved.accuracy != named.accuracy


def test_a_model_may_be_a_callable() -> None:
    result = protofed.run("fedproto", model=net, **SMALL)
    assert result.model_parameters == [64 * 6 + 6 + 6 * 10 + 10]
    assert result.model == "tests.test_api:net"


def test_a_federation_of_ones_own_is_learnt() -> None:
    result = protofed.run("fedavg", model=net, federation=own_federation(), rounds=30, batch_size=4, device="cpu")
    assert (result.clients, result.dataset, result.rounds) == (2, "custom", 30)
    assert set(result.model_parameters) == {16 * 6 + 6 + 6 * 3 + 3}
    assert result.accuracy["global/all/head"].last > 90


def test_a_federation_made_from_a_dataset_gives_the_same_run() -> None:
    named = protofed.run("local", model="cnn", split="iid", seed=3, **SMALL)
    split = Split("iid", alpha=0.1, min_size=10, balance=True, ways=3, half_width=2, shots=100, test_shots=40)
    federation = federate(load("digits", train_size=150), split, 3, 3, 0.0)
    made = protofed.run("local", model="cnn", federation=federation, seed=3, rounds=2, device="cpu")
    assert made.accuracy == named.accuracy


OBJECTS: dict[str, Any] = {"model": net, "federation": own_federation(), "rounds": 2, "device": "cpu", "threads": 1}


def test_a_run_of_objects_is_written_and_goes_on_in_a_shell(tmp_path: Path) -> None:
    whole = protofed.run(Halved(factor=0.25), out=tmp_path / "whole", quiet=True, **OBJECTS)
    assert whole.accuracy == protofed.run(Halved(factor=0.25), quiet=True, **OBJECTS).accuracy
    assert (whole.dataset, whole.split, whole.params["factor"]) == ("custom", "custom", 0.25)
    with pytest.raises(RuntimeError, match="enough"):
        protofed.run(Halved(factor=0.25), out=tmp_path / "cut", on_round=enough, quiet=True, **OBJECTS)
    (tmp_path / "elsewhere").mkdir()
    outcome = shell(tmp_path / "elsewhere", "resume", str(tmp_path / "cut"), "--quiet")
    assert outcome.returncode == 0, outcome.stderr
    assert result_of(tmp_path / "cut") == result_of(tmp_path / "whole")
    assert (tmp_path / "cut/rounds.jsonl").read_text().count("\n") == 2


def enough(played: protofed.Round) -> None:
    """A callback that fails in the second round: the first is on disk."""
    if played.round == 2:
        raise RuntimeError("enough")


def shell(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own, which finds the modules of this one."""
    return subprocess.run(
        [sys.executable, "-m", "protofed", *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_comparison_of_objects_is_that_of_worker_processes_and_of_memory(tmp_path: Path) -> None:
    methods: list[AnyMethod] = ["local", FedAvg, Halved(factor=0.25)]
    found = protofed.compare(methods, 2, jobs=2, out=tmp_path / "all", quiet=True, **OBJECTS)
    assert [row.method for row in found.rows] == ["local", "fedavg", "halved"]
    assert [run.params.get("factor") for run in found.results] == [None] * 4 + [0.25] * 2
    alone = protofed.compare(methods, 2, jobs=1, quiet=True, **OBJECTS)
    assert [run.accuracy for run in alone.results] == [run.accuracy for run in found.results]
    assert [len(run.history) for run in alone.results] == [2] * 6
    shutil.rmtree(tmp_path / "all/halved-seed1")
    again = protofed.resume(tmp_path / "all", quiet=True)
    assert [run.accuracy for run in again.results] == [run.accuracy for run in found.results]
    assert gather([tmp_path / "all"])["about"]


def test_worker_processes_read_what_this_process_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "START_UP", 0)
    found = protofed.compare([Halved, FedAvg], 2, jobs=2, out=tmp_path / "all", quiet=True, **OBJECTS)
    alone = protofed.compare([Halved, FedAvg], 2, jobs=1, quiet=True, **OBJECTS)
    assert [run.accuracy for run in found.results] == [run.accuracy for run in alone.results]


def test_a_sweep_of_objects(tmp_path: Path) -> None:
    grid = {"factor": [0.5, 1.0]}
    found = protofed.sweep(grid, [Halved(factor=0.1), "fedavg"], 1, out=tmp_path / "all", quiet=True, **OBJECTS)
    settings = [(cell.method, cell.setting) for cell in found.cells]
    assert settings == [("halved", {"factor": 0.5}), ("fedavg", {}), ("halved", {"factor": 1.0})]
    assert found.cells[2].row.accuracy == found.cells[1].row.accuracy
    assert protofed.resume(tmp_path / "all", quiet=True).to_json() == found.to_json()
    with pytest.raises(UserError, match="about data"):
        protofed.sweep({"alpha": [0.1, 1]}, ["fedavg"], 1, federation=own_federation())


def local_method() -> type[FedAvg]:
    """A class that no other process finds."""

    @dataclass(frozen=True)
    class Third(Halved):
        """A third of the loss."""

        name: ClassVar[str] = "third"
        factor: float = 1 / 3

    return Third


def test_what_only_this_session_has_goes_on_from_python(tmp_path: Path) -> None:
    third, options = local_method(), {**SMALL, "quiet": True}

    def small(shape: tuple[int, int, int], classes: int) -> nn.Module:
        return net(shape, classes)

    whole = protofed.compare([third, "local"], 1, model=small, out=tmp_path / "whole", **options)
    with pytest.raises(RuntimeError, match="enough"):
        protofed.compare([third, "local"], 1, model=small, out=tmp_path / "cut", on_round=enough, **options)
    refused = shell(tmp_path, "resume", "cut")
    assert refused.returncode != 0
    assert "session:third" in refused.stderr
    assert "protofed.resume(DIR, method=…)" in refused.stderr
    assert "Traceback" not in refused.stderr
    with pytest.raises(UserError, match="the folder was begun with session:third"):
        protofed.resume(tmp_path / "cut", method=Halved)
    found = protofed.resume(tmp_path / "cut", method=local_method(), model=small, quiet=True)
    assert [run.accuracy for run in found.results] == [run.accuracy for run in whole.results]


def test_runs_of_this_session_stay_in_this_process() -> None:
    with pytest.raises(UserError, match=r"third(-\d+)? is of this session"):
        protofed.compare([local_method()], 1, jobs=2, **SMALL)
    with pytest.raises(UserError, match="on_round is called here"):
        protofed.compare(["local"], 1, jobs=2, on_round=enough, **SMALL)


SCRIPT = """
from dataclasses import dataclass
import protofed
from protofed.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    name = "mine"

def stop(played):
    if played.round == 2:
        raise RuntimeError("enough")

options = dict(model="cnn", train_size=150, clients=3, rounds=2, device="cpu", threads=1)
try:
    protofed.compare([Mine], 1, out="cut", on_round=stop, **options)
except RuntimeError:
    pass
"""


@pytest.mark.slow  # five processes
def test_a_method_of_a_script_is_named_by_its_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    assert python(tmp_path, "mine.py").returncode == 0
    assert yaml.safe_load((tmp_path / "cut/compare.yaml").read_text())["methods"] == [f"{tmp_path}/mine.py:Mine"]
    refused = shell(tmp_path, "resume", "cut")  # which has to import the script, and must not run it again
    assert refused.returncode != 0
    assert "if __name__ ==" in refused.stderr
    (tmp_path / "mine.py").write_text(
        SCRIPT.replace("\ntry:", '\nif __name__ == "__main__":\n  try:')
        .replace("\n    protofed", "\n      protofed")
        .replace("\nexcept", "\n  except")
        .replace("    pass", "      pass")
    )
    assert shell(tmp_path, "resume", "cut", "--quiet").returncode == 0


def python(folder: Path, script: str) -> subprocess.CompletedProcess[str]:
    """A script in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(protofed.__file__).parents[1])}
    return subprocess.run([sys.executable, script], cwd=folder, env=env, capture_output=True, text=True, check=False)


def every_other(dataset: Dataset, split: Split, clients: int, seed: int) -> list[Tensor]:  # noqa: ARG001
    """A split that a user might write."""
    return [torch.arange(client, len(dataset.train), clients) for client in range(clients)]


def test_a_split_may_be_a_function(tmp_path: Path) -> None:
    result = protofed.run("local", model="cnn", split=every_other, out=tmp_path / "run", quiet=True, **SMALL)
    assert result.split == "tests.test_api:every_other"
    counts = federation_of(RunFolder.open(tmp_path / "run").experiment()).counts
    assert counts.sum(1).tolist() == [50, 50, 50]
    with pytest.raises(UserError, match="one client only"):
        protofed.run(
            "local", model="cnn", split=lambda *_: [torch.tensor([1]), torch.tensor([2]), torch.tensor([1])], **SMALL
        )
    with pytest.raises(UserError, match="give 3 tensors"):
        protofed.run("local", model="cnn", split=lambda *_: [torch.tensor([1])], **SMALL)


def test_what_is_no_method_model_or_split_is_refused() -> None:
    with pytest.raises(UserError, match="a class, or a function of"):
        protofed.run(model=net((1, 8, 8), 10))
    with pytest.raises(UserError, match="a class that extends"):
        protofed.run(nn.Linear)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="divided already"):
        protofed.run(federation=own_federation(), split="iid")
    with pytest.raises(UserError, match="'list' for federation: it must be"):
        protofed.run(federation=[own_federation()])  # type: ignore[arg-type]


def test_a_callback_sees_every_round_and_may_end_the_run(tmp_path: Path) -> None:
    seen: list[int] = []

    def watch(played: protofed.Round) -> bool:
        seen.append(played.round)
        return played.round == 3

    options = {**SMALL, "rounds": 5, "eval_every": 5, "quiet": True}
    result = protofed.run("fedavg", model="cnn", on_round=watch, out=tmp_path / "run", **options)
    assert (seen, result.stopped, result.rounds) == ([1, 2, 3], "callback", 3)
    assert [bool(played.accuracy) for played in result.history] == [False, False, True]
    assert Result.read(tmp_path / "run") == result
    assert protofed.resume(tmp_path / "run") == result  # it has ended, and does not go on
    plain = protofed.run("fedavg", model="cnn", **{**options, "rounds": 3, "eval_every": 3})
    assert plain.accuracy == result.accuracy
    seen.clear()
    found = protofed.compare(["fedavg", "local"], 1, model="cnn", on_round=watch, **options)
    assert seen == [1, 2, 3] * 2
    assert {run.stopped for run in found.results} == {"callback"}
    assert "the callback cut rounds short: fedavg seed 0 (3), local seed 0 (3)" in found.notes()


def test_progress_is_shown_unless_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    protofed.run("local", model="cnn", **SMALL)
    assert "local seed 0: round 2/2" in capsys.readouterr().err
    protofed.compare("local", 1, model="cnn", **SMALL)  # one method need not be in a list
    assert "local seed 0: own/own/head" in capsys.readouterr().err
    protofed.run("local", model="cnn", quiet=True, **SMALL)
    assert capsys.readouterr().err == ""


def test_parameters_beside_a_method_object_are_refused() -> None:
    with pytest.raises(UserError, match=r"'\{'factor': 1\}' for params: "):
        protofed.run(Halved(), params={"factor": 1})


RIGHT = """
from pathlib import Path
import protofed
protofed.run("fedproto", alpha=1, data_dir=Path("data"), params={"lam": 0.1})
protofed.compare(["fedavg"], model="cnn", rounds=3)
protofed.sweep({"k": [1, 2]}, model="cnn", engine="stacked")
"""
WRONG = """
import protofed
protofed.run(alpa=0.1)
protofed.compare(["fedavg"], ruonds=3)
protofed.sweep({"k": [1, 2]}, engine="stacke")
"""


@pytest.mark.slow
def test_mypy_knows_the_options(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "right.py", "wrong.py"],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(Path(protofed.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
    )
    errors = [line.split(": error: ") for line in done.stdout.splitlines() if ": error: " in line]
    assert [where for where, _ in errors] == ["wrong.py:3", "wrong.py:4", "wrong.py:5"], done.stdout
    assert all(word in said for word, (_, said) in zip(("alpa", "ruonds", "stacke"), errors, strict=True))


def test_a_misspelt_option_is_refused_with_a_suggestion() -> None:
    with pytest.raises(UserError, match="did you mean 'rounds'"):
        protofed.run("fedproto", ruonds=3)  # type: ignore[call-arg]  # mypy sees it too


def test_an_existing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="exists"):
        protofed.run("local", model="cnn", out=tmp_path, **SMALL)
    with pytest.raises(UserError, match="exists"):
        protofed.compare(["local"], 1, model="cnn", out=tmp_path, **SMALL)


def test_compare_returns_a_row_a_method_and_writes_what_it_returns(tmp_path: Path) -> None:
    found = protofed.compare(["local", "mp-fedcl"], seeds=2, model="cnn", out=tmp_path / "all", **SMALL)
    assert [row.method for row in found.rows] == ["local", "mp-fedcl"]
    assert [(run.method, run.seed) for run in found.results] == [
        *(("local", 0), ("local", 1)),
        *(("mp-fedcl", 0), ("mp-fedcl", 1)),
    ]
    spread = found.rows[1].accuracy["own/all/nearest"]
    assert spread.values == [run.accuracy["own/all/nearest"].last for run in found.results[2:]]
    assert (tmp_path / "all/compare.json").read_text() == found.to_json()
    assert (tmp_path / "all/compare.csv").read_text() == found.to_csv()


def test_wrong_input_to_compare_leaves_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="one architecture"):
        protofed.compare(["local", "fedavg"], 1, model="cnn,cnn-18", out=tmp_path / "all", **SMALL)
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there() -> None:
    assert all(hasattr(protofed, name) for name in protofed.__all__)
    with pytest.raises(AttributeError, match="'nope'"):
        getattr(protofed, "nope")  # noqa: B009


def test_models_of_a_comparison_outlive_the_names_they_were_given(tmp_path: Path) -> None:
    def compared() -> Comparison:
        @dataclass(frozen=True)
        class Mine(FedAvg):
            name: ClassVar[str] = "mine"

        def tiny(shape: tuple[int, int, int], classes: int) -> nn.Module:
            return net(shape, classes)

        return protofed.compare([Mine], 1, model=tiny, out=tmp_path / "compare", quiet=True, **SMALL)

    (result,) = compared().results
    gc.collect()
    assert list(result.models) == [0, 1, 2, "global"]
