"""An experiment checks its values, survives YAML, and is the only place with defaults."""

from __future__ import annotations

import dataclasses
import inspect
from pathlib import Path
from typing import Any, get_args

import pytest
import typer

from protofed import api
from protofed.cli import app
from protofed.errors import UserError
from protofed.experiment import Experiment, Group, flag_of, options
from protofed.internal.schema import Bounds, check_type
from protofed.internal.yaml_files import parse_yaml, read_yaml

FIELDS = {item.name: item for item in dataclasses.fields(Experiment)}

OTHER: dict[str, Any] = {
    **{"method": "fedproto", "params": {"lam": 0.5, "metric": "l2"}, "dataset": "mnist", "data_dir": "some where/ü"},
    **{"public": "digits", "motion": False},
    **{"train_size": 7, "split": "ways", "alpha": 1e-5, "min_size": 3, "balance": False, "ways": 4, "half_width": 0},
    **{"shots": 9, "test_shots": 15, "long_tail": 10.0, "val_fraction": 0.25, "clients": 8, "participation": 0.1},
    **{"model": "cnn"},
    **{"rounds": 2, "epochs": 3, "batch_size": 4, "lr": 1e-3, "lr_decay": 0.95, "momentum": 0.0, "weight_decay": 1e-4},
    **{"seed": 11, "engine": "stacked", "device": "cpu", "precision": "float64", "time_budget": 1.5},
    **{"image_size": 16, "normalise": "imagenet", "augment": "crop", "drift": "sudden", "drift_round": 2, "novel": 2},
    **{"delays": "1,2.5", "tokenizer": "pieces.json", "vocabulary": 50, "length": 16},
    **{"start": "weights.safetensors", "encoder": "some encoder.safetensors"},
    **{"privacy": "client", "clip": 2.0, "noise": 1.5, "epsilon": 4.0, "delta": 1e-6, "min_count": 3},
    **{"attack": "sign-flip", "attackers": 0.3, "defence": "default", "secure": True, "trusted": "0,3"},
    **{"label": "ill", "client_column": "ward", "domain_column": "hospital", "test_column": "when", "drop": "name,id"},
    **{"categories": "code", "missing": "-9", "fill": "drop-row"},
    **{"episode_ways": 2, "episode_shots": 1, "episodes": 60, "metrics": "f1,auc", "val_metric": "f1"},
    **{"shards": 3, "unseen": "sketch", "test_fraction": 0.25},
    **{"checkpoint_every": 5, "width": 3, "threads": 2, "deterministic": True, "eval_every": 4, "patience": 6},
}
"""A value for every field that is not its default, but for those that exclude another."""
PRIVATE = ("clip", "noise", "epsilon", "delta")
"""What goes with --privacy alone."""
SYNCHRONOUS = ("participation", "drift", "drift_round", "defence", "trusted", "privacy", *PRIVATE, "secure")
EXCLUSIVE = {
    "steps": (("epochs",), 20),
    "optimiser": (("momentum",), "adam"),
    "clients_per_domain": (("clients",), "3,1"),
    "async_": (SYNCHRONOUS, 3),
}
"""What goes with the defaults of other fields alone."""


def test_every_field_survives_yaml(tmp_path: Path) -> None:
    assert {*OTHER, *EXCLUSIVE} == set(FIELDS)
    assert all(value != FIELDS[name].default for name, value in OTHER.items())
    instead = {name: value for name, (_, value) in EXCLUSIVE.items()}
    instead |= {"split": "domains"}
    instead |= {other: FIELDS[other].default for others, _ in EXCLUSIVE.values() for other in others}
    for values in (OTHER, OTHER | instead):
        _assert_survives(Experiment(**values), tmp_path)


