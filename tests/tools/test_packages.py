"""What an installation needs: complete, with licences, and as a bill of materials that CycloneDX's schema accepts."""

from __future__ import annotations

import json
from importlib import metadata

import pytest
from packaging.utils import canonicalize_name

from protofed.internal.version import VERSION
from tools import packages
from tools.constraints import Pin
from tools.lowest import PYPROJECT, lowest

GRAPH = packages.needed()


def test_every_package_that_is_needed_is_there_with_those_that_it_needs() -> None:
    direct = {canonicalize_name(line.partition("==")[0]) for line in lowest(PYPROJECT.read_text()).splitlines()}
    assert GRAPH["protofed"] == direct
    assert not {"pytest", "flwr", "pandas"} & {*GRAPH}
    assert {"numpy", "scipy"} <= GRAPH["scikit-learn"]
    assert {name for needed in GRAPH.values() for name in needed} == {*GRAPH} - {"protofed"}


def test_a_table_says_the_licence_of_each() -> None:
    rows = packages.licences(GRAPH).splitlines()[2:]
    assert [canonicalize_name(row.split()[1]) for row in rows] == [name for name in GRAPH if name != "protofed"]
    assert not [row for row in rows if "not said" in row]


def test_the_bill_has_each_package_once_and_who_needs_whom() -> None:
    bill = packages.bill_of_materials(GRAPH, [])
    assert bill["metadata"]["component"]["purl"] == f"pkg:pypi/protofed@{VERSION}"
    refs = {bill["metadata"]["component"]["bom-ref"], *(one["bom-ref"] for one in bill["components"])}
    assert len(refs) == len(GRAPH) == len(bill["components"]) + 1
    assert {one["ref"] for one in bill["dependencies"]} == refs
    assert {ref for one in bill["dependencies"] for ref in one["dependsOn"]} < refs
    edges = {one["ref"].split("/")[1].split("@")[0]: len(one["dependsOn"]) for one in bill["dependencies"]}
    assert edges == {name: len(needed) for name, needed in GRAPH.items()}


def test_hashes_are_those_of_the_version_that_is_installed() -> None:
    version = metadata.version("numpy")
    listed = [Pin("numpy", version, "", ("0" * 64, "1" * 64)), Pin("scipy", "0.0.1", "", ("2" * 64,))]
    found = {one["name"]: one for one in packages.bill_of_materials(GRAPH, listed)["components"]}
    (files,) = found["numpy"]["externalReferences"]
    assert [one["content"] for one in files["hashes"]] == ["0" * 64, "1" * 64]
    assert not [name for name, one in found.items() if "externalReferences" in one and name != "numpy"]


@pytest.mark.slow
def test_the_schema_of_cyclonedx_accepts_the_bill() -> None:
    versions = pytest.importorskip("cyclonedx.schema").SchemaVersion
    validator = pytest.importorskip("cyclonedx.validation.json").JsonStrictValidator(versions.V1_5)
    assert validator.validate_str(packages.sbom()) is None
    wrong = json.loads(packages.sbom())
    del wrong["components"][0]["name"]
    assert validator.validate_str(json.dumps(wrong)) is not None
