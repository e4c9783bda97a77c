"""The results pages are what their templates and the committed JSON give, and compute what they say."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import alone, curves, results_page, tables
from benchmarks.results_page import DOCS, Page, render
from protofed.studies.papers import find_target
from protofed.studies.reproduction import ReproductionStudy


def cell(method: str, paper: float | None, ours: float, **other: Any) -> dict[str, Any]:
    """One as table.json has it."""
    words = {"dataset": "D", "setting": "s", "method": method, "metric": "test_acc", "score": "own/all/head"}
    numbers = {"ours": ours, "ours_std": 1.0, "values": [ours - 1, ours + 1], "paper": paper, "paper_std": 0.5}
    rest = {"difference": None if paper is None else ours - paper, "trials": [method]}
    return words | numbers | rest | other


def write(folder: Path, name: str, *cells: dict[str, Any], variant: str | None = None) -> None:
    cost = {"rounds": 3, "seconds": 12.4, "bytes_up": 1e6, "bytes_down": 5e5, "clients": 2, "device": "cpu"}
    costs = {one["method"]: cost for one in cells}
    what = {"name": "fedsc/table1", "variant": variant, "command": f"protofed reproduce {name}"}
    text = json.dumps({**what, "cells": cells, "costs": costs})
    (folder / f"{name}.json").write_text(text)


def test_the_pages_are_what_the_json_gives() -> None:
    for name, text in render().items():
        assert (DOCS / "results" / name).read_text(encoding="utf-8") == text, f"{name}: run `make results-page`"


def test_a_changed_number_changes_its_pages(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    for file in (DOCS / "results").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    before = render(tmp_path)
    assert before == render()
    assert len(before) > 10
    table = folder / "mp-fedcl-table6-mnist.json"
    table.write_text(table.read_text().replace('"ours": ', '"ours": 1'))
    after = render(tmp_path)
    assert after["mp-fedcl.md"] != before["mp-fedcl.md"]
    assert after["fedsc.md"] == before["fedsc.md"]


def test_a_cell_has_both_numbers_the_difference_and_its_cost(tmp_path: Path) -> None:
    write(
        tmp_path,
        "t",
        cell("A", 70.0, 71.25),
        cell("B", 70.0, 72.5),
        cell("C", None, 50.0),
        cell("none", 1.0, 1.0) | {"ours": None},
    )
    lines = Page(tmp_path).table("t").splitlines()
    assert lines[:3] == ["```sh", "protofed reproduce t    # on a CPU", "```"]
    rows = [[text.strip() for text in line.split("|")[1:-1]] for line in lines if line.startswith("| D")]
    assert rows[0][2:] == ["A", "own/all/head", "70.00 ± 0.50", "71.25 ± 1.00", "+1.25", "70.25 72.25", "12", "1.5"]
    assert [row[6] for row in rows] == ["+1.25", "+2.50 ≠", ""]
    assert rows[2][4] == "–"


def test_a_reduced_protocol_is_not_compared_with_the_papers_level(tmp_path: Path) -> None:
    write(tmp_path, "t", cell("A", 70.0, 20.0), variant="reduced")
    assert "| -50.00 |" in Page(tmp_path).table("t")
    assert Page(tmp_path).summary({"t": ["t"]}).endswith("| t | 1 | – | – | – |")
    with pytest.raises(ValueError, match="reduced protocols"):
        Page(tmp_path).papers({"FedSC": {"short": [["t"]]}})


def test_a_paper_has_a_line_for_each_reading(tmp_path: Path) -> None:
    write(
        tmp_path,
        "t",
        *(cell(name, paper, paper + 1) for name, paper in zip("ABCDE", (1.0, 2.0, 3.0, 4.0, 5.0), strict=True)),
    )
    write(
        tmp_path,
        "u",
        *(cell(name, paper, 9 - paper) for name, paper in zip("ABCDE", (1.0, 2.0, 3.0, 4.0, 5.0), strict=True)),
    )
    *_, both, one = Page(tmp_path).papers({"P": {"both": [["t"], ["u"]], "one": [["u"]]}}).splitlines()
    assert both == "| P | both | 10 | 7 (70%) | +2.0 | 1 of 2 |"
    assert one == "| P | one | 5 | 2 (40%) | +3.0 | 0 of 1 |"


@pytest.mark.parametrize(("ours", "rho"), [((3, 2, 1), "-1.00"), ((1, 2, 3), "1.00"), ((2, 1, 3), "0.50")])
def test_the_order_of_methods_is_a_rank_correlation(ours: tuple[int, int, int], rho: str, tmp_path: Path) -> None:
    write(
        tmp_path,
        "t",
        *(cell(name, paper, 10.0 * mine) for name, paper, mine in zip("ABC", (5.0, 60.0, 70.0), ours, strict=True)),
    )
    assert f"- D, s: ρ = {rho} over 3 methods" in Page(tmp_path).table("t")


def test_where_there_is_a_mean_over_domains_the_order_is_its(tmp_path: Path) -> None:
    cells = [
        cell(name, paper, paper, setting=setting)
        for setting in ("one", "AVG")
        for name, paper in zip("ABC", (1.0, 2.0, 3.0), strict=True)
    ]
    write(tmp_path, "t", *cells)
    assert Page(tmp_path).table("t").count("ρ = ") == 1


def test_tables_of_several_files_are_one(tmp_path: Path) -> None:
    write(tmp_path, "t", cell("A", 1.0, 1.0), cell("B", 2.0, 2.0) | {"ours": None})
    write(tmp_path, "u", cell("B", 2.0, 5.0))
    page = Page(tmp_path)
    assert [one["method"] for one in page.measured("t", "u")["cells"]] == ["A", "B"]
    assert page.ours("t", "u", method="B") == "5.00 ± 1.00"
    assert page.paper("t", "u", method="B") == "2.00 ± 0.50"
    summary = page.summary({"both": ["t", "u"]}).splitlines()[-1]
    assert summary == "| both | 2 | 1 (50%) | +1.5 | – |"
    with pytest.raises(ValueError, match="0 cells"):
        page.ours("t", method="Z")


def test_values_of_other_sources_than_the_papers_are_listed() -> None:
    lines = Page(DOCS / "results").readings().splitlines()
    assert "| FedSC | FedProx | `mu=0.01` | reading: not stated |" in lines
    assert not [line for line in lines if "| Table " in line or "`lr=0.01`" in line]  # of the papers


def test_ranges_in_words_are_computed(tmp_path: Path) -> None:
    write(tmp_path, "t", cell("A", 1.0, 70.0), cell("B", 2.0, 66.4))
    (tmp_path / "why.json").write_text(json.dumps({"more": {"A": [71.0, 74.6]}}))
    page = Page(tmp_path)
    a, b = page.values("t", method="A"), page.values("t", method="B")
    assert a.tolist() == [69.0, 71.0]
    assert page.span(a - b) == "4"
    assert page.span(a, b - 65.0, digits=1) == "0.4 to 71.0"
    assert page.span(page.found("why", "more", "A") - a, -0.2) == "0 to 4"
    assert page.span(1234.5, 0.4 - 1) == "-1 to 1,234"
    assert [page.within(a - b, -3.0), page.within(-4.2), page.within(1.504, digits=1)] == ["4", "5", "1.5"]


def test_numbers_of_several_cells_and_rounds_are_computed_with(tmp_path: Path) -> None:
    write(tmp_path, "t", cell("A", 1.0, 70.0), cell("B", 2.0, 66.5), cell("A", 3.0, 5.0, setting="another"))
    (tmp_path / "curves.json").write_text(json.dumps({"A": {"10": [1.0, 2.0], "20": [3.0, 5.0]}}))
    page = Page(tmp_path)
    assert page.every("difference", "t", method="A").tolist() == [69.0, 2.0]
    assert page.every("values", "t", setting="s", method=("B", "A")).tolist() == [[69.0, 71.0], [65.5, 67.5]]
    assert page.found("curves", "A").tolist() == [[1.0, 2.0], [3.0, 5.0]]
    assert page.found("curves").shape == (1, 2, 2)
    with pytest.raises(ValueError, match=r"no cell of \('t',\) has \['Z'\]"):
        page.every("ours", "t", method=("A", "Z"))


def test_a_bound_in_words_is_rounded_up(tmp_path: Path) -> None:
    page = Page(tmp_path)
    assert page.within(np.array([0.5, -2.1])) == "3"
    assert page.within(np.array([[0.5], [1.14]]), 0.2, digits=1) == "1.2"
    assert page.within(0.3 - 0.1 + 1, digits=1) == "1.2"  # what floats add is not rounded up


def test_rounds_of_a_curve_and_costs_can_be_computed_with(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text(json.dumps({"own": {"run": {"1": [1.0, 2.0], "2": [3.0, 4.0], "3": [5.0, 6.0]}}}))
    write(tmp_path, "t", cell("A", 70.0, 71.0), cell("B", 70.0, 72.0))
    runs = {"s-fedavg": {"seconds": 0.5}, "s-moon": {"seconds": 1.0}}
    others = {"d-fedavg": {"seconds": 0.25}, "d-moon": {"seconds": 0.75}, "d-fpl": {"seconds": 0.3}}
    (tmp_path / "alone.json").write_text(json.dumps({"t": runs, "u": {"s-fccl+": {"seconds": 5.0}}, "v": others}))
    page = Page(tmp_path)
    assert page.curve("c", "own", "run", rounds=range(2, 4)).tolist() == [[3.0, 4.0], [5.0, 6.0]]
    assert page.sent("t", method="A") == 1.5
    assert page.slower([("t", "u"), ("v",)], "MOON").tolist() == [2.0, 3.0]
    assert page.slower([("t", "u"), ("v",)], "FPL", "FCCL+").tolist() == [10.0, 1.2]


@pytest.mark.parametrize("name", tables.TABLES)
def test_every_measured_table_can_be_planned(name: str) -> None:
    target, *words = shlex.split(tables.TABLES[name])
    flags = dict(zip(words[::2], words[1::2], strict=True))
    only, methods = (flags.get(flag, "").split(",") if flag in flags else [] for flag in ("--only", "--methods"))
    machine = {"encoder": "some.safetensors", "eval_every": int(flags.get("--eval-every", 1))}
    assert ReproductionStudy(target, flags.get("--variant"), only, methods, machine=machine).table.trials()
    made = DOCS / "results" / f"{name}.json"
    if made.exists():
        assert json.loads(made.read_text())["command"].startswith(f"protofed reproduce {target} ")


def test_what_was_learned_is_sorted_by_accuracy_and_divided_by_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "t", cell("A", 70.0, 30.0), cell("B", 70.0, 60.0), cell("B", 70.0, 99.0, setting="another"))
    scenarios = [results_page.Scenario(title, ("t",), "D", "s") for title in ("here", "there")]
    monkeypatch.setattr(results_page, "SCENARIOS", scenarios)
    rows = [line.split("|")[1:-1] for line in Page(tmp_path).learned().splitlines() if line.startswith(("| A", "| B"))]
    assert [[text.strip() for text in row] for row in rows[:2]] == [
        ["B", "60.0 ± 1.0", "1.5", "12.4", "40", "4.8"],
        ["A", "30.0 ± 1.0", "1.5", "12.4", "20", "2.4"],
    ]
    results_page.plot(Page(tmp_path), tmp_path / "worth.png")
    assert (tmp_path / "worth.png").read_bytes().startswith(b"\x89PNG")


def test_runs_that_shared_a_machine_have_the_seconds_of_their_rounds_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "t", cell("A", 70.0, 30.0), cell("B", 70.0, 60.0), cell("B", 1.0, 2.0, metric="comm_params"))
    alone = {"A": {"device": "cuda", "seconds": 0.5}, "B": {"device": "cuda", "seconds": 4.0}}
    (tmp_path / "alone.json").write_text(json.dumps({"t": alone}))
    scenario = results_page.Scenario("here", ("t",), "D", "s", alone=False)
    worth = Page(tmp_path).worth(scenario)
    assert [(row.method, row.seconds) for row in worth] == [("B", 3 * 4.0), ("A", 3 * 0.5)]
    monkeypatch.setattr(results_page, "SCENARIOS", [scenario])
    text = Page(tmp_path).learned()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith(("| A", "| B"))]
    assert [[row[3].strip(), row[5].strip()] for row in rows] == [["12.0", "5"], ["1.5", "20"]]
    assert text.startswith("**here** (D, s; seconds alone on a GPU)\n")


@pytest.mark.slow
def test_methods_are_timed_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = find_target("fedproto/table2", "stand-in")
    chosen = [one for one in target.cells if one.trial and one.method in ("Local", "FedProto") and "n=3" in one.setting]
    cells = [
        cell(one.method, 1.0, 2.0, dataset=one.dataset, setting=one.setting, metric=one.metric, trials=[one.trial.name])
        for one in chosen
        if one.trial
    ]
    table = {"name": target.name, "variant": "stand-in", "cells": cells, "costs": {}}
    (tmp_path / "t.json").write_text(json.dumps(table))
    scenario = results_page.Scenario("here", ("t",), "MNIST", chosen[0].setting, alone=False)
    monkeypatch.setattr(alone, "SCENARIOS", [scenario])
    monkeypatch.setattr(alone, "RESULTS", tmp_path)
    alone.main(["t"])
    with pytest.raises(SystemExit):
        alone.main(["another"])
    found = json.loads((tmp_path / "alone.json").read_text())
    assert list(found) == ["t"]
    assert len(found["t"]) == 2  # one setting of two
    assert all(one["device"] == "cpu" and one["seconds"] > 0 for one in found["t"].values())


@pytest.mark.slow
def test_tables_are_run_kept_and_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        tables, "TABLES", {"t": "mp-fedcl/table6 --only mnist --methods fedavg --variant stand-in --seeds 1"}
    )
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    words = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "runs")]
    assert tables.main([*words, "--budget", "0.01"]) == 1  # stopped while it starts
    assert not (tmp_path / "t.json").exists()
    assert tables.main(words) == 0
    first = (tmp_path / "t.json").read_text()
    assert json.loads(first)["cells"][0]["ours"] is not None
    assert tables.main(words) == 0  # nothing is played again
    assert (tmp_path / "t.json").read_text() == first
    assert capsys.readouterr().out.count("t: exit 0") == 2


def test_curves_are_read_from_runs_and_a_seed_may_be_best_in_another_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed, accuracies in enumerate([(10.0, 40.0, 30.0), (10.0, 20.0, 50.004)]):
        run = tmp_path / "t" / "mnist-fedavg" / f"seed{seed}"
        run.mkdir(parents=True)
        rest: dict[str, Any] = {"seconds": 0.1, "loss": 1.0, "losses": [1.0], "participants": [0], "bytes_up": 0}
        rest |= {
            "bytes_down": 0,
            "scalars_up": {"weights": 0, "prototypes": 0},
            "prototypes": {},
            "clusters": {},
            "diagnostic": [],
            "interval": {},
        }
        rest |= {"per_client": {}, "per_domain": {}}
        tested = {i: {"own/own/head": a} for i, a in zip((1, 3, 4), accuracies, strict=True)}
        if seed == 0:
            tested[2] = {"own/own/head": 90.0}  # one that was stopped there
        rounds = [{"round": i, "accuracy": tested.get(i, {}), **rest} for i in range(1, 5)]
        (run / "rounds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rounds))
    monkeypatch.setattr(curves, "RESULTS", tmp_path)
    curves.main([str(tmp_path / "t"), "own/own/head", "global/all/head"])
    page = Page(tmp_path)
    assert page.each("t-curves", "own/own/head", "mnist-fedavg", "4") == "30.0, 50.0"
    assert (
        page.told("t-curves", "own/own/head", "mnist-fedavg")
        == "{'1': [10.0, 10.0], '3': [40.0, 20.0], '4': [30.0, 50.0]}"
    )
    assert page.best("t-curves", "own/own/head", "mnist-fedavg") == "45.0 ± 7.1"


def not_run(folder: Path, target: str) -> list[list[str]]:
    """The lines of one target, as their texts."""
    lines = [line for line in Page(folder).not_run().splitlines() if line.startswith(f"| {target} ")]
    return [[text.strip() for text in line.split("|")[1:-1]] for line in lines]


def measure(folder: Path, name: str, variant: str | None, dataset: str, methods: int, seeds: int = 3) -> None:
    """A file with the first methods of a target."""
    cells = [one for one in find_target(name).cells if one.dataset == dataset and one.trial]
    some = list(dict.fromkeys(one.method for one in cells))[:methods]
    made = [
        {"dataset": dataset, "setting": one.setting, "method": one.method, "ours": 50.0}
        for one in cells
        if one.method in some
    ]
    (folder / "t.json").write_text(json.dumps({"name": name, "variant": variant, "seeds": seeds, "cells": made}))


def test_what_was_not_run_is_listed_until_it_is(tmp_path: Path) -> None:
    target, columns = "fedplcc/table3", ["fedplcc/table3", "Office-10"]
    rest = ["100 × 10", "office-caltech10, cifar100 (not available)"]
    assert not_run(tmp_path, target) == [[*columns, "24", "", *rest]]
    measure(tmp_path, target, None, "Office-10", 3)  # FCCL+ among them, which alone needs public images
    assert not_run(tmp_path, target) == [[*columns, "15", "", "100 × 10", "office-caltech10"]]
    measure(tmp_path, target, None, "Office-10", 3, seeds=1)
    assert not_run(tmp_path, target) == [[*columns, "21", "", *rest]]
    measure(tmp_path, target, None, "Office-10", 8)
    assert not_run(tmp_path, target) == []


def test_runs_that_another_table_shows_are_made(tmp_path: Path) -> None:
    before = int(not_run(tmp_path, "fedproto/table3")[0][2])
    measure(tmp_path, "fedproto/table1", None, "FEMNIST", 8)  # n = 3, 4, 5 with stdev 1: Table 3 has stdev 2, too
    assert not_run(tmp_path, "fedproto/table3")[0][2] == str(before // 2) == "72"


def test_what_was_run_with_another_protocol_is_said(tmp_path: Path) -> None:
    measure(tmp_path, "fedplcc/table3", "public-cifar10", "Office-10", 3)
    assert [line[2:4] for line in not_run(tmp_path, "fedplcc/table3")] == [["24", "9"]]


def test_data_that_is_not_at_hand_is_said(tmp_path: Path) -> None:
    assert [line[-1] for line in not_run(tmp_path, "fedplcc/table4")] == [
        "domainnet (not available), cifar100 (not available)"
    ]
    assert [line[-1] for line in not_run(tmp_path, "fedproto/table4")] == [
        "cifar10, ResNet-18 of ImageNet (not available)"
    ]
    assert [line[-2] for line in not_run(tmp_path, "mp-fedcl/table8")] == ["600 s", "380 s"]


def test_a_figure_has_a_line_a_method_and_a_column_a_value(tmp_path: Path) -> None:
    def point(method: str, value: int, ours: float) -> dict[str, Any]:
        return cell(method, None, ours, setting=f"s;k={value}")

    write(tmp_path, "f", point("A", 1, 50.0), point("B", 1, 60.0), point("A", 2, 51.5), point("B", 2, 61.5))
    lines = Page(tmp_path).figure("f").splitlines()
    assert lines[-4] == "| dataset | method | measured | k=1 | k=2 | seconds | MB sent |"
    assert lines[-2:] == [
        "| D | A | own/all/head | 50.00 ± 1.00 | 51.50 ± 1.00 | 12 | 1.5 |",
        "| D | B | own/all/head | 60.00 ± 1.00 | 61.50 ± 1.00 | 12 | 1.5 |",
    ]
