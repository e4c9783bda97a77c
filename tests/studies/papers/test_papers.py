"""The papers' files: every value has a source and a meaning, every published number is a cell of some table."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

from protofed.data.splits import check_split
from protofed.errors import UserError
from protofed.experiment import Experiment
from protofed.methods import build_method, method_class, parameters
from protofed.methods.fedplcc import FedPLCC
from protofed.studies import papers
from protofed.studies.papers import (
    COMMUNICATION,
    PAPERS,
    Reading,
    chosen,
    find_target,
    read_paper,
    target_names,
    variant_names,
)

TARGETS = {
    "fedproto": ["table1", "table2", "table3", "table4", "fig2", "fig3", "fig4"],
    "mp-fedcl": [
        "table2",
        "table5",
        "table6",
        "table7",
        "table8",
        "fig1",
        "fig5",
        "fig6",
        "fig7",
        "fig8",
        "fig9",
        "fig10",
    ],
    "fedplcc": ["table2", "table3", "table4", "table5", "fig2", "fig3", "fig4", "fig5", "fig6"],
    "pfllib": ["fmnist-dir0.1"],
    "fedsc": ["table1", "table2", "table3", "table4", "table5", "fig1", "fig5", "fig6", "fig7"],
}
FIELDS = {item.name for item in dataclasses.fields(Experiment)} | {item.name for item in dataclasses.fields(Reading)}


def statements(paper: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Everything that a paper's file states."""
    yield from paper["protocol"]
    for part in ("datasets", "methods", "settings"):
        for some in paper[part].values():
            yield from some
    for part in ("targets", "variants"):
        for named in paper[part].values():
            yield from named.get("protocol", ())


def test_a_statement_may_be_for_some_settings_only() -> None:
    trials = find_target("fedplcc/table5", "equal-weights").trials()
    equal = [trial.name for trial in trials if trial.values["params"].get("cluster_weights") == "equal"]
    assert equal == ["digit-5-ablation-l-contra=w=1-l-corr=w=1-fedplcc"]
    assert len(trials) == 7


def test_every_table_and_figure_is_a_target() -> None:
    assert target_names() == [f"{paper}/{name}" for paper in PAPERS for name in TARGETS[paper]]


@pytest.mark.parametrize("stem", PAPERS)
def test_every_value_is_known_and_has_a_source(stem: str) -> None:
    paper = read_paper(stem)
    methods = {one["method"] for some in paper["methods"].values() for one in some if "method" in one}
    known = {name for method in methods for name in parameters(method_class(method))}
    names = {name for part in ("datasets", "methods", "settings") for name in paper[part]}
    for statement in statements(paper):
        assert statement["source"]
        only = statement.get("for", [])
        assert {only} <= names if isinstance(only, str) else set(only) <= names
        assert set(statement) - {"source", "for"} <= FIELDS
        assert set(statement.get("params", ())) <= known
    for target in paper["targets"].values():
        assert target["title"]
        assert "table" in target or target["source"]
    assert set(variant_names(stem)) >= {"tiny", "stand-in"}
    assert all(variant["about"] for variant in paper["variants"].values())


@pytest.mark.parametrize("name", target_names())
def test_every_cell_is_an_experiment_in_every_variant(name: str) -> None:
    for variant in (None, *variant_names(name.partition("/")[0])):
        target = find_target(name, variant)
        assert target.cells
        for trial in target.trials():
            experiment = trial.experiment({"encoder": "some.safetensors"})
            build_method(experiment.method, experiment.params)
            check_split(experiment.split)
            named = {*trial.values, *trial.values["params"]} - {"params"}
            assert named <= set(trial.sources)
            if variant == "stand-in":
                assert experiment.encoder is None
                assert experiment.dataset in ("digits", "digit-domains")


