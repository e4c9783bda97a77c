"""`protofed split`, `methods`, `models`, `datasets` and every `--help`."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import typer
from torch import Tensor
from typer.models import ArgumentInfo

from protofed.cli import app
from protofed.data import SPLITS, Dataset, Split
from protofed.experiment import Experiment, Group, flag_of, options
from protofed.methods import METHODS
from protofed.studies.study import SEEDS
from protofed.studies.workers import ON_A_GPU
from tests.support.command_line import invoke, refused, succeed

PNG = b"\x89PNG\r\n\x1a\n"


def test_split_shows_a_table_and_draws_a_picture(tmp_path: Path) -> None:
    outcome = succeed(tmp_path, "split", "--clients", "4", "--train-size", "200", "--out", "who.png")
    assert (tmp_path / "who.png").read_bytes().startswith(PNG)
    assert outcome.err == "heat map: who.png\n"
    rows = [line.split() for line in outcome.out.splitlines() if line[:1].isdecimal()]
    assert [row[0] for row in rows] == ["0", "1", "2", "3"]
    for row in rows:
        counts = [int(cell) if cell != "·" else 0 for cell in row[1:12]]
        assert sum(counts[:10]) == counts[10]
    assert sum(int(row[11]) for row in rows) == 200


@pytest.mark.parametrize("split", ["iid", "dirichlet", "quantity"])
def test_split_counts_sum_to_the_data(tmp_path: Path, split: str) -> None:
    options = ("--split", split, "--clients", "6", "--train-size", "300", "--json")
    shown = json.loads(succeed(tmp_path, "split", *options).out)
    assert shown["classes"] == list("0123456789")
    assert [len(row) for row in shown["counts"]] == [10] * 6
    assert sum(map(sum, shown["counts"])) == 300
    assert (tmp_path / "split.png").read_bytes().startswith(PNG)


def test_validation_data_is_not_counted(tmp_path: Path) -> None:
    options = ("--split", "iid", "--train-size", "300", "--clients", "3", "--val-fraction", "0.2", "--json")
    assert sum(map(sum, json.loads(succeed(tmp_path, "split", *options).out)["counts"])) == 240


def test_models_have_the_published_sizes(tmp_path: Path) -> None:
    outcome = succeed(tmp_path, "models", "--json")
    sizes = {row["name"]: row["parameters"] for row in json.loads(outcome.out)}
    published = {"mlp": 798474, "cnn": 21840, "cnn-18": 19738, "cnn-22": 23942, "head": 133898, "resnet10": 4903242}
    assert {name: sizes[name] for name in published} == published
    assert {"resnet18", "mobilenet-v2", "protonet"} <= set(sizes)


def test_the_table_of_models_shows_the_published_sizes(tmp_path: Path) -> None:
    shown = succeed(tmp_path, "models").out
    assert all(size in shown for size in ("798,474", "21,840", "133,898", "4,903,242"))


def test_methods_are_listed_with_their_parameters(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(succeed(tmp_path, "methods", "--json").out)}
    assert set(rows) >= {"local", "fedavg", "fedprox", "fedproto", "mp-fedcl", "sp-fedcl", "dp-fedcl"}
    assert rows["mp-fedcl"]["parameters"]["k"] == 2
    for row in rows.values():
        assert all(row[name] for name in ("description", "paper", "up", "down", "score"))
    assert all(name in succeed(tmp_path, "methods").out for name in rows)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal as wide as they always were."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", ["methods", "datasets"])
def test_a_list_has_a_line_each_at_80_columns(tmp_path: Path, command: str) -> None:
    names = [row["name"] for row in json.loads(succeed(tmp_path, command, "--json").out)]
    table, _, _ = succeed(tmp_path, command).out.partition("\n\n")
    _, _, *lines = table.splitlines()
    assert [line.split()[0] for line in lines] == names
    assert max(map(len, lines)) <= 80


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("command", ["models", "splits", "attacks", "defences"])
def test_other_lists_fit_80_columns_and_lose_no_word(tmp_path: Path, command: str) -> None:
    shown = succeed(tmp_path, command).out
    assert max(map(len, shown.splitlines())) <= 80
    words = shown.split()
    for row in json.loads(succeed(tmp_path, command, "--json").out):
        assert row["name"] in words
        assert (
            {*list(row.values())[-1].split()} <= {*words} if command != "models" else f"{row['parameters']:,}" in words
        )


@pytest.mark.usefixtures("narrow")
def test_a_method_is_shown_in_full(tmp_path: Path) -> None:
    shown = succeed(tmp_path, "methods", "fedplcc").out
    told = json.loads(succeed(tmp_path, "methods", "fedplcc", "--json").out)
    for key in ("paper", "link", "score", "up", "down"):
        assert told[key] in " ".join(shown.split())
    lines = [line.split() for line in shown.splitlines()]
    for name, value in told["parameters"].items():
        assert [name, "null" if value is None else str(value)] in [line[:2] for line in lines]
        assert told["help"][name].split()[0] in shown
    assert ["lambda1", "20.0", "fedplcc/table3", "(Office-10)"] in lines
    assert {"parameter": "lambda1", "value": 20.0, "tables": {"fedplcc/table3": ["Office-10"]}} in told["papers"]


@pytest.mark.usefixtures("narrow")
def test_a_dataset_is_shown_in_full(tmp_path: Path) -> None:
    shown = succeed(tmp_path, "datasets", "digit-domains").out
    for part in ("scanned, inverted, texture, printed", "3×32×32", "1,600", "matplotlib's fonts", "not needed"):
        assert part in shown
    assert json.loads(succeed(tmp_path, "datasets", "mnist", "--json").out)["terms"] == "CC BY-SA 3.0"
    assert "missing" in succeed(tmp_path, "datasets", "mnist").out


@pytest.mark.parametrize(
    ("command", "wrong", "right"), [("methods", "fedprot", "fedproto"), ("datasets", "mnst", "mnist")]
)
def test_an_unknown_name_is_an_error_with_a_suggestion(tmp_path: Path, command: str, wrong: str, right: str) -> None:
    outcome = invoke(tmp_path, command, wrong)
    assert (outcome.code, outcome.out) == (2, "")
    assert f"did you mean {right!r}?" in outcome.err


def test_datasets_say_whether_their_files_are_there(tmp_path: Path) -> None:
    rows = {row["name"]: row for row in json.loads(succeed(tmp_path, "datasets", "--json").out)}
    assert set(rows) >= {"digits", "digit-domains", "mnist"}
    assert (rows["digits"]["present"], rows["digits"]["train"] + rows["digits"]["test"]) == (True, 1797)
    assert len(rows["digit-domains"]["domains"]) >= 4
    assert rows["mnist"]["present"] is False
    assert "--data-dir" in rows["mnist"]["reason"]


def test_datasets_tell_what_is_not_as_published(tmp_path: Path) -> None:
    shown = succeed(tmp_path, "datasets")
    assert "synth-digits: drawn here" in shown.out
    assert "folder:PATH" in shown.out
    rows = json.loads(succeed(tmp_path, "datasets", "--json").out)
    assert all(row["terms"] and row["shape"] and row["classes"] for row in rows)


COMMANDS = (
    *("run", "compare", "resume", "split", "sweep", "choose-k", "reproduce", "methods", "models", "datasets"),
    *("export", "predict", "onboard", "add-class", "playground"),
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(tmp_path: Path, command: str) -> None:
    outcome = succeed(tmp_path, command, "--help")
    assert outcome.out.startswith(f"Usage: protofed {command}")
    assert outcome.err == ""


def commands() -> list[Any]:
    """The words of every command, and what it calls."""
    below: list[Any] = [group.typer_instance for group in app.registered_groups]
    alone: list[Any] = [((one.name,), one.callback) for one in app.registered_commands]
    return alone + [((group.info.name, one.name), one.callback) for group in below for one in group.registered_commands]


@pytest.mark.parametrize(("words", "callback"), commands())
def test_help_says_what_every_argument_is(tmp_path: Path, words: tuple[str, ...], callback: Callable[..., Any]) -> None:
    shown = " ".join(succeed(tmp_path, *words, "--help").out.split())
    assert "\\" not in shown
    for parameter in inspect.signature(callback, eval_str=True).parameters.values():
        for said in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(said, ArgumentInfo):
                assert said.help
                assert said.help in shown


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_lists_every_command(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    outcome = succeed(tmp_path, *arguments)
    for command in COMMANDS:
        (line,) = [line for line in outcome.out.splitlines() if line.startswith(f"  {command} ")]
        assert line.endswith(".")
        assert not line.endswith("...")


def test_help_of_run_has_a_flag_for_every_field_with_its_default(tmp_path: Path) -> None:
    shown = " ".join(succeed(tmp_path, "run", "--help").out.split()).replace("- ", "-")  # words are broken there
    for field in dataclasses.fields(Experiment):
        if field.name == "params":
            continue
        assert f"{flag_of(field.name)} " in shown
        assert field.metadata["help"].replace("- ", "-") in shown
        if field.default is not None:
            assert f"[default: {field.default}]" in shown


def sections(shown: str) -> dict[str, list[str]]:
    """The flags under each heading of a help text."""
    found: dict[str, list[str]] = {}
    for line in shown.splitlines():
        if line.endswith(":") and not line.startswith(" "):
            found[line[:-1]] = []
        elif flag := re.match(r"  (--[\w-]+)", line):
            found[[*found][-1]].append(flag[1])
    return found


@pytest.mark.parametrize("command", ["run", "compare", "sweep", "choose-k", "split", "reproduce", "flower-app"])
def test_help_shows_options_by_group(tmp_path: Path, command: str) -> None:
    found = sections(succeed(tmp_path, command, "--help").out)
    assert found.pop("Options")[-1] == "--help"
    found.pop("Arguments", None)
    groups = [group.capitalize() for group in get_args(Group)]
    assert [*found] == [title for title in groups if title in found]
    for title, flags in found.items():
        mine = [flag_of(name) for name in options(title.lower())]  # type: ignore[arg-type]
        assert flags == [flag for flag in mine if flag in flags]
    assert ("Trust" in found) == (command not in ("split", "reproduce"))


def test_a_commands_own_options_come_first(tmp_path: Path) -> None:
    found = sections(succeed(tmp_path, "compare", "--help").out)
    assert next(iter(found)) == "Options"
    assert found["Options"][0] == "--method"
    assert "--method" not in found["Training"]


def test_what_split_and_reproduce_ask(tmp_path: Path) -> None:
    looked = sections(succeed(tmp_path, "split", "--help").out)
    assert looked["Data"] == [flag_of(name) for name in options("data")]
    assert (looked["Training"], looked["Machine"]) == (["--seed"], ["--data-dir"])
    asked = sections(succeed(tmp_path, "reproduce", "--help").out)
    assert asked["Machine"] == [flag_of(name) for name in options("machine")]
    assert asked["Training"] == ["--seed", "--precision", "--deterministic", "--eval-every"]
    assert asked["Model"] == ["--encoder"]


@pytest.mark.parametrize("words", [words for words, _ in commands()], ids=" ".join)
def test_help_ends_with_an_example_that_the_command_understands(tmp_path: Path, words: tuple[str, ...]) -> None:
    last = succeed(tmp_path, *words, "--help").out.splitlines()[-1]
    begin, _, rest = last.partition(f"  Example: protofed {' '.join(words)}")
    assert begin == ""
    command: Any = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]
    command.make_context(words[-1], rest.split())


def test_a_new_split_is_a_function_and_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def halves(dataset: Dataset, _: Split, clients: int, seed: int) -> list[Tensor]:  # noqa: ARG001
        return list(torch.arange(len(dataset.train)).tensor_split(clients))

    monkeypatch.setitem(SPLITS, "halves", halves)
    assert "halves" in [row["name"] for row in json.loads(succeed(tmp_path, "splits", "--json").out)]
    shown = json.loads(
        succeed(tmp_path, "split", "--split", "halves", "--clients", "2", "--train-size", "99", "--json").out
    )
    assert [sum(row) for row in shown["counts"]] == [50, 49]


def test_help_of_compare_has_the_default_number_of_seeds_and_jobs(tmp_path: Path) -> None:
    shown = " ".join(succeed(tmp_path, "compare", "--help").out.split())
    assert f"How many seeds, from --seed on. [default: {SEEDS}]" in shown
    assert f"[default: one per core, or up to {ON_A_GPU} on a GPU]" in shown


def test_help_does_not_wait_for_torch() -> None:
    show = "import sys; from protofed.cli import app; app(['--help'], standalone_mode=False)"
    code = f"{show}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, stdout=subprocess.DEVNULL).returncode == 0


def test_a_terminal_shows_something_before_torch_is_loaded() -> None:
    show = """
