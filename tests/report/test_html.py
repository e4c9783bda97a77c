"""The report: numbers are the folders', every method has one, and nothing a user writes becomes HTML."""

from __future__ import annotations

import json
import math
import re
import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from protofed import api
from protofed.errors import UserError
from protofed.evaluation.snapshot import Snapshot
from protofed.experiment import Experiment
from protofed.internal.digests import parse_json
from protofed.methods import METHODS
from protofed.report.html import figures, gather, write_report
from protofed.report.html.figures import write_figures
from protofed.report.html.latex import latex, table_columns, table_environment
from protofed.report.html.looks import plane
from protofed.report.page.build import page
from protofed.report.split_heatmap import heat_map
from protofed.runs.failure import FailedRun
from protofed.runs.folder import RunFolder, run_folders
from protofed.runs.run import new_run
from tests.support.command_line import TINY, invoke, refused, succeed

SMALL: dict[str, Any] = {"dataset": "digits", "train_size": 90, "clients": 3, "device": "cpu", "threads": 1}
NEEDS: dict[str, dict[str, Any]] = {
    "fccl-plus": {"public": "digit-domains", "params": {"public_images": 32, "public_batch": 16}}
}


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, two seeds, three rounds."""
    place = tmp_path_factory.mktemp("report")
    here = ("--jobs", "1", "--threads", "1", "--out", "both", "--quiet")
    succeed(place, "compare", *TINY[2:], "--method", "fedproto,fedavg", "--seeds", "2", *here)
    return place / "both"


@pytest.fixture(scope="module")
def paper_figures(comparison: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its figures, and the page beside them."""
    place = tmp_path_factory.mktemp("drawn")
    succeed(place, "report", str(comparison), "--out", "r.html", "--figures", "figures")
    return place / "figures"


