"""Which values the papers' tables give to parameters."""

from __future__ import annotations

import pytest

from protofed.methods import METHODS, method_class, parameters
from protofed.studies.paper_parameters import paper_values


def test_the_values_of_a_paper_are_there_with_table_and_dataset() -> None:
    found = {one.value: one.tables for one in paper_values("fedplcc") if one.parameter == "lambda1"}
    assert found[20.0] == {"fedplcc/table3": ["Office-10"]}  # Sec. IV
    assert found[1.0] == {"fedplcc/table4": ["DomainNet-10class"]}
    assert 50.0 not in found  # a value of ours, in a figure


def test_a_method_of_several_papers_has_the_tables_of_all() -> None:
    (lam,) = (one for one in paper_values("fedproto") if (one.parameter, one.value) == ("lam", 0.1))
    assert lam.tables["fedproto/table1"] == ["CIFAR10"]
    papers = {table.partition("/")[0] for one in paper_values("fedproto") for table in one.tables}
    assert papers == {"fedplcc", "fedproto", "fedsc", "mp-fedcl", "pfllib"}


@pytest.mark.parametrize("method", METHODS)
def test_every_value_is_of_a_parameter(method: str) -> None:
    assert {one.parameter for one in paper_values(method)} <= {*parameters(method_class(method))}