def test_published_numbers_are_those_of_the_csv() -> None:
    with files(papers).joinpath("results.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 809
    told = 0
    for stem in PAPERS:
        paper = read_paper(stem)
        for name, about in paper["targets"].items():
            if "table" not in about:
                continue
            cells = [cell for cell in find_target(f"{stem}/{name}").cells if cell.metric != COMMUNICATION]
            expected = [row for row in rows if (row["paper"], row["table"]) == (paper["name"], about["table"])]
            assert [
                (cell.dataset, cell.setting, cell.method, cell.metric, cell.published, cell.published_std)
                for cell in cells
            ] == [
                (
                    *(row[word] for word in ("dataset", "setting", "method", "metric")),
                    float(row["value"]),
                    float(row["std"]) if row["std"] else None,
                )
                for row in expected
            ]
            told += len(expected)
    assert told == len(rows)


def test_some_numbers_by_hand() -> None:
    cells = {
        (cell.method, cell.setting, cell.metric): cell
        for cell in find_target("fedproto/table1").cells
        if cell.dataset == "MNIST"
    }
    found = cells["FedProto", "n=3;k=100;stdev=2;20 clients", "mean_client_test_acc"]
    assert (found.published, found.published_std) == (97.13, 0.30)
    sent = cells["FedAvg", "n=3;k=100;stdev=2;20 clients", COMMUNICATION]
    assert sent.published == 430_000
    assert "21,840" in sent.note
    assert found.trial is not None
    values = found.trial.values
    assert (values["ways"], values["half_width"], values["shots"], values["clients"]) == (3, 2, 100, 20)
    assert (values["rounds"], values["params"]) == (100, {"initial": "own", "lam": 1.0})
    assert found.trial.reading.score == "own/own/nearest-own"


def test_the_particular_overrides_the_general() -> None:
    by_name = {
        (cell.dataset, cell.setting, cell.method): cell.trial.values
        for cell in find_target("mp-fedcl/table7").cells
        if cell.trial
    }
    assert by_name["Office-10", "feature-nonIID", "MP-FedCL"]["clients"] == 4
    assert by_name["Office-10", "label-nonIID Dir(0.5)", "MP-FedCL"]["clients"] == 5
    assert by_name["Office-10", "feature-nonIID", "FedAvg"]["rounds"] == 130  # this table's, not Table VI's 110
    assert by_name["Office-10", "feature-nonIID", "Local"]["rounds"] == 100  # the table says 0: it never communicates
    assert by_name["Digit-5", "feature-nonIID", "MP-FedCL"]["params"]["k"] == 4
    assert "k" not in by_name["Digit-5", "feature-nonIID", "SP-FedCL"]["params"]


def test_an_ablation_switches_off_what_its_row_says() -> None:
    """Table V's settings are about parameters that the method itself states."""
    trials = {cell.setting: cell.trial for cell in find_target("fedplcc/table5").cells if cell.trial}
    found = {}
    for setting, trial in trials.items():
        method = build_method(trial.values["method"], trial.values["params"])
        assert isinstance(method, FedPLCC)
        lambda2 = method.ratio * method.lambda1 if method.lambda2 is None else method.lambda2
        found[setting.split(";", 1)[1]] = (method.lambda1, lambda2, method.phi, method.cluster_weights)
    assert found == {
        "L_contra=off;L_corr=off;domain=Avg": (0, 0, 0.5, "samples"),
        "L_contra=off;L_corr=on;domain=Avg": (0, 1000, 0.5, "samples"),
        "L_contra=off;L_corr=phi=1;domain=Avg": (0, 1000, 1, "samples"),
        "L_contra=on;L_corr=off;domain=Avg": (100, 0, 0.5, "samples"),
        "L_contra=on;L_corr=phi=1;domain=Avg": (100, 1000, 1, "samples"),
        "L_contra=w=1;L_corr=w=1;domain=Avg": (100, 1000, 0.5, "one"),
        "L_contra=on;L_corr=on;domain=Avg": (100, 1000, 0.5, "samples"),
    }


@pytest.mark.parametrize("name", [name for name in target_names() if "/table" in name])
def test_no_two_rows_of_a_table_are_the_same_experiment(name: str) -> None:
    """One statement that overrides another's point would make them so."""
    trials = find_target(name).trials()
    assert len({json.dumps(trial.values, sort_keys=True) for trial in trials}) == len(trials)


def test_a_domain_is_read_from_the_run_of_all_and_their_mean_is_none() -> None:
    cells = [cell for cell in find_target("fedplcc/table2").cells if cell.method == "FedPLCC"]
    assert [cell.domain for cell in cells] == ["MNIST", "USPS", "SVHN", "Synth", "MNIST-M", None]
    assert len({cell.trial.name for cell in cells if cell.trial}) == 1


def test_a_figure_varies_what_it_is_about() -> None:
    trials = find_target("fedplcc/fig4", "tiny").trials()
    alphas = [trial.values["params"]["alpha"] for trial in trials]
    taus = [trial.values["params"]["temperature"] for trial in trials]
    assert list(zip(alphas, taus, strict=True)) == [
        *((alpha, 0.07) for alpha in (0.125, 0.25, 0.5, 1.0)),
        *((0.5, tau) for tau in (0.03, 0.055, 0.07, 0.1, 0.55)),
    ]
    assert [trial.values["alpha"] for trial in find_target("mp-fedcl/fig8", "stand-in").trials()[::5]] == [
        *(0.1, 0.2, 0.5, 1.0),
        *(0.1, 0.2, 0.5, 1.0),
    ]


def test_cells_are_chosen_by_dataset_setting_and_method() -> None:
    target = find_target("fedproto/table2")
    few = chosen(target, ["n=3", "n=4", "stdev=2"], ["fedavg"])
    assert {(cell.setting, cell.method) for cell in few.cells} == {
        ("n=3;k=100;stdev=2;20 clients", "FedAvg"),
        ("n=4;k=100;stdev=2;20 clients", "FedAvg"),
    }
    assert {cell.method for cell in chosen(target, [], ["fedproto"]).cells} == {"FedProto", "FedProto-mh"}
    assert {cell.method for cell in chosen(target, [], ["FedProto"]).cells} == {"FedProto"}
    assert {cell.method for cell in chosen(target, [], ["FedProto-mh"]).cells} == {"FedProto-mh"}
    assert chosen(target, ["mnist"], []) == target
    either = chosen(find_target("fedsc/table1"), ["cifar10", "NID1 a=0.2", "NID2"], ["fedsc"])  # no cell has both
    assert [cell.setting for cell in either.cells] == ["NID1 a=0.2", "NID2"]


def test_what_there_is_not_is_an_error() -> None:
    target = find_target("fedproto/table2")
    for only, methods in ((["cifar10"], []), ([], ["moon"]), (["n=6"], [])):
        with pytest.raises(UserError, match=r"MNIST|n=3|fedavg"):
            chosen(target, only, methods)
    with pytest.raises(UserError, match="did you mean 'fedsc/table"):
        find_target("fedsc/table9")
    with pytest.raises(UserError, match="reduced"):
        find_target("fedsc/table1", "reduce")
    with pytest.raises(UserError, match="no such cell"):
        chosen(find_target("fedproto/table1"), ["mnist", "stdev=1"], [])
