"""`protofed reproduce`: ours beside the paper's, what can be run here, and going on after an interruption."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest

from protofed.report.html import gather
from protofed.studies.reproduction import ReproductionStudy
from tests.support.command_line import everything_in, invoke, refused, succeed

SHARED = Path(__file__).parents[3] / "shared" / "data"
MNIST = (
    *("train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"),
    *("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"),
)
HERE = ("--engine", "sequential", "--device", "cpu", "--threads", "1", "--jobs", "1", "--quiet")
SMALL = ("reproduce", "mp-fedcl/table6", "--variant", "stand-in", "--only", "mnist", "--methods", "fedavg,mp-fedcl")


def table(folder: Path) -> dict[str, Any]:
    """What table.json holds."""
    values: dict[str, Any] = json.loads((folder / "table.json").read_text())
    return values


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Two cells of a table, two seeds each, and what was printed."""
    place = tmp_path_factory.mktemp("reproduce")
    outcome = succeed(place, *SMALL, *HERE, "--seeds", "2", "--out", "table")
    return place / "table", outcome.out


def test_ours_is_the_mean_over_seeds_of_the_accuracy_that_is_compared(made: tuple[Path, str]) -> None:
    folder, _ = made
    cells = table(folder)["cells"]
    assert [(cell["method"], cell["score"], cell["paper"], cell["paper_std"]) for cell in cells] == [
        ("FedAvg", "own/all/head", 66.40, 2.89),
        ("MP-FedCL", "own/all/nearest", 79.95, 3.76),
    ]
    for cell in cells:
        (trial,) = folder.glob(f"mnist-*-{cell['method'].lower()}")
        runs = [json.loads((trial / f"seed{seed}" / "result.json").read_text()) for seed in (0, 1)]
        values = [run["accuracy"][cell["score"]]["last"] for run in runs]
        assert cell["ours"] == pytest.approx(fmean(values))
        assert cell["ours_std"] == pytest.approx(stdev(values))
        assert cell["difference"] == pytest.approx(fmean(values) - cell["paper"])
        assert cell["values"] == values
        assert cell["trials"] == [trial.name]
        cost = table(folder)["costs"][trial.name]
        assert cost["bytes_up"] == fmean(run["bytes_up"] for run in runs)
        assert cost["seconds"] == fmean(run["seconds"] for run in runs)
        assert (cost["rounds"], cost["clients"], cost["device"]) == (2, 5, "cpu")


def test_the_command_in_the_table_is_what_was_typed(made: tuple[Path, str]) -> None:
    words = "mp-fedcl/table6 --only mnist --methods fedavg,mp-fedcl --variant stand-in --seeds 2"
    assert table(made[0])["command"] == f"protofed reproduce {words}"
    again = ReproductionStudy("fedsc/fig6", machine={"seed": 7}).again()
    assert again == "protofed reproduce fedsc/fig6 --seeds 3 --seed 7"


def test_the_report_says_what_runs_it_again(made: tuple[Path, str]) -> None:
    assert gather([made[0]])["commands"] == [table(made[0])["command"]]


def test_json_csv_markdown_and_the_screen_tell_the_same(made: tuple[Path, str]) -> None:
    folder, printed = made
    cells = table(folder)["cells"]
    lines = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    assert [(line["method"], float(line["ours"])) for line in lines] == [(c["method"], c["ours"]) for c in cells]
    text = (folder / "table.md").read_text()
    for shown in (printed, text):
        assert "variant stand-in" in shown  # a reduced protocol is printed with the numbers
        for cell in cells:
            assert f"{cell['paper']:.2f} ± {cell['paper_std']:.2f}" in shown
            assert f"{cell['ours']:.2f}" in shown
            assert f"{cell['difference']:+.2f}" in shown


def test_the_protocol_of_every_run_is_written_with_its_sources(made: tuple[Path, str]) -> None:
    protocol = table(made[0])["protocol"]
    assert len(protocol) == 2
    for trial in protocol.values():
        assert trial["experiment"]["lr_decay"] == 0.95
        assert "Table IV" in trial["sources"]["lr_decay"]