def _assert_survives(experiment: Experiment, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(experiment.to_yaml(), encoding="utf-8")
    assert Experiment.from_mapping(read_yaml(tmp_path / "config.yaml")) == experiment


def test_the_defaults_survive_yaml(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(Experiment().to_yaml())
    assert Experiment.from_mapping(read_yaml(tmp_path / "config.yaml")) == Experiment()


def test_every_field_has_help() -> None:
    for item in FIELDS.values():
        assert item.metadata["help"].endswith("."), item.name


def test_every_option_is_in_one_group() -> None:
    grouped = [name for group in get_args(Group) for name in options(group)]
    assert sorted(grouped) == sorted(FIELDS)
    assert options() == tuple(FIELDS)
    assert all(options(group) for group in get_args(Group))


def test_the_machines_options_are_those_that_change_no_result() -> None:
    """A run over a network may go on with others of these, and of these alone."""
    assert options("machine") == ("data_dir", "engine", "width", "device", "threads", "checkpoint_every", "motion")


EDGES: list[tuple[str, float, float, str]] = [
    *(
        (name, 1, 0, "1 or more")
        for name in ("min_size", "ways", "shots", "test_shots", "shards", "long_tail", "clients")
    ),
    *(
        (name, 1, 0, "1 or more")
        for name in ("rounds", "epochs", "steps", "batch_size", "episode_shots", "eval_every", "patience", "async_")
    ),
    *((name, 1, 0, "1 or more") for name in ("checkpoint_every", "width", "threads")),
    *((name, 1e-300, 0, "above 0") for name in ("alpha", "lr", "lr_decay", "clip", "epsilon", "time_budget")),
    *((name, 0, -1, "0 or more") for name in ("momentum", "weight_decay", "half_width", "novel", "seed")),
    *((name, 0, -1, "0 or more") for name in ("min_count", "noise")),
    *((name, 2, 1, "2 or more") for name in ("episode_ways", "episodes")),
    *((name, 1e-300, 0, "above 0 and below 1") for name in ("attackers", "delta", "test_fraction")),
    *((name, 0.999, 1, "above 0 and below 1") for name in ("attackers", "delta", "test_fraction")),
    *(("participation", inside, outside, "above 0 and at most 1") for inside, outside in ((1e-300, 0), (1, 1.001))),
    *(("val_fraction", inside, outside, "at least 0 and below 1") for inside, outside in ((0, -0.1), (0.999, 1))),
    *(("vocabulary", inside, outside, "from 1 to 1000000") for inside, outside in ((1, 0), (10**6, 10**6 + 1))),
    *(("length", inside, outside, "from 1 to 32768") for inside, outside in ((1, 0), (2**15, 2**15 + 1))),
    *(("image_size", inside, outside, "from 1 to 1024") for inside, outside in ((1, 0), (1024, 1025))),
]
"""Of every bounded option, at each end: a value that is just allowed, one that is just not, and what is said."""


@pytest.mark.parametrize(("name", "inside", "outside", "words"), EDGES)
def test_an_option_lies_within_its_bounds(name: str, inside: float, outside: float, words: str) -> None:
    private = {"privacy": "client", "clip": 1.0} if name in PRIVATE else {}
    private |= {"noise": 1.0} if name == "epsilon" else {}
    allowed = getattr(Experiment.from_mapping({**private, name: inside}), name)
    assert allowed == inside
    with pytest.raises(UserError) as caught:
        Experiment.from_mapping({**private, name: outside})
    assert str(caught.value) == f"invalid value '{type(allowed)(outside)}' for {flag_of(name)}: it must be {words}"


def test_every_bounded_option_is_tried() -> None:
    bounded = {name for name, item in FIELDS.items() if item.metadata["bounds"] != Bounds()}
    assert {name for name, *_ in EDGES} == bounded


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"drift_round": 1, "drift": "sudden"},
            "invalid value '1' for --drift-round: it must be from 2 to --rounds: one before it",
        ),
        (
            {"drift_round": 101, "drift": "sudden"},
            "invalid value '101' for --drift-round: it must be from 2 to --rounds: one before it",
        ),
        ({"drift_round": 2}, "invalid value '2' for --drift-round: it is the round of --drift sudden"),
        ({"clip": 1.0}, "invalid value '1.0' for --clip: it is for --privacy client or --privacy example"),
        ({"delta": 0.1}, "invalid value '0.1' for --delta: it is for --privacy client or --privacy example"),
        ({"privacy": "client", "noise": 1.0}, "invalid value '1.0' for --noise: without --clip no noise is enough"),
        ({"steps": 5, "epochs": 2}, "invalid value '5' for --steps: give either it or --epochs, which is 2"),
        (
            {"optimiser": "adam", "momentum": 0.9},
            "invalid value '0.9' for --momentum: it is for --optimiser sgd, not adam",
        ),
        (
            {"privacy": "client", "clip": 1.0, "epsilon": 1.0},
            "invalid value '1.0' for --epsilon: without --noise no budget is enough",
        ),
    ],
)
def test_options_that_do_not_go_together_are_refused(values: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.from_mapping(values)
    assert str(caught.value) == said


def test_it_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Experiment().rounds = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("rounds", "3", "invalid value '3' for --rounds: it must be of type int"),
        ("rounds", 3.0, "invalid value '3.0' for --rounds: it must be of type int"),
        ("rounds", True, "invalid value 'true' for --rounds: it must be of type int"),
        ("rounds", None, "missing value for --rounds: it must be of type int"),
        ("lr", "0.1", "invalid value '0.1' for --lr: it must be of type float"),
        ("lr", False, "invalid value 'false' for --lr: it must be of type float"),
        ("lr", float("inf"), "invalid value 'inf' for --lr: it must be a finite number"),
        ("image_size", 100_000, "invalid value '100000' for --image-size: it must be from 1 to 1024"),
        ("image_size", 0, "invalid value '0' for --image-size: it must be from 1 to 1024"),
        ("balance", 1, "invalid value '1' for --balance: it must be of type bool"),
        ("model", 3, "invalid value '3' for --model: it must be of type str"),
        ("data_dir", 3, "invalid value '3' for --data-dir: it must be of type str"),
        ("train_size", "all", "invalid value 'all' for --train-size: it must be of type int"),
        ("split", None, "missing value for --split: it must be of type str"),
        ("engine", None, "missing value for --engine: it must be one of auto, flower-sim, sequential, stacked"),
        ("engine", True, "invalid value 'true' for --engine: it must be one of auto, flower-sim, sequential, stacked"),
        ("params", ["k"], "invalid value '['k']' for --params: it must be of type mapping"),
        ("participation", -0.1, "invalid value '-0.1' for --participation: it must be above 0 and at most 1"),
    ],
)
def test_a_wrong_value_is_named(name: str, value: object, said: str) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.from_mapping({name: value})
    assert str(caught.value) == said