@pytest.fixture
def _undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made, and no file of one: for tests of what is said of them."""
    monkeypatch.setattr(figures, "save_figure", lambda *_: [])


def embedded(text: str) -> dict[str, Any]:
    """The data in a page."""
    (found,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', text, re.DOTALL)
    return dict(json.loads(found))


def test_a_comparison_writes_its_report(comparison: Path) -> None:
    data = embedded((comparison / "report.html").read_text())
    rows = {row["label"]: row for row in data["summary"]}
    told = json.loads((comparison / "compare.json").read_text())
    for row in told["rows"]:
        for name, spread in row["accuracy"].items():
            cell = rows[row["method"]]["cells"][name]
            assert cell["mean"] == pytest.approx(spread["mean"])
            assert cell["std"] == pytest.approx(spread["std"])
    assert set(data["lines"]) == {"fedproto", "fedavg"}
    assert [run["seed"] for run in data["lines"]["fedavg"]] == [0, 1]
    assert data["incomplete"] == []
    assert data["commands"] == ["protofed compare --config both/compare.yaml"]
    best = [row["label"] for row in data["summary"] if row["cells"].get(data["score"], {}).get("best")]
    assert len(best) == 1
    assert data["score"] == "own/own/head"  # FedProto has no global model, FedAvg no prototypes: what both have
    assert not any(cell["best"] for row in rows.values() for cell in row["cells"].values() if cell["diagnostic"])


def test_what_it_draws_is_in_the_run(comparison: Path) -> None:
    (folder,) = (path for path in comparison.iterdir() if path.name == "fedproto-seed0")
    data = gather([folder])
    lines = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    (run,) = data["lines"]["fedproto"]
    assert run["bytes"][-1] == pytest.approx(sum(line["bytes_up"] + line["bytes_down"] for line in lines), rel=1e-3)
    assert run["curves"]["own/own/head"] == [
        pytest.approx(line["accuracy"]["own/own/head"], rel=1e-3) for line in lines
    ]
    assert run["prototypes"]["global"]["each"] == [line["prototypes"]["global"]["each"] for line in lines]
    seen = data["looks"]["fedproto"]
    assert sum(map(sum, seen["holds"])) == 150
    assert seen["kinds"] == ["local", "global"]
    assert len(seen["points"]) > 100


def test_a_run_that_is_named_twice_counts_once(comparison: Path) -> None:
    run = next(comparison.glob("fedavg-seed*"))
    (row,) = gather([run, run])["summary"]
    assert row["seeds"] == 1


def test_a_run_without_a_round_is_left_out(comparison: Path, tmp_path: Path) -> None:
    shutil.copytree(comparison, tmp_path / "some")
    (tmp_path / "some/fedavg-seed0/rounds.jsonl").write_text("")
    assert {row["label"]: row["seeds"] for row in gather([tmp_path / "some"])["summary"]} == {
        "fedproto": 2,
        "fedavg": 1,
    }


def test_files_and_folders_are_not_mistaken(comparison: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for words in (("--figures", "file"), ("--out", ".")):
        outcome = invoke(tmp_path, "report", str(comparison), *words)
        assert (outcome.code, outcome.out) == (2, ""), outcome.err
        assert words[0] in outcome.err


def test_the_look_sees_what_the_evaluation_counts() -> None:
    run = new_run(Experiment.from_mapping({**SMALL, "method": "fedproto", "rounds": 1, "eval_every": 1}))
    run.play_round()
    seen = run.snapshot()
    assert run.method.score == "own/own/nearest" == f"{seen.model}/own/{seen.rule}"
    sizes = [len(client.own) for client in run.federation.clients]
    assert max(sizes) <= 200  # so that all are asked
    per_client = run.history[0].per_client["own/own/nearest"]
    right = sum(size * score / 100 for size, score in zip(sizes, per_client, strict=True))
    assert int(seen.confusion.sum()) == sum(sizes)
    assert int(seen.confusion.trace()) == round(right)
    assert len(seen.points) == sum(min(100, size) for size in sizes)
    assert torch.equal(seen.holds, run.federation.counts)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_the_clusters_of_a_bounded_pool_are_nobodys(size: int) -> None:
    """Fewer clusters than the three clients, as many, and more."""
    options = {**SMALL, "method": "mp-fedcl", "clients": 3, "rounds": 1, "params": {"pool_size": size, "k": 4}}
    run = new_run(Experiment.from_mapping(options))
    run.play_round()
    seen = run.snapshot()
    pool = run.broadcast.prototypes["pool"]
    assert len(pool.counts) == size
    of_server = seen.marks[seen.marks[:, 0] == seen.kinds.index("pool")]
    assert len(of_server) == int(pool.filled.sum())
    assert set(of_server[:, 2].tolist()) == {-1}


def test_a_look_is_read_as_it_was_written(tmp_path: Path) -> None:
    run = new_run(Experiment.from_mapping({**SMALL, "method": "fedsc", "rounds": 1}))
    run.play_round()
    seen = run.snapshot()
    seen.write(tmp_path / "snapshot.safetensors")
    again = Snapshot.read(tmp_path / "snapshot.safetensors")
    for name, value in vars(seen).items():
        other = getattr(again, name)
        assert torch.equal(value, other) if isinstance(value, torch.Tensor) else value == other


USUAL = ("local", "fedproto", "mp-fedcl", "fedsc", "fedrod", "fed3r", "fesem")
"""Methods that differ in what a report shows: no server, prototypes only, many, weights too, a rule, a sum, groups."""


@pytest.mark.parametrize(
    "method", [pytest.param(name, marks=() if name in USUAL else pytest.mark.slow) for name in METHODS]
)
def test_every_method_has_a_report(method: str, tmp_path: Path) -> None:
    api.run(method, out=tmp_path / "run", rounds=1, **SMALL, **NEEDS.get(method, {}))
    write_report(gather([tmp_path / "run"]), tmp_path / "report.html")
    data = embedded((tmp_path / "report.html").read_text())
    assert list(data["lines"]) == [method]
    assert data["score"] == data["summary"][0]["score"]
    assert not data["summary"][0]["cells"][data["score"]]["best"]  # of one there is no best
    seen = data["looks"][method]
    assert len(seen["points"]) > 0
    assert {mark[2] for mark in seen["marks"]} == set(range(len(seen["kinds"])))


def test_what_was_refused_and_whom_a_defence_found_out_is_told(tmp_path: Path) -> None:
    flags = ("--attack", "sign-flip", "--attackers", "0.4", "--defence", "outliers", "--clients", "5", "--alpha", "1.0")
    succeed(tmp_path, "run", *TINY, *flags, "--out", "run", "--quiet")
    text = (tmp_path / "run" / "rounds.jsonl").read_text()
    lines = [parse_json(line) for line in text.splitlines()]
    lines[0]["left_out"] = {"3": "refused: <b>it</b>"}
    (tmp_path / "run" / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    succeed(tmp_path, "report", "run", "--out", "run.html")
    page = (tmp_path / "run.html").read_text()
    (told,) = embedded(page)["trust"]
    assert "40% of the clients attack: sign-flip" in told
    assert "1 uploads are missing: refused: <b>it</b> (1)" in told
    assert "outliers left out clients: " in told
    assert "<b>" not in page  # it is drawn as text


def test_a_run_that_was_cut_off_or_resumed(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "cut"
    shutil.copytree(comparison / "fedproto-seed0", folder)
    (folder / "result.json").unlink()
    (folder / "snapshot.safetensors").unlink()
    text = (folder / "rounds.jsonl").read_text()
    (folder / "rounds.jsonl").write_text(text[: -len(text.splitlines()[-1]) // 2])
    succeed(tmp_path, "report", "cut", "--out", "cut.html")
    data = embedded((tmp_path / "cut.html").read_text())
    assert "after round 2 of 3" in data["incomplete"][0]
    assert data["looks"] == {}
    (folder / "rounds.jsonl").write_text(text)
    succeed(tmp_path, "resume", "cut", "--quiet")
    assert gather([folder])["incomplete"] == []


@pytest.mark.usefixtures("_undrawn")
def test_a_run_that_was_cut_off_is_in_no_mean_no_test_and_no_table(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(comparison, folder)
    for seed, rounds in ((0, 1), (1, 2)):  # of unequal length
        cut = folder / f"fedavg-seed{seed}"
        (cut / "result.json").unlink()
        lines = (cut / "rounds.jsonl").read_text().splitlines(keepends=True)
        (cut / "rounds.jsonl").write_text("".join(lines[:rounds]))
    (folder / "fedproto-seed1" / "result.json").unlink()
    data = gather([folder])
    rows = {row["label"]: row for row in data["summary"]}
    assert (rows["fedavg"]["cells"], rows["fedavg"]["failed"]) == ({}, ["cut off", "cut off"])
    whole = json.loads((folder / "fedproto-seed0" / "result.json").read_text())["accuracy"]
    for name, cell in rows["fedproto"]["cells"].items():
        assert (cell["mean"], cell["std"], cell["test"]) == (pytest.approx(whole[name]["last"]), None, None)
        assert not cell["best"]  # there is nothing to compare it with
    assert len(data["incomplete"]) == 3
    (line,) = (line for line in latex(data).splitlines() if line.startswith("fedavg"))
    assert re.fullmatch(r"fedavg & cut off( & --)+ \\\\", line)
    (line,) = (line for line in latex(data).splitlines() if line.startswith("fedproto"))
    assert f"{whole[data['score']]['last']:.2f} ($n=1$)" in line
    lost = "In no mean: fedproto cut off, 1 of 2; fedavg cut off."
    assert lost in table_environment(data)
    write_figures(data, tmp_path / "figures")
    captions = (tmp_path / "figures/figures.tex").read_text()
    assert captions.count(lost) == 5  # curves over rounds, bytes and seconds, clients, and the training loss
    assert "one seed" in captions
    assert "over 0" not in captions
    axes = Figure().add_subplot()
    figures._curves(axes, data, data["score"], "rounds")
    drawn = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()}
    assert drawn == {"fedproto": data["lines"]["fedproto"][0]["curves"][data["score"]]}  # the seed that ended


def test_figures_of_a_study_in_which_nothing_ended_say_so(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(comparison, folder)
    for run in folder.glob("*-seed*"):
        (run / "result.json").unlink()
        FailedRun(run.name.partition("-")[0], 0, "diverged", "the loss became nan", round=4).write(run)
    data = gather([folder])
    axes = Figure().add_subplot()
    figures._curves(axes, data, data["score"], "rounds")
    named = ["fedproto (diverged (round 4))", "fedavg (diverged (round 4))"]
    assert [line.get_label() for line in axes.get_lines()] == named
    axes = Figure().add_subplot()
    figures._clients(axes, data, data["score"])
    assert [label.get_text() for label in axes.get_yticklabels()] == named
    assert "of runs that did not come to their end" in table_environment(data)
    assert latex(data).count("diverged (round 4)") == 2


def test_a_method_from_a_file_is_not_run_again(tmp_path: Path) -> None:
    imports = "from dataclasses import dataclass\nfrom protofed.methods.local import Local\n"
    (tmp_path / "mine.py").write_text(f"{imports}@dataclass(frozen=True)\nclass Mine(Local):\n    name = 'mine'\n")
    succeed(tmp_path, "run", *TINY[2:], "--method", "mine.py:Mine", "--out", "run", "--quiet")
    (tmp_path / "mine.py").write_text("raise SystemExit('this was run')")
    succeed(tmp_path, "report", "run")
    assert list(embedded((tmp_path / "run/report.html").read_text())["lines"]) == ["mine"]


def test_wrong_folders_are_one_line(comparison: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for words, why in (
        (("nowhere",), "no such folder"),
        (("empty",), "holds no run"),
        ((str(comparison), "--out", "no/where.html"), "there is no folder"),
    ):
        outcome = invoke(tmp_path, "report", *words)
        assert why in refused(outcome)
    assert [path.name for path in tmp_path.rglob("*")] == ["empty"]


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("snapshot.safetensors", b"nothing"),
        ("profile.json", b"{"),
        ("profile.json", b'{"sections": {"training": {"share": 1e999}}}'),
        ("rounds.jsonl", b'{"round": 1}\n'),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(comparison: Path, tmp_path: Path, file: str, content: bytes) -> None:
    run = tmp_path / "run"
    shutil.copytree(comparison / "fedavg-seed0", run)
    (run / file).write_bytes(content)
    outcome = invoke(tmp_path, "report", "run")
    assert file in refused(outcome)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("config.yaml", b"a: [1"),
        ("rounds.jsonl", b'{"round": 1}\n'),
        ("result.json", b"{}"),
        ("snapshot.safetensors", b"nothing"),
        ("motion.safetensors", b"nothing"),
        ("failure.json", b"[]"),
    ],
)
def test_a_damaged_run_is_left_out_and_named(comparison: Path, tmp_path: Path, file: str, content: bytes) -> None:
    folder = tmp_path / "both"
    shutil.copytree(comparison, folder)
    (folder / "fedavg-seed0" / file).write_bytes(content)
    data = gather([folder])
    assert {label: [run["seed"] for run in runs] for label, runs in data["lines"].items()} == {
        "fedproto": [0, 1],
        "fedavg": [1],
    }
    (said,) = data["incomplete"]
    assert said.startswith("fedavg-seed0 cannot be read: ")
    assert said.endswith("; it is in no number or figure")
    assert [row["name"] for row in data["runs"] if row["state"] == "unreadable"] == ["fedavg-seed0"]
    succeed(tmp_path, "report", "both")
    succeed(tmp_path, "animate", "both", "--out", "moving.html")


def test_of_each_line_only_runs_that_ended_are_shown(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(comparison, folder)
    for name in ("fedproto-seed0", "fedavg-seed0", "fedavg-seed1"):
        (folder / name / "result.json").unlink()
        rounds = folder / name / "rounds.jsonl"
        rounds.write_text("".join(rounds.read_text().splitlines(keepends=True)[:2]))
    FailedRun("fedavg", 1, "diverged", "the loss became nan", round=3).write(folder / "fedavg-seed1")
    data = gather([folder])
    assert data["score"] == "own/own/nearest"  # FedProto's own: no run of FedAvg has ended
    assert [run["seed"] for run in data["lines"]["fedproto"]] == [1]
    last = RunFolder(folder / "fedproto-seed1").played()[-1].per_client["own/own/nearest"]
    assert data["clients"]["fedproto"]["values"][-1] == pytest.approx(last, rel=1e-3)
    assert data["motion"]["runs"]["fedproto"]["curve"][-1][0] == 3
    seen = Snapshot.read(folder / "fedproto-seed1" / "snapshot.safetensors")
    assert data["looks"]["fedproto"]["confusion"] == seen.confusion.tolist()
    endings = [run["ending"] for run in data["lines"]["fedavg"]]
    assert endings == ["round 2 of 3", "diverged (round 3)"]
    assert data["incomplete"] == [
        "fedproto-seed0 was cut off after round 2 of 3; it is in no number or figure",
        "fedavg-seed0 was cut off after round 2 of 3; "
        "it is in no mean and no test, and figures have the rounds it played",
        "fedavg-seed1: diverged (round 3): the loss became nan; "
        "it is in no mean and no test, and figures have the rounds it played",
    ]


def test_notes_of_the_runs_and_of_the_study_are_in_the_report(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "both"
    shutil.copytree(comparison, folder)
    told = json.loads((folder / "compare.json").read_text())["notes"]
    assert any(note.startswith("methods differ in bytes per round") for note in told)
    file = folder / "fedavg-seed1/result.json"
    values = json.loads(file.read_text()) | {"most_clusters": 1}
    del values["digest"]
    file.write_text(json.dumps(values))
    data = gather([folder])
    assert data["notes"] == [
        *told,
        "the clustering of fedavg found one prototype per class at every client in every round",
    ]


def test_a_look_of_another_form_is_refused(tmp_path: Path) -> None:
    whole: dict[str, Any] = {
        "model": "own",
        "rule": "head",
        "classes": ["a", "b"],
        "domains": ["c"],
        "kinds": ["local"],
    }
    whole |= {"holds": torch.zeros(3, 2).long(), "homes": torch.zeros(3).long(), "confusion": torch.eye(2).long()}
    whole |= {"features": torch.zeros(5, 4), "points": torch.zeros(5, 4).long()}
    whole |= {"prototypes": torch.zeros(2, 4), "marks": torch.zeros(2, 3).long()}
    Snapshot(**whole).write(tmp_path / "look")
    Snapshot.read(tmp_path / "look")
    for changes in (
        {"features": torch.full((5, 4), torch.nan)},
        {"features": torch.tensor(1.0)},
        {"points": torch.zeros(5, 4)},
        {"holds": torch.zeros(2, 2).long()},
        {"features": torch.zeros(10_000, 4), "points": torch.zeros(10_000, 4).long()},  # t-SNE would take hours
        {"classes": "ab"},
    ):
        Snapshot(**whole | changes).write(tmp_path / "look")
        with pytest.raises(UserError, match="look"):
            Snapshot.read(tmp_path / "look")


EVIL = "</script><img src=x onerror=alert(1)>"


def test_names_that_users_choose_are_escaped(comparison: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(comparison / "fedproto-seed0", folder)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    (folder / "config.yaml").write_text(yaml.safe_dump({**config, "model": f"x.py:{EVIL}", "dataset": EVIL}))
    data = gather([folder])
    data["looks"]["fedproto"]["classes"][0] = EVIL
    text = page(data)
    assert EVIL not in text
    assert "<img" not in text
    assert embedded(text)["looks"]["fedproto"]["classes"][0] == EVIL


def test_nothing_is_asked_of_the_network(comparison: Path) -> None:
    text = (comparison / "report.html").read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.findall(r"(?:src)\s*=|@import|url\(|XMLHttp|https?:", text)
    assert "connect-src &#39;none&#39;" in text


def test_figures_and_tables_for_a_paper(comparison: Path, paper_figures: Path) -> None:
    made = {path.name for path in paper_figures.iterdir()}
    names = {"curves-rounds", "curves-bytes", "curves-seconds", "clients", "loss", "classes", "traffic", "time"}
    names |= {f"prototypes-{what}" for what in ("each", "mean", "drift", "padded")}
    names |= {f"{what}-{method}" for what in ("holds", "confusion", "plane") for method in ("fedproto", "fedavg")}
    assert made == {f"{name}.{kind}" for name in names for kind in ("pdf", "png", "svg")} | {
        "figures.tex",
        "tables.tex",
    }
    assert (paper_figures / "curves-rounds.pdf").read_bytes().startswith(b"%PDF")
    included = (paper_figures / "figures.tex").read_text()
    assert {*re.findall(r"\\includegraphics.*\{(.*)\.pdf\}", included)} == names
    assert included.count("\\caption{") == len(names)
    text = (paper_figures / "tables.tex").read_text()
    data = gather([comparison])
    assert text.count("\\\\") == 3
    for row in data["summary"]:
        cell = row["cells"]["own/own/head"]
        value = f"{cell['mean']:.2f} $\\pm$ {cell['std']:.2f}"
        assert (f"\\textbf{{{value}}}" if cell["best"] else value) in text
    data["summary"][0]["label"] = "50%_a&b"
    assert "50\\%\\_a\\&b" in latex(data)


def test_a_diagnostic_has_a_star_and_is_never_bold_and_equal_columns_are_there_once(comparison: Path) -> None:
    data = gather([comparison])
    fedavg = next(row for row in data["summary"] if row["label"] == "fedavg")
    fedavg["cells"]["own/own/nearest"]["mean"] = 99.875  # the highest of all, and a diagnostic
    for row in data["summary"]:
        row["cells"]["own/again/head"] = dict(row["cells"]["own/own/head"])
    text = latex({**data, "scores": [*data["scores"], "own/again/head"]})
    (line,) = (line for line in text.splitlines() if line.startswith("fedavg"))
    assert "99.88" in line
    assert re.search(r"& 99\.88 \$\\pm\$ \d+\.\d\d\$\^\*\$ ", line)
    titles = text.splitlines()[2].split(" & ")
    assert titles[1] == "own/own/head"
    assert "own/again/head" not in text
    assert text.splitlines()[0].count("r") == len(titles)  # one of them is tabular's


@pytest.mark.usefixtures("_undrawn")
def test_the_score_and_the_columns_can_be_chosen(comparison: Path, tmp_path: Path) -> None:
    words = ("report", str(comparison), "--out", "r.html")
    succeed(tmp_path, *words, "--figures", "some", "--score", "own/all/head", "--columns", "own/all/head,bytes,seconds")
    assert embedded((tmp_path / "r.html").read_text())["score"] == "own/all/head"
    text = (tmp_path / "some/tables.tex").read_text()
    (titles,) = (line for line in text.splitlines() if line.startswith("method"))
    assert titles == "method & own/all/head & bytes (MB) & seconds (s) \\\\"
    assert "own/all/head in percent" in (tmp_path / "some/figures.tex").read_text()
    assert "own/all/head" in refused(invoke(tmp_path, *words, "--score", "own/all/haed"))
    assert "bytes" in refused(invoke(tmp_path, *words, "--figures", "some", "--columns", "byte"))
    assert "--figures" in refused(invoke(tmp_path, *words, "--columns", "bytes"))


def test_a_table_has_few_columns_unless_asked_and_marks_what_is_clearly_worse(comparison: Path) -> None:
    data = gather([comparison])
    assert len(table_columns(data)) <= 4
    assert table_columns(data)[0] == data["score"]
    worse = next(row for row in data["summary"] if not row["cells"][data["score"]]["best"])["cells"][data["score"]]
    worse["test"] = {"p_holm": 0.06}
    assert "dagger" not in table_environment(data, [data["score"]])
    worse["test"] = {"p_holm": 0.04}
    text = table_environment(data, [data["score"]])
    assert text.count("$^\\dagger$") == 2  # in the cell, and in the caption that says what it is
    assert text.count("{") == text.count("}")


def test_lines_are_ranked_within_their_setting(comparison: Path, tmp_path: Path) -> None:
    for alpha in (0.1, 10.0):
        for method in ("fedproto", "fedavg"):
            folder = tmp_path / "swept" / f"alpha={alpha}" / f"{method}-seed0"
            shutil.copytree(comparison / f"{method}-seed0", folder)
            config = yaml.safe_load((folder / "config.yaml").read_text())
            # a rate of its own is no setting: each method has one
            rate = 0.01 if method == "fedavg" else 0.02
            (folder / "config.yaml").write_text(yaml.safe_dump({**config, "alpha": alpha, "lr": rate}))
    rows = gather([tmp_path / "swept"])["summary"]
    assert {row["setting"] for row in rows} == {"alpha=0.1", "alpha=10.0"}
    for setting in ("alpha=0.1", "alpha=10.0"):
        some = [row["cells"]["own/own/head"] for row in rows if row["setting"] == setting]
        assert sorted(cell["best"] for cell in some) == [False, True]


def test_a_rate_that_is_swept_is_ranked(comparison: Path, tmp_path: Path) -> None:
    for rate in (0.01, 0.02):
        folder = tmp_path / "swept" / f"lr={rate}" / "fedproto-seed0"
        shutil.copytree(comparison / "fedproto-seed0", folder)
        config = yaml.safe_load((folder / "config.yaml").read_text())
        (folder / "config.yaml").write_text(yaml.safe_dump({**config, "lr": rate}))
    rows = gather([tmp_path / "swept"])["summary"]
    assert [(row["setting"], row["label"]) for row in rows] == [("", "fedproto lr=0.01"), ("", "fedproto lr=0.02")]
    assert sorted(row["cells"]["own/own/head"]["best"] for row in rows) == [False, True]


def drawn(data: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The axes of each figure, by its name."""
    found: dict[str, list[Any]] = {}

    def keep(figure: Figure, _: Path, name: str) -> list[Path]:
        found[name] = figure.axes
        return []

    monkeypatch.setattr(figures, "save_figure", keep)
    write_figures(data, folder)
    return found


