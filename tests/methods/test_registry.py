"""Methods by name, by file, and what goes wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protofed.errors import UserError
from protofed.methods import METHODS, build_method, describe, method_class, method_names, parameters
from protofed.methods.base import AVERAGING, Method

WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("fedproto", {"lamda": 1.0}, r"'lamda' for --set with --method fedproto: (?s:.*)did you mean 'lam'\?"),
    ("local", {"mu": 1.0}, "'mu' for --set with --method local: there are none"),
    ("fedproto", {"collect": "eval"}, "'eval' for --set collect: .*eval-pass"),
    ("fedproto", {"metric": "l3"}, "'l3' for --set metric: .*emd, l1, l2, mse"),
    ("fedproto", {"share_weights": 1}, "'1' for --set share_weights: .*bool"),
    ("fedproto", {"lam": "1"}, "'1' for --set lam: .*float"),
    ("fedproto", {"lam": -1.0}, "'-1.0' for --set lam: .*0 or more"),
    ("fedprox", {"mu": -0.1}, "'-0.1' for --set mu: .*0 or more"),
    ("fedprox", {"mu": float("nan")}, "'nan' for --set mu: .*finite"),
    ("fedprox", {"mu": True}, "'true' for --set mu: .*float"),
    ("mp-fedcl", {"k": 0}, "'0' for --set k.*1 or more"),
    ("mp-fedcl", {"k": 2.0}, "'2.0' for --set k.*int"),
    ("mp-fedcl", {"temperature": 0}, "'0.0' for --set temperature: .*above 0"),
    ("sp-fedcl", {"k": 2}, "'k' for --set with --method sp-fedcl: "),
    ("sp-fedcl", {"temperature": -1.0}, "'-1.0' for --set temperature: .*above 0"),
    ("dp-fedcl", {"eps": 0}, "'0.0' for --set eps: .*above 0"),
    ("dp-fedcl", {"min_samples": 0}, "'0' for --set min_samples: .*1 or more"),
    ("dp-fedcl", {"contrast": "slots"}, "'slots' for --set contrast: .*none, pooled"),
    ("fedavg", {"averaging": "sample"}, r"for --set averaging: (?s:.*)did you mean 'samples'\?"),
]


@pytest.mark.parametrize(("name", "values", "message"), WRONG)
def test_a_wrong_parameter_is_named_with_what_it_may_be(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build_method(name, values)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fedprot", "did you mean 'fedproto'? `protofed methods` lists them all"),
        ("mpfedcl", "did you mean 'mp-fedcl'? `protofed methods` lists them all"),
        ("xyz", "`protofed methods` lists them all"),
    ],
)
def test_a_misspelt_method_gets_a_suggestion(name: str, message: str) -> None:
    with pytest.raises(UserError) as error:
        build_method(name, {})
    assert error.value.hint == message
    assert f"'{name}' for --method" in str(error.value)


def test_values_arrive_and_an_integer_serves_as_a_number() -> None:
    method = build_method("fedproto", {"lam": 2, "metric": "l1", "share_weights": True})
    assert [getattr(method, name) for name in ("lam", "metric", "share_weights", "weighting")] == [
        2.0,
        "l1",
        True,
        "uniform",
    ]
    assert isinstance(getattr(method, "lam"), float)  # noqa: B009 - Method has no such field


@pytest.mark.parametrize("name", METHODS)
def test_every_method_describes_itself(name: str) -> None:
    about = describe(name)
    assert list(about) == ["name", "description", "paper", "link", "up", "down", "score", "parameters", "help"]
    assert about["name"] == name == method_class(name).name
    assert all(about[item] for item in ("description", "paper", "up", "down"))
    assert about["link"].startswith("https://") or name == "local"
    model, test, rule = about["score"].split("/")
    assert model in ("own", "global")
    assert test in ("own", "all")
    assert rule in ("head", "nearest", method_class(name).rule)
    assert about["parameters"].keys() == about["help"].keys() == parameters(method_class(name)).keys()
    assert all(about["help"].values())
    assert about["parameters"] == {item: getattr(build_method(name, {}), item) for item in about["parameters"]}


def test_the_papers_values_are_the_defaults() -> None:
    assert describe("mp-fedcl")["parameters"].items() >= {"k": 2, "temperature": 0.07, "contrast": "slots"}.items()
    assert describe("fedproto")["parameters"].items() >= {"lam": 1.0, "metric": "mse", "weighting": "uniform"}.items()
    assert describe("fedprox")["parameters"]["mu"] == 0.01
    assert describe("dp-fedcl")["parameters"].items() >= {"eps": 0.5, "min_samples": 5}.items()
    assert "collect" not in describe("fedavg")["parameters"]


def test_names_are_listed_ours_first() -> None:
    assert method_names()[: len(METHODS)] == list(METHODS)
    with pytest.raises(AttributeError):
        build_method("fedavg", {}).averaging = "uniform"  # type: ignore[attr-defined]


MINE = '''
from dataclasses import dataclass
from typing import ClassVar
from protofed.methods.fedavg import FedAvg

@dataclass(frozen=True)
class Mine(FedAvg):
    """Mine."""
    name: ClassVar[str] = "mine"
    strength: float = 0.5

class NotAMethod:
    pass

class Undecorated(FedAvg):
    strength: float = 0.5

a_number = 3
'''


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(MINE)
    (tmp_path / "broken.py").write_text("import does_not_exist_anywhere")
    return str(tmp_path / "mine.py")


def test_a_method_can_come_from_a_file(mine: str) -> None:
    method = build_method(f"{mine}:Mine", {"strength": 2, "averaging": "uniform"})
    assert isinstance(method, Method)
    assert (method.name, getattr(method, "strength")) == ("mine", 2.0)  # noqa: B009
    about = describe(f"{mine}:Mine")
    assert about["parameters"] == {"averaging": "samples", "norm": "mean", "strength": 0.5}
    assert (about["help"]["averaging"], about["help"]["strength"]) == (AVERAGING, "")
    with pytest.raises(UserError, match=r"strenth(?s:.*)did you mean 'strength'\?"):
        build_method(f"{mine}:Mine", {"strenth": 1.0})


@pytest.mark.parametrize("name", ["NotAMethod", "a_number"])
def test_what_is_not_a_method_is_refused(mine: str, name: str) -> None:
    with pytest.raises(UserError, match=r"must name a class that extends protofed\.methods\.base\.Method"):
        build_method(f"{mine}:{name}", {})


def test_a_forgotten_decorator_is_refused_because_its_fields_would_be_ignored(mine: str) -> None:
    with pytest.raises(UserError, match=r"lacks the decorator @dataclass"):
        build_method(f"{mine}:Undecorated", {})


def test_a_wrong_file_is_named(mine: str) -> None:
    for spec, message in [
        (f"{mine}:Absent", "has no Absent"),
        (mine, "path/to/file.py:Name"),
        ("no/such.py:Mine", "there is no file no/such.py"),
        (mine.replace("mine.py", "broken.py:X"), "ModuleNotFoundError.*does_not_exist_anywhere"),
    ]:
        with pytest.raises(UserError, match=message):
            build_method(spec, {})