@pytest.mark.slow
def test_an_interrupted_table_goes_on_to_the_same_numbers(made: tuple[Path, str], tmp_path: Path) -> None:
    folder, printed = made
    for number, words in enumerate((("resume", "0"), (*SMALL, "--seeds", "2", "--out", "1", *HERE, "--jobs", "2"))):
        half = tmp_path / str(number)
        shutil.copytree(folder, half)
        for name in ("table.json", "table.csv", "table.md"):
            (half / name).unlink()
        shutil.rmtree(next(half.glob("*-mp-fedcl")) / "seed1")
        (next(half.glob("*-fedavg")) / "seed0" / "result.json").unlink()
        outcome = succeed(tmp_path, *words, "--quiet")
        again, before = table(half), table(folder)
        for trial, cost in again.pop("costs").items():
            assert cost | {"seconds": 0} == before["costs"][trial] | {"seconds": 0}
        assert again == {name: value for name, value in before.items() if name != "costs"}
        here = outcome.out.replace(f"runs: {number}", "runs: table").replace(f"report: {number}/", "report: table/")
        assert here == printed


def test_threads_stay_as_they_were_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*SMALL, "--seeds", "1", "--engine", "sequential", "--device", "cpu", "--jobs", "1", "--quiet")
    monkeypatch.setattr("protofed.studies.workers.cores", lambda: 1)
    succeed(tmp_path, *words, "--out", "table")
    shutil.rmtree(next((tmp_path / "table").glob("*-mp-fedcl")))
    monkeypatch.setattr("protofed.studies.workers.cores", lambda: 2)
    succeed(tmp_path, *words, "--out", "table")
    configs = list((tmp_path / "table").glob("*/seed0/config.yaml"))
    assert [config.read_text().count("threads: 1\n") for config in configs] == [1, 1]


def test_a_wrong_encoder_leaves_no_folder_behind(tmp_path: Path) -> None:
    outcome = invoke(tmp_path, *SMALL, *HERE, "--encoder", "none.safetensors", "--out", "table")
    assert outcome.code == 2
    assert "--encoder" in outcome.err
    assert everything_in(tmp_path) == set()


def test_another_number_of_jobs_is_no_other_request(made: tuple[Path, str]) -> None:
    folder, _ = made
    before = everything_in(folder)
    succeed(folder.parent, *SMALL, *HERE, "--seeds", "2", "--out", "table", "--jobs", "2")
    assert everything_in(folder) == before
    assert (folder / "reproduce.yaml").read_text().count("jobs: 1\n") == 1  # as it was begun


def test_a_folder_of_another_request_is_left_alone(made: tuple[Path, str]) -> None:
    folder, _ = made
    before = everything_in(folder)
    outcome = invoke(folder.parent, *SMALL, *HERE, "--seeds", "3", "--out", "table")
    assert outcome.code == 2
    assert "reproduce.yaml" in outcome.err
    assert everything_in(folder) == before