def test_a_method_has_one_colour_in_every_figure(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gather([comparison])
    data["score"] = "global/all/head"  # which the first method has not
    found = drawn(data, tmp_path, monkeypatch)
    (curve,) = found["curves-rounds"][0].get_lines()
    (dots,) = found["clients"][0].collections
    assert curve.get_label() == "fedavg"
    assert to_hex(curve.get_color()) == to_hex(dots.get_facecolor()[0]) == data["colours"][1].lower()
    assert found["curves-rounds"][0].get_ylabel() == "global/all/head, %"


def test_planes_have_a_colour_a_class_and_heat_maps_begin_at_zero(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = deepcopy(gather([comparison]))
    look = data["looks"]["fedavg"]
    look["holds"] = [[7] * 10] * 3  # equal counts
    found = drawn(data, tmp_path, monkeypatch)
    points = found["plane-fedavg"][0].collections[0].get_facecolors()
    assert len({tuple(colour) for colour in points.tolist()}) == len({point[2] for point in look["points"]}) == 10
    for name, matrix in (("holds-fedavg", look["holds"]), ("confusion-fedavg", look["confusion"])):
        axes, _ = found[name]  # the second is the scale
        (image,) = axes.images
        assert image.get_clim() == (0, max(map(max, matrix)))
        assert [text.get_text() for text in axes.texts] == [str(value) for row in matrix for value in row]
        assert [text.get_text() for text in axes.get_xticklabels()] == look["classes"]
    assert to_hex(found["holds-fedavg"][0].images[0].cmap(1.0)) != "#ffffff"


def key_of(axes: Any) -> dict[str, Any]:
    """The entries of a figure's key, by their words."""
    legend = axes.get_legend()
    return {text.get_text(): entry for text, entry in zip(legend.get_texts(), legend.legend_handles, strict=True)}


def test_marks_and_rows_say_what_they_are(comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = deepcopy(gather([comparison]))  # what it holds is remembered
    look = data["looks"]["fedproto"]
    look["domains"], look["homes"], look["classes"] = ["mill", "port"], [0, 1, -1], [f"kind {n}" for n in range(10)]
    found = drawn(data, tmp_path, monkeypatch)
    rows = [text.get_text() for text in found["holds-fedproto"][0].get_yticklabels()]
    assert rows == ["0 (mill)", "1 (port)", "2"]
    assert [text.get_text() for text in found["confusion-fedproto"][0].get_yticklabels()] == look["classes"]
    assert [text.get_text() for text in found["classes-2"][0].get_yticklabels()] == ["fedavg"]  # of other names
    key = key_of(found["plane-fedproto"][0])
    assert [name for name in key if "kind" not in name] == ["client's class mean", "global prototype"]
    for kind, name in enumerate(("client's class mean", "global prototype")):
        (vertices,) = (one.vertices.tolist() for one in key[name].get_paths())
        (marks,) = (one.vertices.tolist() for one in found["plane-fedproto"][0].collections[kind + 1].get_paths())
        assert vertices == marks
        assert len(vertices) == 4 + kind  # a triangle and a square, with the point where they end again


def test_figures_show_how_runs_went(comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = deepcopy(gather([comparison]))
    for number, runs in enumerate(data["lines"].values()):
        runs[0]["domains"] = {"global/domain/head": {"mill": 10.0 + number, "port": 20.0}}
        runs[0]["profile"] = {"sections": {"training": {"share": 0.5}}}
    found = drawn(data, tmp_path, monkeypatch)
    for (label, runs), line in zip(data["lines"].items(), found["loss"][0].get_lines(), strict=True):
        assert line.get_label() == label
        np.testing.assert_allclose(line.get_ydata(), np.mean([run["loss"] for run in runs], axis=0))
    each = data["lines"]["fedproto"][0]["prototypes"]["global"]["each"]
    (line,) = found["prototypes-each"][0].get_lines()
    assert line.get_label() == "fedproto: global"
    np.testing.assert_allclose(line.get_ydata(), np.mean(each, axis=1))
    bars = [bar.get_width() for bar in found["traffic"][0].patches]
    for number, runs in enumerate(data["lines"].values()):
        assert sum(bars[4 * number : 4 * number + 4]) == pytest.approx((runs[0]["up"] + runs[0]["down"]) / 1e6)
    seconds = [bar.get_width() for bar in found["time"][0].patches]
    for number, runs in enumerate(data["lines"].values()):
        whole = runs[0]["seconds"][-1] / len(runs[0]["rounds"])
        assert seconds[2 * number : 2 * number + 2] == pytest.approx([whole / 2, whole / 2])
    assert [text.get_text() for text in found["domains"][0].texts] == ["10", "20", "11", "20"]
    confusion = data["looks"]["fedavg"]["confusion"]
    shares = [f"{100 * row[k] / sum(row):.0f}" if sum(row) else "–" for k, row in enumerate(confusion)]
    assert [text.get_text() for text in found["classes"][0].texts][10:] == shares


def test_what_is_clearly_below_the_best_is_marked(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = gather([comparison])
    worse = next(row for row in data["summary"] if not row["cells"][data["score"]]["best"])
    for p, marked in ((0.06, False), (0.04, True)):
        worse["cells"][data["score"]]["test"] = {"p_holm": p}
        found = drawn(data, tmp_path, monkeypatch)
        names = {f"{row['label']} †" if marked and row is worse else row["label"] for row in data["summary"]}
        assert {line.get_label() for line in found["curves-bytes"][0].get_lines()} == names
        assert {text.get_text() for text in found["clients"][0].get_yticklabels()} == names
        captions = (tmp_path / "figures.tex").read_text()
        assert captions.count("$^\\dagger$: clearly below the best") == 4 * marked


def test_letters_of_figures_stay_letters(paper_figures: Path) -> None:
    assert (paper_figures / "curves-rounds.svg").read_text().count("<text") > 5
    assert b"/Type3" not in (paper_figures / "curves-rounds.pdf").read_bytes()
    assert not [path.name for path in paper_figures.iterdir() if path.name.startswith(".")]


def test_a_sweep_has_its_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (*TINY[2:], "--method", "fedavg,fedproto", "--seeds", "2", "--jobs", "1", "--threads", "1", "--quiet")
    succeed(tmp_path, "sweep", *words, "--grid", "lr=0.01,0.1", "--out", "swept")
    drawings: dict[str, list[Any]] = {}
    monkeypatch.setattr(figures, "save_figure", lambda figure, _, name: drawings.update({name: figure.axes}) or [])
    succeed(tmp_path, "report", "swept", "--figures", "figures", "--score", "own/all/head")
    told = json.loads((tmp_path / "swept/sweep.json").read_text())
    (axes,) = drawings["sweep"]
    assert axes.get_ylabel().startswith("own/all/head")
    for container in axes.containers:
        means = [
            cell["accuracy"]["own/all/head"]["mean"]
            for cell in told["cells"]
            if cell["method"] == container.get_label()
        ]
        assert np.asarray(container[0].get_ydata()).tolist() == means
    assert "over lr" in (tmp_path / "figures/figures.tex").read_text()
    for damaged in ("{", "[]", '{"grid": {}, "score": null, "cells": [3]}', '{"grid": {"lr": []}, "score": 3}'):
        (tmp_path / "swept/sweep.json").write_text(damaged)
        refused(invoke(tmp_path, "report", "swept", "--figures", "figures"))


def test_clients_are_called_what_the_data_call_them(tmp_path: Path) -> None:
    rows = [f"{age},{['north', 'west', 'south'][age % 3]},{age % 2}" for age in range(60)]
    (tmp_path / "people.csv").write_text("\n".join(["age,ward,ill", *rows]))
    words = ("--dataset", "csv:people.csv", "--label", "ill", "--split", "by:ward", "--model", "linear", "--quiet")
    succeed(tmp_path, "run", "--method", "fedavg", *words, "--rounds", "1", "--device", "cpu", "--out", "r")
    (look,) = gather([tmp_path / "r"])["looks"].values()
    assert look["names"] == ["north", "south", "west"]
    assert [figures._client(look, number) for number in range(3)] == ["0 (north)", "1 (south)", "2 (west)"]
    seen = Snapshot.read(tmp_path / "r/snapshot.safetensors")
    replace(seen, names=[]).write(tmp_path / "older")  # which knew no names
    assert figures._client({**look, "names": Snapshot.read(tmp_path / "older").names}, 0) == "0"
    replace(seen, names=["north"]).write(tmp_path / "damaged")
    with pytest.raises(UserError, match="there are 3 clients"):
        Snapshot.read(tmp_path / "damaged")


def test_names_that_look_like_mathematics_are_text(comparison: Path, tmp_path: Path) -> None:
    data = gather([comparison])
    for look in data["looks"].values():
        look["names"] = [r"$\frac{$"] * len(look["homes"])
        look["classes"] = [r"$\sqrt{$"] * len(look["classes"])
    write_figures(data, tmp_path)
    assert r"$\frac{$" in (tmp_path / "holds-fedavg.svg").read_text()
    assert r"$\sqrt{$" in (tmp_path / "plane-fedavg.svg").read_text()
    heat_map(torch.tensor([[3, 1]]), [r"$\frac{$", "b"], tmp_path / "split.png")
    assert (tmp_path / "split.png").stat().st_size > 0


def test_a_long_table_has_several_parts(comparison: Path) -> None:
    data = gather([comparison])
    data["summary"] = [{**data["summary"][0], "label": f"line {n}"} for n in range(95)]
    text = table_environment(data)
    parts = text.split("\\begin{table}")[1:]
    assert [part.count("\nline ") for part in parts] == [40, 40, 15]
    assert [f"Part {n} of 3." in part for n, part in enumerate(parts, 1)] == [True] * 3
    assert len({*re.findall(r"\\label\{(.*)\}", text)}) == 3
    assert "\\linewidth" in text
    assert "textwidth" not in text  # which is that of both columns


@pytest.mark.parametrize("scale", [0.0, 1e-30, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("same", [True, False])
def test_features_of_a_model_that_has_nearly_diverged_have_a_place(comparison: Path, scale: float, same: bool) -> None:
    path = next(path for path in run_folders(comparison) if RunFolder(path).snapshot.is_file())
    seen = Snapshot.read(RunFolder(path).snapshot)
    drawn = torch.rand(seen.features.shape, generator=torch.Generator().manual_seed(0))
    features = scale * (torch.ones_like(drawn) if same else drawn)
    prototypes = scale * torch.ones_like(seen.prototypes)
    places = plane(replace(seen, features=features, prototypes=prototypes))
    assert len(places) == len(features) + len(prototypes)
    assert all(math.isfinite(x) and math.isfinite(y) for x, y in places)
    assert (len({tuple(place) for place in places}) == 1) == (same or scale == 0)