def test_an_int_serves_as_a_float() -> None:
    alpha = Experiment(alpha=1).alpha
    assert (alpha, type(alpha)) == (1.0, float)


@pytest.mark.parametrize("name", ["train_size", "data_dir", "long_tail", "time_budget"])
def test_what_is_optional_may_be_none(name: str) -> None:
    assert getattr(Experiment.from_mapping({name: None}), name) is None


@pytest.mark.parametrize(("name", "meant"), [("ruonds", "rounds"), ("batchsize", "batch_size"), ("learning_rte", None)])
def test_a_misspelt_key_is_an_error_with_a_suggestion(name: str, meant: str | None) -> None:
    with pytest.raises(UserError) as caught:
        Experiment.from_mapping({name: 3})
    assert str(caught.value) == f"invalid value '{name}' for OPTION: there is none of that name"
    suggested = "" if meant is None else f"did you mean {meant!r}? "
    assert caught.value.hint == f"{suggested}`protofed run --help` lists them all"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1e-3", 1e-3), ("-2E+4", -2e4), ("1.5e3", 1.5e3), ("2.e-1", 0.2), ("0.5", 0.5), ("3", 3)),
        *(("1e", "1e"), ("e1", "e1"), ("1e3x", "1e3x"), ("yes", True)),
    ],
)
def test_yaml_reads_numbers_as_people_write_them(text: str, value: object) -> None:
    read = parse_yaml(text)
    assert (read, type(read)) == (value, type(value))


def test_choices_are_checked_in_unions_too() -> None:
    assert check_type("x", None, int | None) is None
    with pytest.raises(UserError, match="'a' for x: "):
        check_type("x", "a", int | None)


def test_defaults_live_in_the_experiment_alone() -> None:
    for name, parameter in inspect.signature(api.run).parameters.items():
        if name in FIELDS:
            assert parameter.default == FIELDS[name].default
    for command in typer.main.get_command(app).commands.values():  # type: ignore[attr-defined]
        for option in command.params:
            if option.name in FIELDS:
                assert option.default is None, f"{command.name} --{option.name}"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: &a [1]\nb: *a", "aliases are not read"),
        ("a: 0x" + "f" * 16, "a number is too large"),
        ("a: !!float x", "it cannot be read"),
        ("a: " + "[" * 5000, "it cannot be read"),
    ],
)
def test_a_file_made_to_do_harm_is_one_line(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=reason) as caught:
        read_yaml(tmp_path / "config.yaml")
    assert len(str(caught.value).splitlines()) == 1


def test_a_whole_number_that_no_float_can_hold_is_named() -> None:
    with pytest.raises(UserError, match=r"for --lr: it must be a finite number"):
        Experiment.from_mapping({"lr": 10**400})


def test_a_plus_in_a_path_joins_nothing(tmp_path: Path) -> None:
    (tmp_path / "a+b.csv").touch()
    assert Experiment(dataset=f"csv:{tmp_path / 'a+b.csv'}").datasets == [f"csv:{tmp_path / 'a+b.csv'}"]
    assert Experiment(dataset="digits+csv:a.csv").datasets == ["digits", "csv:a.csv"]