def test_a_run_by_another_protocol_is_not_taken_over(made: tuple[Path, str], tmp_path: Path) -> None:
    """As when the protocol was corrected in between: the old number would be shown as one of the new."""
    shutil.copytree(made[0], tmp_path / "table")
    config = next((tmp_path / "table").glob("*-mp-fedcl")) / "seed1" / "config.yaml"
    without_digest = config.read_text().split("\n", 2)[2]
    config.write_text(without_digest.replace("lr_decay: 0.95", "lr_decay: 0.9"))
    before = everything_in(tmp_path)
    outcome = invoke(tmp_path, *SMALL, *HERE, "--seeds", "2", "--out", "table")
    assert outcome.code == 2
    assert "seed1' for --out: its lr_decay is 0.9, in the protocol 0.95\nhint: remove that folder" in outcome.err
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ((), "--list"),
        (("mp-fedcl/table9",), "mp-fedcl/table"),
        (("mp-fedcl/table6", "--variant", "small"), "tiny"),
        (("mp-fedcl/table6", "--only", "cifar10"), "MNIST"),
        (("mp-fedcl/table6", "--methods", "moon"), "fedavg"),
        (("mp-fedcl/table6", "--seeds", "0"), "--seeds"),
        (("fedsc/table3", "--eval-every", "5"), "every round"),
        (("mp-fedcl/fig10", "--eval-every", "5"), "every round"),
        (("mp-fedcl/table6", "--seeds", "two"), "--seeds"),
        (("mp-fedcl/table6", "--jobs", "0", "--variant", "stand-in"), "--jobs"),
        (("mp-fedcl/table6", "--device", "abacus", "--rounds", "3"), "--rounds"),
        (("fedplcc/table4",), "data missing: domainnet"),
        (("--list", "fedavg"), "`protofed reproduce --list` lists them all"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(tmp_path: Path, arguments: tuple[str, ...], word: str) -> None:
    outcome = invoke(tmp_path, "reproduce", *arguments)
    assert word in refused(outcome)
    assert everything_in(tmp_path) == set()


def missing(place: Path, *arguments: str) -> dict[tuple[str, str], set[str]]:
    """What `--list` says is missing, by target and dataset."""
    found: dict[tuple[str, str], set[str]] = {}
    for row in json.loads(succeed(place, "reproduce", "--list", "--json", *arguments).out):
        for cell in row["cells"]:
            found.setdefault((row["name"], cell["dataset"]), set()).add(cell["missing"])
    return found


def test_the_list_knows_which_files_are_there(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in MNIST:
        (data / name).touch()
    found = missing(tmp_path, "--data-dir", "data")
    assert found["mp-fedcl/table6", "MNIST"] == {""}
    assert found["mp-fedcl/table6", "Digit-5"] == {"data missing: mnist-m, encoder missing"}
    assert found["fedproto/table4", "CIFAR10"] == {"data missing: cifar10, encoder missing"}  # its start
    assert found["fedsc/table4", "CIFAR10"] == {"data missing: cifar10"}  # also the means over its settings
    with_encoder = missing(tmp_path, "--data-dir", "data", "--encoder", "some.safetensors")
    assert with_encoder["mp-fedcl/table6", "Digit-5"] == {"data missing: mnist-m"}
    (data / MNIST[2]).unlink()
    assert missing(tmp_path, "--data-dir", "data")["mp-fedcl/table6", "MNIST"] == {"data missing: mnist"}


def test_the_list_says_why_and_what_to_do(tmp_path: Path) -> None:
    shown = " ".join(succeed(tmp_path, "reproduce", "--list", "mp-fedcl").out.split())
    assert "mp-fedcl/table6" in shown
    assert "fedsc" not in shown
    assert "encoder missing" in shown
    assert "domainnet: " in shown
    assert "protofed encoder train" in shown


def test_a_stand_in_needs_no_files(tmp_path: Path) -> None:
    assert all(reasons == {""} for reasons in missing(tmp_path, "--variant", "stand-in").values())


def test_std_over_clients_where_the_paper_has_it(tmp_path: Path) -> None:
    arguments = ("--variant", "stand-in", "--only", "mnist,n=3", "--methods", "fedper,fedproto")
    succeed(tmp_path, "reproduce", "fedproto/table1", *arguments, *HERE, "--seeds", "1", "--out", "table")
    cells = {(cell["method"], cell["metric"]): cell for cell in table(tmp_path / "table")["cells"]}
    ours = cells["FedPer", "mean_client_test_acc"]
    (run,) = (tmp_path / "table").glob("*-fedper/seed0/result.json")
    accuracy = json.loads(run.read_text())["accuracy"]["own/own/head"]
    assert ours["ours"] == accuracy["last"]
    assert ours["ours_std"] == pytest.approx(pstdev(accuracy["per_client"]))
    # Numbers sent, counted on paper: FedPer the two convolutions, FedProto 50 for each class that a client holds.
    assert cells["FedPer", "comm_params"]["ours"] == 5 * (260 + 5020)
    sent = cells["FedProto", "comm_params"]
    assert sent["ours"] % 50 == 0
    assert 5 * 2 * 50 <= sent["ours"] <= 5 * 5 * 50
    assert "classes it holds" in sent["note"]


@pytest.mark.skipif(not (SHARED / "mnist").is_dir(), reason="MNIST's files are not beside the repository")
def test_an_upload_has_as_many_numbers_as_table_2_says(tmp_path: Path) -> None:
    arguments = ("mp-fedcl/table2", "--only", "mnist", "--variant", "tiny", "--data-dir", str(SHARED))
    succeed(tmp_path, "reproduce", *arguments, *HERE, "--seeds", "1", "--out", "table")
    cells = {cell["metric"]: cell for cell in table(tmp_path / "table")["cells"]}
    assert cells["model_params"]["ours"] == cells["model_params"]["paper"] == 798_474
    assert cells["prototype_scalars_per_client"]["ours"] == cells["prototype_scalars_per_client"]["paper"] == 5_120
    assert round(cells["ratio"]["ours"], 3) == cells["ratio"]["paper"] == 0.006