import io, sys
from protofed.cli import main

class Terminal(io.StringIO):
    isatty = lambda self: True
    def write(self, text):
        print(["torch" in sys.modules, text])

sys.stderr = Terminal()
sys.argv = ["protofed", "compare", "--method", "fedprotto"]
main()
"""
    done = subprocess.run([sys.executable, "-c", show], check=False, capture_output=True, text=True)
    first, back, blank, again, error, *_ = map(ast.literal_eval, done.stdout.splitlines())
    assert (first, back) == ([False, "getting ready …"], [False, "\r"])
    assert (blank, again) == ([True, " " * len(first[1])], [True, "\r"])  # nothing of it is left
    assert error[1].startswith("error: invalid value 'fedprotto'")


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "--method"),
        pytest.param(("run", "--method"), marks=pytest.mark.slow),
        pytest.param(("sweep", "--grid", "k=1", "--method"), marks=pytest.mark.slow),
    ],
)
def test_a_pipe_has_a_line_before_torch_is_loaded(words: tuple[str, ...], tmp_path: Path) -> None:
    show = f"""
import io, sys
from protofed.cli import main

class Pipe(io.StringIO):
    def write(self, text):
        print(["torch" in sys.modules, text])

sys.stderr = Pipe()
sys.argv = {["protofed", *words, "fedprotto"]!r}
main()
"""
    done = subprocess.run([sys.executable, "-c", show], check=False, capture_output=True, text=True, cwd=tmp_path)
    first, end, error, *_ = map(ast.literal_eval, done.stdout.splitlines())
    assert (first, end) == ([False, "getting ready …"], [False, "\n"])
    assert error[1].startswith("error: invalid value 'fedprotto'")  # and nothing was said twice


def test_the_matrix_has_a_row_a_method(tmp_path: Path) -> None:
    rows = {row["method"]: row for row in json.loads(succeed(tmp_path, "methods", "--matrix", "--json").out)}
    assert list(rows) == list(METHODS)
    told = {name: (row["stays at the client"], row["architectures"], row["secure sums"]) for name, row in rows.items()}
    assert told["fedavg"] == ("nothing", "one", "yes")
    assert told["fedproto"] == ("all weights", "mixed", "yes")
    assert told["fedper"] == ("head", "one", "yes")
    assert told["fedbn"] == ("BatchNorm", "one", "yes")
    assert told["moon"] == ("its last model", "one", "yes")
    assert told["scaffold"] == ("memory", "one", "yes")
    stays = {"fedbabu": "head", "lg-fedavg": "body", "fedgh": "all weights", "fedncm": "nothing", "feddyn": "memory"}
    assert {name: rows[name]["stays at the client"] for name in stays} == stays
    assert rows["fccl-plus"]["needs"] == "public images"
    assert rows["fed3r"]["needs"] == "a frozen encoder, a linear head"
    private = {
        "fedavg": "client, example",
        "fedlc": "client",
        "fedrod": "client",
        "fedetf": "client",
        "fedcof": "example",
    }
    assert {name: rows[name]["private"] for name in private} == private
    assert rows["fedcda"]["private"] == "no"
    assert {row["over a network"] for row in rows.values()} == {"yes"}
    source = Path(__file__).parents[2] / "src/protofed/methods"
    for name, files in (("fedlc", ["fedlc.py"]), ("fedcda", ["fedcda.py", "server/cross_round.py"])):
        lines = sum(len((source / file).read_text(encoding="utf-8").splitlines()) for file in files)
        assert rows[name]["lines"] == str(lines)
    shown = succeed(tmp_path, "methods", "--matrix").out
    assert all(name in shown for name in METHODS)
    assert all(said in shown for said in ("up | down | paper", "class means | mean"))
    assert "it shows all methods" in refused(invoke(tmp_path, "methods", "fedavg", "--matrix"))
