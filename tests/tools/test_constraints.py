"""Versions and hashes of every package: as uv finds them on a small index, and as they are in this folder."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.package_index import PackageIndex
from tools.constraints import HEAD, ROOT, SETS, Pin, constraints, pins, write

PROJECT = """
[project]
name = "project"
version = "1"
requires-python = ">=3.11"
dependencies = ["whole>=1"]
[project.optional-dependencies]
flower = ["petal"]
test = ["project[flower]", "tester; sys_platform == 'win32'"]
"""


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageIndex:
    """An index with four packages, which uv asks instead of the one that it is set up with."""
    pytest.importorskip("uv")
    index = PackageIndex(tmp_path / "index")
    index.add("whole", "1.0", ("part>=1",))
    for name in ("part", "petal", "tester"):
        index.add(name, "1.0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", index.address)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("UV_INDEX", "UV_FIND_LINKS", "UV_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    return index


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project that needs the packages of the index."""
    folder = tmp_path / "project"
    (folder / "requirements").mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT)
    return folder


def listed(project: Path, name: str) -> dict[str, Pin]:
    """The packages of a file with hashes."""
    return {pin.name: pin for pin in pins((project / f"requirements/{name}.txt").read_text())}


def test_every_package_of_every_system_is_pinned_with_all_its_files(index: PackageIndex, project: Path) -> None:
    hashes = {index.add("part", "1.0"), index.add("part", "1.0", tag="cp399-cp399-win_arm64")}
    write(project, [])
    versions = "part==1.0\npetal==1.0\ntester==1.0\nwhole==1.0\n"
    assert (project / "constraints.txt").read_text() == HEAD + versions
    assert {name: [*listed(project, name)] for name in SETS} == {
        "all": ["part", "petal", "tester", "whole"],
        "base": ["part", "whole"],
        "flower": ["part", "petal", "whole"],
    }
    assert listed(project, "all")["tester"].marker == "sys_platform == 'win32'"
    for name in SETS:
        assert {*listed(project, name)["part"].hashes} == hashes
        assert index.address not in (project / f"requirements/{name}.txt").read_text()


def test_versions_stay_but_for_those_that_are_named(index: PackageIndex, project: Path) -> None:
    write(project, [])
    before = (project / "requirements/all.txt").read_text()
    digests = [index.add(name, "2.0") for name in ("part", "petal")]
    write(project, [])
    assert (project / "requirements/all.txt").read_text() == before
    write(project, ["petal"])
    assert (listed(project, "all")["part"].version, listed(project, "all")["petal"].version) == ("1.0", "2.0")
    assert listed(project, "flower")["petal"].hashes == (digests[1],)
    assert "petal==2.0\n" in (project / "constraints.txt").read_text()


@pytest.mark.slow
def test_pip_takes_what_is_listed_and_nothing_else(index: PackageIndex, project: Path, tmp_path: Path) -> None:
    write(project, [])

    def install(name: str) -> subprocess.CompletedProcess[str]:
        words = ["install", "--require-hashes", "--isolated", "--no-cache-dir", "--index-url", index.address]
        words += ["--target", str(tmp_path / name), "-r", str(project / "requirements/flower.txt")]
        return subprocess.run([sys.executable, "-m", "pip", *words], capture_output=True, text=True, check=False)

    done = install("first")
    assert done.returncode == 0, done.stderr
    assert sorted(path.stem for path in (tmp_path / "first").glob("*.py")) == ["part", "petal", "whole"]
    index.add("part", "1.0", ("tester",))  # the same version, with other contents
    done = install("second")
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not list((tmp_path / "second").glob("*.py"))


def test_a_version_for_some_systems_only_says_for_which() -> None:
    text = "a==1 ; python_version < '3.12' \\\n    --hash=sha256:" + "0" * 64
    text += "\na==2 ; python_version >= '3.12' \\\n    --hash=sha256:" + "1" * 64 + "\nb==1 ; os_name == 'nt'\n"
    found = pins(text)
    assert found[1] == Pin("a", "2", "python_version >= '3.12'", ("1" * 64,))
    assert constraints(found) == HEAD + "a==1 ; python_version < '3.12'\na==2 ; python_version >= '3.12'\nb==1\n"


def test_what_is_no_pin_is_refused() -> None:
    with pytest.raises(ValueError, match="not NAME==VERSION: a>=1"):
        pins("a>=1\n")


def test_the_files_here_agree() -> None:
    all_ = listed(ROOT, "all")
    assert (ROOT / "constraints.txt").read_text() == constraints([*all_.values()]), "make constraints"
    assert all(pin.hashes for pin in all_.values())
    for name in ("base", "flower"):
        for pin in listed(ROOT, name).values():
            assert (pin.version, pin.hashes) == (all_[pin.name].version, all_[pin.name].hashes)
    assert {*listed(ROOT, "base")} < {*listed(ROOT, "flower")} < {*all_}


def test_every_package_that_the_project_names_is_pinned_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {"base": project["dependencies"], "flower": project["optional-dependencies"]["flower"]}
    asked["all"] = [text for extra in project["optional-dependencies"].values() for text in extra]
    for name, texts in asked.items():
        versions = {pin.name: pin.version for pin in listed(ROOT, name).values()}
        for one in map(Requirement, texts):
            if one.name != "protofed":
                assert one.specifier.contains(versions[canonicalize_name(one.name)]), one


def test_no_file_names_a_host() -> None:
    for path in [ROOT / "constraints.txt", *(ROOT / "requirements").iterdir()]:
        assert "://" not in path.read_text()
