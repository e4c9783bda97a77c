"""Every command on every page is one that the command line takes, and every other word of shell is there."""

from __future__ import annotations

import importlib
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import typer
from click.exceptions import UsageError

from protofed.cli import app
from tests.support.pages import PAGES, ROOT, commands, fenced, named, spoken

TOOLS = {"awk", "cat", "cd", "cp", "echo", "git", "grep", "jobs", "kill", "podman", "sed", "wait"}
TOOLS |= {"pip", "python", "torchrun"}
"""Programs of a system that pages call besides."""


@cache
def command_line() -> Any:
    """All commands, made once."""
    return typer.main.get_command(app)


def parse(words: list[str]) -> None:
    """Parse a call as it is done before anything runs: commands, options, what is required, and types."""
    command, name, context = command_line(), "protofed", None
    while hasattr(command, "commands"):
        context = command.make_context(name, words, parent=context)
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, words, parent=context)


def unknown(words: list[str]) -> list[str]:
    """What of a synopsis, which nobody can type, the command line does not know: commands and options."""
    command = command_line()
    while hasattr(command, "commands"):
        if not words or not re.match(r"[a-z]", words[0]):
            return []
        name, *words = words
        if name not in command.commands:
            return [name]
        command = command.commands[name]
    known = {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {"--help"}
    flags = [flag[1] for word in words if (flag := re.match(r"\[?(--\w[\w-]*)", word))]
    return [flag for flag in flags if flag not in known]


def is_synopsis(words: list[str]) -> bool:
    """Whether words stand for others: options in brackets, and dots."""
    return any(re.search(r"^\[|…|\.\.\.", word) for word in words)


def called(page: Path, program: str) -> list[list[str]]:
    """The words after the name of a program, of each of its calls in the shell of a page."""
    calls = [words for block in fenced(page, "sh") for words in commands(block)]
    return [words[1:] for words in calls if words[0] == program]


WITH_SHELL = [page for page in PAGES if fenced(page, "sh") and page.parent.name != "commands"]
"""Pages of shell, but for those that are written from the command line itself."""


def wrong(words: list[str]) -> object:
    """Why the command line does not take a call."""
    if is_synopsis(words):
        return unknown([word for word in words if word != "…"])
    try:
        parse(words)
    except UsageError as error:
        return error.format_message()
    return None


@pytest.mark.parametrize("page", [page for page in PAGES if called(page, "protofed")], ids=named)
def test_the_commands_of_a_page_are_taken(page: Path) -> None:
    assert [(words, why) for words in called(page, "protofed") if (why := wrong(words))] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_in_sentences_are_there(page: Path) -> None:
    """A sentence may name a command without what it needs."""
    told = [words.split() for words in spoken(page) if words.strip()]
    assert [(words, none) for words in told if words[0] == "protofed" and (none := unknown(words[1:]))] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*" ".join(re.findall(r"^([a-z -]+):", makefile, flags=re.MULTILINE)).split()}
    made = [words[1:2] for words in told if words[0] == "make"] + [words[:1] for words in called(page, "make")]
    assert {name for names in made for name in names} <= targets


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("protofed run --method fedavg --colour red", "No such option '--colour'"),
        ("protofed deploy begin DIR", "No such command 'begin'"),
        ("protofed onboard model", "Missing option '--data'"),
        ("protofed export run model --out model", "unexpected extra argument"),
        ("protofed run [OPTIONS] --no-such x", "--no-such"),
        ("protofed no-such DIR…", "no-such"),
    ],
)
def test_a_wrong_command_is_found(call: str, why: str) -> None:
    ((_, *words),) = commands(call)
    assert why in str(wrong(words))


def test_lines_of_shell_are_read() -> None:
    block = "B=1,2\nB=$B,3\nC=\"--seed 1\"\ncat > f <<'END'\nprotofed no\nEND\nprotofed run \\\n  $C --set $B # why\n"
    assert list(commands(block))[-1] == ["protofed", "run", "--seed", "1", "--set", "1,2,3"]
    assert list(commands("(echo 'a | b'; protofed ui &)")) == [["echo", "a | b"], ["protofed", "ui"]]


@pytest.mark.parametrize("page", WITH_SHELL, ids=named)
def test_the_other_programs_of_a_page_are_there(page: Path) -> None:
    """Our own modules exist, with their options; programs of a system are few."""
    for words in (words for block in fenced(page, "sh") for words in commands(block)):
        if words[0] in ("protofed", "make") or re.match(r"\w+=|\$|\.venv/bin/", words[0]):
            continue
        assert words[0] in TOOLS, words
        if words[:2] == ["python", "-m"] and words[2].startswith(("benchmarks", "tools")):
            spec = find_spec(words[2])
            assert spec is not None, words[2]
            main = importlib.import_module(f"{words[2]}.__main__") if spec.submodule_search_locations else None
            source = Path(str(main.__file__ if main else spec.origin)).read_text(encoding="utf-8")
            flags = [word.partition("=")[0] for word in words[3:] if word.startswith("--")]
            assert [flag for flag in flags if f'"{flag}"' not in source] == [], words
